"""Snapshots through the engine: listed, pinned, unpinned, gone back to; counted; refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_executable import fake_engine, small_manifest
from port import SnapshotInfo, SnapshotOrigin, check

from ds4c_runtime.counters import Counters
from ds4c_runtime.engine import Engine
from ds4c_runtime.errors import (
    InvalidRequestError,
    NotInArtifactError,
    PositionOutOfRangeError,
    RuntimeFailure,
    SessionBusyError,
    StaleContinuationError,
    UnknownSessionError,
    UnknownSnapshotError,
)
from ds4c_runtime.reports import RewindCause, RewindKind
from ds4c_runtime.requests import Event, GenerationRequest, StopParams
from ds4c_runtime.store.session_store import Storage

PROMPT = tuple(range(100, 200))
INTERVAL = 32


def request(tokens: tuple[int, ...] = (), count: int = 0, **fields: Any) -> GenerationRequest:
    stop = StopParams(max_output_tokens=count, ignore_eos=True)
    return GenerationRequest(
        **{"tokens": tokens, "session_id": "s", "return_text": False, "stop": stop, **fields}
    )


def fresh(engine: Engine, tokens: tuple[int, ...], count: int = 8) -> tuple[int, ...]:
    """What a session that saw only these tokens generates."""
    return engine.run(request(tokens, count, session_id="")).tokens


def at(engine: Engine, position: int) -> SnapshotInfo:
    (found,) = [one for one in engine.list_snapshots("s") if one.position == position]
    return found


@pytest.fixture
def engine() -> Iterator[Engine]:
    """A session "s" of 100 tokens, interior snapshots each 32 tokens, a horizon of 6."""
    with fake_engine(horizon=6, page_tokens=INTERVAL, max_sessions=3) as made:
        made.open_session("s")
        made.run(request(PROMPT))
        yield made
        check(made)


def test_the_list_has_interior_positions_and_the_ends_of_prompts_and_turns(engine: Engine) -> None:
    engine.run(request((1, 2), 5))
    found = engine.list_snapshots("s")
    assert [(one.position, one.origin) for one in found] == [
        (32, SnapshotOrigin.INTERVAL),
        (64, SnapshotOrigin.INTERVAL),
        (96, SnapshotOrigin.INTERVAL),
        (100, SnapshotOrigin.PROMPT_END),
        (102, SnapshotOrigin.PROMPT_END),
        (107, SnapshotOrigin.TURN_END),
    ]
    assert len({one.snapshot_id for one in found}) == len(found)
    assert found[-1].digest == engine.get_session("s").digest
    assert all(one.bytes > 0 and not one.is_pinned and not one.label for one in found)
    limits = engine.snapshot_limits()
    assert limits.per_session >= len(found)
    assert max(one.bytes for one in found) <= limits.bytes


@pytest.mark.parametrize("position", [32, 64, 96, 100])
def test_a_session_goes_to_a_snapshot_and_is_the_one_of_then(engine: Engine, position: int) -> None:
    snapshot = at(engine, position)
    engine.run(request((1, 2), 20))
    plan = engine.plan_rewind("s", to_snapshot=snapshot.snapshot_id)
    info, report = engine.rewind("s", to_snapshot=snapshot.snapshot_id)
    assert (plan.kind, plan.to_position, plan.replay_tokens) == (RewindKind.SNAPSHOT, position, 0)
    assert (report.kind, report.cause) == (RewindKind.SNAPSHOT, RewindCause.CLIENT)
    assert plan.snapshot_id == report.snapshot_id == snapshot.snapshot_id
    assert (report.from_position, report.to_position, report.replayed_tokens) == (122, position, 0)
    assert (info.position, info.digest, info.state_valid) == (position, snapshot.digest, True)
    assert engine.run(request((), 8)).tokens == fresh(engine, PROMPT[:position])


def test_a_snapshot_of_a_branch_that_was_left_brings_it_back(engine: Engine) -> None:
    first = engine.run(request((1, 2), 20)).tokens
    end = engine.list_snapshots("s")[-1]
    before = dict(engine.counters.rewinds.discarded_tokens.values())
    engine.rewind("s", to=40)
    engine.run(request((5,), 3))
    info, report = engine.rewind("s", to_snapshot=end.snapshot_id)
    assert (report.kind, report.from_position, report.to_position) == (RewindKind.SNAPSHOT, 44, 122)
    assert (info.position, info.digest) == (122, end.digest)
    discarded = engine.counters.rewinds.discarded_tokens.values()
    assert discarded["client",] - before["client",] == 82, "what goes forwards discards nothing"
    assert engine.run(request((), 8)).tokens == fresh(engine, (*PROMPT, 1, 2, *first))


@pytest.mark.parametrize(
    ("position", "origin"), [(100, "prompt_end"), (64, "interval"), (50, "client"), (1, "client")]
)
def test_a_pin_takes_what_is_there_or_takes_one(engine: Engine, position: int, origin: str) -> None:
    before = engine.get_session("s")
    pinned = engine.pin_snapshot("s", position=position, label="here")
    assert (pinned.position, pinned.is_pinned, pinned.label) == (position, True, "here")
    assert pinned.origin.value == origin
    assert at(engine, position) == pinned
    after = engine.get_session("s")
    assert (after.position, after.epoch, after.digest) == (before.position, before.epoch, before.digest)
    _, report = engine.rewind("s", to_snapshot=pinned.snapshot_id)
    assert report.kind in (RewindKind.SNAPSHOT, RewindKind.NONE)
    assert engine.run(request((), 8)).tokens == fresh(engine, PROMPT[:position])


def test_pinned_and_unpinned_by_id(engine: Engine) -> None:
    snapshot = at(engine, 64)
    assert engine.snapshot_levels().pinned == 0
    live = engine.snapshot_levels().live
    assert engine.pin_snapshot("s", snapshot_id=snapshot.snapshot_id, label="a").is_pinned
    assert engine.pin_snapshot("s", snapshot_id=snapshot.snapshot_id).label == "a", "no label changes none"
    levels = engine.snapshot_levels()
    assert (levels.pinned, levels.live) == (1, live - 1)
    assert levels.device_bytes + levels.host_bytes == engine.load_info().snapshot_bytes_used > 0
    assert not engine.unpin_snapshot("s", snapshot.snapshot_id).is_pinned
    assert not engine.unpin_snapshot("s", snapshot.snapshot_id).is_pinned
    assert engine.snapshot_levels().pinned == 0


def test_a_snapshot_that_a_fork_holds_too_is_counted_once(engine: Engine) -> None:
    before = engine.snapshot_levels()
    engine.fork("s", new_id="t")
    engine.pin_snapshot("t", snapshot_id=engine.list_snapshots("t")[0].snapshot_id)
    shared = {one.snapshot_id for name in ("s", "t") for one in engine.list_snapshots(name)}
    after = engine.snapshot_levels()
    assert (after.live, after.pinned) == (len(shared) - 1, 1)
    assert after.live + after.pinned == before.live
    assert not any(one.is_pinned for one in engine.list_snapshots("s")), "a pin belongs to its session"


def test_a_stale_session_is_rebuilt_for_a_pin_and_counted(engine: Engine) -> None:
    engine.rewind("s", to=20, defer=True)
    assert not engine.get_session("s").state_valid
    pinned = engine.pin_snapshot("s", position=15)
    assert (pinned.position, engine.get_session("s").position) == (15, 20)
    assert engine.get_session("s").state_valid
    assert engine.counters.rewinds.rewinds.values()["rebuild", "client"] == 1
    assert engine.counters.rewinds.discarded_tokens.values()["client",] == 80


def test_snapshots_of_a_busy_session_are_listed_and_pinned_by_id() -> None:
    with fake_engine(step_delay_seconds=0.005, context=2048) as engine:
        engine.open_session("s")
        engine.run(request(PROMPT))
        snapshot = engine.list_snapshots("s")[0]
        running = engine.generate(request((1,), 400))
        try:
            assert engine.list_snapshots("s")
            assert engine.pin_snapshot("s", snapshot_id=snapshot.snapshot_id).is_pinned
            assert not engine.unpin_snapshot("s", snapshot.snapshot_id).is_pinned
            with pytest.raises(SessionBusyError):
                engine.pin_snapshot("s", position=3)
            with pytest.raises(SessionBusyError):
                engine.rewind("s", to_snapshot=snapshot.snapshot_id)
        finally:
            running.cancel()


REFUSED: dict[str, tuple[Callable[[Engine], object], type[RuntimeFailure]]] = {
    "list: session": (lambda e: e.list_snapshots("gone"), UnknownSessionError),
    "list: owner": (lambda e: e.list_snapshots("s", "other"), UnknownSessionError),
    "pin: session": (lambda e: e.pin_snapshot("gone", position=1), UnknownSessionError),
    "pin: owner": (lambda e: e.pin_snapshot("s", "other", snapshot_id="s1"), UnknownSessionError),
    "pin: snapshot": (lambda e: e.pin_snapshot("s", snapshot_id="nope"), UnknownSnapshotError),
    "pin: both": (lambda e: e.pin_snapshot("s", snapshot_id="s1", position=1), InvalidRequestError),
    "pin: neither": (lambda e: e.pin_snapshot("s"), InvalidRequestError),
    "pin: 0": (lambda e: e.pin_snapshot("s", position=0), InvalidRequestError),
    "pin: above": (lambda e: e.pin_snapshot("s", position=101), PositionOutOfRangeError),
    "unpin: session": (lambda e: e.unpin_snapshot("gone", "s1"), UnknownSessionError),
    "unpin: snapshot": (lambda e: e.unpin_snapshot("s", "nope"), UnknownSnapshotError),
    "rewind: snapshot": (lambda e: e.rewind("s", to_snapshot="nope"), UnknownSnapshotError),
    "rewind: two targets": (lambda e: e.rewind("s", to_snapshot="s1", to=4), InvalidRequestError),
    "rewind: deferred": (
        lambda e: e.rewind("s", to_snapshot=e.list_snapshots("s")[0].snapshot_id, defer=True),
        InvalidRequestError,
    ),
    "rewind: stale": (
        lambda e: e.rewind("s", to_snapshot="s1", expected_position=9),
        StaleContinuationError,
    ),
    "plan: snapshot": (lambda e: e.plan_rewind("s", to_snapshot="nope"), UnknownSnapshotError),
    "plan: two targets": (lambda e: e.plan_rewind("s", to_snapshot="s1", drop=4), InvalidRequestError),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_changes_nothing(
    engine: Engine, call: Callable[[Engine], object], error: type[RuntimeFailure]
) -> None:
    before = (engine.get_session("s"), engine.list_snapshots("s"))
    with pytest.raises(error):
        call(engine)
    assert engine.list_snapshots("s") == before[1]
    after = dataclasses.replace(engine.get_session("s"), last_used_time=before[0].last_used_time)
    assert after == before[0]


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.list_snapshots("s"),
        lambda e: e.pin_snapshot("s", position=1),
        lambda e: e.unpin_snapshot("s", "s1"),
        lambda e: e.rewind("s", to_snapshot="s1"),
        lambda e: e.plan_rewind("s", to_snapshot="s1"),
    ],
)
def test_an_artifact_without_snapshots_says_so(call: Callable[[Engine], object]) -> None:
    manifest = small_manifest()
    able = dataclasses.replace(manifest.capabilities, pin_snapshots=False)
    with fake_engine(manifest=dataclasses.replace(manifest, capabilities=able)) as engine:
        engine.open_session("s")
        with pytest.raises(NotInArtifactError):
            call(engine)
        assert (engine.snapshot_limits().per_session, engine.snapshot_limits().bytes) == (0, 0)
        assert engine.rewind("s", to=0)[1].kind is RewindKind.NONE


@pytest.mark.parametrize("max_sessions", [1, 3])
def test_with_memory_for_one_session_there_is_no_fork_and_no_pin_below(max_sessions: int) -> None:
    """Not now and never: no retry is asked for."""
    with fake_engine(max_sessions=max_sessions, max_resident=1) as engine:
        engine.open_session("s")
        engine.run(request(PROMPT))
        calls = [lambda: engine.pin_snapshot("s", position=7)]
        if max_sessions > 1:
            calls.append(lambda: engine.fork("s", at=7, new_id="other"))
        for call in calls:
            with pytest.raises(InvalidRequestError, match="max_resident") as refused:
                call()
            assert not refused.value.retry
        assert engine.get_session("s").is_resident
        assert [info.session_id for info in engine.list_sessions()] == ["s"]
        assert engine.pin_snapshot("s", position=100).is_pinned


def evictions(counters: Counters) -> float:
    return counters.snapshot_evictions.values()[()]


def test_evictions_and_left_branches_are_counted() -> None:
    with fake_engine(horizon=6, snapshot_budget=5 * 4608, max_sessions=2) as engine:
        engine.open_session("s")
        engine.run(request(PROMPT))
        assert evictions(engine.counters) == 0
        engine.run(request((1,), 20))
        kept = engine.list_snapshots("s")
        assert sum(one.bytes for one in kept) <= 5 * 4608
        taken = int(kept[-1].snapshot_id.removeprefix("s"))
        assert evictions(engine.counters) == taken - len(kept) > 0
    with fake_engine(horizon=6) as engine:
        engine.open_session("s")
        engine.run(request(PROMPT))
        for _ in range(12):
            engine.run(request((1,), 4, rewind_to=100))
        counted = engine.counters.snapshot_invalidations.values()
        assert counted["left",] > 0
        assert evictions(engine.counters) == 0


def test_others_go_on_while_a_pin_below_is_rebuilt() -> None:
    """No snapshot is near, so the pin runs the tokens below it again, a chunk at a time."""
    with fake_engine(max_sessions=3, max_rows=16, snapshot_budget=2 * 4608) as engine:
        for name in ("s", "t"):
            engine.open_session(name)
        engine.run(request(PROMPT))
        got: list[Event] = []
        seen: list[int] = []

        def on_event(event: Event) -> None:
            got.append(event)
            if len(got) == 5:
                pinning = engine.submit_pin_snapshot("s", position=90)
                pinning.add_done_callback(
                    lambda done: seen.append(len(got)) if not done.exception() else None
                )

        engine.run(request((1, 2), 60, session_id="t"), on_event=on_event)
        assert at(engine, 90).is_pinned
        assert 90 // 16 <= seen[0] - 5 <= 60, "a chunk of the pin, a token of the generation"
        assert engine.run(request((), 8, rewind_to=90)).tokens == fresh(engine, PROMPT[:90])


def test_a_generation_without_a_session_takes_no_snapshots_of_others() -> None:
    with fake_engine(max_sessions=2, snapshot_budget=5 * 4608) as engine:
        engine.open_session("s")
        engine.run(request(PROMPT))
        before = engine.list_snapshots("s")
        engine.run(request(tuple(range(1, 200)), 20, session_id=""))
        assert engine.list_snapshots("s") == before
        assert engine.snapshot_levels().live == len(before)
        assert evictions(engine.counters) == 0


def test_an_end_of_a_prompt_at_the_interval_is_kept_as_one(engine: Engine) -> None:
    engine.run(request(tuple(range(28)), 32))
    found = {one.position: one.origin for one in engine.list_snapshots("s")}
    assert (found[96], found[128], found[160]) == (
        SnapshotOrigin.INTERVAL, SnapshotOrigin.PROMPT_END, SnapshotOrigin.TURN_END,
    )  # fmt: skip


def test_a_pin_inside_a_turn_is_no_end_of_one(tmp_path: Path) -> None:
    """The state is saved with the pin; the ends of turns keep their places."""
    with fake_engine(max_sessions=2, storage=Storage(tmp_path)) as engine:
        engine.open_session("s")
        engine.run(request(PROMPT))
        first = engine.list_snapshots("s")[0].snapshot_id
        got: list[Event] = []

        def on_event(event: Event) -> None:
            got.append(event)
            if len(got) in (6, 9):
                engine.submit_pin_snapshot("s", snapshot_id=first)

        engine.run(request((1, 2, 3), 20), on_event=on_event)
        found = [(one.position, one.origin) for one in engine.list_snapshots("s")]
        assert [p for p, origin in found if origin is SnapshotOrigin.TURN_END] == [123]
        assert [p for p, origin in found if origin is SnapshotOrigin.PROMPT_END] == [100, 103]


def test_a_save_where_a_turn_has_ended_takes_nothing_away(tmp_path: Path) -> None:
    with fake_engine(max_sessions=2, storage=Storage(tmp_path)) as engine:
        engine.open_session("s")
        engine.run(request(PROMPT, 3))
        assert engine.save_session("s")
        assert at(engine, 103).origin is SnapshotOrigin.TURN_END
        engine.rewind("s", to=50)
        assert engine.save_session("s")
        assert at(engine, 50).origin is SnapshotOrigin.SAVE
