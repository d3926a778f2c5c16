"""Failures in the middle of a step: a state is right or says that it is invalid, and nothing is lost."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from fake_executable import FakeDevice, FakeMachine, fake_machine, small_manifest
from port import (
    SnapshotOrigin,
    check,
    largest_snapshot,
    logits_cannot_be_copied,
    step_together,
)

from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.errors import BackendFailedError
from ds4c_runtime.launches import Extent
from ds4c_runtime.session import Session


def tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1024), k=count)


def equal_to_fresh(machine: FakeMachine, session: Session) -> None:
    """Right as a fresh session is, and nothing leaked."""
    fresh = fake_machine(max_sessions=1).open()
    fresh.prefill(session.history)
    got, want = session.logits(), fresh.logits()
    assert got is not None
    assert want is not None
    assert np.array_equal(got, want)
    check(machine, session)


def test_memory_runs_out_after_the_device_ran() -> None:
    """The rows are written by then; marks of the step are reserved."""
    machine, given = fake_machine(), tokens(60)
    session, other = machine.open("a"), machine.open("b")
    session.prefill(given[:30])
    other.prefill(given[:20])
    with (
        logits_cannot_be_copied(machine),
        pytest.raises(BackendFailedError, match="expected its logits, got MemoryError"),
    ):
        step_together(machine, [(session, given[30:40], 1), (other, given[20:24], 1)])
    assert [(s.position, s.state_valid) for s in (session, other)] == [(30, False), (20, False)]
    check(machine)
    for each in (session, other):
        each.rebuild()
        equal_to_fresh(machine, each)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no such kernel")])
def test_what_ends_a_step_is_told_once_and_as_what_it_is(error: BaseException) -> None:
    """A failure of the device in one line, a signal as itself; rows may have been written by both."""

    class Ending(FakeDevice):
        ends: BaseException | None = None

        def call(self, entry: str, arenas: Sequence[HostBytes], extent: Extent) -> None:
            if self.ends is not None:
                raise self.ends
            super().call(entry, arenas, extent)

    machine = fake_machine(device_type=Ending)
    session = machine.open()
    session.prefill(tokens(30))
    machine.device.ends = error
    said = "step failed: expected the device to finish, got RuntimeError: no such kernel; the session is"
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else BackendFailedError
    with pytest.raises(expected) as caught:
        session.step([1])
    assert expected is KeyboardInterrupt or str(caught.value).startswith(said)
    machine.device.ends = None
    assert (session.position, session.state_valid) == (30, False)
    session.rebuild()
    equal_to_fresh(machine, session)


def test_a_page_cannot_be_copied() -> None:
    machine, given = fake_machine(), tokens(60)
    session = machine.open()
    session.prefill(given[:40])
    assert session.take_snapshot(SnapshotOrigin.CLIENT) is not None  # its last page is shared from now on
    machine.device.fails_copies = True
    with pytest.raises(BackendFailedError, match="page not copied: expected the device to finish"):
        session.step(given[40:41])
    machine.device.fails_copies = False
    check(machine)
    assert session.position == 40
    session.rebuild()
    session.step(given[40:50])
    equal_to_fresh(machine, session)


def test_a_busy_session_gets_its_share_of_a_full_pool() -> None:
    manifest = small_manifest(context=512)
    size = largest_snapshot(manifest)
    machine = fake_machine(manifest, snapshot_bytes=6 * size)
    idle, busy = machine.open("idle"), machine.open("busy")
    idle.prefill(tokens(400))
    busy.prefill(tokens(400, seed=1))
    held = [len(s.snapshots()) for s in (idle, busy)]
    assert min(held) >= 2, held
    assert busy.plan_rewind(380).replay_tokens < 200


def test_the_end_of_a_branch_that_was_left_is_kept() -> None:
    manifest = small_manifest(context=1024)
    machine = fake_machine(manifest)
    session = machine.open()
    session.prefill(tokens(700))
    end = session.take_snapshot(SnapshotOrigin.TURN_END)
    session.rewind(10)
    session.prefill(tokens(60, seed=2))
    assert end is not None
    assert end.snapshot_id in [info.snapshot_id for info in session.snapshots()]
    assert session.rewind_to_snapshot(end.snapshot_id).to_position == 700
