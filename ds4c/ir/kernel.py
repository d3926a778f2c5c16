"""What a kernel is, as data: the contract between the passes, the targets and the host function.

A `KernelSpec` says everything that shapes the code of a kernel and nothing else, so two calls with
the same digest share one kernel. It knows no layer, no buffer address and no target.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Role = Literal[
    "in", "out", "weight", "block", "rows", "count", "ring", "append", "pages", "scratch",
    "marks", "offsets", "snapshots",
]  # fmt: skip
AttrValue = int | float | str | bool


@dataclass(frozen=True)
class Operand:
    """One pointer argument of a kernel; every operand is passed as a 64-byte aligned address.

    Attributes:
        name: operand or result name of the op (`x`, `w`, `y`, ...).
        role: `in`/`out` activations; `weight`; `block` (see `BlockLayout`); `rows` (a count and row
            indices); `count` (one int32, the number of rows to do); `ring`/`append` states; `pages`
            (page table, int32 `[max_segments, pages_per_session]`); `scratch` (bytes); `marks` (see
            `MarksLayout`); `offsets` (int32 `[max_marks]`, places of one ring's rows in `snapshots`, in
            units of 64 bytes); `snapshots` (the arena of snapshots).
        dtype: element type as NumPy spells it, `bfloat16` for bfloat16 weights.
        shape: full shape; the first dimension of `in`/`out` is the largest number of rows. Ring:
            `[capacity, width]`. Append: `[rows per page, width]`. Block: `[max_rows, max_segments]`.
        layout: how a weight is packed (`row` or a name of the target); empty for other roles.
        stride_bytes: distance of two slots (ring) or two pages (append); 0 for other roles.
        every: tokens per row of a state; 0 for other roles.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    layout: str = ""
    stride_bytes: int = 0
    every: int = 0


@dataclass(frozen=True)
class KernelSpec:
    """An op with its attributes and the shapes of its operands, in call order."""

    op: str
    attrs: tuple[tuple[str, AttrValue], ...]
    operands: tuple[Operand, ...]

    def attr(self, name: str) -> AttrValue:
        """Value of an attribute; `KeyError` if the op has none of that name."""
        return dict(self.attrs)[name]

    def operand(self, name: str) -> Operand:
        """Operand by name; `KeyError` if absent."""
        return {o.name: o for o in self.operands}[name]

    def has(self, name: str) -> bool:
        """Whether an (optional) operand of that name is there."""
        return any(o.name == name for o in self.operands)

    def to_json(self) -> str:
        """Canonical text; equal specs give equal text."""
        operands = [
            [o.name, o.role, o.dtype, list(o.shape), o.layout, o.stride_bytes, o.every] for o in self.operands
        ]
        return json.dumps([self.op, [list(a) for a in sorted(self.attrs)], operands], separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> KernelSpec:
        """Inverse of `to_json`."""
        op, attrs, operands = json.loads(text)
        return KernelSpec(
            op,
            tuple((k, v) for k, v in attrs),
            tuple(Operand(n, r, d, tuple(s), lay, st, ev) for n, r, d, s, lay, st, ev in operands),
        )

    @property
    def digest(self) -> str:
        """First 12 hex digits of the sha256 of `to_json`."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    @property
    def symbol(self) -> str:
        """Name of the kernel in the library: op and digest."""
        return f"{self.op}_{self.digest}"


@dataclass(frozen=True)
class BlockLayout:
    """Where the numbers of a block stand in its int32 buffer; every part starts at a multiple of 64 bytes.

    `[0]` number of rows, `[1]` number of segments, then `positions [max_rows]`,
    `row_segment [max_rows]`, `segment_starts [max_segments + 1]`, `slots [max_segments]`.
    """

    max_rows: int
    max_segments: int

    @property
    def positions(self) -> int:
        """Index of the first position."""
        return 16

    @property
    def row_segment(self) -> int:
        """Index of the segment number of the first row."""
        return self.positions + _round16(self.max_rows)

    @property
    def segment_starts(self) -> int:
        """Index of the first row of the first segment."""
        return self.row_segment + _round16(self.max_rows)

    @property
    def slots(self) -> int:
        """Index of the slot of the first segment."""
        return self.segment_starts + _round16(self.max_segments + 1)

    @property
    def size(self) -> int:
        """int32 elements in all."""
        return self.slots + _round16(self.max_segments)


ROWS_OFFSET = 16
"""In a `rows` buffer (int32): `[0]` is the number of indices, the indices start here."""


@dataclass(frozen=True)
class MarksLayout:
    """Where the numbers of snapshots stand in their int32 buffer; parts start at multiples of 64 bytes.

    `[0]` number of marks, then `owners [max_marks]` (segment of a step; slot outside of one),
    `positions [max_marks]`, and for each ring in order of declaration `offsets [max_marks]`.
    """

    max_marks: int
    rings: int

    @property
    def owners(self) -> int:
        """Index of the owner of the first mark."""
        return 16

    @property
    def positions(self) -> int:
        """Index of the position of the first mark."""
        return self.owners + _round16(self.max_marks)

    def offsets(self, ring: int) -> int:
        """Index of the place of the first mark's rows of a ring."""
        return self.positions + _round16(self.max_marks) * (1 + ring)

    @property
    def size(self) -> int:
        """int32 elements in all."""
        return self.offsets(self.rings)


def _round16(n: int) -> int:
    return (n + 15) // 16 * 16


@dataclass(frozen=True)
class Arg:
    """Address of an operand: an arena of the host function and a byte offset, a multiple of 64."""

    arena: str
    offset: int


@dataclass(frozen=True)
class Call:
    """One kernel call of an entry point."""

    kernel: str
    args: tuple[Arg, ...]


@dataclass(frozen=True)
class EntryPoint:
    """A host function: arenas are its arguments (uint8 buffers), calls run in order."""

    name: str
    arenas: tuple[str, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Program:
    """All that is lowered to code: kernels by symbol and the entry points that call them."""

    kernels: Mapping[str, KernelSpec]
    entry_points: tuple[EntryPoint, ...]
