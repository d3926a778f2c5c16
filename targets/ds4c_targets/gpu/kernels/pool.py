"""Pooling of the windows that close in a block: a softmax over rows for every channel."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from ds4c.ir.kernel import KernelSpec
from ds4c_runtime.launches import ONE, Dim
from ds4c_targets.common.builder import Buf
from ds4c_targets.common.expr import Expr, f32, i32, i64, select, tirx, vmax
from ds4c_targets.common.mathlib import exp
from ds4c_targets.common.source import RowSource, Segment
from ds4c_targets.gpu.args import Args, Part
from ds4c_targets.gpu.rows import closed_windows
from ds4c_targets.gpu.tuning import WARP, Tuning

_LOWEST = -3.0e38


def pool(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Rows `[J, D]` of the windows, the previous window first; a block does 32 channels of one window.

    Warp `w` of `n` does rows `w, w + n, ...` of the window; then the warps are summed up in order.
    """
    every, lanes = int(spec.attr("every")), int(spec.attr("lanes"))
    args = Args(spec, tuning, threads=WARP * min(tuning.warps, every * lanes))
    b, closed, width = args.b, args.block("windows"), args.shape("rows")[1]
    args.grid = (closed_windows(args, "windows", every), Dim(-(-width // WARP)), ONE)
    with b.when(i64(b.bx) < closed.rows()):
        _Window(args, every, lanes, width).run()
    return [args.finish()]


class _Window:
    """One window of `lanes * every` rows; those before position 0 are none."""

    def __init__(self, args: Args, every: int, lanes: int, width: int) -> None:
        self.args, self.b = args, args.b
        self.every, self.lanes, self.width = every, lanes, width
        self.warps = self.b.threads // WARP
        at, closed = args.block("at"), args.block("windows")
        segment = Segment.of(at, closed.segment(self.b.bx))
        self.kv = RowSource.of(args, "kv_old", "kv", segment)
        self.score = RowSource.of(args, "score_old", "score", segment)
        self.begin = self.b.let(closed.position(self.b.bx) - i64((lanes - 1) * every))
        self.column = self.b.let(self.b.by * WARP + self.b.lane)
        self.channel = self.b.let(tirx.Min(self.column, i32(width - 1)))

    def run(self) -> None:
        """Largest score first, then the sums of weights and of weighted values."""
        b = self.b
        top = b.variable(f32(_LOWEST))
        with self._rows() as (position, channel):
            top[0] = vmax(top[0], self._read(self.score, position, channel))
        tops = self._exchange(top[0])
        for warp in range(self.warps):
            top[0] = vmax(top[0], tops[warp * WARP + b.lane])
        total, value = b.variable(f32(0.0)), b.variable(f32(0.0))
        with self._rows() as (position, channel):
            weight = b.let(exp(b, b.let(self._read(self.score, position, channel) - top[0])))
            total[0] = total[0] + weight
            value[0] = b.fma(weight, self._read(self.kv, position, channel), value[0])
        totals, values = self._exchange(total[0]), self._exchange(value[0])
        with b.when((b.warp < 1) & (self.column < self.width)):
            for warp in range(1, self.warps):
                total[0] = total[0] + totals[warp * WARP + b.lane]
                value[0] = value[0] + values[warp * WARP + b.lane]
            self.args["rows"][i64(b.bx) * self.width + self.column] = value[0] / total[0]

    @contextmanager
    def _rows(self) -> Generator[tuple[Expr, Expr]]:
        """The body for each row of the warp: its position, and this thread's channel in it."""
        b, count = self.b, self.lanes * self.every
        with b.loop(-(-count // self.warps)) as i:
            row = b.let(i * self.warps + b.warp)
            position = b.let(self.begin + i64(row))
            with b.when((row < count) & (position >= i64(0))):
                current = i32((self.lanes - 1) * self.width)
                offset = select(row < count - self.every, i32(0), current)
                yield position, b.let(offset + self.channel)

    def _read(self, source: RowSource, position: Expr, channel: Expr) -> Expr:
        b = self.b
        found = b.local(1)
        with b.when(position >= source.segment.first):
            found[0] = source.own[source.own_at(position) + channel]
        with b.otherwise():
            found[0] = source.old[source.old_at(position) + channel]
        return b.let(found[0])

    def _exchange(self, value: Expr) -> Buf:
        """The values of all threads, `[warp][lane]`."""
        shared = self.b.shared(self.b.threads)
        shared[self.b.tx] = value
        self.b.barrier()
        return shared
