"""Kernel text compiled for the emulator, and launches of its functions on arrays: for tests of kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c_runtime.device.emulator.calls import LaunchStruct, RegionStruct, core
from ds4c_runtime.device.emulator.guarded import address_of, guarded_bytes
from ds4c_runtime.device.emulator.kernels import Kernels, compile_kernels
from ds4c_runtime.device.emulator.mode import CHECKED, FAST, SHUFFLED, Mode
from ds4c_runtime.device.emulator.sources import Kind
from ds4c_runtime.launches import Function

__all__ = [
    "CHECKED",
    "FAST",
    "SHUFFLED",
    "EmulatedProgram",
    "Mode",
    "ProgramCall",
    "Uninitialised",
    "compile_text",
    "initialised_cells",
]

ALIGNMENT = 64


@dataclass(frozen=True)
class Uninitialised:
    """An array whose contents a kernel may not read before it writes them.

    Other modes than the checked one start it as NaN (bytes 0xff).
    """

    array: NDArray[Any]


Buffer = NDArray[Any] | Uninitialised


@dataclass(frozen=True)
class ProgramCall:
    """One launch of a list.

    Attributes:
        name: of the function.
        buffers: arrays in the order of its parameters, C-contiguous; the same may be given to several calls.
        grid: blocks in x, y, z.
    """

    name: str
    buffers: Sequence[Buffer]
    grid: tuple[int, int, int]


def initialised_cells(elements: int) -> NDArray[np.uint64]:
    """State of the checker, `[elements, (writer, reader)]`, of memory that the host wrote."""
    cells = np.zeros((elements, 2), np.uint64)
    cells[:, 0] = 1
    return cells


def compile_text(
    text: str, kind: Kind, functions: Sequence[Function], mode: Mode = FAST, *, quick: bool = False
) -> EmulatedProgram:
    """Compile functions of a kernel text and make them launchable.

    Args:
        text: as it ships; Metal sections begin with `// Function: NAME`.
        kind: its language.
        functions: those to compile, with the parameters and threads that a launch gives.
        mode: how launches run.
        quick: compile in less time, for functions that run in more; results are the same.

    Raises:
        ArtifactError: a function is missing in the text or does not compile; one line.
        DeviceError: no compiler.
    """
    return EmulatedProgram(compile_kernels(text, kind, functions, mode, quick=quick), mode)


class EmulatedProgram:
    """Functions that run on copies of NumPy arrays."""

    def __init__(self, kernels: Kernels, mode: Mode) -> None:
        self.mode = mode
        self._kernels = kernels

    def launch(self, name: str, buffers: Sequence[Buffer], grid: tuple[int, int, int]) -> None:
        """Launch one function; see `run`."""
        self.run([ProgramCall(name, buffers, grid)])

    def run(self, calls: Sequence[ProgramCall]) -> None:
        """Launch functions in order and write back what they wrote to writeable arrays.

        Arrays that are not writeable are constants: the checked mode refuses writes to them. An array that is
        wrapped as uninitialised in any call is so at the first.

        Raises:
            KeyError: no such function.
            ValueError: another number of arrays than parameters, an array that is not contiguous or not of
                whole elements, or two that overlap without being the same.
            EmulatorFault: what a kernel did wrong; arrays are as before then.
        """
        memory = _Memory(self.mode)
        launches = (LaunchStruct * len(calls))()
        keep: list[object] = []
        for launch, call in zip(launches, calls, strict=True):
            function = self._kernels.functions[call.name]
            if len(call.buffers) != len(function.params):
                raise ValueError(
                    f"{call.name} not launched: expected {len(function.params)} arrays, "
                    f"got {len(call.buffers)}"
                )
            addresses = [
                memory.place(buffer, param.name, np.dtype(param.dtype).itemsize)
                for buffer, param in zip(call.buffers, function.params, strict=True)
            ]
            args = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
            keep.append(args)
            launch.kernel = self._kernels.addresses[call.name]
            launch.args = ctypes.addressof(args)
            launch.grid[:] = call.grid
            launch.threads = function.threads
        core().run(launches, memory.regions(), self.mode, [c.name for c in calls], self._kernels.lines)
        memory.write_back()


class _Memory:
    """Copies of the arrays of a list of calls, each at the end of its own pages."""

    def __init__(self, mode: Mode) -> None:
        self._checked = mode.name == "checked"
        self._placed: dict[tuple[int, int], _Placed] = {}

    def place(self, buffer: Buffer, name: str, element: int) -> int:
        """Address of the copy of an array, made if this is its first use."""
        array = buffer.array if isinstance(buffer, Uninitialised) else buffer
        _check_array(array, name, element)
        key = (address_of(array), array.nbytes)
        placed = self._placed.get(key)
        if placed is None:
            self._check_overlaps(array, name)
            alignment = ALIGNMENT if self._checked else element
            copy = guarded_bytes(array.nbytes, alignment)
            copy[:] = _bytes(array)
            placed = self._placed[key] = _Placed(array, copy, name.encode(), element)
        placed.element = min(placed.element, element)
        if isinstance(buffer, Uninitialised):
            placed.is_initialised = False
            placed.copy[:] = 0xFF
        return address_of(placed.copy)

    def _check_overlaps(self, array: NDArray[Any], name: str) -> None:
        for other in self._placed.values():
            if np.may_share_memory(array, other.array):
                raise ValueError(
                    f"{name} not launched: expected arrays that are the same or apart, got one that overlaps "
                    f"{other.name.decode()}"
                )

    def regions(self) -> ctypes.Array[RegionStruct]:
        """What the scheduler is told of the copies."""
        regions = (RegionStruct * len(self._placed))()
        for region, placed in zip(regions, self._placed.values(), strict=True):
            region.start = address_of(placed.copy)
            region.size = placed.copy.nbytes
            region.name = placed.name
            region.element = placed.element
            region.is_constant = not placed.array.flags.writeable
            if self._checked:
                region.cells = placed.make_cells()
        return regions

    def write_back(self) -> None:
        """Give writeable arrays the contents of their copies."""
        for placed in self._placed.values():
            if placed.array.flags.writeable:
                _bytes(placed.array)[:] = placed.copy


@dataclass
class _Placed:
    array: NDArray[Any]
    copy: NDArray[np.uint8]
    name: bytes
    element: int
    is_initialised: bool = True
    cells: NDArray[np.uint64] | None = None

    def make_cells(self) -> int:
        """Address of the checker's state of this copy."""
        elements = -(-self.copy.nbytes // self.element)
        self.cells = (
            initialised_cells(elements) if self.is_initialised else np.zeros((elements, 2), np.uint64)
        )
        return address_of(self.cells)


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def _check_array(array: NDArray[Any], name: str, element: int) -> None:
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} not launched: expected a C-contiguous array, got strides {array.strides}")
    if array.nbytes % element:
        raise ValueError(
            f"{name} not launched: expected elements of {element} bytes, got {array.nbytes} bytes"
        )
