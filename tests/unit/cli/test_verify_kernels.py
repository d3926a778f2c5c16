"""`ds4c verify` and `ds4c inspect --kernels` of artifacts for GPUs: no GPU, one line on failure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_package import VARIANTS, binary, package

from ds4c.cli.main import main

TARGETS = pytest.mark.parametrize("target", VARIANTS)


@TARGETS
def test_verify_reads_the_kernels(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package(target).write(tmp_path / "a")
    assert main(["verify", str(tmp_path / "a")]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith(f"kernels    2 for {', '.join(VARIANTS[target])}; up to ")
    assert main(["verify", str(tmp_path / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"] == 2 * len(VARIANTS[target])


def test_a_kernel_renamed_and_hashed_again_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = package("rocm")
    files = {**made.files, "kernels.gfx1100.co": binary("rocm", "gfx1100", name="scale_row")["co"]}
    replace(made, files=files).write(tmp_path / "a")
    for command in (["verify"], ["inspect", "--kernels"]):
        assert main([*command, str(tmp_path / "a")]) == 4
        shown = capsys.readouterr()
        assert shown.out.count("\n") <= 1
        fault = "expected a kernel scale_rows, got scale_row instead"
        assert shown.err == f"error: kernels.gfx1100.co rejected: {fault}; build again\n"


@TARGETS
def test_inspect_prints_a_table(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package(target).write(tmp_path / "a")
    assert main(["inspect", str(tmp_path / "a"), "--kernels"]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()][-1 - 2 * len(VARIANTS[target]) :]
    assert table[0][:3] == ["variant", "function", "threads"]
    registers = "-" if target == "metal" else "40"
    assert table[1][:5] == [VARIANTS[target][0], "scale_rows", "256", registers, "64"]
    assert main(["inspect", str(tmp_path / "a"), "--kernels", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["kernels"]
    assert [r["launches"] for r in rows] == [2, 3] * len(VARIANTS[target])


def test_inspect_shows_only_what_was_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package("metal").write(tmp_path / "a")
    with (tmp_path / "a" / "kernels.metal").open("ab") as file:
        file.write(b" ")
    assert main(["inspect", str(tmp_path / "a"), "--kernels"]) == 4
    assert "kernels.metal" in capsys.readouterr().err
