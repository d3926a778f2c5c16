"""Arenas in host memory: what devices share whose kernels see the memory of the host."""

from __future__ import annotations

from typing import cast

from ds4c_runtime.device.base import Arena, HostBytes
from ds4c_runtime.device.copy_thread import CopyThread, ThreadCopy
from ds4c_runtime.device.memory import aligned_zeros, pinned_zeros
from ds4c_runtime.manifest import Manifest


def host_bytes(arena: Arena) -> HostBytes:
    """An arena that `HostMemory` made, as what it is."""
    return cast(HostBytes, arena)


class HostMemory:
    """The part of the `Device` protocol that is about memory; arenas are NumPy arrays."""

    def __init__(self) -> None:
        self.copies = CopyThread()

    def allocate(self, size: int) -> HostBytes:
        """Zeroed arena of `size` bytes, 64-byte aligned."""
        return aligned_zeros(size)

    def allocate_io(self, manifest: Manifest) -> HostBytes:
        """The io arena, which kernels and host share."""
        return self.allocate(manifest.arenas.io)

    def read(self, arena: Arena, offset: int, size: int) -> HostBytes:
        """A copy of bytes of an arena."""
        return host_bytes(arena)[offset : offset + size].copy()

    def write(self, arena: Arena, offset: int, data: HostBytes) -> None:
        """Put bytes into an arena."""
        host_bytes(arena)[offset : offset + len(data)] = data

    def fill(self, arena: Arena, offset: int, size: int, byte: int) -> None:
        """Set bytes of an arena."""
        host_bytes(arena)[offset : offset + size] = byte

    def copy(self, arena: Arena, source: int, target: int, size: int) -> None:
        """Copy bytes inside an arena."""
        memory = host_bytes(arena)
        memory[target : target + size] = memory[source : source + size]

    def host_buffer(self, size: int, *, pinned: bool) -> tuple[HostBytes, bool]:
        """Host memory, locked if asked for and allowed."""
        return pinned_zeros(size) if pinned else (aligned_zeros(size), False)

    def copy_to_host(self, arena: Arena, offset: int, target: HostBytes) -> ThreadCopy:
        """Copy on the copy thread."""
        return self.copies.submit(host_bytes(arena)[offset : offset + len(target)], target)

    def copy_from_host(self, source: HostBytes, arena: Arena, offset: int) -> ThreadCopy:
        """Copy on the copy thread."""
        return self.copies.submit(source, host_bytes(arena)[offset : offset + len(source)])
