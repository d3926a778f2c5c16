"""What the port says it does, it does: poison where nothing may be read, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from fake_executable import FakeMachine, fake_machine, small_manifest
from port import (
    Session,
    evict,
    flood,
    live_bytes,
    machine_behind,
    machine_like,
    memory_of,
    poison,
    poison_dead,
    poison_free_snapshots,
    poison_sessions,
    ring_rows,
    slot_bytes,
    snapshots_of,
)

from ds4c_runtime.errors import BackendFailedError

GIVEN = [(13 * i) % 997 for i in range(90)]


def opened() -> tuple[FakeMachine, Session]:
    machine = fake_machine(max_sessions=2)
    session = machine.open()
    session.prefill(GIVEN)
    return machine, session


def dead_positions(machine: FakeMachine, session: Session, name: str) -> list[int]:
    """Of the last rows that a ring has room for, those that are NaN."""
    ring = next(r for r in machine.manifest.rings if r.name == name)
    at = range(session.position - ring.capacity, session.position)
    return [
        p for p, row in zip(at, ring_rows(machine, session, name, at), strict=True) if np.isnan(row).all()
    ]


def test_dead_rows_are_those_before_the_window_of_the_horizon() -> None:
    """7 rows before a token; a horizon of 6 tokens, and one that is evaluated again for its logits."""
    machine, session = opened()
    poison_sessions(session)
    limits = machine.manifest.limits
    first = {"raw": 90 - limits.horizon - 1 - 7, "of4": (90 - 7) // 4 * 4 - 4, "of16": (90 - 7) // 16 * 16}
    for ring in machine.manifest.rings:
        begin = 90 - ring.capacity
        assert dead_positions(machine, session, ring.name) == list(range(begin, first[ring.name])), ring.name


def test_poison_leaves_what_lives_and_fills_what_nobody_has() -> None:
    machine, session = opened()
    before, slot = live_bytes(machine, session), machine.manifest.arenas.state_slot
    assert set(slot_bytes(machine)[slot:]) == {0}
    poison(machine, session)
    assert set(slot_bytes(machine)[slot:]) == {0xFF}, "the free slot"
    assert live_bytes(machine, session) == before
    session.rewind(90 - machine.manifest.limits.horizon)
    assert session.logits() is not None


def test_a_test_may_say_itself_how_far_back_steps_go() -> None:
    machine, session = opened()
    poison_dead(machine, session, position=90, oldest=90)
    assert session.step([1]) is not None
    session.rewind(86)
    with pytest.raises(BackendFailedError, match="read of dead rows"):
        session.logits()


def test_free_room_of_snapshots_is_poisoned_and_no_other() -> None:
    machine, session = opened()
    poison_free_snapshots(machine)
    assert session.rewind(64).base_position == 64
    logits = session.logits()
    assert logits is not None
    assert np.isfinite(logits).all()


def test_a_flood_reaches_all_states() -> None:
    machine, session = opened()
    flood(machine)
    assert set(slot_bytes(machine)) == {0xFF}
    with pytest.raises(BackendFailedError):
        session.step([1])


def test_an_evicted_snapshot_is_lost_to_all_who_had_it() -> None:
    machine, session = opened()
    session.pin(position=64)
    child, _ = session.fork(80)
    shared = next(s for s in snapshots_of(child) if s.position == 64)
    assert (shared.tokens, shared.on_branch) == (tuple(GIVEN[:64]), True)
    before = memory_of(machine).snapshot_bytes
    evict(machine, shared.snapshot_id)
    assert [[s.position for s in snapshots_of(each)] for each in (session, child)] == [[32], [32]]
    assert memory_of(machine).snapshot_bytes == before - shared.bytes


def test_a_machine_like_another_has_memory_of_its_own() -> None:
    machine, session = opened()
    other = machine_like(machine, 1, small_manifest().limits.pages_per_session)
    assert (memory_of(other).sessions, memory_of(machine).sessions) == (0, 1)
    again = other.open()
    again.prefill(GIVEN)
    assert live_bytes(other, again) == live_bytes(machine_behind(session), session)
