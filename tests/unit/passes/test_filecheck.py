"""Before/after, changes-nothing and refusal cases of every pass, from `filecheck/*.mlir`."""

from pathlib import Path

import pytest
from filecheck_run import Case, cases_of, run_case

from ds4c.passes.pipeline import PASSES

FOLDER = Path(__file__).parent / "filecheck"
CASES = [case for file in sorted(FOLDER.glob("*.mlir")) for case in cases_of(file)]
CHANGES_NOTHING = {"verify-model", "prove-rewind"}
ALWAYS_CHANGES = {"insert-snapshots"}
CAN_REFUSE = {
    "verify-model",
    "plan-state",
    "prove-rewind",
    "insert-snapshots",
    "choose-layout",
    "lower-to-kernels",
    "plan-buffers",
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case) -> None:
    run_case(case)


@pytest.mark.parametrize("name", PASSES)
def test_every_pass_has_every_kind_of_case(name: str) -> None:
    mine = [case for case in CASES if case.file == name]
    assert all(case.passes.split(",")[-1].partition("{")[0] == name for case in mine)
    changes = [c for c in mine if not c.is_refused and not c.is_unchanged]
    assert bool(changes) == (name not in CHANGES_NOTHING)
    assert any(c.is_unchanged for c in mine) == (name not in ALWAYS_CHANGES)
    assert any(c.is_refused for c in mine) == (name in CAN_REFUSE)
