"""A GPU driver that runs in NumPy, as late as it may: `cuda.bindings.driver` and `hip.hip` in one.

Device memory is host memory at real addresses; kernels are Python functions that take addresses. Work that
was put on a stream is done when somebody waits for it and not before, also copies from host memory that is
changed meanwhile, so whatever is not ordered by an event or a wait goes wrong. Every call is noted.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np

from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.device.named_driver import Names
from ds4c_runtime.device.stream_memory import address_of

Work = Callable[[], None]
Graph = tuple[Work, ...]


class CudaStatus(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class HipStatus(IntEnum):
    hipSuccess = 0
    hipErrorOutOfMemory = 2
    hipErrorNotFound = 500
    hipErrorNotReady = 600
    hipErrorIllegalAddress = 700


@dataclass(eq=False)
class Event:
    """`recorded` counts records, `done` the last of them that is done; `stream` has the last."""

    recorded: int = 0
    done: int = 0
    stream: Stream | None = None


@dataclass(eq=False)
class Stream:
    queue: list[Work] = field(default_factory=list)
    captured: list[Work] | None = None

    def put(self, work: Callable[[], None]) -> None:
        (self.queue if self.captured is None else self.captured).append(work)

    def run_one(self) -> None:
        self.queue.pop(0)()

    def run(self) -> None:
        while self.queue:
            self.run_one()


@dataclass(eq=False)
class Allocation:
    raw: HostBytes
    bytes: HostBytes


class FakeGpu:
    """One device; give it to `CudaDriver(api=...)` or `RocmDriver(api=...)`.

    Attributes:
        log: names of the functions called, without those of `QUIET`, each once if repeated in a row.
        launches: name and grid of every launch that was put on a stream or captured.
        fails: status that the next call of a function returns.
        kernels: functions by name; they are given this and the addresses of their arguments.
        current: threads that made the device theirs.
    """

    def __init__(self, names: Names, kernels: dict[str, Callable[..., None]]) -> None:
        self.names = names
        self.kernels = kernels
        self.log: list[str] = []
        self.launches: list[tuple[str, tuple[int, int, int]]] = []
        self.fails: dict[str, int] = {}
        self.room = 1 << 40
        self._memory: dict[int, Allocation] = {}
        self.pinned: dict[int, Allocation] = {}
        self._operations = {getattr(names, f.name): f.name for f in dataclasses.fields(names)}
        self._status = CudaStatus if names.allocate.startswith("cu") else HipStatus
        self._constants()

    def _constants(self) -> None:
        """The values that a driver reads from its bindings."""
        self.CUresult, self.hipError_t = CudaStatus, HipStatus
        self.CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
        self.CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
        self.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")
        self.hipStreamNonBlocking, self.hipEventDisableTiming = 1, 2
        self.hipStreamCaptureMode = SimpleNamespace(hipStreamCaptureModeRelaxed="relaxed")
        self.CUdevice_attribute = SimpleNamespace(
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=0, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=1
        )
        self.capability = (9, 0)
        self.architecture = "gfx1100:sramecc+:xnack-"
        self.devices = 1
        self.streams: list[Stream] = []
        self.graphs: set[int] = set()

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        operation = self.__dict__.get("_operations", {}).get(name, name)
        method = getattr(type(self), f"do_{operation}", None)
        if method is None:
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.log.append(name)
            if name in self.fails:
                if operation == "end_capture":  # a capture that fails has ended
                    arguments[0].captured = None
                return (self._status(self.fails.pop(name)), *self._nothing(operation))
            try:
                result = method(self, *arguments)
            except MemoryError:
                return (self._status(2), None)
            if isinstance(result, self._status):
                return (result,)
            return (self._status(0),) if result is None else (self._status(0), result)

        return call

    @staticmethod
    def _nothing(operation: str) -> tuple[None, ...]:
        return (None,) if operation in ("allocate", "function", "load_module", "make_stream") else ()

    def took(self) -> list[str]:
        """What was called since the last time, repeated names once."""
        log, self.log = self.log, []
        return [name for i, name in enumerate(log) if i == 0 or log[i - 1] != name]

    # Memory.

    def view(self, address: int, size: int | None = None) -> HostBytes:
        """Bytes of device memory from an address to the end of its allocation; fails if it was freed."""
        for start, allocation in self._memory.items():
            if start <= address <= start + len(allocation.bytes):
                found = allocation.bytes[address - start :]
                assert size is None or size <= len(found), "outside of the allocation"
                return found if size is None else found[:size]
        raise AssertionError(f"no device memory at {address:#x}")

    @property
    def used(self) -> int:
        return sum(len(a.bytes) for a in self._memory.values())

    def do_allocate(self, size: int) -> int:
        assert size > 0
        if self.used + size > self.room:
            raise MemoryError
        return self._place(self._memory, size, 0xC5)

    def do_allocate_host(self, size: int, flags: int) -> int:
        assert (size > 0, flags) == (True, 0)
        return self._place(self.pinned, size, 0xC5)

    @staticmethod
    def _place(memory: dict[int, Allocation], size: int, byte: int) -> int:
        raw = np.full(size + 256, byte, np.uint8)
        start = -address_of(raw) % 256
        allocation = Allocation(raw, raw[start : start + size])
        address = address_of(allocation.bytes)
        memory[address] = allocation
        return address

    def do_free(self, address: int) -> None:
        self._memory.pop(address).raw[:] = 0xDD

    def do_free_host(self, address: int) -> None:
        self.pinned.pop(address).raw[:] = 0xDD

    @staticmethod
    def host(address: int, size: int) -> HostBytes:
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    # Streams and events.

    def do_make_stream(self, flags: int) -> Stream:
        assert flags == 1
        self.streams.append(Stream())
        return self.streams[-1]

    def do_synchronize(self, stream: Stream) -> None:
        assert stream.captured is None, "waited for a stream that is being captured"
        stream.run()

    def do_make_event(self, flags: int) -> Event:
        assert flags == 2
        return Event()

    def do_record(self, event: Event, stream: Stream) -> None:
        event.recorded += 1
        event.stream, number = stream, event.recorded

        def done() -> None:
            event.done = max(event.done, number)

        stream.put(done)

    def do_wait_for(self, stream: Stream, event: Event, flags: int) -> None:
        number, source = event.recorded, event.stream
        assert flags == 0

        def wait() -> None:
            while event.done < number:
                assert source is not None
                source.run_one()

        stream.put(wait)

    def do_is_done(self, event: Event) -> IntEnum:
        return self._status(0 if event.done >= event.recorded else 600)

    def do_synchronize_event(self, event: Event) -> None:
        while event.done < event.recorded:
            assert event.stream is not None
            event.stream.run_one()

    def do_destroy_event(self, event: Event) -> None:
        assert event.recorded >= event.done

    # Work.

    def do_fill(self, address: int, byte: int, size: int, stream: Stream) -> None:
        stream.put(lambda: self.view(address, size).fill(byte))

    def do_upload(self, target: int, source: int, size: int, stream: Stream) -> None:
        stream.put(lambda: np.copyto(self.view(target, size), self.host(source, size)))

    def do_download(self, target: int, source: int, size: int, stream: Stream) -> None:
        stream.put(lambda: np.copyto(self.host(target, size), self.view(source, size)))

    def do_copy(self, target: int, source: int, size: int, stream: Stream) -> None:
        stream.put(lambda: np.copyto(self.view(target, size), self.view(source, size)))

    def do_load_module(self, image: bytes) -> str:
        assert image == b"binary\0"
        return "module"

    def do_function(self, module: str, name: bytes) -> str | IntEnum:
        assert module == "module"
        return name.decode() if name.decode() in self.kernels else self._status(500)

    def do_launch(self, function: str, *rest: Any) -> None:
        *numbers, shared, stream, params, extra = rest
        grid, block = tuple(numbers[:3]), tuple(numbers[3:])
        assert (block, shared) == ((256, 1, 1), 0)
        assert extra == (0 if self._status is CudaStatus else None)
        kernel = self.kernels[function]
        count = kernel.__code__.co_argcount - 1
        pointers = (ctypes.c_void_p * count).from_address(params)
        values = [ctypes.c_uint64.from_address(p or 0).value for p in pointers]
        self.launches.append((function, grid))
        stream.put(lambda: kernel(self, *values))

    # Graphs.

    def do_begin_capture(self, stream: Stream, mode: str) -> None:
        assert (mode, stream.captured) == ("relaxed", None)
        stream.captured = []

    def do_end_capture(self, stream: Stream) -> list[Work]:
        assert stream.captured is not None
        captured, stream.captured = stream.captured, None
        return captured

    def do_instantiate(self, captured: list[Work], flags: int) -> Graph:
        assert flags == 0
        graph = tuple(captured)
        self.graphs.add(id(graph))
        return graph

    def do_destroy_captured(self, captured: list[Work]) -> None:
        captured.clear()

    def do_run_graph(self, graph: Graph, stream: Stream) -> None:
        assert id(graph) in self.graphs
        for work in graph:
            stream.put(work)

    def do_destroy_graph(self, graph: Graph) -> None:
        self.graphs.remove(id(graph))

    # The device.

    def do_cuInit(self, flags: int) -> None:
        assert flags == 0

    do_hipInit = do_cuInit

    def do_cuDeviceGetCount(self) -> int:
        return self.devices

    do_hipGetDeviceCount = do_cuDeviceGetCount

    def do_cuDeviceGet(self, ordinal: int) -> str:
        return f"device {ordinal}"

    def do_cuDeviceGetAttribute(self, attribute: int, device: str) -> int:
        assert device == "device 0"
        return self.capability[attribute]

    def do_cuDevicePrimaryCtxRetain(self, device: str) -> str:
        return f"context of {device}"

    def do_cuCtxSetCurrent(self, context: str) -> None:
        assert context == "context of device 0"

    def do_cuDevicePrimaryCtxRelease(self, device: str) -> None:
        assert device == "device 0"

    def do_cuDeviceGetName(self, size: int, device: str) -> bytes:
        return b"Fake H200\0\0"

    def do_cuDriverGetVersion(self) -> int:
        return 12080

    def do_cuGetErrorString(self, status: int) -> bytes:
        return b"what it means"

    def do_hipSetDevice(self, ordinal: int) -> None:
        assert ordinal == 0

    def do_hipGetDeviceProperties(self, ordinal: int) -> SimpleNamespace:
        return SimpleNamespace(name=b"Fake Radeon\0\0", gcnArchName=self.architecture.encode())

    def do_hipDriverGetVersion(self) -> int:
        return 70_226_015
