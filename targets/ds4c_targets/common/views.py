"""Operands of a kernel by name, and the numbers of blocks, states and marks as expressions (all int64)."""

from __future__ import annotations

from dataclasses import dataclass

from ds4c.ir.kernel import ROWS_OFFSET, BlockLayout, KernelSpec, MarksLayout
from ds4c_targets.common.builder import Buf, Builder
from ds4c_targets.common.expr import Expr, div, i64, imax, mod

ROWS_AT = ROWS_OFFSET
"""First index in a `rows` operand."""


class Operands:
    """The kernel under construction with its operands by name; targets say how these become parameters."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec

    @property
    def b(self) -> Builder:
        """The builder."""
        raise NotImplementedError

    def __getitem__(self, name: str) -> Buf:
        """Buffer of an operand."""
        raise NotImplementedError

    def has(self, name: str) -> bool:
        """Whether the spec has that operand."""
        return self.spec.has(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of an operand."""
        return self.spec.operand(name).shape

    def number(self, name: str) -> float:
        """A float attribute."""
        return float(self.spec.attr(name))

    def integer(self, name: str) -> int:
        """An int attribute."""
        return int(self.spec.attr(name))

    def count(self) -> Expr:
        """Number of rows to do, read on the device."""
        return self.b.let(i64(self["count"][0]))

    def block(self, name: str) -> BlockView:
        """Numbers of a block operand."""
        max_rows, max_segments = self.shape(name)
        return BlockView(self.b, self[name], BlockLayout(max_rows, max_segments))


@dataclass(frozen=True)
class BlockView:
    """A block buffer (`ds4c.ir.kernel.BlockLayout`); all values are int64."""

    b: Builder
    buf: Buf
    layout: BlockLayout

    def rows(self) -> Expr:
        """Number of rows."""
        return self.b.let(i64(self.buf[0]))

    def segments(self) -> Expr:
        """Number of segments."""
        return self.b.let(i64(self.buf[1]))

    def position(self, row: Expr) -> Expr:
        """Absolute position of a row."""
        return self.b.let(i64(self.buf[self.layout.positions + row]))

    def segment(self, row: Expr) -> Expr:
        """Segment of a row."""
        return self.b.let(i64(self.buf[self.layout.row_segment + row]))

    def start(self, segment: Expr) -> Expr:
        """First row of a segment, or one past the last row for the segment after the last."""
        return self.b.let(i64(self.buf[self.layout.segment_starts + segment]))

    def slot(self, segment: Expr) -> Expr:
        """State slot of a segment."""
        return self.b.let(i64(self.buf[self.layout.slots + segment]))


@dataclass(frozen=True)
class Ring:
    """Ring state of one segment: element index of a position's row."""

    buf: Buf
    base: Expr
    capacity: int
    width: int

    @staticmethod
    def of(args: Operands, name: str, slot: Expr) -> Ring:
        """Ring operand `name` at a slot."""
        operand = args.spec.operand(name)
        capacity, width = operand.shape
        return Ring(args[name], args.b.let(slot * i64(operand.stride_bytes // 4)), capacity, width)

    def row(self, position: Expr) -> Expr:
        """Index of the first element of the row of a position."""
        return self.base + mod(position, self.capacity) * self.width


@dataclass(frozen=True)
class Pages:
    """Append state of one segment: element index of a compressed row through the page table."""

    buf: Buf
    table: Buf
    first: Expr
    rows_per_page: int
    width: int
    stride: int

    @staticmethod
    def of(args: Operands, name: str, segment: Expr) -> Pages:
        """Append operand `name` of a segment, with the page table `pages`."""
        operand = args.spec.operand(name)
        rows, width = operand.shape
        first = args.b.let(segment * i64(args.shape("pages")[1]))
        return Pages(args[name], args["pages"], first, rows, width, operand.stride_bytes // 4)

    def row(self, j: Expr) -> Expr:
        """Index of the first element of row `j`."""
        page = i64(self.table[self.first + div(j, self.rows_per_page)])
        return page * self.stride + mod(j, self.rows_per_page) * self.width


@dataclass(frozen=True)
class Marks:
    """The marks of snapshots with one ring's places (`ds4c.ir.kernel.MarksLayout`); values are int64."""

    args: Operands
    layout: MarksLayout
    count: Expr
    arena: Buf

    @staticmethod
    def of(args: Operands) -> Marks:
        """Operands `marks`, `offsets` and `snapshots` of a kernel with attributes `align` and `back`."""
        assert args.spec.operand("snapshots").dtype == "float32", "places count float32 elements"
        layout = MarksLayout(args.shape("marks")[0], 0)
        return Marks(args, layout, args.b.let(i64(args["marks"][0])), args["snapshots"])

    def owner(self, mark: Expr) -> Expr:
        """Segment or slot of a mark."""
        return self.args.b.let(i64(self.args["marks"][self.layout.owners + mark]))

    def position(self, mark: Expr) -> Expr:
        """Position of a mark."""
        return self.args.b.let(i64(self.args["marks"][self.layout.positions + mark]))

    def place(self, mark: Expr) -> Expr:
        """Index of the first element of the ring's rows of a mark in the arena."""
        return self.args.b.let(i64(self.args["offsets"][mark]) * i64(64 // 4))

    def first(self, position: Expr) -> Expr:
        """First live row at a position: `position // align * align - back`, or 0 if that is negative."""
        align, back = self.args.integer("align"), self.args.integer("back")
        return self.args.b.let(imax(i64(0), div(position, align) * i64(align) - i64(back)))
