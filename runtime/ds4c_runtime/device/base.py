"""What the runtime asks of a device. Knows no model, session or state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ds4c_runtime.launches import Extent
from ds4c_runtime.manifest import Manifest

HostBytes = NDArray[np.uint8]
"""One-dimensional bytes of the host, contiguous."""
SINGLE = Extent(1, 0)
"""Extent of the entry points that evaluate no tokens."""


class Arena(Protocol):
    """Memory of a device: a handle whose bytes only the device that made it can reach."""

    def __len__(self) -> int:
        """Bytes."""
        ...


class Copy(Protocol):
    """A copy between device and host that may still be going on."""

    def then(self, call: Callable[[], None]) -> None:
        """Call something once the copy is done, on the thread that polls or waits."""
        ...

    def poll(self) -> bool:
        """Whether the copy is done; runs what was to follow it."""
        ...

    def wait(self) -> None:
        """Wait for the copy; raises what went wrong in it."""
        ...


class Device(Protocol):
    """One device with one loaded artifact.

    It is used by one thread at a time, but not always by the same: an engine loads and allocates on the
    thread that makes it, and runs everything else on its worker.

    Arenas see what is asked of it in that order: a call sees what was written before it, a read sees what was
    called before it. An exception of a method that touches an arena means that the device failed.
    """

    @property
    def name(self) -> str:
        """Name such as `cpu`."""
        ...

    @property
    def weights(self) -> Arena:
        """The weights of the loaded artifact."""
        ...

    def load(self, folder: Path, manifest: Manifest, threads: int) -> None:
        """Load kernels and weights.

        Args:
            folder: artifact whose files were verified.
            manifest: its manifest.
            threads: threads of the host that a kernel may use; devices without kernels on the host ignore it.

        Raises:
            DeviceError: this machine cannot run the artifact.
            ArtifactError: the kernels cannot be loaded or lack an entry point.
        """
        ...

    def allocate(self, size: int) -> Arena:
        """Zeroed arena of `size` bytes, 64-byte aligned; it lives as long as it is referenced."""
        ...

    def allocate_io(self, manifest: Manifest) -> HostBytes:
        """The zeroed io arena as the host sees it; passed to `call` as it is, not a slice or copy of it.

        A device with memory of its own keeps a twin: all fields but the logits go up when a call begins, the
        logits come down when a step has ended.
        """
        ...

    def call(self, entry: str, arenas: Sequence[Arena], extent: Extent) -> None:
        """Run an entry point to its end; releases the GIL.

        Args:
            entry: name of the entry point.
            arenas: in the order of the manifest's entry point.
            extent: size of a step; `SINGLE` for all others.
        """
        ...

    def read(self, arena: Arena, offset: int, size: int) -> HostBytes:
        """Bytes `[offset, offset + size)` of an arena, a copy that the caller owns."""
        ...

    def write(self, arena: Arena, offset: int, data: HostBytes) -> None:
        """Put bytes into an arena from `offset` on; they may change once this has returned."""
        ...

    def fill(self, arena: Arena, offset: int, size: int, byte: int) -> None:
        """Set bytes `[offset, offset + size)` of an arena to `byte`."""
        ...

    def copy(self, arena: Arena, source: int, target: int, size: int) -> None:
        """Copy `size` bytes inside an arena from offset `source` to `target`; the ranges do not overlap."""
        ...

    def host_buffer(self, size: int, *, pinned: bool) -> tuple[HostBytes, bool]:
        """A buffer of the host, and whether it is pinned; pinned memory may be refused."""
        ...

    def copy_to_host(self, arena: Arena, offset: int, target: HostBytes) -> Copy:
        """Begin to copy the bytes of an arena from `offset` on to a host buffer, as many as it has.

        Copies of one device are done in order; what the range held when they were asked for must not be
        overwritten before they are done.
        """
        ...

    def copy_from_host(self, source: HostBytes, arena: Arena, offset: int) -> Copy:
        """Begin to copy a host buffer to an arena from `offset` on; after all copies asked for before.

        Whoever calls something that reads the range waits for the copy first.
        """
        ...
