"""Sessions with snapshots: the plan says what a rewind does, STALE refuses every read, pins and restores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from fake_executable import FakeMachine, fake_machine, small_manifest
from fake_oracle import FakeOracle, random_tokens
from port import (
    CopyMode,
    SnapshotOrigin,
    device_calls,
    device_rows,
    evaluated_tokens,
    evict,
    fail_next_call,
    memory_of,
    poison_sessions,
    seconds_of_replay,
    seconds_of_restore,
    spoil_snapshot,
    step_together,
)

from ds4c_runtime.errors import (
    BackendFailedError,
    InvalidRequestError,
    PositionOutOfRangeError,
    RewindTooDearError,
    RuntimeFailure,
    StateInvalidError,
    UnknownSnapshotError,
)
from ds4c_runtime.reports import RebuildReason, RewindCause, RewindKind
from ds4c_runtime.session import Session

HORIZON, INTERVAL, LENGTH, CHUNK = 6, 32, 200, 24
ORACLE = FakeOracle()
GIVEN = random_tokens(LENGTH, 1)


def opened(length: int = LENGTH, **options: object) -> tuple[FakeMachine, Session]:
    machine = fake_machine(**options)  # type: ignore[arg-type]
    session = machine.open()
    session.prefill(GIVEN[:length])
    return machine, session


# -------------------------------------------------------------------------------------------------- planner


@pytest.mark.parametrize("mode", CopyMode)
def test_the_plan_says_what_the_rewind_does(mode: CopyMode) -> None:
    """Every target of 200 tokens: kind, base, tokens and calls, against the rule said by hand."""
    for to in range(0, LENGTH + 1, 1 if mode is CopyMode.DEVICE else 7):
        machine, session = opened(copy_mode=mode)
        base = to // INTERVAL * INTERVAL
        if to == LENGTH:
            kind, base, replay = RewindKind.NONE, to, 0
        elif to >= LENGTH - HORIZON or to == 0:
            kind, base, replay = RewindKind.IN_PLACE, to, 0
        elif base:
            kind, replay = RewindKind.SNAPSHOT_REPLAY if to > base else RewindKind.SNAPSHOT, to - base
        else:
            kind, replay = RewindKind.REBUILD, to
        plan, calls = session.plan_rewind(to), device_calls(machine)
        assert (plan.kind, plan.to_position, plan.base_position, plan.replay_tokens) == (
            kind, to, base, replay,
        )  # fmt: skip
        reason = RebuildReason.NO_SNAPSHOT if kind is RewindKind.REBUILD else RebuildReason.NOT_REBUILT
        assert plan.rebuild_reason is reason
        assert bool(plan.snapshot_id) == (kind in (RewindKind.SNAPSHOT, RewindKind.SNAPSHOT_REPLAY))
        assert session.can_rewind(to) == (kind is not RewindKind.REBUILD)
        assert session.plan_rewind(to) == plan, "a plan changes nothing"
        report = session.rewind(to, cause=RewindCause.STOP)
        done = (report.kind, report.base_position, report.replayed_tokens, report.snapshot_id)
        assert done == (kind, base, replay, plan.snapshot_id)
        assert (report.rebuild_reason, report.cause) == (reason, RewindCause.STOP)
        assert device_calls(machine) - calls == bool(plan.snapshot_id) + -(-replay // CHUNK)
        ORACLE.check(machine, session)


def test_a_limit_of_tokens_refuses_at_exactly_one_below() -> None:
    for to in (0, 10, 40, 63, 64, 65, 95, 193, 194, 200):
        machine, session = opened()
        replay = session.plan_rewind(to).replay_tokens
        before = (session.history, session.epoch, session.snapshots(), device_calls(machine))
        if replay:
            with pytest.raises(RewindTooDearError) as refused:
                session.rewind(to, max_replay_tokens=replay - 1)
            assert (refused.value.replay_tokens, refused.value.base_position) == (
                replay, to // INTERVAL * INTERVAL,
            )  # fmt: skip
            assert before == (session.history, session.epoch, session.snapshots(), device_calls(machine))
        assert session.rewind(to, max_replay_tokens=replay).replayed_tokens == replay
        ORACLE.check(machine, session)


@pytest.mark.parametrize(
    ("to", "kind"),
    [
        (200, RewindKind.NONE),
        (195, RewindKind.IN_PLACE),
        (160, RewindKind.SNAPSHOT),
        (150, RewindKind.DEFERRED),
        (20, RewindKind.DEFERRED),
        (0, RewindKind.IN_PLACE),
    ],
)
def test_only_what_runs_tokens_is_deferred(to: int, kind: RewindKind) -> None:
    machine, session = opened()
    calls = device_calls(machine)
    report = session.rewind(to, defer=True)
    assert (report.kind, report.replayed_tokens) == (kind, 0)
    assert session.state_valid == (kind is not RewindKind.DEFERRED)
    assert device_calls(machine) - calls == (kind is RewindKind.SNAPSHOT)
    assert session.history == tuple(GIVEN[:to])
    session.rebuild()
    done = session.recovered(report, 1.0)
    if kind is RewindKind.DEFERRED:
        base = to // INTERVAL * INTERVAL
        assert done.kind is (RewindKind.SNAPSHOT_REPLAY if base else RewindKind.REBUILD)
        assert (done.base_position, done.replayed_tokens) == (base, to - base)
    ORACLE.check(machine, session)


def test_a_deferred_rewind_is_never_refused_for_its_price() -> None:
    machine, session = opened()
    assert session.rewind(20, defer=True, max_replay_tokens=0).kind is RewindKind.DEFERRED
    session.prefill(GIVEN[20:30])
    ORACLE.check(machine, session)


def test_estimates_are_replay_at_prefill_speed_and_the_restore_of_the_bytes() -> None:
    machine, session = opened()
    session.rewind(160)  # measures a restore
    session.prefill(GIVEN[160:])
    size = next(s.bytes for s in session.snapshots() if s.position == 64)
    restore = seconds_of_restore(machine, size)
    assert restore > 0
    assert session.plan_rewind(64).estimated_seconds == restore
    for replay in (1, 5, 20):
        seconds = restore + seconds_of_replay(machine, replay)
        assert session.plan_rewind(64 + replay).estimated_seconds == seconds
    assert session.plan_rewind(20).estimated_seconds == seconds_of_replay(machine, 20) > 0
    assert session.plan_rewind(197).estimated_seconds == session.plan_rewind(200).estimated_seconds == 0
    assert fake_machine().open().plan_rewind(0).estimated_seconds == 0


def test_a_snapshot_that_is_not_of_this_history_is_not_used() -> None:
    machine, session = opened()
    spoil_snapshot(session, next(s.snapshot_id for s in session.snapshots() if s.position == 96))
    report = session.rewind(100)
    assert (report.kind, report.base_position, report.replayed_tokens) == (
        RewindKind.SNAPSHOT_REPLAY, 64, 36,
    )  # fmt: skip
    ORACLE.check(machine, session)
    for info in session.snapshots():
        spoil_snapshot(session, info.snapshot_id)
    report = session.rewind(90)
    assert (report.kind, report.rebuild_reason) == (RewindKind.REBUILD, RebuildReason.INTEGRITY_FAILED)
    ORACLE.check(machine, session)


def test_why_there_is_no_snapshot() -> None:
    machine, session = opened()
    for info in session.snapshots():
        evict(machine, info.snapshot_id)
    assert session.plan_rewind(100).rebuild_reason is RebuildReason.EVICTED
    assert session.rewind(100).rebuild_reason is RebuildReason.EVICTED
    ORACLE.check(machine, session)
    assert [s.position for s in session.snapshots()] == [32, 64, 96], "the rebuild took them again"
    other = machine.open()
    other.prefill(GIVEN[:20])
    assert other.plan_rewind(3).rebuild_reason is RebuildReason.NO_SNAPSHOT
    other.rewind(10, defer=True)
    assert other.plan_rewind(10).rebuild_reason is RebuildReason.SNAPSHOT_INVALIDATED


def test_snapshots_change_neither_chunks_nor_bits() -> None:
    """The rows of every step, and every logit, are those of a session without snapshots."""
    with_, without = fake_machine(), fake_machine(snapshot_bytes=0)
    one, other = with_.open(), without.open()
    for size in (24, 1, 7, 16, 3, 24, 24, 1, 1, 13):
        tokens = random_tokens(size, size)
        every = size <= 16
        a, b = (s.step(tokens, all_logits=every) for s in (one, other))
        assert np.array_equal(a, b)
    assert one.snapshots()
    assert device_rows(with_) == device_rows(without)
    one.rewind(70)  # from 64: its chunks begin there, as they would after any step that ends there
    one.prefill(random_tokens(60, 2))
    other.rewind(70)
    other.prefill(random_tokens(60, 2))
    assert np.array_equal(one.logits(), other.logits())


def test_marks_take_only_rows_of_logits_that_are_left() -> None:
    """A step whose own logits need all rows takes no snapshot; the next one does."""
    machine = fake_machine(small_manifest(max_logit_rows=16))
    session = machine.open()
    session.prefill(GIVEN[:20])
    session.step(GIVEN[20:36], all_logits=True)  # 16 rows, across 32: row 31 is among them
    assert [s.position for s in session.snapshots()] == [32]
    session.prefill(GIVEN[36:60])
    step_together(machine, [(session, GIVEN[60:80], 16)])  # row 63 is not among the last 16
    assert [s.position for s in session.snapshots()] == [32]
    ORACLE.check(machine, session)
    session.rewind(70)
    assert [s.position for s in session.snapshots()] == [32, 64]
    ORACLE.check(machine, session)


# -------------------------------------------------------------------------------------------- the STALE table


def empty(machine: FakeMachine) -> Session:
    return machine.open()


def valid(machine: FakeMachine) -> Session:
    session = machine.open()
    session.prefill(GIVEN[:90])
    return session


def stale_by_defer(machine: FakeMachine) -> Session:
    session = valid(machine)
    session.pin(position=64)
    session.rewind(70, defer=True)
    return session


def stale_by_failure(machine: FakeMachine) -> Session:
    session = valid(machine)
    session.pin(position=64)
    session.rewind(86)
    fail_next_call(machine)
    with pytest.raises(BackendFailedError):
        session.step([1])
    return session


def stale_half_way(machine: FakeMachine) -> Session:
    session = stale_by_defer(machine)
    for info in session.snapshots():
        if not info.is_pinned:
            evict(machine, info.snapshot_id)
    session.unpin(session.snapshots()[0].snapshot_id)
    evict(machine, session.snapshots()[0].snapshot_id)
    session.rebuild_chunk()
    assert 0 < evaluated_tokens(session) < session.position
    return session


STALE = [stale_by_defer, stale_by_failure, stale_half_way]
READS: dict[str, Callable[[FakeMachine, Session], object]] = {
    "logits": lambda m, s: s.logits(),
    "step": lambda m, s: s.step([1]),
    "step all": lambda m, s: s.step([1, 2], all_logits=True),
    "advance": lambda m, s: s.advance([1], 1),
    "step of two": lambda m, s: step_together(m, [(m.open(), [1], 1), (s, [1], 1)]),
    "take_snapshot": lambda m, s: s.take_snapshot(),
    "pin here": lambda m, s: s.pin(position=s.position),
    "pin below": lambda m, s: s.pin(position=33),
    "require_valid": lambda m, s: s.require_valid(),
}


@pytest.mark.parametrize("make", STALE, ids=lambda m: m.__name__)
@pytest.mark.parametrize("read", READS)
def test_every_read_of_a_stale_session_refuses(make: Callable[[FakeMachine], Session], read: str) -> None:
    machine = fake_machine()
    session = make(machine)
    before = (session.history, session.digest, session.epoch, session.snapshots(), device_calls(machine))
    with pytest.raises(StateInvalidError, match=r"expected a state of [0-9]+ tokens"):
        READS[read](machine, session)
    assert not session.state_valid
    assert before == (
        session.history, session.digest, session.epoch, session.snapshots(), device_calls(machine),
    )  # fmt: skip
    session.keep_snapshot(SnapshotOrigin.TURN_END)
    assert before[3] == session.snapshots()
    session.rebuild()
    ORACLE.check(machine, session)


LEAVES: dict[str, Callable[[FakeMachine, Session], object]] = {
    "rebuild": lambda m, s: s.rebuild(),
    "prefill": lambda m, s: s.prefill([1, 2]),
    "prefill nothing": lambda m, s: s.prefill([]),
    "rewind to where it is": lambda m, s: s.rewind(s.position),
    "rewind below": lambda m, s: s.rewind(50),
    "rewind to a snapshot": lambda m, s: s.rewind(64),
    "rewind to nothing": lambda m, s: s.rewind(0),
}
STAYS: dict[str, Callable[[FakeMachine, Session], object]] = {
    "plan": lambda m, s: s.plan_rewind(10),
    "can": lambda m, s: s.can_rewind(10),
    "list": lambda m, s: s.snapshots(),
    "digest": lambda m, s: s.digest,
    "bytes": lambda m, s: s.state_bytes,
    "fork": lambda m, s: m_check(m, s.fork()[0]),
    "fork below": lambda m, s: m_check(m, s.fork(40)[0]),
    "keep": lambda m, s: s.keep_snapshot(SnapshotOrigin.TURN_END),
    "defer again": lambda m, s: s.rewind(s.position, defer=True),
    "poison": lambda m, s: poison_sessions(s),
}


def m_check(machine: FakeMachine, child: Session) -> None:
    ORACLE.check(machine, child)
    child.close()


@pytest.mark.parametrize("make", STALE, ids=lambda m: m.__name__)
@pytest.mark.parametrize("leave", LEAVES)
def test_what_makes_a_stale_session_valid(make: Callable[[FakeMachine], Session], leave: str) -> None:
    machine = fake_machine()
    session = make(machine)
    LEAVES[leave](machine, session)
    assert session.state_valid
    ORACLE.check(machine, session)


@pytest.mark.parametrize("make", STALE, ids=lambda m: m.__name__)
@pytest.mark.parametrize("stay", STAYS)
def test_what_leaves_it_stale(make: Callable[[FakeMachine], Session], stay: str) -> None:
    machine = fake_machine()
    session = make(machine)
    history = session.history
    STAYS[stay](machine, session)
    assert not session.state_valid
    assert session.history == history
    session.rebuild()
    ORACLE.check(machine, session)


@pytest.mark.parametrize("make", [empty, valid, *STALE], ids=lambda m: m.__name__)
@pytest.mark.parametrize("to", [-1, 91, 2**40, -(2**63)])
def test_targets_outside_are_refused_in_every_state(make: Callable[[FakeMachine], Session], to: int) -> None:
    """Nothing clamps (decisions.md 12)."""
    machine = fake_machine()
    session = make(machine)
    before = (session.history, session.state_valid, session.epoch, device_calls(machine))
    for call in (
        lambda: session.rewind(to),
        lambda: session.rewind(to, defer=True),
        lambda: session.plan_rewind(to),
        lambda: session.fork(to),
        lambda: session.pin(position=to),
    ):
        with pytest.raises(PositionOutOfRangeError, match=f"got {to}"):
            call()
    assert not session.can_rewind(to)
    assert before == (session.history, session.state_valid, session.epoch, device_calls(machine))


def test_an_empty_session_is_valid_and_has_nothing() -> None:
    machine = fake_machine()
    session = machine.open()
    assert session.state_valid
    assert session.logits() is None
    assert session.take_snapshot() is None
    assert session.snapshots() == []
    assert session.rewind(0).kind is RewindKind.NONE
    assert session.fork()[0].position == 0
    with pytest.raises(PositionOutOfRangeError):
        session.pin(position=0)


# ------------------------------------------------------------------------------------ pins and restores by id


def test_a_snapshot_is_taken_once_a_position() -> None:
    machine, session = opened(90)
    first = session.take_snapshot(SnapshotOrigin.TURN_END, label="a")
    assert first is not None
    assert (first.position, first.origin, first.label) == (90, SnapshotOrigin.TURN_END, "a")
    again = session.take_snapshot(SnapshotOrigin.CLIENT, label="b")
    assert again == dataclasses.replace(first, label="b")
    assert session.pin(position=90) == dataclasses.replace(first, label="b", is_pinned=True)
    assert session.pin(first.snapshot_id, label="c").label == "c"
    assert first.digest == session.digest
    assert len(session.snapshots()) == 3
    ORACLE.check(machine, session)


def test_the_end_of_a_turn_is_one_also_at_an_interval() -> None:
    machine, session = opened(64)
    assert session.snapshots()[-1].origin is SnapshotOrigin.INTERVAL
    session.keep_snapshot(SnapshotOrigin.TURN_END)
    assert [(s.position, s.origin) for s in session.snapshots()] == [
        (32, SnapshotOrigin.INTERVAL), (64, SnapshotOrigin.TURN_END),
    ]  # fmt: skip
    session.take_snapshot(SnapshotOrigin.CLIENT)
    assert session.snapshots()[-1].origin is SnapshotOrigin.TURN_END
    ORACLE.check(machine, session)


def test_a_snapshot_of_a_client_is_one_also_at_an_interval() -> None:
    _, session = opened(64)
    taken = session.take_snapshot(SnapshotOrigin.CLIENT)
    assert taken is not None
    assert (taken.position, taken.origin) == (64, SnapshotOrigin.CLIENT)


@pytest.mark.parametrize(
    ("taken", "kept", "origin"),
    [
        (SnapshotOrigin.SAVE, SnapshotOrigin.TURN_END, SnapshotOrigin.TURN_END),
        (SnapshotOrigin.SAVE, SnapshotOrigin.PROMPT_END, SnapshotOrigin.PROMPT_END),
        (SnapshotOrigin.SAVE, SnapshotOrigin.BEFORE_DRAFT, SnapshotOrigin.SAVE),
        (SnapshotOrigin.CLIENT, SnapshotOrigin.TURN_END, SnapshotOrigin.CLIENT),
        (SnapshotOrigin.TURN_END, SnapshotOrigin.SAVE, SnapshotOrigin.TURN_END),
    ],
)
def test_the_end_of_a_turn_takes_the_place_of_what_a_save_took(
    taken: SnapshotOrigin, kept: SnapshotOrigin, origin: SnapshotOrigin
) -> None:
    _, session = opened(50)
    session.take_snapshot(taken)
    session.keep_snapshot(kept)
    assert session.snapshots()[-1].origin is origin


@pytest.mark.parametrize("at", [1, 31, 32, 33, 63, 84, 85, 89, 90])
def test_a_pin_anywhere_leaves_the_session_where_it_is(at: int) -> None:
    machine, session = opened(90)
    before = (session.history, session.epoch, session.position)
    info = session.pin(position=at)
    assert (info.position, info.is_pinned) == (at, True)
    assert before == (session.history, session.epoch, session.position)
    assert memory_of(machine).sessions == 1
    ORACLE.check(machine, session)
    session.rewind(0)
    report = session.rewind_to_snapshot(info.snapshot_id)
    assert (report.kind, report.to_position, report.replayed_tokens) == (RewindKind.SNAPSHOT, at, 0)
    ORACLE.check(machine, session)
    assert session.history == tuple(GIVEN[:at])


def test_pins_that_are_refused_change_nothing() -> None:
    machine, session = opened(90)
    before = session.snapshots()
    for call in (lambda: session.pin(), lambda: session.pin("s1", position=3)):
        with pytest.raises(InvalidRequestError, match="expected one of snapshot_id and position"):
            call()
    for call in (
        lambda: session.pin("none"),
        lambda: session.unpin("none"),
        lambda: session.rewind_to_snapshot("none"),
        lambda: session.plan_rewind_to_snapshot("none"),
    ):
        with pytest.raises(UnknownSnapshotError, match="'none'"):
            call()
    assert session.snapshots() == before
    ORACLE.check(machine, session)


def test_back_and_forwards_between_branches() -> None:
    machine, session = opened(90)
    one = session.pin(position=90)
    session.rewind(40)
    session.prefill(random_tokens(100, 5))
    two = session.pin(position=140)
    three = session.pin(position=33)
    epoch = session.epoch
    for info, length in ((one, 90), (two, 140), (three, 33), (two, 140), (one, 90), (three, 33), (one, 90)):
        plan = session.plan_rewind_to_snapshot(info.snapshot_id)
        report = session.rewind_to_snapshot(info.snapshot_id)
        assert (report.kind, plan.kind) == (RewindKind.SNAPSHOT, RewindKind.SNAPSHOT)
        assert (session.position, session.digest) == (length, info.digest)
        assert session.epoch > epoch
        epoch = session.epoch
        ORACLE.check(machine, session)
    assert session.history == tuple(GIVEN[:90])


def test_to_a_snapshot_within_the_horizon_is_in_place() -> None:
    machine, session = opened(90)
    info = session.pin(position=90)
    session.prefill([1, 2, 3])
    assert session.plan_rewind_to_snapshot(info.snapshot_id).kind is RewindKind.IN_PLACE
    assert session.rewind_to_snapshot(info.snapshot_id).kind is RewindKind.IN_PLACE
    assert session.rewind_to_snapshot(info.snapshot_id).kind is RewindKind.NONE
    ORACLE.check(machine, session)


def test_the_same_length_is_not_the_same_history() -> None:
    """rewind.md H1: grown again to the length of a snapshot, with other tokens."""
    machine, session = opened(70)
    info = session.pin(position=64)
    session.rewind(50)
    session.prefill(random_tokens(20, 6))
    assert session.position == 70
    report = session.rewind(64)
    assert report.snapshot_id != info.snapshot_id
    ORACLE.check(machine, session)
    session.rewind_to_snapshot(info.snapshot_id)
    assert session.history == tuple(GIVEN[:64])
    ORACLE.check(machine, session)


def test_a_closed_session_has_no_snapshots_and_refuses() -> None:
    machine, session = opened(90)
    info = session.pin(position=64)
    session.close()
    assert memory_of(machine).snapshot_bytes == 0
    for call in (
        lambda: session.rewind_to_snapshot(info.snapshot_id),
        session.take_snapshot,
        lambda: session.pin(position=64),
    ):
        with pytest.raises(RuntimeFailure):
            call()
