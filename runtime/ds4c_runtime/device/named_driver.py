"""A driver by the names of its functions: CUDA's and HIP's take the same arguments in the same order."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from ds4c_runtime.device.driver import Handle
from ds4c_runtime.errors import DeviceError, DeviceMemoryError


@dataclass(frozen=True)
class Names:
    """Functions of a binding that returns tuples `(status, *results)`."""

    allocate: str
    free: str
    allocate_host: str
    free_host: str
    load_module: str
    function: str
    make_stream: str
    synchronize: str
    make_event: str
    record: str
    wait_for: str
    is_done: str
    synchronize_event: str
    destroy_event: str
    fill: str
    upload: str
    download: str
    copy: str
    launch: str
    begin_capture: str
    end_capture: str
    instantiate: str
    destroy_captured: str
    run_graph: str
    destroy_graph: str


@dataclass(frozen=True)
class Constants:
    """Values of a binding.

    Attributes:
        success: name of the status 0.
        not_ready, out_of_memory: statuses.
        stream_flags: of a stream that does not wait for the default one.
        event_flags: of an event that measures no time.
        capture_mode: that takes memory being freed meanwhile for no error.
        no_extra: the last argument of a launch.
    """

    success: str
    not_ready: Any
    out_of_memory: Any
    stream_flags: Any
    event_flags: Any
    capture_mode: Any
    no_extra: Any


class NamedDriver:
    """What `Driver` asks for, but for `open`, `choose` and `close`, which the classes of one driver add.

    What methods do is said in `Driver`.
    """

    name: str
    names: Names

    def __init__(self, api: Any | None = None) -> None:
        """`api` is the module of bindings; `None` until it is imported."""
        self.api = api
        self._constants: Constants | None = None
        self._current = threading.local()

    def constants(self) -> Constants:
        """Values of the binding, read once it is imported."""
        raise NotImplementedError

    def make_current(self) -> None:
        """Make the device current for this thread."""
        raise NotImplementedError

    def explain(self, status: Any) -> str:
        """Name of a status and what the driver says about it."""
        return str(getattr(status, "name", int(status)))

    def invoke(self, function: str, *arguments: object) -> Any:
        """Call a function of the binding; its result, a tuple if it has several.

        Raises:
            DeviceMemoryError: out of memory.
            DeviceError: any other status than success.
        """
        status, *values = getattr(self.api, function)(*arguments)
        if int(status):
            raise self.failure(function, status)
        return values[0] if len(values) == 1 else tuple(values)

    def failure(self, function: str, status: Any) -> DeviceError:
        """The error for a status."""
        kind = DeviceMemoryError if status == self._values.out_of_memory else DeviceError
        return kind(f"{function} failed: expected {self._values.success}, got {self.explain(status)}")

    @property
    def _values(self) -> Constants:
        if self._constants is None:
            self._constants = self.constants()
        return self._constants

    def activate(self) -> None:
        """Once per thread."""
        if not getattr(self._current, "is_set", False):
            self.make_current()
            self._current.is_set = True

    def deactivate(self) -> None:
        """No thread has the device any more."""
        self._current = threading.local()

    def allocate(self, size: int) -> int:
        """Device memory."""
        return int(self.invoke(self.names.allocate, size))

    def free(self, address: int) -> None:
        """Device memory."""
        self.invoke(self.names.free, address)

    def allocate_host(self, size: int) -> int:
        """Pinned memory."""
        return int(self.invoke(self.names.allocate_host, size, 0))

    def free_host(self, address: int) -> None:
        """Pinned memory."""
        self.invoke(self.names.free_host, address)

    def load_module(self, image: bytes) -> Handle:
        """With an error that says what to do."""
        try:
            # Binaries know their size; PTX is text that ends with a zero.
            return self.invoke(self.names.load_module, image + b"\0")
        except DeviceMemoryError:
            raise
        except DeviceError as error:
            raise DeviceError(
                f"kernels not loaded: expected the driver to take them for this device, got {error}; "
                "install a newer driver or build for this device"
            ) from error

    def function(self, module: Handle, name: str) -> Handle:
        """By name."""
        return self.invoke(self.names.function, module, name.encode())

    def make_stream(self) -> Handle:
        """One that does not wait for the default stream."""
        return self.invoke(self.names.make_stream, self._values.stream_flags)

    def synchronize(self, stream: Handle) -> None:
        """Of a stream."""
        self.invoke(self.names.synchronize, stream)

    def make_event(self) -> Handle:
        """One that measures no time."""
        return self.invoke(self.names.make_event, self._values.event_flags)

    def record(self, event: Handle, stream: Handle) -> None:
        """On a stream."""
        self.invoke(self.names.record, event, stream)

    def wait_for(self, event: Handle, stream: Handle) -> None:
        """By a stream."""
        self.invoke(self.names.wait_for, stream, event, 0)

    def is_done(self, event: Handle) -> bool:
        """By the status of a query."""
        (status,) = getattr(self.api, self.names.is_done)(event)
        if status == self._values.not_ready:
            return False
        if int(status):
            raise self.failure(self.names.is_done, status)
        return True

    def synchronize_event(self, event: Handle) -> None:
        """Of an event."""
        self.invoke(self.names.synchronize_event, event)

    def destroy_event(self, event: Handle) -> None:
        """At once."""
        self.invoke(self.names.destroy_event, event)

    def fill(self, address: int, byte: int, size: int, stream: Handle) -> None:
        """In order on a stream."""
        self.invoke(self.names.fill, address, byte, size, stream)

    def upload(self, target: int, source: int, size: int, stream: Handle) -> None:
        """In order on a stream."""
        self.invoke(self.names.upload, target, source, size, stream)

    def download(self, target: int, source: int, size: int, stream: Handle) -> None:
        """In order on a stream."""
        self.invoke(self.names.download, target, source, size, stream)

    def copy(self, target: int, source: int, size: int, stream: Handle) -> None:
        """In order on a stream."""
        self.invoke(self.names.copy, target, source, size, stream)

    def launch(
        self, function: Handle, grid: tuple[int, int, int], threads: int, params: int, stream: Handle
    ) -> None:
        """In order on a stream; no dynamic shared memory."""
        extra = self._values.no_extra
        self.invoke(self.names.launch, function, *grid, threads, 1, 1, 0, stream, params, extra)

    def begin_capture(self, stream: Handle) -> None:
        """In the mode of the constants."""
        self.invoke(self.names.begin_capture, stream, self._values.capture_mode)

    def end_capture(self, stream: Handle) -> Handle:
        """The graph as captured is given back once there is one to run."""
        captured = self.invoke(self.names.end_capture, stream)
        try:
            return self.invoke(self.names.instantiate, captured, 0)
        finally:
            self.invoke(self.names.destroy_captured, captured)

    def run_graph(self, graph: Handle, stream: Handle) -> None:
        """In order on a stream."""
        self.invoke(self.names.run_graph, graph, stream)

    def destroy_graph(self, graph: Handle) -> None:
        """One that does not run."""
        self.invoke(self.names.destroy_graph, graph)
