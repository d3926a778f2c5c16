"""Kernels may not grow in silence: instructions of fixed kernels against stored values. Nothing is timed."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from callgrind import counted

pytestmark = pytest.mark.slow


def lacking() -> str:
    """What keeps this machine from counting; empty if nothing does."""
    if shutil.which("valgrind") is None:
        return "valgrind is not installed (apt-get install valgrind)"
    return "" if importlib.util.find_spec("tvm") else "tvm is not installed (extra `build`)"


@pytest.fixture(scope="module")
def instructions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    if reason := lacking():
        pytest.skip(reason)
    return counted.count_instructions(tmp_path_factory.mktemp("callgrind"))


def test_every_case_is_stored_and_counted(instructions: dict[str, int]) -> None:
    names = [case.name for case in counted.cases()]
    assert len(set(names)) == len(names)
    assert set(instructions) == set(counted.stored()) == set(names)


@pytest.mark.parametrize("name", [case.name for case in counted.cases()])
def test_instructions(instructions: dict[str, int], name: str) -> None:
    """Fewer are as much a failure as more: then the stored value no longer guards anything."""
    expected, found = counted.stored()[name], instructions[name]
    assert abs(found / expected - 1) <= counted.TOLERANCE, (
        f"{name}: expected {expected} instructions, got {found} ({found / expected - 1:+.1%}); "
        "if that is meant, run python tests/callgrind/regenerate.py"
    )


def test_six_rows_cost_less_than_six_steps(instructions: dict[str, int]) -> None:
    """Why verify blocks pay: weights are loaded once for all rows."""
    for dtype in ("float32", "bfloat16"):
        one, six = (instructions[f"linear_{dtype}_{rows}"] for rows in (1, 6))
        assert six < 3 * one, f"{dtype}: {six} for six rows against {one} for one"


def test_reads_the_function_and_total_of_a_dump(tmp_path: Path) -> None:
    header = "version: 1\ncmd: ./driver\npart: 1\n\ndesc: Trigger: --dump-after=case_linear_1\n"
    (tmp_path / "out.1").write_text(f"{header}\nevents: Ir\nsummary: 42\n\nfn=x\n1 42\n\ntotals: 42\n")
    (tmp_path / "out.2").write_text("desc: Trigger: Program termination\ntotals: 7\n")
    assert counted.totals_of(tmp_path) == {"linear_1": 42}
