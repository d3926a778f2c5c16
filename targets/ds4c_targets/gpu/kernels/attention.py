"""Attention over the raw window and compressed rows, with a sink; keys are the values.

A block does one query of a few heads, a warp several of them; the lanes of a warp share the channels. Rows
come in chunks (`attention_plan.py`) of tiles: a tile is staged in shared memory, dead rows as zeros that no
weight reaches. Inside a chunk the softmax runs online, tile by tile; chunks are joined in order, the sink
comes first. All of that is by the position of the query and by row numbers only, so neither the block nor
the place of a row (ring, block, page) can change a bit, nor whether chunks are done in parallel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm.tirx import op

from ds4c.ir.kernel import KernelSpec
from ds4c_runtime.launches import ONE, Dim
from ds4c_targets.common.builder import Buf
from ds4c_targets.common.expr import Expr, div, f32, i32, i64, imax, imin, mul, select, tirx, vmax
from ds4c_targets.common.mathlib import exp
from ds4c_targets.common.source import RowSource, Segment
from ds4c_targets.common.views import BlockView, Pages
from ds4c_targets.gpu.args import Args, Part
from ds4c_targets.gpu.attention_plan import TILE, AttentionPlan
from ds4c_targets.gpu.rows import thread_channels, threads_for
from ds4c_targets.gpu.tir import GpuKernel
from ds4c_targets.gpu.tuning import WARP, Tuning

_LOWEST = -3.0e38
_SPREAD = WARP // TILE
"""Lanes that hold the score of one row of a tile."""


def attention(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Softmax with sink over the visible rows, times the rows: `[T, H*D]`."""
    plan = AttentionPlan.of(spec, tuning)
    parts = [_partial(spec, tuning, plan), _merge(spec, tuning, plan)]
    return parts if plan.rows <= plan.split else [*parts, _whole(spec, tuning, plan)]


@dataclass(frozen=True)
class Span:
    """What the query at a position sees.

    Attributes:
        lo: position of its first raw row.
        first: number of the first chunk of raw rows.
        raw: chunks of raw rows.
        count: compressed rows, or places in the selection.
        chunks: all chunks.
    """

    lo: Expr
    first: Expr
    raw: Expr
    count: Expr
    chunks: Expr

    @staticmethod
    def of(b: GpuKernel, plan: AttentionPlan, position: Expr) -> Span:
        """Of the query at `position`."""
        lo = b.let(imax(0, position - i64(plan.window - 1)))
        first = b.let(div(lo, plan.chunk))
        raw = b.let(div(position, plan.chunk) - first + i64(1))
        if not plan.compressed:
            return Span(lo, first, raw, i64(0), raw)
        count = b.let(imin(plan.compressed, div(position + i64(1), plan.every)))
        chunks = b.let(raw + div(count + i64(plan.chunk - 1), plan.chunk))
        return Span(lo, first, raw, count, chunks)


def _short(at: BlockView, plan: AttentionPlan, row: Expr) -> Expr:
    """Whether a row is one of a step that does its chunks in parallel."""
    rows = at.rows()
    return (i64(row) < rows) & (rows <= i64(plan.split))


def _partial(spec: KernelSpec, tuning: Tuning, plan: AttentionPlan) -> Part:
    """Each chunk of a short step by a block of its own, into the scratch."""
    args = Args(spec, tuning, "partial", plan.threads)
    b, at = args.b, args.block("at")
    per = max(1, plan.every) * plan.chunk
    tokens = "tokens" if plan.compressed else ""
    chunks = Dim(plan.chunks, tokens, base=plan.raw_chunks, per=per)
    args.grid = (chunks, Dim(plan.groups), Dim(plan.split, "rows"))
    with b.when(_short(at, plan, b.bz)):
        span = Span.of(b, plan, at.position(b.bz))
        with b.when(i64(b.bx) < span.chunks):
            query = _Query(args, plan, span, b.bz, b.by)
            query.clear()
            query.chunk(i64(b.bx))
            query.save(b.bx)
    return args.finish()


def _merge(spec: KernelSpec, tuning: Tuning, plan: AttentionPlan) -> Part:
    """Join the chunks of a short step: a block does one head of one row."""
    args = Args(spec, tuning, "merge", threads_for(plan.width, tuning))
    b, at, scratch = args.b, args.block("at"), args.view("scratch", "float32")
    args.grid = (Dim(plan.heads), Dim(plan.split, "rows"), ONE)
    with b.when(_short(at, plan, b.by)):
        span = Span.of(b, plan, at.position(b.by))
        first = b.let((i64(b.by) * plan.heads + i64(b.bx)) * plan.chunks)
        sink = b.let(args["sink"].load(b.bx, 1))
        with thread_channels(b, plan.width) as channel:
            joined = _Joined(b, sink, 1)
            with b.loop(span.chunks) as s:
                state = b.let(first + i64(s))
                keep, take = joined.join(
                    b.let(scratch[i64(plan.states_at) + state * 2]),
                    b.let(scratch[i64(plan.states_at) + state * 2 + 1]),
                )
                joined.add(0, keep, take, b.let(scratch[state * plan.width + channel]))
            at_out = (i64(b.by) * plan.heads + i64(b.bx)) * plan.width + channel
            args["o"][at_out] = joined.result(0)
    return args.finish()


def _whole(spec: KernelSpec, tuning: Tuning, plan: AttentionPlan) -> Part:
    """All chunks of a row of a long step by one block, joined as they come."""
    args = Args(spec, tuning, "whole", plan.threads)
    b, at = args.b, args.block("at")
    args.grid = (args.rows("own"), Dim(plan.groups), ONE)
    rows = at.rows()
    with b.when((i64(b.bx) < rows) & (rows > i64(plan.split))):
        span = Span.of(b, plan, at.position(b.bx))
        query = _Query(args, plan, span, b.bx, b.by)
        sinks = [b.let(args["sink"].load(head, 1)) for head in query.heads]
        joined = [_Joined(b, sink, query.elements) for sink in sinks]
        with b.loop(span.chunks) as s:
            query.clear()
            query.chunk(i64(s))
            query.join(joined)
        query.write(joined)
    return args.finish()


class _Joined:
    """Running result of one head over chunks; it starts as the sink, a row without a value."""

    def __init__(self, b: GpuKernel, sink: Expr, elements: int) -> None:
        self.b = b
        self.top, self.total = b.variable(sink), b.variable(f32(1.0))
        self.values = b.local(elements)
        for e in range(elements):
            self.values[e] = 0.0

    def join(self, top: Expr, total: Expr) -> tuple[Expr, Expr]:
        """Take in the state of a chunk; returns the factors of the values so far and of the chunk's."""
        b = self.b
        new = b.let(vmax(self.top[0], top))
        keep, take = (b.let(exp(b, b.let(t - new))) for t in (self.top[0], top))
        self.total[0] = b.fma(self.total[0], keep, mul(total, take))
        self.top[0] = new
        return keep, take

    def add(self, element: int, keep: Expr, take: Expr, value: Expr) -> None:
        """Take in a value of a chunk."""
        self.values[element] = self.b.fma(self.values[element], keep, mul(value, take))

    def result(self, element: int) -> Expr:
        """The value in the end."""
        return self.values[element] / self.total[0]


class _Query:
    """One query of the heads of a block: the softmax of one chunk at a time."""

    def __init__(self, args: Args, plan: AttentionPlan, span: Span, row: Expr, group: Expr) -> None:
        self.args, self.plan, self.span, self.b = args, plan, span, args.b
        b = self.b
        at = args.block("at")
        self.row, self.position = row, at.position(row)
        self.segment = Segment.of(at, at.segment(row))
        self.source = RowSource.of(args, "old", "own", self.segment)
        self.pages = Pages.of(args, "rows", self.segment.index) if plan.compressed else None
        first = b.let((group * plan.warps + b.warp) * plan.warp_heads)
        self.numbers = [b.let(first + h) for h in range(plan.warp_heads)]
        self.heads = [b.let(tirx.Min(n, i32(plan.heads - 1))) for n in self.numbers]
        self.elements = plan.padded // WARP
        vectors = range(self.elements // plan.vector)
        self.channels = [(b.lane + v * WARP) * plan.vector for v in vectors]
        self.tile = b.shared(TILE * plan.padded)
        self.live = b.shared(TILE, "int32")
        self.queries = [self._load_query(head) for head in self.heads]
        self.top = [b.variable(f32(_LOWEST)) for _ in self.heads]
        self.total = [b.variable(f32(0.0)) for _ in self.heads]
        self.values = [b.local(self.elements) for _ in self.heads]

    def _load_query(self, head: Expr) -> list[Expr]:
        """This lane's channels of a head; those past the width are zero."""
        b, plan, found = self.b, self.plan, []
        start = (i64(self.row) * plan.heads + i64(head)) * plan.width
        for channel in self.channels:
            inside = (
                channel if plan.padded == plan.width else tirx.Min(channel, i32(plan.width - plan.vector))
            )
            for value in b.elements(self.args["q"].load(start + inside, plan.vector)):
                found.append(b.let(select(channel < plan.width, value, f32(0.0))))
        return found

    def clear(self) -> None:
        """Begin a chunk."""
        for top, total, values in zip(self.top, self.total, self.values, strict=True):
            top[0], total[0] = f32(_LOWEST), f32(0.0)
            for e in range(self.elements):
                values[e] = 0.0

    def chunk(self, number: Expr) -> None:
        """Softmax of the rows of a chunk, tiles in order; tiles without a live row are left out."""
        b, plan, span = self.b, self.plan, self.span
        first, end = b.variable(i64(0)), b.variable(i64(0))
        base = b.variable(i64(0))
        with b.when(number < span.raw):
            base[0] = (span.first + number) * plan.chunk
            first[0] = imax(0, span.lo - base[0])
            end[0] = imin(plan.chunk, self.position + i64(1) - base[0])
        with b.otherwise():
            base[0] = (number - span.raw) * plan.chunk
            end[0] = imin(plan.chunk, span.count - base[0])
        start, stop = b.let(div(first[0], TILE)), b.let(div(end[0] + i64(TILE - 1), TILE))
        with b.loop(b.let(i32(stop - start))) as i:
            row = b.let((start + i64(i)) * TILE)
            b.barrier()  # the tile before has been read
            self._stage(number, base[0] + row)
            b.barrier()
            self._attend()

    def _stage(self, number: Expr, first: Expr) -> None:
        """Bring the tile of rows from `first` (position, or place among compressed ones); a warp a row."""
        b, plan, span = self.b, self.plan, self.span
        for turn in range(-(-TILE // plan.warps)):
            row = b.let(b.warp + turn * plan.warps)
            with b.when(row < TILE):
                at = b.let(first + i64(row))
                live = b.variable(i32(0))
                with b.when(number < span.raw):
                    with b.when((at >= span.lo) & (at <= self.position)):
                        live[0] = i32(1)
                        self._stage_raw(row, at)
                if self.pages:
                    with b.otherwise(), b.when(at < span.count):
                        self._stage_compressed(row, at, live)
                with b.when(live[0] < 1):
                    self._fill(row, None, i64(0))
                with b.when(b.lane < 1):
                    self.live[row] = live[0]

    def _stage_raw(self, row: Expr, position: Expr) -> None:
        b, source = self.b, self.source
        with b.when(position >= source.segment.first):
            self._fill(row, source.own, b.let(source.own_at(position)))
        with b.otherwise():
            self._fill(row, source.old, b.let(source.old_at(position)))

    def _stage_compressed(self, row: Expr, place: Expr, live: Buf) -> None:
        args, b, number = self.args, self.b, place
        assert self.pages
        if args.has("selection"):
            number = b.let(i64(args["selection"][i64(self.row) * args.shape("selection")[1] + place]))
        with b.when(number >= i64(0)):
            live[0] = i32(1)
            self._fill(row, self.pages.buf, b.let(self.pages.row(number)))

    def _fill(self, row: Expr, source: Buf | None, at: Expr) -> None:
        """Write one row of the tile, from `source` or zeros."""
        b, plan = self.b, self.plan
        to = row * plan.padded
        begin = b.let(div(at, plan.vector)) * plan.vector  # tells the code generator that it is aligned
        for channel in self.channels:
            zero = f32(0.0) if plan.vector == 1 else tirx.Broadcast(f32(0.0), plan.vector)
            if source is None:
                self.tile.store(to + channel, zero)
            elif plan.padded == plan.width:
                self.tile.store(to + channel, source.load(begin + channel, plan.vector))
            else:
                with b.when(channel < plan.width):
                    self.tile.store(to + channel, source.load(begin + channel, plan.vector))
                with b.otherwise():
                    self.tile.store(to + channel, zero)

    def _row(self, row: int) -> list[Expr]:
        """This lane's channels of a row of the tile."""
        at = row * self.plan.padded
        return [e for c in self.channels for e in self.b.elements(self.tile.load(c + at, self.plan.vector))]

    def _attend(self) -> None:
        """Scores of the tile, new largest score, weights, weighted rows."""
        b = self.b
        dots: list[list[Expr]] = [[] for _ in self.heads]
        for r in range(TILE):
            values = self._row(r)
            for query, found in zip(self.queries, dots, strict=True):
                dot = f32(0.0)
                for q, value in zip(query, values, strict=True):
                    dot = b.fma(q, value, dot)
                found.append(b.let(dot))
        is_live = b.let(self.live[b.let(op.truncdiv(b.lane, _SPREAD))] > 0)
        weights = [self._weights(h, dots[h], is_live) for h in range(len(self.heads))]
        b.barrier()  # or compilers keep the tile in registers, too many of them
        for r in range(TILE):
            values = self._row(r)
            for h, kept in enumerate(self.values):
                weight = b.shuffle(weights[h], i32(r * _SPREAD))
                for e, value in enumerate(values):
                    kept[e] = b.fma(weight, value, kept[e])

    def _weights(self, h: int, dots: list[Expr], is_live: Expr) -> Expr:
        """Weights of the tile's rows, `_SPREAD` lanes a row; scales what is there to the new maximum."""
        b = self.b
        score = b.let(select(is_live, mul(self.args.number("scale"), b.warp_sums(dots)), f32(_LOWEST)))
        top = b.let(vmax(self.top[h][0], self._over_rows(score, vmax)))
        keep = b.let(exp(b, b.let(self.top[h][0] - top)))
        weight = b.let(select(is_live, exp(b, b.let(score - top)), f32(0.0)))
        total = self._over_rows(weight, lambda x, y: x + y)
        self.top[h][0] = top
        self.total[h][0] = b.fma(self.total[h][0], keep, total)
        for e in range(self.elements):
            self.values[h][e] = mul(self.values[h][e], keep)
        return weight

    def _over_rows(self, value: Expr, combine: Callable[[Expr, Expr], Expr]) -> Expr:
        """Combine the values of the tile's rows, as a butterfly."""
        b, step = self.b, WARP // 2
        while step >= _SPREAD:
            value = b.let(combine(value, b.exchange(value, step)))
            step //= 2
        return value

    def save(self, chunk: Expr) -> None:
        """Write the state and the values of the chunk to the scratch."""
        b, plan, scratch = self.b, self.plan, self.args.view("scratch", "float32")
        for h, number in enumerate(self.numbers):
            with b.when(number < plan.heads):
                state = b.let((i64(self.row) * plan.heads + i64(number)) * plan.chunks + i64(chunk))
                with b.when(b.lane < 1):
                    scratch[i64(plan.states_at) + state * 2] = self.top[h][0]
                    scratch[i64(plan.states_at) + state * 2 + 1] = self.total[h][0]
                self._store(scratch, state * plan.width, [self.values[h][e] for e in range(self.elements)])

    def join(self, joined: list[_Joined]) -> None:
        """Take the chunk into the running results."""
        for h, running in enumerate(joined):
            keep, take = running.join(self.top[h][0], self.total[h][0])
            for e in range(self.elements):
                running.add(e, keep, take, self.values[h][e])

    def write(self, joined: list[_Joined]) -> None:
        """Write the results of the row."""
        b, plan = self.b, self.plan
        for number, running in zip(self.numbers, joined, strict=True):
            with b.when(number < plan.heads):
                at = b.let((i64(self.row) * plan.heads + i64(number)) * plan.width)
                self._store(self.args["o"], at, [running.result(e) for e in range(self.elements)])

    def _store(self, target: Buf, at: Expr, values: list[Expr]) -> None:
        """Write this lane's channels of a row."""
        b, plan = self.b, self.plan
        for v, channel in enumerate(self.channels):
            with b.when(channel < plan.width):
                for k in range(plan.vector):
                    target[at + i64(channel) + k] = values[v * plan.vector + k]
