"""A model of opaque states in the engine: nothing there knows that its state is a matrix and not a cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from artifacts import Build, tokens_for
from port import check

from ds4c_runtime.engine import Engine
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.requests import GenerationRequest, StopParams

NAME, LONG, SHORT = "tiny-delta", 24, 8


@pytest.fixture(scope="module")
def engine(built: Build) -> Iterator[Engine]:
    with Engine.load(built(NAME).artifact, max_sessions=4) as made:
        yield made
        check(made)


@pytest.fixture(scope="module")
def prompt(built: Build) -> tuple[int, ...]:
    return tuple(tokens_for(built(NAME).config, 90, seed=11))


def request(prompt: tuple[int, ...], count: int, **fields: object) -> GenerationRequest:
    stop = StopParams(max_output_tokens=count, ignore_eos=True)
    return GenerationRequest(**{"return_text": False, "tokens": prompt, "stop": stop, **fields})  # type: ignore[arg-type]


def test_a_session_is_rings_and_planes_and_no_page_has_bytes(built: Build) -> None:
    manifest = Manifest.read(built(NAME).artifact)
    rows = {"ring": 4 + manifest.limits.horizon, "opaque": 2 + manifest.limits.horizon}
    bytes_of = {"ring": 128 * 4, "opaque": 4 * 16 * 16 * 4}
    assert manifest.arenas.state_slot == 3 * sum(rows[kind] * size for kind, size in bytes_of.items())
    assert (manifest.appends, manifest.arenas.page) == ((), 0)


@pytest.mark.parametrize("back", [1, 5, 12, 13, 40], ids=lambda n: f"{n} back")
def test_generation_after_a_rewind_repeats(engine: Engine, prompt: tuple[int, ...], back: int) -> None:
    """Within the horizon of 12 tokens and beyond it."""
    whole = engine.run(request(prompt, LONG)).tokens
    session = f"back{back}"
    engine.open_session(session)
    assert engine.run(request(prompt, LONG, session_id=session)).tokens == whole
    to = len(prompt) + LONG - back
    again = engine.run(request(prompt[to:], SHORT, session_id=session, rewind_to=to))
    start = max(0, to - len(prompt))
    assert again.tokens[: LONG - start] == whole[start : start + SHORT]
    engine.close_session(session)


def test_a_fork_goes_its_own_way(engine: Engine, prompt: tuple[int, ...]) -> None:
    whole = engine.run(request(prompt, LONG)).tokens
    engine.open_session("parent")
    engine.run(request(prompt, SHORT, session_id="parent"))
    engine.fork("parent", at=len(prompt) + 3, new_id="child")
    other = engine.run(request((7, 8, 9), SHORT, session_id="parent")).tokens
    assert engine.run(request((), LONG - 3, session_id="child")).tokens == whole[3:]
    fresh = engine.run(request((*prompt, *whole[:SHORT], 7, 8, 9), SHORT)).tokens
    assert other == fresh
    for session in ("parent", "child"):
        engine.close_session(session)
