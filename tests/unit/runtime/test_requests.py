"""Borders of what a generation may be asked for, of a vocabulary of 1,000 tokens."""

from __future__ import annotations

import pytest

from ds4c_runtime.errors import InvalidRequestError
from ds4c_runtime.requests import GenerationRequest, StopParams

VOCABULARY = 1000

RIGHT: list[dict[str, object]] = [
    {"token_ids": (0, 999)},
    {"max_output_tokens": 0},
    {"min_output_tokens": 3, "max_output_tokens": 3},
    {"min_output_tokens": 3},
    {"strings": ("a",) * 64},
    {"strings": ("a" * 1024,)},
]
WRONG: list[tuple[dict[str, object], str]] = [
    ({"token_ids": (5, -1)}, "token_ids"),
    ({"token_ids": (5, 1000)}, "token_ids"),
    ({"max_output_tokens": -1}, "max_output_tokens"),
    ({"min_output_tokens": -1}, "min_output_tokens"),
    ({"min_output_tokens": 4, "max_output_tokens": 3}, "min_output_tokens"),
    ({"strings": ("a",) * 65}, "strings"),
    ({"strings": ("a", "")}, "strings"),
    ({"strings": ("a" * 1025,)}, "strings"),
]


@pytest.mark.parametrize("fields", RIGHT)
def test_what_is_right_at_the_border(fields: dict[str, object]) -> None:
    GenerationRequest(stop=StopParams(**fields)).validate(VOCABULARY)  # type: ignore[arg-type]


@pytest.mark.parametrize(("fields", "name"), WRONG)
def test_what_is_wrong_beside_it(fields: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"stop refused: expected {name} ") as caught:
        GenerationRequest(stop=StopParams(**fields)).validate(VOCABULARY)  # type: ignore[arg-type]
    assert caught.value.field == f"stop.{name}"


def test_alternatives_are_at_most_64_and_the_vocabulary() -> None:
    for vocabulary, most in ((VOCABULARY, 64), (10, 10)):
        for right in (None, 0, most):
            GenerationRequest(logprobs=right).validate(vocabulary)
        for wrong in (-1, most + 1):
            with pytest.raises(InvalidRequestError, match=f"logprobs of 0 to {most}, got {wrong}") as caught:
                GenerationRequest(logprobs=wrong).validate(vocabulary)
            assert caught.value.field == "logprobs"


@pytest.mark.parametrize(
    ("stop", "needs"),
    [
        ({}, False),
        ({"strings": ("a",)}, True),
        ({"at_tool_call_end": True}, True),
        ({"token_ids": (1,)}, False),
    ],
)
def test_what_needs_text(stop: dict[str, object], needs: bool) -> None:
    assert StopParams(**stop).needs_text == needs  # type: ignore[arg-type]
