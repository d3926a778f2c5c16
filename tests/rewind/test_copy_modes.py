"""Random sessions with their snapshots in every place, with room for many of them, for few and for none.

After every operation each session equals one that never rewound, with NaN in all memory that nobody owns.
Copies are done beside the test or as late as they can be; a budget that is too small costs time, never a bit.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_executable import FakeDevice, FakeMachine, small_manifest
from port import CopyMode, machine_of
from rewind.row_machine import LateCopies
from rewind.truth import FakeTruth
from rewind.walker import Chapter, Walk

from ds4c_runtime.device.copy_thread import CopyThread

OPERATIONS = 150
TRUTH = FakeTruth()


def machine(copies: CopyThread, device_type: type[FakeDevice] = FakeDevice) -> FakeMachine:
    """A device whose copies are done by others; walks make memory of their own on it."""
    manifest = small_manifest()
    return machine_of(manifest, device_type(manifest, copies=copies), 1)


def walk_on(machine: FakeMachine, mode: CopyMode, largest: float, seed: str, folder: Path) -> Walk:
    """Three sessions, and snapshots of so many times the largest one."""
    return Walk(machine, TRUTH, seed, folder, chapters=[Chapter(mode, largest, 24, 3)])


EVERY = [
    (mode, late, largest)
    for mode, late in [*((mode, False) for mode in CopyMode), (CopyMode.HOST_ASYNC, True)]
    for largest in (0, 1, 3.5, 40)
]
FEW = EVERY[::3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "late", "largest"),
    [pytest.param(*each, marks=[] if each in FEW else [pytest.mark.more]) for each in EVERY],
)
def test_random_sessions(mode: CopyMode, late: bool, largest: float, seed: int, tmp_path: Path) -> None:
    copies = LateCopies() if late else CopyThread()
    walk = walk_on(machine(copies), mode, largest, f"{seed} {mode} {late} {largest}", tmp_path)
    walk.run(OPERATIONS, chapter_length=OPERATIONS)
    assert {k for k, n in walk.kinds.items() if n} & (
        {"snapshot", "snapshot_replay"} if largest == 40 else {"rebuild"}
    )
