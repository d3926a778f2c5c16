"""Attention over the raw window and compressed rows, with a sink; keys are the values.

A task is one query of 16 heads. Scores have heads in lanes and rows in order: raw rows by position,
then compressed rows by number. Sums over rows run in that order over exactly the rows that the query
may see, so neither the chunk nor the place of a row (ring, block, page) can change a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ds4c_targets.common.source import RowSource, Segment
from ds4c_targets.cpu.args import Args, Pages
from ds4c_targets.cpu.dot import Panel, dot_tile
from ds4c_targets.cpu.heads import ceil_div, load_queries, run_tasks
from ds4c_targets.cpu.mathlib import exp, zero
from ds4c_targets.cpu.product import panel_count
from ds4c_targets.cpu.scratch import AttentionScratch
from ds4c_targets.cpu.tir import (
    LANES,
    Buf,
    Expr,
    add,
    div,
    fma,
    i64,
    imax,
    imin,
    like,
    mod,
    mul,
    splat,
    vmax,
)


@dataclass(frozen=True)
class Rows:
    """A run of rows that a query sees: `at(i)` is the element index of row `i` in `buf`."""

    buf: Buf
    at: Callable[[Expr], Expr]
    count: Expr
    before: Expr


def attention(args: Args) -> None:
    """Softmax with sink over the visible rows, times the rows: `[T, H*D]`."""
    plan = AttentionScratch.of(args.spec)
    at, panels = args.block("at"), panel_count(plan.heads)
    work = (plan.window + min(plan.compressed, 256)) * plan.width // 8
    rows = at.rows()

    def task(number: Expr, slot: Expr) -> None:
        b = args.b
        t = b.let(div(number, panels))
        first_head = b.let(mod(number, panels) * LANES)
        base = b.let(slot * (plan.task_bytes // 4))
        _Query(args, plan, t, first_head, base).run()

    run_tasks(args.b, args.b.let(rows * panels), work, task)


class _Query:
    """One query of 16 heads; scratch holds its panel, its scores and the places of compressed rows."""

    def __init__(self, args: Args, plan: AttentionScratch, t: Expr, first_head: Expr, base: Expr) -> None:
        self.args, self.plan, self.b = args, plan, args.b
        self.t, self.first_head = t, first_head
        self.panel_at = base
        self.scores_at = base + i64(plan.scores_offset // 4)
        self.places_at = self.b.let(div(base + i64(plan.places_offset // 4), 2))
        self.scratch = args.scratch("float32")

    def run(self) -> None:
        """Scores, weights, weighted rows."""
        args, b, plan = self.args, self.b, self.plan
        at = args.block("at")
        position = at.position(self.t)
        segment = Segment.of(at, at.segment(self.t))
        runs = self._runs(position, segment)
        start = b.let(self.t * (plan.heads * plan.width))
        load_queries(
            b, args["q"], start, self.first_head, plan.heads, plan.width, self.scratch, self.panel_at
        )
        top = b.local(LANES)
        sink = self._sinks()
        top.store(0, sink)
        for rows in runs:
            self._score(rows, top)
        last = runs[-1]
        inverse = self._weights(b.let(last.before + last.count), b.let(top.load(0)), sink)
        self._output(runs, inverse, start)

    def _runs(self, position: Expr, segment: Segment) -> list[Rows]:
        """Raw rows before the block, raw rows of the block, compressed rows."""
        args, b = self.args, self.b
        source = RowSource.of(args, "old", "own", segment)
        lo = b.let(imax(0, position - i64(self.plan.window - 1)))
        found: list[Rows] = []
        before = i64(0)
        for buf, row_at, start, end in source.spans(lo, b.let(position + i64(1))):
            count = b.let(end - start)
            found.append(Rows(buf, lambda i, row_at=row_at, start=start: row_at(start + i), count, before))
            before = b.let(before + count)
        if args.has("rows"):
            places = args.scratch("int64")
            count = self._places(position, segment, places)
            found.append(Rows(args["rows"], lambda i: places[self.places_at + i], count, before))
        return found

    def _places(self, position: Expr, segment: Segment, places: Buf) -> Expr:
        """Write the element index of every visible compressed row; returns their number."""
        args, b = self.args, self.b
        pages = Pages.of(args, "rows", segment.index)
        if not args.has("selection"):
            count = b.let(div(position + i64(1), args.integer("every")))
            with b.loop(count) as j:
                places[self.places_at + j] = pages.row(j)
            return count
        top_k = args.shape("selection")[1]
        found = b.variable(i64(0))
        with b.loop(top_k) as i:
            j = b.let(i64(args["selection"][self.t * top_k + i]))
            with b.when(j >= i64(0)):
                places[self.places_at + found[0]] = pages.row(j)
                found[0] = found[0] + i64(1)
        return b.let(found[0])

    def _sinks(self) -> Expr:
        b, sinks = self.b, self.b.local(LANES)
        with b.unroll(LANES) as lane:
            sinks[lane] = self.args["sink"].load(imin(self.first_head + lane, self.plan.heads - 1), 1)
        return b.let(sinks.load(0))

    def _score(self, rows: Rows, top: Buf) -> None:
        """`scale * (q . k)` of each row; a short last tile repeats the last row and writes past the end."""
        b, tile = self.b, self.args.variant.wide[0]
        scale = self.args.number("scale")
        panel = Panel(self.scratch, self.panel_at)
        with b.loop(b.let(ceil_div(rows.count, tile))) as i:
            first = b.let(i * tile)
            last = b.let(rows.count - i64(1))
            (acc,) = dot_tile(
                b, rows.buf, lambda r: rows.at(imin(first + r, last)), tile, [panel], self.plan.width
            )
            with b.unroll(tile) as r:
                value = b.let(mul(scale, acc.load(r * LANES)))
                self.scratch.store(self._score_at(rows.before + first + r), value)
                top.store(0, vmax(top.load(0), value))

    def _score_at(self, row: Expr) -> Expr:
        return self.scores_at + row * LANES

    def _weights(self, count: Expr, top: Expr, sink: Expr) -> Buf:
        """Replace scores by `e**(score - top)`; returns the reciprocal of their sum with the sink's."""
        b = self.b
        total = b.local(LANES)
        total.store(0, exp(b, b.let(sink - top)))
        with b.loop(count) as row:
            at = b.let(self._score_at(row))
            weight = b.let(exp(b, b.let(self.scratch.load(at) - top)))
            self.scratch.store(at, weight)
            total.store(0, add(total.load(0), weight))
        inverse = b.local(LANES)
        inverse.store(0, like(1.0, splat(0.0)) / total.load(0))
        return inverse

    def _output(self, runs: list[Rows], inverse: Buf, start: Expr) -> None:
        """Weighted rows: lane = channel, a few heads and vectors at a time."""
        b, plan, (wide_heads, wide_vectors) = self.b, self.plan, self.args.variant.wide
        heads = min(wide_heads, plan.heads, LANES)
        vectors = plan.width // LANES
        step = min(wide_vectors, vectors)
        for lane in range(0, min(LANES, plan.heads), heads):
            with b.when(self.first_head + i64(lane) < i64(plan.heads)):
                with b.loop(vectors // step) as v:
                    self._block(runs, inverse, start, lane, heads, v * (step * LANES), step)
                if vectors % step:
                    at = i64(vectors // step * step * LANES)
                    self._block(runs, inverse, start, lane, heads, at, vectors % step)

    def _block(
        self, runs: list[Rows], inverse: Buf, start: Expr, lane: int, heads: int, channel: Expr, vectors: int
    ) -> None:
        b, plan = self.b, self.plan
        accs = [b.local(heads * LANES) for _ in range(vectors)]
        for acc in accs:
            zero(b, acc, heads)
        for rows in runs:
            with b.loop(rows.count) as i:
                at = b.let(rows.at(i) + channel)
                weights = b.let(self._score_at(rows.before + i) + i64(lane))
                values = [b.let(rows.buf.load(at + i64(v * LANES))) for v in range(vectors)]
                with b.unroll(heads) as h:
                    for value, acc in zip(values, accs, strict=True):
                        weight = self.scratch[weights + h]
                        acc.store(h * LANES, fma(weight, value, acc.load(h * LANES)))
        out = self.args["o"]
        for h in range(heads):
            head = self.first_head + i64(lane + h)
            with b.when(head < i64(plan.heads)):
                to = b.let(start + head * plan.width + channel)
                for v, acc in enumerate(accs):
                    out.store(to + i64(v * LANES), mul(inverse[lane + h], acc.load(h * LANES)))
