"""What a GPU artifact launches: the functions of its text and the launches of each entry point, in order.

The schema of `launches.json`, its reader and its checks. A kernel takes addresses only: an address is an
arena and a byte offset. Positions and counts are read by the kernels from the io arena; what the host chooses
is the size of the grid, from the number of rows and tokens of a step. A grid may always be larger than
needed: idle blocks return, so the bits of a result do not depend on it. Knows no target and no device.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from ds4c_runtime import strict
from ds4c_runtime.errors import ArtifactError

LAUNCHES_NAME = "launches.json"
FORMAT = "ds4c-launches"
VERSION = 1
THREADS = 256
"""Most threads of a block, on every target."""

Arena = Literal["io", "weights", "workspace", "states", "pages", "snapshots"]


@dataclass(frozen=True)
class Param:
    """A pointer that a function takes; `dtype` is the element type of its text."""

    name: str
    dtype: Literal["float32", "float16", "uint8", "int8", "uint16", "int32", "uint32", "int64"]


@dataclass(frozen=True)
class Function:
    """A kernel of the text.

    Attributes:
        name: symbol in the text and in every binary made from it.
        kernel: symbol of the program's kernel that it is a part of.
        params: pointers, in call order.
        threads: threads of a block (`blockDim.x`; y and z are 1).
        shared_bytes: static shared memory of a block that the text declares.
    """

    name: str
    kernel: str
    params: tuple[Param, ...]
    threads: int
    shared_bytes: int


@dataclass(frozen=True)
class Dim:
    """Blocks along one dimension of a grid: `min(most, base + ceil(times * extent / per))`, at least 1.

    Attributes:
        most: the number for the largest step; all of it where `of` is empty.
        of: what the extent is: rows of the step, or tokens of its longest session after the step.
        base, times, per: integers of the formula.
    """

    most: int
    of: Literal["", "rows", "tokens"] = ""
    base: int = 0
    times: int = 1
    per: int = 1

    def blocks(self, extent: Extent) -> int:
        """Blocks for a step."""
        if not self.of:
            return self.most
        size = extent.rows if self.of == "rows" else extent.tokens
        return max(1, min(self.most, self.base + -(-self.times * size // self.per)))


ONE = Dim(1)
"""A dimension of one block."""


@dataclass(frozen=True)
class Extent:
    """Size of one call: rows, and one past the highest position of any of its sessions."""

    rows: int
    tokens: int


@dataclass(frozen=True)
class Address:
    """A byte offset in an arena, a multiple of the element size of what is there."""

    arena: Arena
    offset: int


@dataclass(frozen=True)
class Launch:
    """One launch: addresses for the parameters of a function, and the grid."""

    function: str
    args: tuple[Address, ...]
    grid: tuple[Dim, Dim, Dim]


@dataclass(frozen=True)
class Entry:
    """Launches of an entry point; each sees everything that those before it wrote."""

    name: str
    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class Limits:
    """What a block may use on the devices of one variant, from the description of the target.

    Attributes:
        variant: name of the variant, as in the file name of its binary.
        threads: most threads of a block.
        wave: threads that execute in lockstep.
        shared_bytes: most static shared memory of a block.
        registers: most 32-bit registers of a thread; `None` where the device's compiler alone knows.
        block_registers: most 32-bit registers of all threads of a block; `None` likewise.
    """

    variant: str
    threads: int
    wave: int
    shared_bytes: int
    registers: int | None
    block_registers: int | None


@dataclass(frozen=True)
class LaunchPlan:
    """Contents of `launches.json`.

    Attributes:
        kind: how the functions are shipped.
        functions: kernels of the text and of every binary.
        entries: launches of each entry point.
        limits: one for each variant that the artifact was built for.
        compiler: name and version of what made the binaries; empty where the text is compiled on the device.
    """

    format: str
    version: int
    kind: Literal["cuda", "metal", "rocm"]
    functions: tuple[Function, ...]
    entries: tuple[Entry, ...]
    limits: tuple[Limits, ...] = ()
    compiler: str = ""

    @property
    def by_name(self) -> Mapping[str, Function]:
        """Functions by name."""
        return {f.name: f for f in self.functions}

    def entry(self, name: str) -> Entry:
        """Entry point by name; `KeyError` if absent."""
        return {e.name: e for e in self.entries}[name]

    def to_json(self) -> str:
        """Text of `launches.json`; `parse` of it gives an equal plan."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":")) + "\n"

    @staticmethod
    def parse(text: str) -> LaunchPlan:
        """Read the text of a plan, strictly.

        Raises:
            ArtifactError: not JSON, unknown / missing / wrong-typed keys, another format or version, a launch
                of no function, or one with another number of addresses than the function has parameters.
        """
        try:
            raw = cast(object, json.loads(text))
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"{LAUNCHES_NAME} rejected: expected JSON, got {error}") from error
        plan = strict.parse(LaunchPlan, raw, "launches")
        if (plan.format, plan.version) != (FORMAT, VERSION):
            raise ArtifactError(
                f"{LAUNCHES_NAME} rejected: expected format {FORMAT!r} version {VERSION}, got "
                f"{plan.format!r} version {plan.version}; build the artifact again with this version"
            )
        plan.check()
        return plan

    @staticmethod
    def read(folder: Path) -> LaunchPlan:
        """Read the plan of an artifact folder.

        Raises:
            ArtifactError: no such file, or a rejected plan.
        """
        try:
            text = (folder / LAUNCHES_NAME).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactError(
                f"{LAUNCHES_NAME} rejected: expected a readable file in UTF-8, got {error}; build again"
            ) from error
        return LaunchPlan.parse(text)

    def check(self) -> None:
        """Raise `ArtifactError` if launches and functions contradict each other."""
        functions = self.by_name
        _expect(len(functions) == len(self.functions), "functions", "unique names", "one twice")
        for f in self.functions:
            _expect(0 < f.threads <= THREADS, f.name, f"1 to {THREADS} threads", f.threads)
            _expect(f.threads % 32 == 0, f.name, "whole warps of threads", f.threads)
            _expect(f.shared_bytes >= 0, f.name, "shared bytes of at least 0", f.shared_bytes)
        variants = [limits.variant for limits in self.limits]
        _expect(len(set(variants)) == len(variants), "limits", "each variant once", ", ".join(variants))
        for entry in self.entries:
            for launch in entry.launches:
                _expect(launch.function in functions, entry.name, "a known function", launch.function)
                wanted = len(functions[launch.function].params)
                where = f"{entry.name}, {launch.function}"
                _expect(len(launch.args) == wanted, where, f"{wanted} addresses", len(launch.args))
                for dim in launch.grid:
                    _expect(dim.most >= 1 and dim.per >= 1, where, "grids of at least one block", dim)
                for address in launch.args:
                    _expect(address.offset >= 0, where, "offsets of at least 0", address.offset)


def _expect(holds: bool, where: str, expected: str, got: object) -> None:
    if not holds:
        raise ArtifactError(f"{LAUNCHES_NAME} rejected: {where}: expected {expected}, got {got}; build again")


_ROWS = (1, 2, 4, 6, 8, 16, 32, 64, 128, 256)
_FIRST_TOKENS = 4096


def bucket(extent: Extent, max_rows: int, max_tokens: int) -> Extent:
    """The extent that a grid is made for: few different ones, so that each can be captured as a graph once.

    Args:
        extent: of a step.
        max_rows: most rows of a step of the artifact.
        max_tokens: most tokens of a session.
    """
    rows = next((r for r in _ROWS if r >= extent.rows), max_rows)
    tokens = _FIRST_TOKENS
    while tokens < extent.tokens:
        tokens *= 8
    return Extent(min(rows, max_rows), min(tokens, max_tokens))
