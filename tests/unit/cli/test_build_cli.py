"""`ds4c build`, `inspect` and `logits`: results on stdout, progress on stderr, one line on failure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from artifacts import DEMO, Build
from fake_executable import small_manifest
from gpu_tools import cuda_compiler, rocm_linker
from one_layer import one_layer

from ds4c.build import BuildOptions, BuildReport
from ds4c.cli.main import main
from ds4c_runtime.manifest import TargetInfo

__all__ = ["cuda_compiler", "rocm_linker"]


@pytest.mark.slow
def test_build_reports_on_stderr_and_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = one_layer(tmp_path / "checkpoint")
    arguments = ["build", str(checkpoint), "-o", str(tmp_path / "m"), "--context", "512", "--json"]
    assert main([*arguments, "--dump-ir", str(tmp_path / "ir")]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["horizon"] == 64
    assert report["rewind_kinds"] == ["in_place", "snapshot", "snapshot_replay", "rebuild"]
    for stage in ("open", "check", "passes", "kernels", "weights", "manifest"):
        assert stage in err
    assert (tmp_path / "m" / "manifest.json").is_file()
    dumps = sorted(f.name for f in (tmp_path / "ir").iterdir())
    assert dumps[0] == "00-input.mlir"
    assert dumps[-1].endswith("plan-buffers.mlir")
    final = (tmp_path / "ir" / dumps[-1]).read_text()
    assert final == (tmp_path / "m" / "module.mlir").read_text()


def test_targets_are_listed_without_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--target", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert names[:3] == ["target", "cpu:avx512", "cpu:generic"]
    assert {"cuda:sm_80", "cuda:sm_90", "cuda:sm_120", "metal:apple-m1", "metal:apple-m4"} <= set(names)
    assert {"rocm:gfx942", "rocm:gfx1100", "rocm:gfx1151", "rocm:gfx1201"} <= set(names)
    assert "avx2" in lines[2].split()


def test_an_existing_output_is_kept(built: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "precious").write_text("x")
    for force in ([], ["--force"]):
        assert main(["build", str(built("tiny-8").checkpoint), "-o", str(tmp_path / "m"), *force]) == 2
        assert "output" in capsys.readouterr().err
        assert [f.name for f in tmp_path.iterdir()] == ["m"]
        assert (tmp_path / "m" / "precious").read_text() == "x"


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--context", "5000"], 2, "--context: expected 1 to 4096"),
        (["--horizon", "-1"], 2, "--horizon: expected at least 0, got -1"),
        (["--rows", "600", "--context", "512"], 2, "--rows: expected at most the context"),
        (["--target", "tpu"], 5, "target: expected one of"),
        (["--target", "cpu:pentium"], 5, "pentium"),
        (["--nonsense"], 2, "nonsense"),
    ],
)
def test_bad_options_leave_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, line: str
) -> None:
    assert main(["build", str(DEMO), "-o", str(tmp_path / "m"), *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert line in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_missing_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", str(tmp_path / "none"), "-o", str(tmp_path / "m")]) == 2
    assert "expected a Hugging Face checkpoint folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_inspect_artifact_and_checkpoint(built: Build, capsys: pytest.CaptureFixture[str]) -> None:
    made = built("tiny-8")
    assert main(["inspect", str(made.artifact), "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert manifest["limits"]["horizon"] == 12
    assert main(["inspect", str(made.artifact), "--states"]) == 0
    assert "l2.index_rows" in capsys.readouterr().out
    assert main(["inspect", str(made.checkpoint), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["compress_ratios"] == [0, 0, 4, 8, 4, 8]
    assert main(["inspect", str(made.artifact.parent)]) == 2


def test_logits_do_not_depend_on_chunks(
    built: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = built("tiny-8")
    np.save(tmp_path / "ids.npy", np.arange(100) % 160)
    results: list[bytes] = []
    for chunks in ("", "1,6,64", "7"):
        name = str(tmp_path / f"out{chunks}.npy")
        call = ["logits", str(made.artifact), "--tokens", str(tmp_path / "ids.npy"), "-o", name]
        assert main([*call, *(["--chunks", chunks] if chunks else [])]) == 0
        array = np.load(name)
        assert array.dtype == np.float32
        assert array.shape == (100, 160)
        results.append(array.tobytes())
    assert results[0] == results[1] == results[2]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("ids", "arguments", "code", "line"),
    [
        (np.array([0, 160]), [], 2, "expected ids of 0 to 159, got 160"),
        (np.array([-1]), [], 2, "got -1"),
        (np.zeros((2, 2), np.int32), [], 4, "one-dimensional"),
        (np.zeros(3, np.float32), [], 4, "integer"),
        (np.zeros(0, np.int32), [], 4, "at least one"),
        (np.zeros(600, np.int32), [], 2, "at most 512 tokens"),
        (np.zeros(3, np.int32), ["--chunks", "0"], 2, "--chunks"),
        (np.zeros(3, np.int32), ["--chunks", "65"], 2, "1 to 64"),
        (np.zeros(3, np.int32), ["--chunks", "a"], 2, "whole numbers"),
    ],
)
def test_logits_refuses(
    built: Build,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    ids: np.ndarray,
    arguments: list[str],
    code: int,
    line: str,
) -> None:
    np.save(tmp_path / "ids.npy", ids)
    call = ["logits", str(built("tiny-8").artifact), "--tokens", str(tmp_path / "ids.npy")]
    assert main([*call, "-o", str(tmp_path / "out.npy"), *arguments]) == code
    assert line in capsys.readouterr().err
    assert not (tmp_path / "out.npy").exists()


def test_each_target_has_a_folder_of_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which builds there are; the next test does them."""
    asked: list[tuple[Path, str, str, int]] = []

    def build(source: Path, folder: Path, options: BuildOptions, _: object) -> BuildReport:
        asked.append((folder, options.target, options.name, options.rows))
        manifest = small_manifest()
        info = TargetInfo(options.target, "variant", ())
        return BuildReport(folder, replace(manifest, target=info), 3, 0.5)

    monkeypatch.setattr("ds4c.build.build", build)
    command = ["build", str(tmp_path / "model"), "-o", str(tmp_path / "out"), "--target", "all"]
    assert main([*command, "--rows", "8", "--json", "--quiet"]) == 0
    names = ["cpu", "cuda", "metal", "rocm"]
    assert asked == [(tmp_path / "out" / name, name, "model", 8) for name in names]
    found = [(each["artifact"], each["target"]) for each in json.loads(capsys.readouterr().out)]
    assert found == [(str(tmp_path / "out" / name), f"{name}:variant") for name in names]


@pytest.mark.more
def test_every_target_into_a_folder_of_its_name(
    cuda_compiler: str, rocm_linker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--context", "256", "--rows", "8", "--segments", "1", "--logit-rows", "8", "--json", "--quiet"]
    checkpoint = str(one_layer(tmp_path / "checkpoint"))
    assert main(["build", checkpoint, "-o", str(tmp_path / "out"), "--target", "all", *small]) == 0
    targets = [each["target"].partition(":")[0] for each in json.loads(capsys.readouterr().out)]
    assert targets == ["cpu", "cuda", "metal", "rocm"] == sorted(f.name for f in (tmp_path / "out").iterdir())
