"""`ds4c opt`: passes over IR text, one line and a documented exit code for everything that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds4c.cli.main import main

GOOD = """
ds4.state @l0.kv ring : tensor<?x8xf32> every 4 reads affine_map<(d0) -> ((d0 floordiv 4) * 4 - 4, d0)>
ds4.state @logits host : tensor<?x8xf32> every 1
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "m.mlir"
    path.write_text(GOOD)
    return path


def test_prints_the_module_after_the_passes(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(module), "-p", "plan-state{horizon=32},insert-snapshots"]) == 0
    out, err = capsys.readouterr()
    assert "tensor<40x8xf32>" in out
    for name in ("snapshot", "restore", "fork", "rewind"):
        assert f"func.func @{name}(" in out
    assert err == ""


def test_passes_are_listed_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", "--list"]) == 0
    assert {"verify-model", "plan-state", "plan-buffers"} < set(capsys.readouterr().out.split())


def test_output_is_input_of_the_next_run(
    module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["opt", str(module), "-p", "plan-state{horizon=32}"]) == 0
    planned = capsys.readouterr().out
    (tmp_path / "planned.mlir").write_text(planned)
    assert main(["opt", str(tmp_path / "planned.mlir")]) == 0
    assert capsys.readouterr().out == planned


@pytest.mark.parametrize(
    ("text", "passes", "code", "line"),
    [
        (GOOD, "nope", 2, "passes: expected one of verify-model"),
        (GOOD, "plan-state{horzon=1}", 2, "horzon"),
        (GOOD, "plan-state{horizon=-1}", 1, "horizon: expected >= 0, got -1"),
        (GOOD, "insert-snapshots", 1, "expected a planned module"),
        (GOOD.replace("?x8xf32> every 4", "10x8xf32> every 4"), "plan-state", 1, "has capacity 10, needs 72"),
        ("ds4.state @a ring", "", 4, ""),
        ("ds4.state @a ring : tensor<?x8xf32> every 1", "", 1, "expected a read set for kind ring, got none"),
    ],
)
def test_one_line_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, passes: str, code: int, line: str
) -> None:
    path = tmp_path / "m.mlir"
    path.write_text(text)
    assert main(["opt", str(path), "-p", passes]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert line in err


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(tmp_path / "none.mlir")]) == 2
    assert "none.mlir" in capsys.readouterr().err
