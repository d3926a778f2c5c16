"""Apple GPUs through PyObjC (extra `metal`): memory that host and kernels share, one command buffer a call.

Arenas are NumPy arrays over shared buffers, weights a buffer over the mapped file. The encoder of a call
dispatches serially: each launch sees everything that those before it wrote, and no barrier has to be named.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from ds4c_runtime.device.base import Arena, HostBytes
from ds4c_runtime.device.host_memory import HostMemory, host_bytes
from ds4c_runtime.device.launcher import Launcher, Ready, check_listed
from ds4c_runtime.device.memory import bytes_at, map_file
from ds4c_runtime.device.metal_library import TEXT_NAME, make_pipelines, one_line
from ds4c_runtime.device.status import DeviceStatus
from ds4c_runtime.device.stream_memory import address_of
from ds4c_runtime.errors import ArtifactError, DeviceError, DeviceMemoryError
from ds4c_runtime.launches import LAUNCHES_NAME, Extent, LaunchPlan
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.manifest_checks import WEIGHTS_NAME

_INSTALL = "pip install 'ds4c[metal]'"


class MetalDevice(HostMemory):
    """The default device of the system."""

    name = "metal"

    def __init__(self, api: Any | None = None) -> None:
        """`api` is the module `Metal`; tests give another."""
        super().__init__()
        self._api: Any = api
        self._device: Any = None
        self._queue: Any = None
        self._launcher: Launcher | None = None
        self._pipelines: dict[str, Any] = {}
        self._buffers: dict[int, Any] = {}
        """Metal's buffers by the address of their arenas; held as long as any view of these."""
        self._weights: HostBytes = np.zeros(0, np.uint8)

    @property
    def weights(self) -> HostBytes:
        """The contents of `weights.bin`."""
        return self._weights

    def load(self, folder: Path, manifest: Manifest, threads: int) -> None:
        """Compile the text and make the weights visible to the device.

        Raises:
            DeviceError: wrong target, no device, or one with too small threadgroups or buffers.
            ArtifactError: a file is not listed or is rejected.
        """
        if manifest.target.name != self.name:
            raise DeviceError(
                f"device metal refused: expected an artifact for target metal, got {manifest.target.name!r}; "
                "build it with --target metal"
            )
        if self._api is None:
            self._api = _import_api()
        self._device = _default_device(self._api)
        self._queue = self._device.newCommandQueue()
        check_listed(manifest, (LAUNCHES_NAME, TEXT_NAME, WEIGHTS_NAME))
        self._launcher = Launcher(LaunchPlan.read(folder), manifest)
        text = _read_text(folder / TEXT_NAME)
        self._pipelines = make_pipelines(self._api, self._device, text, self._launcher.functions)
        self._weights = self._load_weights(folder / WEIGHTS_NAME)

    def allocate(self, size: int) -> HostBytes:
        """Arena of `size` bytes in a shared buffer, which Metal zeroes.

        Raises:
            DeviceMemoryError: there is no room, with the size.
        """
        self._check_length(size)
        mode = self._api.MTLResourceStorageModeShared
        room = max(size, 1)  # Metal has no buffers of nothing
        buffer = self._device.newBufferWithLength_options_(room, mode)
        if buffer is None:
            raise DeviceMemoryError(
                f"device metal has no room: expected {size} bytes for an arena, got none; "
                "grant less memory, fewer sessions or a smaller context"
            )
        address = _address_of_buffer(buffer)
        arena = bytes_at(address, room, lambda: self._buffers.pop(address, None))
        self._buffers[address] = buffer
        return arena[:size]

    def _check_length(self, size: int) -> None:
        most = int(self._device.maxBufferLength())
        if size > most:
            raise DeviceMemoryError(
                f"device metal has no room: expected buffers of {size} bytes, got at most {most}; "
                "grant less memory or choose a smaller model"
            )

    def _load_weights(self, path: Path) -> HostBytes:
        """The mapped file as a buffer of the device without a copy; a copy where the system refuses that."""
        mapped = map_file(path)
        if not len(mapped):
            return self.allocate(0)
        self._check_length(len(mapped))
        buffer = self._wrap(mapped)
        if buffer is None:
            copied = self.allocate(len(mapped))
            copied[:] = mapped
            return copied
        self._buffers[address_of(mapped)] = buffer
        return mapped

    def _wrap(self, mapped: HostBytes) -> Any | None:
        """A buffer over whole pages of a mapping, or `None` if it does not show what is mapped there."""
        pages = -(-len(mapped) // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = (ctypes.c_char * pages).from_address(address_of(mapped))
        try:
            buffer = self._device.newBufferWithBytesNoCopy_length_options_deallocator_(
                memory, pages, self._api.MTLResourceStorageModeShared, None
            )
        except Exception:  # PyObjC raises its own errors for memory that it cannot pass on
            return None
        if buffer is None or _address_of_buffer(buffer) != address_of(mapped):
            return None
        return buffer

    def call(self, entry: str, arenas: Sequence[Arena], extent: Extent) -> None:
        """Run the launches of an entry point in one command buffer, to its end.

        Raises:
            DeviceError: the device reports an error.
        """
        assert self._launcher is not None, "call before load"
        buffers = [self._buffers[address_of(host_bytes(arena))] for arena in arenas]
        ready = self._launcher.ready(entry, self._launcher.bucket(extent))
        with _pool():
            commands = self._queue.commandBuffer()
            encoder = commands.computeCommandEncoder()
            self._encode(encoder, ready, buffers)
            encoder.endEncoding()
            commands.commit()
            commands.waitUntilCompleted()
            if commands.status() != self._api.MTLCommandBufferStatusCompleted:
                raise DeviceError(
                    f"{entry} failed on device metal: expected commands to complete, got "
                    f"{one_line(commands.error())}; the session is rebuilt from its history"
                )

    def _encode(self, encoder: Any, ready: Sequence[Ready], buffers: Sequence[Any]) -> None:
        """Put launches into an encoder; what is bound already is not bound again: calls cost microseconds."""
        make_size = self._api.MTLSizeMake
        bound: dict[int, tuple[int, int]] = {}
        current = ""
        for launch in ready:
            function = launch.function
            if function.name != current:
                encoder.setComputePipelineState_(self._pipelines[function.name])
                current = function.name
            for index, (arena, offset) in enumerate(launch.args):
                if bound.get(index) != (arena, offset):
                    encoder.setBuffer_offset_atIndex_(buffers[arena], offset, index)
                    bound[index] = (arena, offset)
            encoder.dispatchThreadgroups_threadsPerThreadgroup_(
                make_size(*launch.grid), make_size(function.threads, 1, 1)
            )


def _address_of_buffer(buffer: Any) -> int:
    """Where the host sees a shared buffer."""
    return address_of(np.frombuffer(buffer.contents().as_buffer(1), np.uint8))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(
            f"kernel text not read: expected a readable {path.name}, got {error}; copy the artifact again"
        ) from error


def _pool() -> AbstractContextManager[Any]:
    """A pool for what Metal returns: threads of Python have none of their own."""
    try:
        return importlib.import_module("objc").autorelease_pool()
    except ImportError:
        return contextlib.nullcontext()


def _import_api() -> Any:
    if sys.platform != "darwin":
        raise DeviceError(
            f"device metal refused: expected macOS, got {sys.platform}; use --device emulator elsewhere"
        )
    try:
        return importlib.import_module("Metal")
    except ImportError as error:
        raise DeviceError(
            f"device metal refused: expected the package pyobjc-framework-Metal, got {error}; {_INSTALL}"
        ) from error


def _default_device(api: Any) -> Any:
    device = api.MTLCreateSystemDefaultDevice()
    if device is None:
        raise DeviceError("device metal refused: expected a GPU, got none; use --device emulator")
    if not device.hasUnifiedMemory():
        raise DeviceError(
            f"device metal refused: expected memory that CPU and GPU share, got {device.name()}; "
            "use --device emulator"
        )
    return device


def probe() -> DeviceStatus:
    """Whether there is a device."""
    try:
        device = _default_device(_import_api())
    except DeviceError as error:
        return DeviceStatus(MetalDevice.name, False, str(error))
    return DeviceStatus(MetalDevice.name, True, str(device.name()))
