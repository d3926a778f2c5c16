"""A small artifact of a GPU target: its kernels are the entry points of `FakeDevice`, and one that counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fake_executable import FakeDevice, small_manifest

from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.launches import (
    FORMAT,
    VERSION,
    Address,
    Dim,
    Entry,
    Extent,
    Function,
    Launch,
    LaunchPlan,
    Param,
)
from ds4c_runtime.manifest import FileEntry, Manifest, TargetInfo
from ds4c_runtime.manifest_checks import block_layout

BINARIES = {"cuda": "kernels.sm_90.cubin", "rocm": "kernels.gfx1100.co", "metal": "kernels.metal"}


def gpu_manifest(target: str, *, weights: int = 0) -> Manifest:
    """`small_manifest` for a GPU target, with `weights` bytes of weights."""
    made = small_manifest()
    names = ("launches.json", BINARIES[target], "weights.bin")
    return dataclasses.replace(
        made,
        target=TargetInfo(target, "sm_90", ()),
        files=tuple(FileEntry(name, "0" * 64, 1) for name in names),
        arenas=dataclasses.replace(made.arenas, weights=weights),
    )


def gpu_plan(target: Any) -> LaunchPlan:
    """One launch for each entry point, and a second one in a step, whose grid grows with rows and tokens."""
    zero = {a: Address(a, 0) for a in ("io", "weights", "workspace", "states", "pages", "snapshots")}
    arenas = {
        "step": tuple(zero.values()),
        "snapshot": (zero["io"], zero["states"], zero["snapshots"]),
        "restore": (zero["io"], zero["states"], zero["snapshots"]),
        "fork": (zero["io"], zero["states"]),
    }
    functions = [_function("count", 1), *(_function(name, len(args)) for name, args in arenas.items())]
    one = Dim(1)
    count = Launch(
        "count", (Address("workspace", 4),), (Dim(64, "rows", 1, 2), Dim(9, "tokens", per=64), one)
    )
    entries = [
        Entry(name, ((count,) if name == "step" else ()) + (Launch(name, args, (one, one, one)),))
        for name, args in arenas.items()
    ]
    return LaunchPlan(FORMAT, VERSION, target, tuple(functions), tuple(entries))


def _function(name: str, params: int) -> Function:
    return Function(name, name, tuple(Param(f"p{i}", "uint8") for i in range(params)), 256, 0)


def write_artifact(folder: Path, target: str, weights: bytes = b"") -> Path:
    """The files of an artifact that a device loads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "launches.json").write_text(gpu_plan(target).to_json())
    (folder / BINARIES[target]).write_bytes(b"binary")
    (folder / "weights.bin").write_bytes(weights)
    return folder


def gpu_kernels(machine: FakeDevice) -> dict[str, Callable[..., None]]:
    """The entry points of `FakeDevice` as kernels, and one that counts launches in the workspace."""

    def step(
        gpu: Any, io: int, weights: int, workspace: int, states: int, pages: int, snapshots: int
    ) -> None:
        arenas = [gpu.view(a) for a in (io, weights, workspace, states, pages, snapshots)]
        machine.call("step", arenas, extent_of(machine.manifest, arenas[0]))

    def snapshot(gpu: Any, io: int, states: int, snapshots: int) -> None:
        machine.call("snapshot", [gpu.view(a) for a in (io, states, snapshots)], Extent(1, 0))

    def restore(gpu: Any, io: int, states: int, snapshots: int) -> None:
        machine.call("restore", [gpu.view(a) for a in (io, states, snapshots)], Extent(1, 0))

    def fork(gpu: Any, io: int, states: int) -> None:
        machine.call("fork", [gpu.view(a) for a in (io, states)], Extent(1, 0))

    def count(gpu: Any, counter: int) -> None:
        gpu.view(counter, 4).view(np.int32)[0] += 1

    return {"step": step, "snapshot": snapshot, "restore": restore, "fork": fork, "count": count}


def extent_of(manifest: Manifest, io: HostBytes) -> Extent:
    """Size of the step that an io arena describes."""
    block = io[manifest.io.block.offset :][: manifest.io.block.bytes].view(np.int32)
    at = block_layout(manifest.limits.max_rows, manifest.limits.max_segments).positions
    rows = int(block[0])
    return Extent(rows, int(block[at : at + rows].max(initial=-1)) + 1)
