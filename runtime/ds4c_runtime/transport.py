"""How the rows of a snapshot get from the device to where they are kept, and back.

The save decides and records what it really used (pinned memory can be refused); a restore takes no mode
but obeys that record. Copies of one device are done in the order in which they were asked for, so a restore
may be asked for before the save has ended, and the saved range of the device is given back only after it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from ds4c_runtime.device.base import Arena, Copy, Device, HostBytes


class CopyMode(Enum):
    """Where snapshots are kept, and how they get there."""

    DEVICE = "device"
    """In the arena of snapshots of the device."""
    HOST = "host"
    """In host memory; the save waits for the copy."""
    HOST_ASYNC = "host_async"
    """In host memory; the copy goes on beside the next steps."""
    HOST_PINNED = "host_pinned"
    """As `HOST_ASYNC`, in memory that cannot be paged out."""


@dataclass(frozen=True)
class OnDevice:
    """Bytes `[offset, offset + size)` of the arena of snapshots."""

    offset: int
    size: int


@dataclass(frozen=True)
class OnHost:
    """A buffer of the host, the copy that fills it, and the mode that was really used."""

    buffer: HostBytes
    copy: Copy
    mode: CopyMode

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.buffer)


Place = OnDevice | OnHost


class Transport:
    """Copies between the arena of snapshots and the host."""

    def __init__(self, device: Device, arena: Arena, mode: CopyMode) -> None:
        """`mode` is what saves try to use."""
        self.mode = mode
        self._device, self._arena = device, arena

    def save(self, staged: OnDevice, release: Callable[[OnDevice], None]) -> Place:
        """Move what a kernel has put into the arena to where it is kept.

        `release` is called with the range of the arena once it is not needed any more, by `poll` or `save`
        itself; never, if the snapshot stays there.
        """
        if self.mode is CopyMode.DEVICE:
            return staged
        wanted = self.mode
        buffer, is_pinned = self._device.host_buffer(staged.size, pinned=wanted is CopyMode.HOST_PINNED)
        if wanted is CopyMode.HOST_PINNED and not is_pinned:
            wanted = CopyMode.HOST_ASYNC
        copy = self._device.copy_to_host(self._arena, staged.offset, buffer)
        copy.then(lambda: release(staged))
        if wanted is CopyMode.HOST:
            with suppress(Exception):  # remembered by the copy, and told to whoever fetches it
                copy.wait()
        return OnHost(buffer, copy, wanted)

    def fetch(self, place: OnHost, staged: OnDevice) -> None:
        """Put what was saved on the host into a range of the arena; waits for it.

        Raises what went wrong in the save or in this copy.
        """
        place.copy.wait()
        copy = self._device.copy_from_host(place.buffer, self._arena, staged.offset)
        copy.wait()
