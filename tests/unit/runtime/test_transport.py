"""Copies of snapshots: nothing waits, nothing is given back too early, the record says what was used."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from fake_executable import FakeDevice, FakeMachine, fake_machine, small_manifest
from fake_oracle import FakeOracle, random_tokens
from port import evict, memory_of, poll_copies, set_copy_mode, set_snapshot_limits, snapshots_of

from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.device.copy_thread import CopyThread, ThreadCopy
from ds4c_runtime.device.cpu import CpuDevice
from ds4c_runtime.device.memory import aligned_zeros, pinned_zeros
from ds4c_runtime.errors import BackendFailedError
from ds4c_runtime.reports import RebuildReason, RewindKind
from ds4c_runtime.snapshot import SnapshotOrigin
from ds4c_runtime.transport import CopyMode, OnDevice, OnHost, Transport

HOST_MODES = [CopyMode.HOST, CopyMode.HOST_ASYNC, CopyMode.HOST_PINNED]
ASYNC_MODES = [CopyMode.HOST_ASYNC, CopyMode.HOST_PINNED]
ORACLE = FakeOracle()


class HeldCopy(ThreadCopy):
    """Begins when its gate opens, or after `seconds`."""

    def __init__(self, source: HostBytes, target: HostBytes, seconds: float) -> None:
        super().__init__(source, target)
        self.gate, self.seconds = threading.Event(), seconds

    def run(self) -> None:
        self.gate.wait(self.seconds)
        super().run()


class HeldCopies(CopyThread):
    def __init__(self, seconds: float = 5.0) -> None:
        super().__init__()
        self.seconds = seconds
        self.made: list[HeldCopy] = []

    def submit(self, source: HostBytes, target: HostBytes) -> ThreadCopy:
        super().submit(aligned_zeros(0), aligned_zeros(0))  # starts the thread
        copy = HeldCopy(source, target, self.seconds)
        self.made.append(copy)
        with self._changed:
            self._queue.append(copy)
            self._changed.notify()
        return copy

    def open(self) -> None:
        for copy in self.made:
            copy.gate.set()


def slow_machine(mode: CopyMode, seconds: float) -> tuple[FakeMachine, HeldCopies]:
    machine = fake_machine(copy_mode=mode)
    copies = HeldCopies(seconds)
    machine.device.copies = copies
    return machine, copies


@pytest.mark.parametrize("mode", CopyMode)
def test_save_overwrite_restore_without_a_wait(mode: CopyMode) -> None:
    """The save is not done when its source is written over and the restore is asked for."""
    machine, _ = slow_machine(mode, 0.03)
    session, given = machine.open(), random_tokens(60, 1)
    session.prefill(given)
    info = session.pin(position=60)
    session.prefill(random_tokens(50, 2))
    report = session.rewind_to_snapshot(info.snapshot_id)
    assert report.kind is RewindKind.SNAPSHOT
    ORACLE.check(machine, session)
    assert session.history == tuple(given)


@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_a_save_waits_for_nothing_and_keeps_its_source(mode: CopyMode) -> None:
    machine, copies = slow_machine(mode, 5.0)
    session = machine.open()
    session.prefill(random_tokens(70, 3))
    assert [s.position for s in session.snapshots()] == [32, 64]
    assert not any(copy.is_done for copy in copies.made), "the step did not wait"
    memory = memory_of(machine)
    held = memory.snapshot_device_bytes
    assert held == sum(s.bytes for s in session.snapshots()) == memory.snapshot_host_bytes
    assert not poll_copies(machine)
    assert memory_of(machine).snapshot_device_bytes == held, "the source is held until the copy is done"
    copies.open()
    assert poll_copies(machine, wait=True)
    while poll_copies(machine, wait=True):
        pass
    memory = memory_of(machine)
    assert (memory.snapshot_device_bytes, memory.snapshot_host_bytes) == (0, held)
    ORACLE.check(machine, session)


def test_a_synchronous_save_is_done_when_it_returns() -> None:
    machine, copies = slow_machine(CopyMode.HOST, 0.01)
    session = machine.open()
    session.prefill(random_tokens(40, 4))
    assert copies.made
    assert all(copy.is_done for copy in copies.made)
    assert memory_of(machine).snapshot_device_bytes == 0


@pytest.mark.parametrize("mode", CopyMode)
def test_a_snapshot_that_is_dropped_while_it_is_copied(mode: CopyMode) -> None:
    machine, copies = slow_machine(mode, 0.02)
    session = machine.open()
    session.prefill(random_tokens(70, 5))
    for info in session.snapshots():
        evict(machine, info.snapshot_id)
    assert memory_of(machine).snapshot_host_bytes == 0
    session.prefill(random_tokens(60, 6))  # takes the room of what is still being copied, or other room
    ORACLE.check(machine, session)
    copies.open()
    session.rewind(100)
    ORACLE.check(machine, session)
    session.close()
    while poll_copies(machine, wait=True):
        pass
    assert memory_of(machine).snapshot_bytes == 0


@pytest.mark.parametrize("mode", HOST_MODES)
def test_the_record_says_what_was_used_and_the_restore_obeys_it(mode: CopyMode) -> None:
    device = FakeDevice(small_manifest())
    arena = device.allocate(512)
    arena[:] = np.arange(512) % 251
    transport = Transport(device, arena, mode)
    released: list[OnDevice] = []
    place = transport.save(OnDevice(64, 128), released.append)
    assert isinstance(place, OnHost)
    assert place.mode is mode or not pinned_zeros(64)[1]
    transport.mode = CopyMode.DEVICE  # what later saves do is nothing to this snapshot
    arena[64:192] = 0 if mode is CopyMode.HOST else arena[64:192]
    place.copy.wait()
    arena[:] = 0
    transport.fetch(place, OnDevice(320, 128))
    assert arena[320:448].tolist() == (np.arange(64, 192) % 251).tolist()
    assert arena[:320].sum() == arena[448:].sum() == 0
    assert released == [OnDevice(64, 128)]


def test_pinned_memory_that_is_refused_is_recorded() -> None:
    machine = fake_machine(copy_mode=CopyMode.HOST_PINNED)
    asked: list[bool] = []

    def pageable(size: int, *, pinned: bool) -> tuple[HostBytes, bool]:
        asked.append(pinned)
        return aligned_zeros(size), False

    machine.device.host_buffer = pageable  # type: ignore[method-assign]
    session = machine.open()
    session.prefill(random_tokens(70, 7))
    assert [s.copy_mode for s in snapshots_of(session)] == [CopyMode.HOST_ASYNC] * 2
    assert asked == [True, True]
    session.rewind(50)
    ORACLE.check(machine, session)


def test_device_snapshots_stay_where_the_kernel_put_them() -> None:
    device = FakeDevice(small_manifest())
    transport = Transport(device, device.allocate(256), CopyMode.DEVICE)
    staged = OnDevice(64, 64)
    assert transport.save(staged, lambda _: pytest.fail("released")) is staged


def test_modes_may_change_between_snapshots() -> None:
    machine = fake_machine(snapshot_bytes=60_000)
    set_snapshot_limits(machine, host_bytes=60_000)
    session = machine.open()
    for number, mode in enumerate([*CopyMode, *CopyMode]):
        set_copy_mode(machine, mode)
        session.prefill(random_tokens(17, number))
        assert session.take_snapshot(SnapshotOrigin.TURN_END) is not None
    infos = session.snapshots()
    assert {s.on_device for s in infos} == {True, False}
    for info in (*infos, *reversed(infos)):
        session.rewind_to_snapshot(info.snapshot_id)
        ORACLE.check(machine, session)


# ------------------------------------------------------------------------------------------ the copy thread


def test_copies_are_done_in_order() -> None:
    copies, size = CopyThread(), 1 << 16
    a, b, c = (aligned_zeros(size) for _ in range(3))
    a[:] = 7
    last = [copies.submit(a, b), copies.submit(b, c), copies.submit(c, a)][-1]
    last.wait()
    assert (b == 7).all()
    assert (c == 7).all()
    assert last.is_done


def test_what_follows_a_copy_runs_once_and_on_the_thread_that_asks() -> None:
    copy = CopyThread().submit(aligned_zeros(64), aligned_zeros(64))
    threads: list[threading.Thread] = []
    copy.then(lambda: threads.append(threading.current_thread()))
    copy.wait()
    copy.wait()
    assert copy.poll()
    assert threads == [threading.main_thread()]


def test_a_failed_copy_raises_for_who_waits_and_is_done() -> None:
    copies = CopyThread()
    bad = ThreadCopy(aligned_zeros(64), aligned_zeros(65))
    bad.run()
    followed: list[int] = []
    bad.then(lambda: followed.append(1))
    assert bad.poll(), "a copy that failed is over"
    for _ in range(2):
        with pytest.raises(ValueError, match="broadcast"):
            bad.wait()
    assert followed == [1]
    good = copies.submit(aligned_zeros(64), aligned_zeros(64))
    good.wait()


def test_rows_whose_save_failed_are_not_restored() -> None:
    """The copy goes on beside the steps; that it failed is seen when its rows are wanted, not before."""

    class Failing(FakeDevice):
        def copy_to_host(self, arena: HostBytes, offset: int, target: HostBytes) -> ThreadCopy:
            copy = ThreadCopy(aligned_zeros(64), aligned_zeros(65))
            copy.run()
            return copy

    machine = fake_machine(copy_mode=CopyMode.HOST_ASYNC, device_type=Failing)
    session = machine.open()
    session.prefill(random_tokens(100, 1))
    assert session.snapshots()
    report = session.rewind(64)
    assert (report.kind, report.rebuild_reason) == (RewindKind.REBUILD, RebuildReason.INTEGRITY_FAILED)
    ORACLE.check(machine, session)


def test_a_fetch_that_fails_keeps_no_room() -> None:
    """However often: the arena is as empty as before, and the snapshot can be fetched then."""

    class Failing(FakeDevice):
        fails = False

        def copy_from_host(self, source: HostBytes, arena: HostBytes, offset: int) -> ThreadCopy:
            if self.fails:
                raise OSError("no copy")
            return super().copy_from_host(source, arena, offset)

    machine = fake_machine(copy_mode=CopyMode.HOST, device_type=Failing)
    session = machine.open()
    session.prefill(random_tokens(100, 1))
    assert isinstance(machine.device, Failing)
    machine.device.fails = True
    for _ in range(20):
        with pytest.raises(BackendFailedError, match="restore failed"):
            session.rewind(64)
    machine.device.fails = False
    session.rebuild()
    assert session.last_rewind is not None
    ORACLE.check(machine, session)


def test_sizes_must_agree() -> None:
    with pytest.raises(AssertionError):
        CopyThread().submit(aligned_zeros(64), aligned_zeros(128))


def test_pinned_memory_is_memory() -> None:
    memory, is_pinned = pinned_zeros(4096)
    memory[:] = 3
    assert memory.ctypes.data % 64 == 0
    if is_pinned and Path("/proc/self/status").exists():
        locked = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmLck" in line]
        assert int(locked[0].split()[1]) >= 4


def test_the_cpu_device_copies_like_the_fake_one() -> None:
    device = CpuDevice()
    arena = device.allocate(256)
    arena[:] = np.arange(256)
    buffer, is_pinned = device.host_buffer(64, pinned=False)
    assert not is_pinned
    first = device.copy_to_host(arena, 128, buffer)
    second = device.copy_from_host(buffer, arena, 0)
    second.wait()
    assert first.poll()
    assert arena[:64].tolist() == list(range(128, 192))
