"""Launches of a plan against the manifest: entry points, arenas, addresses and grids."""

from __future__ import annotations

from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.launches import LAUNCHES_NAME, Address, Dim, Launch, LaunchPlan, Param
from ds4c_runtime.manifest import Manifest

MAX_GRID = ((1 << 31) - 1, 65535, 65535)
"""Most blocks along x, y and z, on every target."""

_BYTES = {
    "float32": 4, "float16": 2, "uint8": 1, "int8": 1, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8,
}  # fmt: skip


def check_launches(plan: LaunchPlan, manifest: Manifest) -> None:
    """Refuse launches that leave the arenas of the artifact.

    Arenas of states, pages and snapshots hold many slots, pages and places, which kernels find themselves:
    the offset of an address counts from the start of the first one, so it lies within it.

    Raises:
        ArtifactError: another set of entry points, an address outside of its arena, or a grid that no device
            launches.
    """
    arenas = {e.name: e.arenas for e in manifest.entry_points}
    found = [e.name for e in plan.entries]
    if sorted(found) != sorted(arenas):
        raise _wrong("entry points", f"{', '.join(sorted(arenas))}", ", ".join(sorted(found)) or "none")
    sizes = manifest.arenas
    room = {
        "io": sizes.io,
        "weights": sizes.weights,
        "workspace": sizes.workspace,
        "states": sizes.state_slot,
        "pages": sizes.page,
        "snapshots": sizes.state_slot,
    }
    params = {f.name: f.params for f in plan.functions}
    for entry in plan.entries:
        known = {name: room[name] for name in arenas[entry.name]}
        for index, launch in enumerate(entry.launches):
            where = f"{entry.name}, launch {index} of {launch.function}"
            _check_grid(where, launch)
            for param, address in zip(params[launch.function], launch.args, strict=True):
                _check_address(f"{where}, {param.name}", param, address, known)


def _check_address(where: str, param: Param, address: Address, room: dict[str, int]) -> None:
    size = room.get(address.arena)
    if size is None:
        raise _wrong(where, f"an address in {', '.join(room)}", address.arena)
    item = _BYTES[param.dtype]
    if address.offset % item:
        raise _wrong(where, f"a multiple of {item} bytes", address.offset)
    if address.offset + item > size:
        raise _wrong(where, f"an offset within {size} bytes of {address.arena}", address.offset)


def _check_grid(where: str, launch: Launch) -> None:
    for axis, dim, most in zip("xyz", launch.grid, MAX_GRID, strict=True):
        if not 1 <= dim.most <= most:
            raise _wrong(where, f"1 to {most} blocks along {axis}", dim.most)
        if dim.of and not _grows(dim):
            raise _wrong(where, f"a number of blocks along {axis} that grows with {dim.of}", dim)


def _grows(dim: Dim) -> bool:
    return dim.base >= 0 and dim.times >= 1 and dim.per >= 1


def _wrong(where: str, expected: str, got: object) -> ArtifactError:
    return ArtifactError(f"{LAUNCHES_NAME} rejected: {where}: expected {expected}, got {got}; build again")
