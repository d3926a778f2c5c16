"""Devices whose arenas the host cannot see: nothing but the device's own methods reaches their bytes.

Kernels and copies are those of another device; what is added is what a card does: an arena is a handle, and
the io arena has a twin that inputs go up to before a call and logits come down from after a step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from fake_executable import FakeDevice
from rewind.row_machine import RowDevice

from ds4c_runtime.device.base import Arena, HostBytes
from ds4c_runtime.device.copy_thread import ThreadCopy
from ds4c_runtime.device.cpu import CpuDevice
from ds4c_runtime.device.memory import aligned_zeros
from ds4c_runtime.launches import Extent
from ds4c_runtime.manifest import Manifest


class Handle:
    """An arena of a discrete device: has a size and nothing else."""

    __slots__ = ("__weakref__", "_size")

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


class Discrete:
    """Mixed into a device with arenas in host memory, before it.

    Attributes:
        uploads, downloads: of the io arena.
    """

    uploads = downloads = 0

    def allocate(self: Any, size: int) -> Handle:
        handle = Handle(size)
        self._memory[handle] = super().allocate(size)
        return handle

    def allocate_io(self: Any, manifest: Manifest) -> HostBytes:
        host = aligned_zeros(manifest.arenas.io)
        twin = self.allocate(manifest.arenas.io)
        self._twins[id(host)] = (host, twin, manifest)
        return host

    def call(self: Any, entry: str, arenas: Sequence[Arena], extent: Extent) -> None:
        host, twin, manifest = self._twins[id(arenas[0])]
        self._upload(host, self._memory[twin], manifest)
        super().call(entry, [self._memory[twin], *map(self._bytes, arenas[1:])], extent)
        if entry == "step":
            logits = manifest.io.logits
            span = slice(logits.offset, logits.offset + logits.bytes)
            host[span] = self._memory[twin][span]
            self.downloads += 1

    def _upload(self, host: HostBytes, twin: HostBytes, manifest: Manifest) -> None:
        twin[:] = 0xFF  # what was there, and the logits, are not to be relied on
        for field in dataclasses.fields(manifest.io):
            if field.name != "logits":
                at = getattr(manifest.io, field.name)
                twin[at.offset : at.offset + at.bytes] = host[at.offset : at.offset + at.bytes]
        self.uploads += 1

    def read(self, arena: Arena, offset: int, size: int) -> HostBytes:
        return super().read(self._bytes(arena, offset, size), offset, size)  # type: ignore[misc]

    def write(self, arena: Arena, offset: int, data: HostBytes) -> None:
        assert (data.dtype, data.ndim, data.flags.c_contiguous) == (np.uint8, 1, True)
        super().write(self._bytes(arena, offset, len(data)), offset, data)  # type: ignore[misc]

    def fill(self, arena: Arena, offset: int, size: int, byte: int) -> None:
        super().fill(self._bytes(arena, offset, size), offset, size, byte)  # type: ignore[misc]

    def copy(self, arena: Arena, source: int, target: int, size: int) -> None:
        assert abs(source - target) >= size, "ranges overlap"
        self._bytes(arena, source, size)
        super().copy(self._bytes(arena, target, size), source, target, size)  # type: ignore[misc]

    def copy_to_host(self, arena: Arena, offset: int, target: HostBytes) -> ThreadCopy:
        return super().copy_to_host(self._bytes(arena, offset, len(target)), offset, target)  # type: ignore[misc]

    def copy_from_host(self, source: HostBytes, arena: Arena, offset: int) -> ThreadCopy:
        return super().copy_from_host(source, self._bytes(arena, offset, len(source)), offset)  # type: ignore[misc]

    @property
    def _memory(self) -> WeakKeyDictionary[Handle, HostBytes]:
        return self.__dict__.setdefault("memory of handles", WeakKeyDictionary())

    @property
    def _twins(self) -> dict[int, tuple[HostBytes, Handle, Manifest]]:
        return self.__dict__.setdefault("twins by id", {})

    def _bytes(self: Any, arena: Arena, offset: int = 0, size: int = 0) -> HostBytes:
        assert 0 <= offset <= offset + size <= len(arena), "outside the arena"
        return self.weights if arena is self.weights else self._memory[arena]


class DiscreteFake(Discrete, FakeDevice):
    """`FakeDevice` as a card."""


class DiscreteRows(Discrete, RowDevice):
    """`RowDevice` as a card."""


class DiscreteCpu(Discrete, CpuDevice):
    """Compiled kernels as on a card."""
