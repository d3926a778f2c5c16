"""A GPU behind the `Device` protocol: everything that CUDA and ROCm have in common.

Two streams: kernels and what must be in order with them on one, copies between the arena of snapshots and the
host on the other. A copy is ordered after all work that was asked for before it; work asked for later waits
for copies to the device, not for copies to the host. Launches of an entry point are captured as a graph once
per size of step and run as one from then on.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from ds4c_runtime.device.base import Arena, HostBytes
from ds4c_runtime.device.driver import Driver, Handle
from ds4c_runtime.device.launcher import Launcher, Ready, check_listed
from ds4c_runtime.device.memory import aligned_zeros, map_file
from ds4c_runtime.device.stream_copy import StreamCopy
from ds4c_runtime.device.stream_memory import DeviceArena, IoTwin, address_of, make_twin, pinned_bytes
from ds4c_runtime.errors import ArtifactError, DeviceError, DeviceMemoryError
from ds4c_runtime.launches import LAUNCHES_NAME, Extent, LaunchPlan
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.manifest_checks import WEIGHTS_NAME

UPLOAD_BYTES = 32 << 20
"""Weights go up in chunks of this size, each read from the file while the one before it is on its way."""


@dataclass(frozen=True)
class _Bound:
    """A launch with addresses; `params` is an array of addresses of `values`, which are those of arenas."""

    function: Handle
    grid: tuple[int, int, int]
    threads: int
    params: ctypes.Array[Any]
    values: ctypes.Array[Any]


Key = tuple[str, Extent, tuple[int, ...]]
"""Entry point, bucket and addresses of arenas."""


class StreamDevice:
    """Kernels of one driver's device; see the module."""

    def __init__(self, driver: Driver) -> None:
        """Graphs are used unless the environment says `DS4C_GRAPH=off`."""
        self.name = driver.name
        self.description = ""
        self.uses_graphs = os.environ.get("DS4C_GRAPH", "on") != "off"
        self._driver = driver
        self._launcher: Launcher | None = None
        self._functions: dict[str, Handle] = {}
        self._twins: dict[int, IoTwin] = {}
        self._bound: dict[Key, tuple[_Bound, ...]] = {}
        self._graphs: dict[Key, Handle] = {}
        self._flying: deque[StreamCopy] = deque()
        self._weights: DeviceArena | None = None

    @property
    def weights(self) -> Arena:
        """The contents of `weights.bin`."""
        assert self._weights is not None, "weights before load"
        return self._weights

    def load(self, folder: Path, manifest: Manifest, threads: int) -> None:
        """Take the device, load the kernels that fit it, and put the weights there.

        Raises:
            DeviceError: wrong target, no device, or one that the artifact has no kernels for.
            DeviceMemoryError: no room for the weights.
            ArtifactError: a file is not listed, the launches are rejected, or a function is missing.
        """
        if manifest.target.name != self.name:
            raise DeviceError(
                f"device {self.name} refused: expected an artifact for target {self.name}, got "
                f"{manifest.target.name!r}; build it with --target {self.name}"
            )
        self.description = self._driver.open()
        image = self._driver.choose([f.name for f in manifest.files])
        check_listed(manifest, (LAUNCHES_NAME, image, WEIGHTS_NAME))
        self._launcher = Launcher(LaunchPlan.read(folder), manifest)
        self._driver.activate()
        self._main, self._side = self._driver.make_stream(), self._driver.make_stream()
        self._fence = self._driver.make_event()
        self._load_functions(folder / image)
        self._weights = self._upload_weights(folder / WEIGHTS_NAME, manifest.arenas.weights)

    def _load_functions(self, path: Path) -> None:
        assert self._launcher is not None
        try:
            image = path.read_bytes()
        except OSError as error:
            raise ArtifactError(
                f"kernels not loaded: expected a readable file {path}, got {error}; copy the artifact again"
            ) from error
        module = self._driver.load_module(image)
        for function in self._launcher.functions:
            try:
                self._functions[function.name] = self._driver.function(module, function.name)
            except DeviceError as error:
                raise ArtifactError(
                    f"{path.name} rejected: expected a function {function.name!r}, got {error}"
                ) from error

    def _upload_weights(self, path: Path, size: int) -> DeviceArena:
        content = map_file(path)
        if len(content) != size:
            raise ArtifactError(
                f"weights not read: expected {size} bytes in {path}, got {len(content)}; "
                "copy the artifact again"
            )
        arena = DeviceArena(self._driver, size)
        chunk = min(size, UPLOAD_BYTES)
        buffers = [pinned_bytes(self._driver, chunk)[0] for _ in range(2)]
        events = [self._driver.make_event() for _ in buffers]
        for index, start in enumerate(range(0, size, max(chunk, 1))):
            buffer, event = buffers[index % 2], events[index % 2]
            count = min(chunk, size - start)
            self._driver.synchronize_event(event)
            buffer[:count] = content[start : start + count]
            self._driver.upload(arena.address + start, address_of(buffer), count, self._main)
            self._driver.record(event, self._main)
        self._driver.synchronize(self._main)
        for event in events:
            self._driver.destroy_event(event)
        return arena

    def allocate(self, size: int) -> DeviceArena:
        """Zeroed arena of `size` bytes.

        Raises:
            DeviceMemoryError: there is no room, with the size.
        """
        self._driver.activate()
        try:
            arena = DeviceArena(self._driver, size)
        except DeviceMemoryError as error:
            raise DeviceMemoryError(
                f"device {self.name} has no room: expected {size} bytes for an arena, got {error}; "
                "grant less memory, fewer sessions or a smaller context"
            ) from error
        if size:
            self._driver.fill(arena.address, 0, size, self._main)
        return arena

    def allocate_io(self, manifest: Manifest) -> HostBytes:
        """The io arena of the host, pinned if possible; its twin on the device is kept here."""
        twin = make_twin(self._driver, manifest, self.allocate(manifest.arenas.io))
        self._twins[id(twin.host)] = twin
        return twin.host

    def call(self, entry: str, arenas: Sequence[Arena], extent: Extent) -> None:
        """Run an entry point to its end: inputs go up, launches run, logits of a step come down.

        Raises:
            DeviceError: naming the driver's function and error.
        """
        assert self._launcher is not None, "call before load"
        self._driver.activate()
        twins = [twin for arena in arenas if (twin := self._twins.get(id(arena))) is not None]
        addresses = tuple(self._address(arena) for arena in arenas)
        key = (entry, self._launcher.bucket(extent), addresses)
        try:
            for twin in twins:
                for start, end in twin.inputs:
                    self._up(twin, start, end)
            self._run(key, [len(arena) for arena in arenas])
            for twin in twins if entry == "step" else ():
                self._down(twin, *twin.answer)
            self._driver.synchronize(self._main)
        except BaseException:
            with suppress(DeviceError):  # nothing may read the io arena of the host any more
                self._driver.synchronize(self._main)
            raise

    def _address(self, arena: Arena) -> int:
        twin = self._twins.get(id(arena))
        return (cast(DeviceArena, arena) if twin is None else twin.device).address

    def _up(self, twin: IoTwin, start: int, end: int) -> None:
        source, target = address_of(twin.host) + start, twin.device.address + start
        self._driver.upload(target, source, end - start, self._main)

    def _down(self, twin: IoTwin, start: int, end: int) -> None:
        if start < end:
            target, source = address_of(twin.host) + start, twin.device.address + start
            self._driver.download(target, source, end - start, self._main)

    def _run(self, key: Key, sizes: Sequence[int]) -> None:
        graph = self._graphs.get(key)
        if graph is None:
            bound = self._bound.get(key)
            if bound is None:
                bound = self._bound[key] = self._bind(key, sizes)
            if not self.uses_graphs:
                self._launch(bound)
                return
            graph = self._graphs[key] = self._capture(bound)
        self._driver.run_graph(graph, self._main)

    def _capture(self, bound: Sequence[_Bound]) -> Handle:
        self._driver.begin_capture(self._main)
        try:
            self._launch(bound)
        except BaseException:
            with suppress(DeviceError):  # a capture that was not ended would swallow all that follows
                self._driver.destroy_graph(self._driver.end_capture(self._main))
            raise
        return self._driver.end_capture(self._main)

    def _launch(self, bound: Sequence[_Bound]) -> None:
        launch, stream = self._driver.launch, self._main
        for each in bound:
            launch(each.function, each.grid, each.threads, ctypes.addressof(each.params), stream)

    def _bind(self, key: Key, sizes: Sequence[int]) -> tuple[_Bound, ...]:
        assert self._launcher is not None
        entry, extent, addresses = key
        return tuple(
            self._bind_one(entry, ready, addresses, sizes) for ready in self._launcher.ready(entry, extent)
        )

    def _bind_one(self, entry: str, ready: Ready, addresses: Sequence[int], sizes: Sequence[int]) -> _Bound:
        for arena, offset in ready.args:
            if offset > sizes[arena]:
                raise ArtifactError(
                    f"{LAUNCHES_NAME} rejected: {entry}, {ready.function.name}: expected offsets up to "
                    f"{sizes[arena]} in its arena, got {offset}; build again"
                )
        count = len(ready.args)
        values = (ctypes.c_uint64 * max(1, count))(*(addresses[arena] + at for arena, at in ready.args))
        params = (ctypes.c_void_p * max(1, count))(*(ctypes.addressof(values) + 8 * i for i in range(count)))
        name, threads = ready.function.name, ready.function.threads
        return _Bound(self._functions[name], ready.grid, threads, params, values)

    def read(self, arena: Arena, offset: int, size: int) -> HostBytes:
        """Bytes of an arena, a copy."""
        self._driver.activate()
        content = np.empty(size, np.uint8)
        if size:
            source = cast(DeviceArena, arena).address + offset
            self._driver.download(address_of(content), source, size, self._main)
            self._driver.synchronize(self._main)
        return content

    def write(self, arena: Arena, offset: int, data: HostBytes) -> None:
        """Put bytes into an arena; returns when they are there."""
        self._driver.activate()
        if len(data):
            target = cast(DeviceArena, arena).address + offset
            self._driver.upload(target, address_of(data), len(data), self._main)
            self._driver.synchronize(self._main)

    def fill(self, arena: Arena, offset: int, size: int, byte: int) -> None:
        """Set bytes of an arena, in order with calls."""
        self._driver.activate()
        if size:
            self._driver.fill(cast(DeviceArena, arena).address + offset, byte, size, self._main)

    def copy(self, arena: Arena, source: int, target: int, size: int) -> None:
        """Copy bytes inside an arena, in order with calls."""
        self._driver.activate()
        if size:
            base = cast(DeviceArena, arena).address
            self._driver.copy(base + target, base + source, size, self._main)

    def host_buffer(self, size: int, *, pinned: bool) -> tuple[HostBytes, bool]:
        """Host memory, pinned if asked for and granted; copies of other memory may block."""
        if not pinned:
            return aligned_zeros(size), False
        self._driver.activate()
        return pinned_bytes(self._driver, size)

    def copy_to_host(self, arena: Arena, offset: int, target: HostBytes) -> StreamCopy:
        """Copy on the side stream, after all that was asked for before."""
        self._begin_copy()
        if len(target):
            source = cast(DeviceArena, arena).address + offset
            self._driver.download(address_of(target), source, len(target), self._side)
        return self._copy_of(arena, target)

    def copy_from_host(self, source: HostBytes, arena: Arena, offset: int) -> StreamCopy:
        """Copy on the side stream, after all that was asked for before; what is asked for later waits."""
        self._begin_copy()
        if len(source):
            target = cast(DeviceArena, arena).address + offset
            self._driver.upload(target, address_of(source), len(source), self._side)
        copy = self._copy_of(arena, source)
        self._driver.record(self._fence, self._side)
        self._driver.wait_for(self._fence, self._main)
        return copy

    def _begin_copy(self) -> None:
        self._driver.activate()
        while self._flying and self._flying[0].settle():
            self._flying.popleft()
        self._driver.record(self._fence, self._main)
        self._driver.wait_for(self._fence, self._side)

    def _copy_of(self, *memory: object) -> StreamCopy:
        """The copy that was put on the side stream last; both ends of it are kept until it is done."""
        event = self._driver.make_event()
        self._driver.record(event, self._side)
        copy = StreamCopy(self._driver, event, memory)
        self._flying.append(copy)
        return copy

    def close(self) -> None:
        """Give back graphs and the device; arenas must not be used any more. For benches and tests."""
        if self._launcher is None:
            return
        self._driver.activate()
        for stream in (self._main, self._side):
            self._driver.synchronize(stream)
        for graph in self._graphs.values():
            self._driver.destroy_graph(graph)
        self._launcher, self._weights = None, None
        for kept in (self._graphs, self._bound, self._twins, self._flying, self._functions):
            kept.clear()
        self._driver.close()
