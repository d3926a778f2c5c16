"""The engine on a device whose memory the host cannot see: the same answers, wherever snapshots are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_executable import fake_engine
from fakes.discrete import DiscreteFake
from port import CopyMode, check, device_of, fail_next_call
from unit.runtime.test_engine import ids_only, wait_for

from ds4c_runtime.engine import Engine
from ds4c_runtime.reports import RewindKind
from ds4c_runtime.requests import StopParams
from ds4c_runtime.store.session_store import Storage

PROMPT = tuple(range(200, 290))


def generate(engine: Engine, *tokens: int, count: int = 8, **fields: Any) -> tuple[int, ...]:
    stop = StopParams(max_output_tokens=count, ignore_eos=True)
    return engine.run(ids_only(**{"session_id": "s", "tokens": tokens, "stop": stop, **fields})).tokens


def conversation(engine: Engine) -> list[tuple[int, ...]]:
    """Turns, rewinds of every kind, a fork, two streams at once, a snapshot of a branch that was left."""
    engine.open_session("s")
    said = [generate(engine, *PROMPT)]
    said.append(generate(engine, 5, rewind_to=96))  # in place
    kept = engine.pin_snapshot("s", position=100)
    kinds = [engine.rewind("s", to=to)[1].kind for to in (90, 70, 10)]
    wanted = [RewindKind.SNAPSHOT, RewindKind.SNAPSHOT_REPLAY, RewindKind.REBUILD]
    assert kinds == wanted
    said.append(generate(engine, 6, 7))
    assert engine.rewind("s", to_snapshot=kept.snapshot_id)[1].kind is RewindKind.SNAPSHOT
    engine.fork("s", at=98, new_id="t")
    stop = StopParams(max_output_tokens=40, ignore_eos=True)
    both = [engine.generate(ids_only(session_id=name, tokens=(9,), stop=stop)) for name in "st"]
    assert all(one.done.result().usage.output_tokens == 40 for one in both)
    said += [generate(engine, session_id=name) for name in "st"]
    engine.close_session("t")
    return said


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    with fake_engine() as engine:
        return conversation(engine)


@pytest.fixture
def make() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def engine(**options: Any) -> Engine:
        made.append(fake_engine(device_type=DiscreteFake, **options))
        return made[-1]

    yield engine
    for each in made:
        each.shutdown(0)
        check(each)


@pytest.mark.parametrize("mode", CopyMode)
def test_a_conversation(mode: CopyMode, make: Callable[..., Engine], expected: list[tuple[int, ...]]) -> None:
    engine = make(copy_mode=mode)
    assert conversation(engine) == expected
    assert {s.on_device for s in engine.list_snapshots("s")} == {mode is CopyMode.DEVICE}
    device = device_of(engine)
    assert isinstance(device, DiscreteFake)
    assert device.uploads == device.calls
    assert device.downloads == len(device.rows)


@pytest.mark.parametrize("mode", CopyMode)
def test_sessions_that_leave_memory_and_come_back(
    mode: CopyMode, make: Callable[..., Engine], tmp_path: Path
) -> None:
    """One slot for three sessions, each parked in a file while another is used; then another engine."""
    options: dict[str, Any] = {"copy_mode": mode, "max_sessions": 3, "max_resident": 1}
    engine = make(storage=Storage(tmp_path), **options)
    with fake_engine() as plain:
        for one in (engine, plain):
            for name in "abc":
                one.open_session(name)
        for tokens in ((40, 41, 42), (50,), (60, 61)):
            for name in "abc":
                given = (*PROMPT[:50], ord(name), *tokens)
                assert generate(engine, *given, session_id=name) == generate(plain, *given, session_id=name)
                if name != "b":
                    continue
                position = plain.get_session(name).position - 3
                for one in (engine, plain):
                    one.rewind(name, to=position)
        engine.shutdown(0)
        again = make(storage=Storage(tmp_path), **options)
        for name in "cab":
            assert generate(again, 1, session_id=name) == generate(plain, 1, session_id=name)


def test_a_step_that_fails_is_made_good(make: Callable[..., Engine]) -> None:
    """The card keeps what the failed step wrote; the session is rebuilt over it."""
    engine = make()
    engine.open_session("s")
    generate(engine, *PROMPT)
    fail_next_call(engine)
    with pytest.raises(Exception, match="step failed"):
        generate(engine, 3)
    wait_for(lambda: not engine.get_session("s").is_busy)
    with fake_engine() as plain:
        plain.open_session("s")
        generate(plain, *PROMPT)
        plain.rewind("s", to=engine.get_session("s").position)
        assert generate(engine, 4) == generate(plain, 4)
