"""A clock that only the fake device moves, so that times are known to the bit."""

from __future__ import annotations

from collections.abc import Sequence

from fake_executable import FakeDevice

from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.launches import Extent

STEP, RESTORE, FORK = 1.0, 0.25, 0.125
"""Seconds of the calls of a device, powers of two: their sums are exact. Taking a snapshot takes none."""


class ManualClock:
    """Seconds that stand still until they are moved; any beginning but 0."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def timed(clock: ManualClock) -> type[FakeDevice]:
    """A fake device whose calls move a clock."""

    class TimedDevice(FakeDevice):
        def call(self, entry: str, arenas: Sequence[HostBytes], extent: Extent) -> None:
            super().call(entry, arenas, extent)
            clock.seconds += {"step": STEP, "restore": RESTORE, "fork": FORK, "snapshot": 0.0}[entry]

    return TimedDevice
