"""Memory of a device with streams: arenas there, pinned buffers of the host, and the io arena's twin."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.device.driver import Driver
from ds4c_runtime.device.memory import aligned_zeros, bytes_at
from ds4c_runtime.errors import DeviceError
from ds4c_runtime.manifest import IoField, Manifest


class DeviceArena:
    """Memory of a device, given back when nothing references it."""

    __slots__ = ("__weakref__", "_size", "address")

    def __init__(self, driver: Driver, size: int) -> None:
        """Allocate; the contents are undefined.

        Raises:
            DeviceMemoryError: there is no room.
        """
        self._size = size
        self.address = driver.allocate(max(size, 1))  # drivers refuse allocations of nothing
        weakref.finalize(self, _give_back, driver, driver.free, self.address).atexit = False

    def __len__(self) -> int:
        return self._size


def pinned_bytes(driver: Driver, size: int) -> tuple[HostBytes, bool]:
    """Zeroed memory of the host, and whether it is pinned, so that the device itself reads and writes it."""
    try:
        address = driver.allocate_host(max(size, 1))
    except DeviceError:
        return aligned_zeros(size), False
    memory = bytes_at(address, max(size, 1), lambda: _give_back(driver, driver.free_host, address))
    memory[:] = 0
    return memory[:size], True


def _give_back(driver: Driver, free: Callable[[int], None], address: int) -> None:
    """Called by the collector of garbage, where nobody could handle an error."""
    with suppress(DeviceError):
        driver.activate()
        free(address)


def address_of(array: HostBytes) -> int:
    """Address of the first byte."""
    return int(array.__array_interface__["data"][0])


@dataclass(frozen=True)
class IoTwin:
    """The io arena twice.

    Attributes:
        host: as the host fills and reads it, pinned if possible.
        device: as kernels see it.
        inputs: ranges `[start, end)` of bytes that go up before a call.
        logit_rows: view of the count of rows that have logits.
        logits: where they are.
    """

    host: HostBytes
    device: DeviceArena
    inputs: tuple[tuple[int, int], ...]
    logit_rows: IoField
    logits: IoField

    @property
    def answer(self) -> tuple[int, int]:
        """Range of bytes of the logits that the last step was asked for."""
        start = self.logit_rows.offset
        most, vocab_size = self.logits.shape
        count = int(self.host[start : start + 4].view(np.int32)[0])
        start = self.logits.offset
        return start, start + 4 * vocab_size * min(max(count, 0), most)


def make_twin(driver: Driver, manifest: Manifest, device: DeviceArena) -> IoTwin:
    """The twin of an io arena of the device."""
    io, size = manifest.io, manifest.arenas.io
    host, _ = pinned_bytes(driver, size)
    spans = ((0, io.logits.offset), (io.logits.offset + io.logits.bytes, size))
    return IoTwin(host, device, tuple(s for s in spans if s[0] < s[1]), io.logit_rows, io.logits)
