"""What `StreamDevice` asks of a GPU driver with streams, events and graphs.

Addresses are integers, of the device or of the host; everything else is a handle that only the driver knows.
Work is put on a stream and done in order there; two streams know nothing of each other but by events.
Every method raises `DeviceError` with the name of the driver's function and of its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Handle = Any
"""A stream, event, module, function or graph of the driver."""


class Driver(Protocol):
    """One device of one driver."""

    @property
    def name(self) -> str:
        """Of the device and of the target whose artifacts it runs."""
        ...

    def open(self) -> str:
        """Take the device; returns a description such as `NVIDIA H200, sm_90`.

        Raises:
            DeviceError: no driver, no device, or the package that binds the driver is missing.
        """
        ...

    def choose(self, files: Sequence[str]) -> str:
        """The file of an artifact whose kernels this device runs.

        Raises:
            DeviceError: none of them, naming what there is.
        """
        ...

    def activate(self) -> None:
        """Make the device current for the calling thread."""
        ...

    def close(self) -> None:
        """Give the device back; everything allocated there is gone."""
        ...

    def allocate(self, size: int) -> int:
        """Address of device memory, 256-byte aligned; contents undefined.

        Raises:
            DeviceMemoryError: there is not that much.
        """
        ...

    def free(self, address: int) -> None:
        """Give back what `allocate` gave."""
        ...

    def allocate_host(self, size: int) -> int:
        """Address of host memory that cannot be paged out."""
        ...

    def free_host(self, address: int) -> None:
        """Give back what `allocate_host` gave."""
        ...

    def load_module(self, image: bytes) -> Handle:
        """Kernels of a binary."""
        ...

    def function(self, module: Handle, name: str) -> Handle:
        """A kernel by name."""
        ...

    def make_stream(self) -> Handle:
        """A stream that waits for no other."""
        ...

    def synchronize(self, stream: Handle) -> None:
        """Wait until all work of a stream is done; releases the GIL where the binding does."""
        ...

    def make_event(self) -> Handle:
        """An event; one that was never recorded counts as done."""
        ...

    def record(self, event: Handle, stream: Handle) -> None:
        """Let an event be done when the work put on a stream so far is."""
        ...

    def wait_for(self, event: Handle, stream: Handle) -> None:
        """Let later work of a stream wait for what an event was last recorded for."""
        ...

    def is_done(self, event: Handle) -> bool:
        """Whether an event is done."""
        ...

    def synchronize_event(self, event: Handle) -> None:
        """Wait until an event is done."""
        ...

    def destroy_event(self, event: Handle) -> None:
        """Give back an event; who waits for it goes on waiting."""
        ...

    def fill(self, address: int, byte: int, size: int, stream: Handle) -> None:
        """Set device memory."""
        ...

    def upload(self, target: int, source: int, size: int, stream: Handle) -> None:
        """Copy from host to device; memory that is not pinned may be read before this returns or later."""
        ...

    def download(self, target: int, source: int, size: int, stream: Handle) -> None:
        """Copy from device to host."""
        ...

    def copy(self, target: int, source: int, size: int, stream: Handle) -> None:
        """Copy inside the device."""
        ...

    def launch(
        self, function: Handle, grid: tuple[int, int, int], threads: int, params: int, stream: Handle
    ) -> None:
        """Launch a kernel; `params` is the address of an array of addresses of its arguments."""
        ...

    def begin_capture(self, stream: Handle) -> None:
        """From now on work put on a stream is noted instead of done."""
        ...

    def end_capture(self, stream: Handle) -> Handle:
        """End that; a graph of what was noted, ready to be run many times."""
        ...

    def run_graph(self, graph: Handle, stream: Handle) -> None:
        """Put the work of a graph on a stream."""
        ...

    def destroy_graph(self, graph: Handle) -> None:
        """Give back a graph that is not running."""
        ...
