"""What the runtime asks of a device. Knows no model, session or state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ds4c_runtime.manifest import Manifest

Arena = NDArray[np.uint8]
"""One-dimensional bytes at a 64-byte aligned address that kernels and the host both see."""


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
    """One device with one loaded artifact; used by one thread at a time."""

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
            threads: threads a kernel may use.

        Raises:
            DeviceError: this machine cannot run the artifact.
            ArtifactError: the kernels cannot be loaded or lack an entry point.
        """
        ...

    def allocate(self, size: int) -> Arena:
        """Zeroed arena of `size` bytes, 64-byte aligned."""
        ...

    def call(self, entry: str, arenas: Sequence[Arena]) -> None:
        """Run an entry point to its end; releases the GIL. Any exception means the device failed."""
        ...

    def copy(self, arena: Arena, source: int, target: int, size: int) -> None:
        """Copy `size` bytes inside an arena from offset `source` to `target`; the ranges do not overlap."""
        ...

    def host_buffer(self, size: int, *, pinned: bool) -> tuple[Arena, bool]:
        """A buffer of the host, and whether it is pinned; pinned memory may be refused."""
        ...

    def copy_to_host(self, arena: Arena, offset: int, target: Arena) -> Copy:
        """Begin to copy the bytes of an arena from `offset` on to a host buffer, as many as it has.

        Copies of one device are done in order; what the range held when they were asked for must not be
        overwritten before they are done.
        """
        ...

    def copy_from_host(self, source: Arena, arena: Arena, offset: int) -> Copy:
        """Begin to copy a host buffer to an arena from `offset` on; after all copies asked for before."""
        ...
