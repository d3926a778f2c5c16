"""Snapshots of sessions: what is in them, and whose pages and room they take."""

from __future__ import annotations

import dataclasses

import pytest
from fake_executable import FakeMachine, fake_machine, small_manifest
from fake_oracle import FakeOracle, random_tokens
from port import evict, largest_snapshot, lose_state, spoil_snapshot, token_decided, watch

from ds4c_runtime.errors import MemoryBudgetError, NoProgressError
from ds4c_runtime.reports import RebuildReason, RewindKind
from ds4c_runtime.session import Session

LENGTH = 200
ORACLE = FakeOracle()
GIVEN = random_tokens(LENGTH, 1)


def opened(length: int = LENGTH) -> tuple[FakeMachine, Session]:
    machine = fake_machine()
    session = machine.open()
    session.prefill(GIVEN[:length])
    return machine, session


def test_damage_is_told_before_what_was_given_up() -> None:
    machine, session = opened()
    ids = [s.snapshot_id for s in session.snapshots()]
    for snapshot_id in ids:
        spoil_snapshot(session, snapshot_id)
    evict(machine, ids[0])
    assert session.rewind(100).rebuild_reason is RebuildReason.INTEGRITY_FAILED
    ORACLE.check(machine, session)


def test_a_page_that_its_session_holds_is_not_free_without_its_snapshot() -> None:
    machine = fake_machine(max_sessions=2, page_count=1)
    one, other = machine.open(), machine.open()
    one.prefill(GIVEN[:32])
    with pytest.raises(MemoryBudgetError, match="expected 1 free pages of 32 tokens, got 0 of 1"):
        other.prefill(GIVEN[:1])
    assert [s.position for s in one.snapshots()] == [32], "given up in vain"
    ORACLE.check(machine, one)


def test_the_page_that_a_step_copies_is_made_its_own() -> None:
    """Where no page is free for the copy, the snapshot that shares the page goes, and no other."""
    machine = fake_machine(max_sessions=1, page_count=2)
    session = machine.open()
    session.prefill(GIVEN[:40])
    session.take_snapshot()
    assert [s.position for s in session.snapshots()] == [32, 40]
    session.step(GIVEN[40:41])
    assert [s.position for s in session.snapshots()] == [32]
    ORACLE.check(machine, session)


def test_the_page_that_is_free_soonest_is_made_free() -> None:
    """The first page is held by three snapshots, the last one by one: that one goes, and no other."""
    machine = fake_machine(max_sessions=2, page_count=3)
    one, other = machine.open(), machine.open()
    one.prefill(GIVEN[:96])
    one.rewind(0)
    assert [s.position for s in one.snapshots()] == [32, 64, 96]
    other.prefill(GIVEN[:1])
    assert [s.position for s in one.snapshots()] == [32, 64]
    ORACLE.check(machine, one, other)


def test_a_step_takes_no_more_snapshots_than_the_artifact_has_room_for() -> None:
    manifest = small_manifest(max_rows=64, page_tokens=16)
    manifest = dataclasses.replace(manifest, limits=dataclasses.replace(manifest.limits, max_marks=2))
    machine = fake_machine(manifest)
    session = machine.open()
    session.prefill(GIVEN[:64])  # across 16, 32, 48 and to 64
    assert [s.position for s in session.snapshots()] == [16, 32]
    ORACLE.check(machine, session)


def test_the_rows_of_a_snapshot_are_copied_when_it_is_taken() -> None:
    """The tokens that follow write over the rows of the rings."""
    machine, session = opened(50)
    session.pin(position=50)  # one at any other place than an interval is thinned out
    session.prefill(GIVEN[50:110])
    assert session.rewind(50).kind is RewindKind.SNAPSHOT
    session.step(GIVEN[:3])  # the logits at 50 are held by the snapshot: rows are read from here on
    ORACLE.check(machine, session)


def test_a_token_that_is_evaluated_again_leaves_the_snapshot_that_is_due() -> None:
    machine, session = opened(66)
    evict(machine, next(s.snapshot_id for s in session.snapshots() if s.position == 64))
    assert session.rewind(64).kind is RewindKind.IN_PLACE
    session.logits()
    assert session.logits_replayed == 1
    assert [s.position for s in session.snapshots()] == [32, 64]
    ORACLE.check(machine, session)


def test_the_watchdog_is_told_of_every_restore() -> None:
    machine, session = opened()
    watch(session)
    session.rewind(64)
    lose_state(session)
    with pytest.raises(NoProgressError):
        session.rebuild()
    token_decided(session)
    session.rebuild()
    ORACLE.check(machine, session)


def test_the_logits_of_a_snapshot_stay_as_long_as_it_is_the_lowest_position() -> None:
    """They cannot be made again: the row before it was not restored."""
    machine, session = opened()
    assert session.rewind(64).kind is RewindKind.SNAPSHOT
    for start in (64, 66):
        session.step(GIVEN[start : start + 2])
    for to in (65, 64):
        assert session.rewind(to).kind is RewindKind.IN_PLACE
        ORACLE.check(machine, session)


def test_a_pin_makes_the_logits_that_are_not_held() -> None:
    machine, session = opened()
    session.rewind(197)  # in place, between the rows whose logits were asked for
    assert session.pin(position=197).position == 197
    assert session.logits_replayed == 1
    ORACLE.check(machine, session)


def test_a_pin_below_takes_one_snapshot_and_no_room_of_others() -> None:
    """The fork that goes there leaves none on its way: room for one is enough."""
    manifest = small_manifest(page_tokens=16)
    machine = fake_machine(manifest, snapshot_bytes=4 * largest_snapshot(manifest))
    session, other = machine.open(), machine.open()
    session.prefill(GIVEN[:60])
    for info in session.snapshots():
        evict(machine, info.snapshot_id)
    other.prefill(GIVEN[:48])
    session.pin(position=50)
    assert [s.position for s in session.snapshots()] == [50]
    assert [s.position for s in other.snapshots()] == [16, 32, 48]
    ORACLE.check(machine, session, other)
