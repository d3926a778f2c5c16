"""Facts that errors carry for programs: as attributes, and as the text of their metadata."""

from __future__ import annotations

import pytest

from ds4c_runtime import errors
from ds4c_runtime.errors import RuntimeFailure

FACTS: list[tuple[RuntimeFailure, dict[str, object]]] = [
    (errors.InvalidRequestError("m", field="f"), {"field": "f"}),
    (errors.ContextLengthError(31, 30), {"n_prompt_tokens": 31, "n_ctx": 30}),
    (errors.UnknownSessionError("s"), {"session_id": "s"}),
    (errors.UnknownSnapshotError("s7"), {"snapshot_id": "s7"}),
    (errors.SessionExistsError("s"), {"session_id": "s"}),
    (errors.StaleContinuationError("m", position=5, digest="ab"), {"position": 5, "digest": "ab"}),
    (errors.RewindTooDearError(40, 64, 10), {"replay_tokens": 40, "base_position": 64}),
]


@pytest.mark.parametrize(("error", "facts"), FACTS, ids=[type(error).__name__ for error, _ in FACTS])
def test_attributes_and_metadata_say_the_same(error: RuntimeFailure, facts: dict[str, object]) -> None:
    assert error.metadata == {name: str(value) for name, value in facts.items()}
    assert {name: getattr(error, name) for name in facts} == facts


def test_facts_that_are_metadata_only() -> None:
    assert errors.SessionBusyError("s").metadata == {"session_id": "s"}
    assert errors.NoProgressError(7, "s1").metadata == {"position": "7", "snapshot_id": "s1"}
    outside = errors.PositionOutOfRangeError("pin", 9, 5, field="position")
    assert (outside.metadata, outside.field) == ({"position": "5", "field": "position"}, "position")
    assert errors.MemoryBudgetError("m", needed=3, budget=2).metadata == {"needed": "3", "budget": "2"}


def test_which_calls_may_be_made_again() -> None:
    """What another call, time or room may change."""
    again = {name for name, each in vars(errors).items() if getattr(each, "retry", False)}
    assert again == {
        "SessionBusyError", "QueueFullError", "SessionLimitError", "MemoryBudgetError", "DrainingError",
    }  # fmt: skip
