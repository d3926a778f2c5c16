"""The watchdog inside a generation: the same restore twice ends it, unless a token came in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_executable import fake_engine
from port import engine_session, lose_state

from ds4c_runtime.engine import Engine
from ds4c_runtime.errors import NoProgressError
from ds4c_runtime.requests import Event, FinishReason, GenerationRequest, StopParams, TokenDelta
from ds4c_runtime.session import Session

PROMPT = tuple(range(100, 140))
ASKED = GenerationRequest(
    tokens=PROMPT,
    session_id="s",
    stop=StopParams(max_output_tokens=5, ignore_eos=True),
    return_text=False,
)


def lose_and_go_back(session: Session) -> None:
    """The state is lost, and the session goes back to where the output begins."""
    lose_state(session)
    session.rewind(len(PROMPT))


def run(engine: Engine, at_each_token: Callable[[Session], None]) -> FinishReason:
    def on_event(event: Event) -> None:
        if isinstance(event, TokenDelta):
            at_each_token(engine_session(engine, "s"))

    engine.open_session("s")
    return engine.generate(ASKED, "", on_event).done.result().reason


def test_a_token_between_two_restores_is_progress() -> None:
    with fake_engine() as engine:
        assert run(engine, lose_and_go_back) is FinishReason.LENGTH


def test_the_same_restore_twice_without_a_token_ends_the_generation() -> None:
    def twice(session: Session) -> None:
        lose_and_go_back(session)
        lose_and_go_back(session)

    with fake_engine() as engine:
        with pytest.raises(NoProgressError, match="expected a new token between two restores"):
            run(engine, twice)
        info = engine.get_session("s")
        assert (info.is_busy, info.position) == (False, len(PROMPT))
        engine.run(GenerationRequest(session_id="s", tokens=(7,), stop=ASKED.stop, return_text=False))
