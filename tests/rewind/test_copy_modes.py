"""Random sessions with their snapshots in every place, with room for many of them, for few and for none.

After every operation each session equals one that never rewound, with NaN in all memory that nobody owns.
Copies are done beside the test or as late as they can be; a budget that is too small costs time, never a bit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from fake_executable import FakeDevice, FakeMachine, small_manifest
from rewind.bug_scenarios import logits_of
from rewind.row_machine import LateCopies

from ds4c_runtime.device.copy_thread import CopyThread
from ds4c_runtime.reports import RewindKind
from ds4c_runtime.session import Session
from ds4c_runtime.snapshot import SnapshotLayout
from ds4c_runtime.state import StateStore
from ds4c_runtime.step import Stepper
from ds4c_runtime.transport import CopyMode

pytestmark = pytest.mark.slow

MOST = 200
OPERATIONS = 150


def machine(
    mode: CopyMode, copies: CopyThread, largest: float, device_type: type[FakeDevice] = FakeDevice
) -> FakeMachine:
    """Three sessions, and snapshots of so many times the largest one."""
    manifest = small_manifest()
    device = device_type(manifest, copies=copies)
    room = int(largest * SnapshotLayout(manifest).largest())
    pages = 3 * manifest.limits.pages_per_session
    store = StateStore(manifest, device, 3, pages, snapshot_bytes=room, copy_mode=mode)
    return FakeMachine(manifest, device, store, Stepper(manifest, device, store))


@dataclass
class Walk:
    """Random operations on up to three sessions; tokens of three branches, so that histories meet again."""

    machine: FakeMachine
    draw: random.Random
    sessions: list[Session] = field(default_factory=list[Session])
    kinds: set[RewindKind] = field(default_factory=set[RewindKind])

    def run(self) -> None:
        self.sessions.append(self.machine.open())
        changes = (self.prefill, self.prefill, self.garbage, self.rewind, self.to_snapshot)
        for _ in range(OPERATIONS):
            self.draw.choice((*changes, self.fork, self.close))(self.draw.choice(self.sessions))
            self.check()

    def tokens(self, session: Session, count: int) -> list[int]:
        branch, start = self.draw.randrange(3), session.position
        return [20 + (7 * (start + i) + 31 * branch) % 300 for i in range(min(count, MOST - start))]

    def prefill(self, session: Session) -> None:
        session.prefill(self.tokens(session, self.draw.randrange(1, 60)), chunk=self.draw.randrange(1, 24))

    def garbage(self, session: Session) -> None:
        """A snapshot, a block that is rejected as a whole, and back."""
        at = session.position
        session.take_snapshot()
        block = self.tokens(session, self.draw.randrange(1, 16))
        if block:
            session.step(block, all_logits=True)
            self.kinds.add(session.rewind(at).kind)

    def rewind(self, session: Session) -> None:
        self.kinds.add(session.rewind(self.draw.randrange(session.position + 1)).kind)

    def to_snapshot(self, session: Session) -> None:
        """One of those that are there, also of a branch that was left; half of them stay pinned."""
        infos = session.snapshots()
        if infos:
            info = self.draw.choice(infos)
            (session.pin if self.draw.random() < 0.1 else session.unpin)(info.snapshot_id)
            assert session.rewind_to_snapshot(info.snapshot_id).kind is not RewindKind.REBUILD
            assert session.position == info.position

    def fork(self, session: Session) -> None:
        if len(self.sessions) < 3:
            self.sessions.append(session.fork(self.draw.randrange(session.position + 1))[0])

    def close(self, session: Session) -> None:
        if len(self.sessions) > 1 and self.draw.random() < 0.3:
            self.sessions.remove(session)
            session.close()

    def check(self) -> None:
        pool = self.machine.store.snapshots
        pool.poison_free()
        self.machine.store.poison_free()
        for session in self.sessions:
            session.timeline.poison_dead_rows()
            row = session.logits()
            assert (b"" if row is None else row.tobytes()) == logits_of(session.history)
            session.timeline.check_integrity()
        assert pool.bytes_used <= max(pool.budget, len(pool.arena)) + pool.device_bytes


@pytest.mark.parametrize("largest", [0, 1, 3.5, 40])
@pytest.mark.parametrize(
    ("mode", "late"), [*((mode, False) for mode in CopyMode), (CopyMode.HOST_ASYNC, True)]
)
def test_random_sessions(mode: CopyMode, late: bool, largest: float, seed: int) -> None:
    copies = LateCopies() if late else CopyThread()
    walk = Walk(machine(mode, copies, largest), random.Random(f"{seed} {mode} {late} {largest}"))
    walk.run()
    walk.machine.store.check_integrity()
    by_snapshot = {RewindKind.SNAPSHOT, RewindKind.SNAPSHOT_REPLAY}
    assert walk.kinds & (by_snapshot if largest == 40 else {RewindKind.REBUILD})
    for session in walk.sessions:
        session.close()
    walk.machine.store.check_integrity()
    assert walk.machine.store.snapshots.bytes_used == 0
