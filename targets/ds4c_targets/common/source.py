"""Rows of one segment by absolute position: old ones from a ring or a `read_rows` tensor, own ones.

Both forms of old rows hold the same numbers, so a reader gets the same bits from either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ds4c_targets.common.builder import Buf, Builder
from ds4c_targets.common.expr import Expr, i64, imax, imin
from ds4c_targets.common.views import BlockView, Operands, Ring


@dataclass(frozen=True)
class Segment:
    """Where the rows of a segment are.

    Attributes:
        index: segment number.
        start: its first row in the block.
        first: position of that row.
        slot: state slot.
    """

    index: Expr
    start: Expr
    first: Expr
    slot: Expr

    @staticmethod
    def of(at: BlockView, index: Expr) -> Segment:
        """Segment of a block; it must have rows."""
        start = at.start(index)
        return Segment(index, start, at.position(start), at.slot(index))


@dataclass(frozen=True)
class RowSource:
    """Rows `[width]` of a segment, in the block (`own`) or before it (`old`)."""

    b: Builder
    segment: Segment
    old: Buf
    old_at: Callable[[Expr], Expr]
    own: Buf
    width: int

    @staticmethod
    def of(args: Operands, old: str, own: str, segment: Segment) -> RowSource:
        """Operands `old` (ring or tensor) and `own`."""
        operand = args.spec.operand(old)
        width = args.shape(own)[-1]
        if operand.role == "ring":
            ring = Ring.of(args, old, segment.slot)
            return RowSource(args.b, segment, args[old], ring.row, args[own], width)
        span = operand.shape[1]
        base = args.b.let((segment.index * span + i64(span) - segment.first) * width)
        return RowSource(args.b, segment, args[old], lambda p: base + p * width, args[own], width)

    def own_at(self, position: Expr) -> Expr:
        """Element index in `own` of a position inside the block."""
        return (self.segment.start + (position - self.segment.first)) * self.width

    def spans(self, lo: Expr, hi: Expr) -> list[tuple[Buf, Callable[[Expr], Expr], Expr, Expr]]:
        """Positions `[lo, hi)` as an old and an own span, ascending: buffer, index, first, end."""
        middle = self.b.let(imin(imax(self.segment.first, lo), hi))
        return [(self.old, self.old_at, lo, middle), (self.own, self.own_at, middle, hi)]
