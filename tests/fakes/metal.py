"""PyObjC's `Metal` in NumPy: compiles nothing, runs kernels of `FakeDevice` when commands are committed."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fake_executable import FakeDevice
from fakes.gpu_artifact import extent_of

from ds4c_runtime.device.emulator.guarded import guarded_bytes
from ds4c_runtime.launches import Extent
from ds4c_runtime.manifest import Manifest

ARENAS = {"step": 6, "snapshot": 3, "restore": 3, "fork": 2, "count": 1}
TEXT = "".join(f"// Function: {name}\nkernel void {name}(device uchar* p0) {{}}\n" for name in ARENAS)


class Buffer:
    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def contents(self) -> Any:
        return SimpleNamespace(as_buffer=lambda size: memoryview(self.memory).cast("B")[:size])


class Options:
    """Before macOS 15; `alloc().init()` as of any class."""

    log: list[str]

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def setFastMathEnabled_(self, value: bool) -> None:
        self.log.append(f"fast math {value}")


class NewOptions(Options):
    def setMathMode_(self, mode: str) -> None:
        self.log.append(f"math {mode}")


class FakeMetal:
    """The module, the device, the queue, command buffers and encoders; launches run at `commit`."""

    MTLResourceStorageModeShared = 0
    MTLMathModeSafe = "safe"
    MTLCommandBufferStatusCompleted = 4
    NSURL = SimpleNamespace(fileURLWithPath_=lambda path: f"file://{path}")

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.machine = FakeDevice(manifest)
        self.log: list[str] = []
        self.options: type[Options] = NewOptions
        self.refused: set[str] = set()
        self.result = self.MTLCommandBufferStatusCompleted
        self.threads, self.lanes = 1024, 32
        self.most, self.unified = 1 << 30, True
        self.wraps = True
        self.encoded: list[tuple[str, tuple[tuple[Any, int], ...], tuple[int, ...], tuple[int, ...]]] = []

    MTLCompileOptions: Any = property(
        lambda self: SimpleNamespace(alloc=lambda: SimpleNamespace(init=lambda: self.options(self.log)))
    )

    @staticmethod
    def MTLSizeMake(x: int, y: int, z: int) -> tuple[int, int, int]:
        return x, y, z

    def MTLCreateSystemDefaultDevice(self) -> FakeMetal | None:
        return None if "device" in self.refused else self

    def hasUnifiedMemory(self) -> bool:
        return self.unified

    def name(self) -> str:
        return "Fake M4"

    def maxBufferLength(self) -> int:
        return self.most

    # Compilation.

    def newLibraryWithSource_options_error_(
        self, text: str, options: Options, error: None
    ) -> tuple[Any, Any]:
        name = text.splitlines()[0].removeprefix("// Function: ")
        self.log.append(f"compile {name}")
        if name in self.refused:
            return None, SimpleNamespace(localizedDescription=lambda: "program_source:3: no\nmore")
        return SimpleNamespace(newFunctionWithName_=lambda n: n if f"void {n}(" in text else None), None

    def newLibraryWithURL_error_(self, url: str, error: None) -> tuple[Any, Any]:
        self.log.append("library of the cache")
        assert Path(url.removeprefix("file://")).read_bytes() == b"made"
        return SimpleNamespace(newFunctionWithName_=lambda n: n), None

    def newComputePipelineStateWithFunction_error_(self, function: str, error: None) -> tuple[Any, Any]:
        if f"pipeline {function}" in self.refused:
            return None, SimpleNamespace(localizedDescription=lambda: "too many registers")
        state = SimpleNamespace(
            function=function,
            maxTotalThreadsPerThreadgroup=lambda: self.threads,
            threadExecutionWidth=lambda: self.lanes,
        )
        return state, None

    # Memory.

    def newBufferWithLength_options_(self, size: int, mode: int) -> Buffer | None:
        assert (size > 0, mode) == (True, 0)
        return None if "buffer" in self.refused else Buffer(guarded_bytes(size, 4096))

    def newBufferWithBytesNoCopy_length_options_deallocator_(
        self, memory: Any, size: int, mode: int, deallocator: None
    ) -> Buffer | None:
        assert (size % 4096, ctypes.addressof(memory) % 4096, len(memory)) == (0, 0, size)
        if "wrap" in self.refused:
            raise ValueError("depythonifying 'pointer', got 'c_char_Array'")
        return Buffer(memory if self.wraps else bytearray(memory))

    # Commands.

    def newCommandQueue(self) -> FakeMetal:
        return self

    def commandBuffer(self) -> FakeMetal:
        self.log.append("command buffer")
        return self

    def computeCommandEncoder(self) -> FakeMetal:
        self.bound: dict[int, tuple[Buffer, int]] = {}
        self.encoded = []
        return self

    def setComputePipelineState_(self, state: Any) -> None:
        self.log.append(f"pipeline {state.function}")
        self.state = state

    def setBuffer_offset_atIndex_(self, buffer: Buffer, offset: int, index: int) -> None:
        self.log.append(f"buffer {index}")
        self.bound[index] = buffer, offset

    def dispatchThreadgroups_threadsPerThreadgroup_(self, grid: Any, threads: Any) -> None:
        name = self.state.function
        self.log.append(f"dispatch {name}")
        self.encoded.append((name, tuple(self.bound[i] for i in range(ARENAS[name])), grid, threads))

    def endEncoding(self) -> None:
        self.log.append("end")

    def commit(self) -> None:
        self.log.append("commit")
        for name, buffers, _, threads in self.encoded:
            assert threads == (256, 1, 1)
            arenas = [np.frombuffer(b.memory, np.uint8)[offset:] for b, offset in buffers]
            if name == "count":
                arenas[0][:4].view(np.int32)[0] += 1
            else:
                extent = extent_of(self.manifest, arenas[0]) if name == "step" else Extent(1, 0)
                self.machine.call(name, arenas, extent)

    def waitUntilCompleted(self) -> None:
        self.log.append("wait")

    def status(self) -> int:
        return self.result

    def error(self) -> Any:
        return SimpleNamespace(localizedDescription=lambda: "Caused GPU Timeout Error")
