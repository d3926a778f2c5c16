"""Every pass leaves the meaning of the module alone: the interpreter gives equal bits before and after it.

Pass by pass on the small windows; with windows of 128 the pipeline as a whole, pass by pass in
`make test-more`.
"""

from typing import Any

import numpy as np
import pytest
from example_modules import PIPELINE, TINY, live_rows, machine_of, random_walk, stages
from numpy.typing import NDArray
from sizes import more

from ds4c.ir.dialect import print_module
from ds4c.passes.pipeline import PASSES

pytestmark = pytest.mark.slow

HORIZON = 20


Outcome = tuple[NDArray[Any], list[dict[str, NDArray[Any]]]]
_OUTCOMES: dict[tuple[str, str], Outcome] = {}


def outcome(name: str, index: int) -> Outcome:
    """Logits of a walk on the module of a stage, and the live rows of both sessions after it.

    A pass that leaves the text as it was is not walked again.
    """
    module = stages(name, HORIZON)[index][1]
    key = (name, print_module(module))
    if key not in _OUTCOMES:
        machine = machine_of(name, module)
        sessions, logits = random_walk(machine, name, HORIZON, seed=5)
        _OUTCOMES[key] = logits, [live_rows(machine, s.slot, s.position) for s in sessions]
    return _OUTCOMES[key]


def test_the_pipeline_holds_every_pass() -> None:
    assert [name for name, _ in stages("tiny-8", HORIZON)] == ["input", *PIPELINE]
    assert set(PIPELINE) == set(PASSES)


BIG = "tiny-128"
SMALL = [name for name in TINY if name != BIG]


@pytest.mark.parametrize("index", range(1, len(PIPELINE) + 1), ids=PIPELINE)
@pytest.mark.parametrize("name", [*SMALL, more(BIG)])
def test_equal_before_and_after(name: str, index: int) -> None:
    check_equal(outcome(name, index - 1), outcome(name, index))


def test_equal_before_and_after_the_pipeline() -> None:
    check_equal(outcome(BIG, 0), outcome(BIG, len(PIPELINE)))


def check_equal(before: Outcome, after: Outcome) -> None:
    """Logits and the rows of every state."""
    assert np.array_equal(before[0], after[0])
    for old, new in zip(before[1], after[1], strict=True):
        assert old.keys() == new.keys()
        for state, rows in old.items():
            assert np.array_equal(rows, new[state]), state


@pytest.mark.parametrize("name", TINY)
def test_the_walk_crosses_windows_and_the_rings_wrap(name: str) -> None:
    machine = machine_of(name, stages(name, HORIZON)[-1][1])
    sessions, logits = random_walk(machine, name, HORIZON, seed=5)
    heavy = 128 if name == "tiny-128" else 8
    assert max(s.high_water for s in sessions) > heavy
    assert max(s.high_water for s in sessions) > min(
        d.capacity or 0 for d in machine.decls.values() if d.kind.data == "ring"
    )
    assert np.isfinite(logits).all()
