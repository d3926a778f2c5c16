"""Pooling of the windows that close in a block: a softmax over rows for every channel."""

from __future__ import annotations

from collections.abc import Callable

from ds4c_targets.common.source import RowSource, Segment
from ds4c_targets.cpu.args import Args
from ds4c_targets.cpu.mathlib import exp
from ds4c_targets.cpu.rows import channels, split
from ds4c_targets.cpu.tir import Buf, Expr, add, fma, i64, imax, splat, vmax

Visit = Callable[[Buf, Expr, Buf, Expr], None]


def pool(args: Args) -> None:
    """Rows `[J, D]` of the windows; lane = channel, rows ascending, previous window first."""
    b, at, closed = args.b, args.block("at"), args.block("windows")
    every, lanes, width = args.integer("every"), args.integer("lanes"), args.shape("rows")[1]

    def window(j: Expr) -> None:
        segment = Segment.of(at, closed.segment(j))
        kv = RowSource.of(args, "kv_old", "kv", segment)
        score = RowSource.of(args, "score_old", "score", segment)
        here = closed.position(j)
        parts = [(here, here + every, (lanes - 1) * width)]
        if lanes == 2:
            parts.insert(0, (b.let(imax(0, here - every)), here, 0))

        def every_row(visit: Visit) -> None:
            for lo, hi, offset in parts:
                spans = zip(kv.spans(lo, hi), score.spans(lo, hi), strict=True)
                for (k, k_at, start, end), (z, z_at, _, _) in spans:
                    with b.loop(end, start=start) as p:
                        visit(k, b.let(k_at(p) + i64(offset)), z, b.let(z_at(p) + i64(offset)))

        channels(b, width, lambda c, n: _channel(args, every_row, j, c, n))

    split(b, closed.rows(), every * lanes * width, window)


def _channel(args: Args, every_row: Callable[[Visit], None], j: Expr, c: Expr, n: int) -> None:
    """Largest score first, then the sums of weights and of weighted values."""
    b, width = args.b, args.shape("rows")[1]
    top, total, value = b.local(n), b.local(n), b.local(n)
    top.store(0, splat(-3.0e38, n))
    total.store(0, splat(0.0, n))
    value.store(0, splat(0.0, n))
    every_row(lambda k, k_at, z, z_at: top.store(0, vmax(top.load(0, n), z.load(z_at + c, n))))

    def accumulate(k: Buf, k_at: Expr, z: Buf, z_at: Expr) -> None:
        weight = b.let(exp(b, b.let(z.load(z_at + c, n) - top.load(0, n))))
        total.store(0, add(total.load(0, n), weight))
        value.store(0, fma(weight, k.load(k_at + c, n), value.load(0, n)))

    every_row(accumulate)
    args["rows"].store(j * width + c, value.load(0, n) / total.load(0, n))
