"""The one inner product of the target: every matrix product and every score goes through `dot_tile`.

Lane = output row of a 16-row panel. The channels are added strictly in order with one fma each, so
the result of a row depends neither on the tile it was computed in nor on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ds4c_targets.cpu.mathlib import zero
from ds4c_targets.cpu.tir import LANES, Buf, Expr, Kernel, bits, fma, i64, op, select, splat, tirx

_AHEAD_LINES = 32  # cache lines that the weights are prefetched ahead
_UNROLL = 4


@dataclass(frozen=True)
class Panel:
    """16 output rows of a packed matrix.

    Attributes:
        buf: float32 lanes, or int32 pairs of bfloat16.
        base: element index of the panel's first lane.
        x_offset: channels to skip in each row of the left side (one group of a grouped product).
    """

    buf: Buf
    base: Expr
    x_offset: int = 0

    @property
    def pair(self) -> int:
        """Channels of one line: 2 for bfloat16, else 1."""
        return 2 if self.buf.dtype == "int32" else 1

    def line(self, at: Expr) -> Expr:
        """Lanes of a line: float32, or pairs of bfloat16."""
        return self.buf.load(self.base + at * LANES)

    def channel(self, raw: Expr, half: int) -> Expr:
        """float32 lanes of one channel of a line."""
        if self.pair == 1:
            return raw
        if half == 0:
            return bits(op.shift_left(raw, splat(tirx.IntImm("int32", 16))), "float32")
        return bits(op.bitwise_and(raw, splat(tirx.IntImm("int32", -65536))), "float32")


def panel_size(buf: Buf, width: int) -> int:
    """Buffer elements of one panel with `width` channels."""
    return LANES * ((width + 1) // 2 if buf.dtype == "int32" else width)


def _ahead(at: Expr, lines: int, jump: int) -> Expr:
    """Line to fetch while line `at` of `lines` is used."""
    ahead = at + i64(_AHEAD_LINES)
    return ahead + select(ahead >= i64(lines), i64(jump), i64(0)) if jump else ahead


def dot_tile(
    b: Kernel,
    x: Buf,
    row_at: Callable[[Expr], Expr],
    rows: int,
    panels: Sequence[Panel],
    width: int,
    prefetch_jump: int | None = None,
) -> list[Buf]:
    """Products of `rows` rows of `x` with some panels.

    Args:
        b: kernel under construction.
        x: left side, float32.
        row_at: element index in `x` of tile row `r`; called with an unrolled loop variable.
        rows: rows of the tile, at most 15.
        panels: panels, all of one element type.
        width: channels `K`.
        prefetch_jump: fetch weights ahead, for tiles that read each weight for the first time; near the end
            of a panel that many lines further on, where the next group of panels begins. None: do not.

    Returns:
        A local buffer for each panel: vector `r` holds the 16 results of row `r`.
    """
    accs = [b.local(rows * LANES) for _ in panels]
    starts = b.local(rows, "int64")
    for acc in accs:
        zero(b, acc, rows)
    with b.unroll(rows) as r:
        starts[r] = row_at(r)
    pair = panels[0].pair
    lines = width // pair

    def line(at: Expr, halves: int) -> None:
        raws: list[Expr] = []
        for panel in panels:
            if prefetch_jump is not None:
                panel.buf.prefetch(panel.base + _ahead(at, lines, prefetch_jump) * LANES)
            raws.append(b.let(panel.line(at)))
        for half in range(halves):
            for panel, acc, raw in zip(panels, accs, raws, strict=True):
                weights = b.let(panel.channel(raw, half))
                with b.unroll(rows) as r:
                    value = x[starts[r] + (at * pair + (panel.x_offset + half))]
                    acc.store(r * LANES, fma(value, weights, acc.load(r * LANES)))

    if lines // _UNROLL:
        with b.loop(lines // _UNROLL) as k, b.unroll(_UNROLL) as u:
            line(k * _UNROLL + u, pair)
    for rest in range(lines // _UNROLL * _UNROLL, lines):
        line(i64(rest), pair)
    if width % pair:
        line(i64(lines), 1)  # the second half of the last line is padding
    return accs
