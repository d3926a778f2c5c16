"""The emulator as a device: what a GPU would run of an artifact runs on the CPU, launches and all."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ds4c_runtime.device.base import Arena, HostBytes
from ds4c_runtime.device.emulator.calls import LaunchStruct, RegionStruct, core
from ds4c_runtime.device.emulator.compiler import find_compiler
from ds4c_runtime.device.emulator.guarded import address_of, forbid_writes, guarded_bytes
from ds4c_runtime.device.emulator.kernels import Kernels, compile_kernels
from ds4c_runtime.device.emulator.mode import Mode
from ds4c_runtime.device.emulator.program import ALIGNMENT, initialised_cells
from ds4c_runtime.device.emulator.sources import FILES
from ds4c_runtime.device.host_memory import HostMemory, host_bytes
from ds4c_runtime.device.memory import map_file
from ds4c_runtime.device.status import DeviceStatus
from ds4c_runtime.errors import ArtifactError, DeviceError
from ds4c_runtime.launches import Extent, LaunchPlan, bucket
from ds4c_runtime.manifest import Manifest

COPIED_BYTES = 1 << 30
"""Weights up to this size are copied, so that they end at a guard page; larger ones are mapped."""
_WEIGHTS_FILE = "weights.bin"


@dataclass(frozen=True)
class _Loaded:
    """What a device holds of an artifact.

    Attributes:
        plan: its launches.
        kernels: its functions.
        arenas: names of the arenas of each entry point, in the order of a call.
        elements: bytes of the smallest element that a kernel reads or writes, by arena.
        max_rows, max_tokens: of a step and of a session.
    """

    plan: LaunchPlan
    kernels: Kernels
    arenas: dict[str, tuple[str, ...]]
    elements: dict[str, int]
    max_rows: int
    max_tokens: int


@dataclass(frozen=True)
class _Prepared:
    """An entry point for one size of step and given arenas, as the scheduler takes it."""

    launches: ctypes.Array[LaunchStruct]
    regions: ctypes.Array[RegionStruct]
    names: tuple[str, ...]
    keep: tuple[object, ...]


class EmulatorDevice(HostMemory):
    """Runs the CUDA or Metal text of an artifact; `DS4C_EMULATOR` chooses the mode.

    Arenas end at guard pages. In the checked mode they are watched as wholes: an access beyond an operand
    that stays inside its arena is not out of bounds.
    """

    name = "emulator"

    def __init__(self) -> None:
        super().__init__()
        self.mode = Mode.from_environment()
        self._loaded: _Loaded | None = None
        self._weights: HostBytes = np.zeros(0, np.uint8)
        self._prepared: dict[tuple[str, Extent, tuple[int, ...]], _Prepared] = {}
        self._cells: dict[int, NDArray[np.uint64]] = {}
        self._calls = 0

    @property
    def weights(self) -> HostBytes:
        """The contents of `weights.bin`."""
        return self._weights

    def load(self, folder: Path, manifest: Manifest, threads: int) -> None:
        """Compile the kernel text and read the weights.

        Raises:
            DeviceError: a target without text, or no compiler.
            ArtifactError: launches, text or weights are rejected.
        """
        kind = manifest.target.name
        if kind not in ("cuda", "metal"):
            why = "it ships no text" if kind == "rocm" else "its kernels are no GPU text"
            raise DeviceError(
                f"emulator cannot run {kind}: {why}; build with --target cuda or metal to run it here"
            )
        plan = LaunchPlan.read(folder)
        if plan.kind != kind:
            raise ArtifactError(
                f"launches rejected: expected launches for {kind}, got {plan.kind}; build again"
            )
        entries = {e.name for e in plan.entries}
        for entry in manifest.entry_points:
            if entry.name not in entries:
                raise ArtifactError(f"launches rejected: expected an entry point {entry.name!r}, got none")
        kernels = compile_kernels(_read_text(folder / FILES[kind], manifest), kind, plan.functions, self.mode)
        limits = manifest.limits
        self._loaded = _Loaded(
            plan,
            kernels,
            {e.name: tuple(e.arenas) for e in manifest.entry_points},
            _smallest_elements(plan),
            limits.max_rows,
            limits.pages_per_session * limits.page_tokens,
        )
        self._weights = _read_weights(folder / _WEIGHTS_FILE)

    def allocate(self, size: int) -> HostBytes:
        """Zeroed arena of `size` bytes that ends at a guard page; 64-byte aligned."""
        return guarded_bytes(size, ALIGNMENT)

    def call(self, entry: str, arenas: Sequence[Arena], extent: Extent) -> None:
        """Run the launches of an entry point, all in one call that releases the GIL.

        Raises:
            EmulatorFault: a kernel did what it must not; names function, line, block and thread.
        """
        assert self._loaded is not None, "call before load"
        size = bucket(extent, self._loaded.max_rows, self._loaded.max_tokens)
        memory = [host_bytes(a) for a in arenas]
        key = (entry, size, tuple(id(a) for a in memory))
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = self._prepare(entry, memory, size)
        if self.mode.name == "checked":
            self._forget_workspace(entry, memory)
        self._calls += 1
        mode = dataclasses.replace(self.mode, seed=self.mode.seed * 1_000_003 + self._calls)
        core().run(prepared.launches, prepared.regions, mode, prepared.names, self._loaded.kernels.lines)

    def _prepare(self, entry: str, memory: Sequence[HostBytes], extent: Extent) -> _Prepared:
        """Launches with addresses and grids; the arenas are kept, so that their ids stay theirs."""
        assert self._loaded is not None
        loaded = self._loaded
        named = dict(zip(loaded.arenas[entry], memory, strict=True))
        listed = loaded.plan.entry(entry).launches
        launches = (LaunchStruct * len(listed))()
        kept: list[object] = list(memory)
        for made, launch in zip(launches, listed, strict=True):
            where = f"{entry}, {launch.function}"
            args = (ctypes.c_void_p * max(1, len(launch.args)))(
                *(_address(named, a.arena, a.offset, where) for a in launch.args)
            )
            kept.append(args)
            made.kernel = loaded.kernels.addresses[launch.function]
            made.args = ctypes.addressof(args)
            made.grid[:] = [dim.blocks(extent) for dim in launch.grid]
            made.threads = loaded.kernels.functions[launch.function].threads
        return _Prepared(launches, self._regions(named), tuple(x.function for x in listed), tuple(kept))

    def _regions(self, named: dict[str, HostBytes]) -> ctypes.Array[RegionStruct]:
        assert self._loaded is not None
        regions = (RegionStruct * len(named))()
        for region, (name, memory) in zip(regions, named.items(), strict=True):
            region.start = address_of(memory)
            region.size = len(memory)
            region.name = name.encode()
            region.element = self._loaded.elements.get(name, 4)
            region.is_constant = name == "weights"
            if self.mode.name == "checked" and name != "weights":
                region.cells = self._cells_of(memory, region.element)
        return regions

    def _cells_of(self, memory: HostBytes, element: int) -> int:
        """Address of the checker's state of an arena; all of it counts as written by the host at first."""
        cells = self._cells.get(id(memory))
        if cells is None:
            cells = self._cells[id(memory)] = initialised_cells(-(-len(memory) // element))
        return address_of(cells)

    def _forget_workspace(self, entry: str, memory: Sequence[HostBytes]) -> None:
        """Let no call read what an earlier one left in the workspace."""
        assert self._loaded is not None
        for name, arena in zip(self._loaded.arenas[entry], memory, strict=True):
            if name == "workspace":
                arena[:] = 0xFF
                self._cells[id(arena)][:] = 0


def _smallest_elements(plan: LaunchPlan) -> dict[str, int]:
    """Bytes of the smallest element type that any launch has for an arena."""
    found: dict[str, int] = {}
    functions = plan.by_name
    for entry in plan.entries:
        for launch in entry.launches:
            for address, param in zip(launch.args, functions[launch.function].params, strict=True):
                size = np.dtype(param.dtype).itemsize
                found[address.arena] = min(found.get(address.arena, 4), size)
    return found


def _address(named: dict[str, HostBytes], arena: str, offset: int, where: str) -> int:
    memory = named.get(arena)
    if memory is None or offset > len(memory):
        has = "none of that name" if memory is None else f"{len(memory)} bytes"
        raise ArtifactError(
            f"launches rejected: {where}: expected offset {offset} in arena {arena}, got {has}; build again"
        )
    return address_of(memory) + offset


def _read_text(path: Path, manifest: Manifest) -> str:
    if manifest.file(path.name) is None:
        raise ArtifactError(
            f"artifact rejected: expected {path.name} in the file list of its manifest, got none; build again"
        )
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(
            f"kernel text not read: expected a readable {path.name}, got {error}; copy the artifact again"
        ) from error


def _read_weights(path: Path) -> HostBytes:
    """Weights that kernels cannot write to, before a guard page, if they are not too many to copy."""
    mapped = map_file(path)
    if len(mapped) > COPIED_BYTES:
        return mapped
    copied = guarded_bytes(len(mapped), ALIGNMENT)
    copied[:] = mapped
    forbid_writes(copied)
    return copied


def probe() -> DeviceStatus:
    """Whether kernel text can be compiled here."""
    try:
        return DeviceStatus(EmulatorDevice.name, True, f"compiler {Path(find_compiler()).name}")
    except DeviceError:
        return DeviceStatus(EmulatorDevice.name, False, "no C++ compiler: install g++ or set CXX")
