"""Lightning indexer: scores of all visible compressed rows and the numbers of the best ones."""

from __future__ import annotations

from ds4c_targets.cpu.args import Args, Pages
from ds4c_targets.cpu.dot import Panel, dot_tile
from ds4c_targets.cpu.heads import ceil_div, load_queries, run_tasks
from ds4c_targets.cpu.mathlib import reduce16, zero
from ds4c_targets.cpu.scratch import IndexScratch
from ds4c_targets.cpu.tir import (
    LANES,
    Expr,
    bits,
    div,
    f32,
    fma,
    i32,
    i64,
    imin,
    mul,
    op,
    select,
    vmax,
)

_SIGN = -(1 << 31)


def index_select(args: Args) -> None:
    """Row numbers of the `top_k` best visible rows, ascending, padded with -1; ties to the lower row."""
    plan, at = IndexScratch.of(args.spec), args.block("at")
    work = min(plan.rows, 1024) * plan.panels * plan.width // 8

    def task(t: Expr, slot: Expr) -> None:
        b = args.b
        _Select(args, plan, t, b.let(slot * (plan.task_bytes // 4))).run()

    run_tasks(args.b, at.rows(), work, task)


class _Select:
    """One query; all indices into the scratch are in elements of 4 bytes."""

    def __init__(self, args: Args, plan: IndexScratch, t: Expr, base: Expr) -> None:
        self.args, self.plan, self.b, self.t = args, plan, args.b, t
        self.base = base
        self.weights_at = base + i64(plan.weights_offset // 4)
        self.histogram_at = base + i64(plan.histogram_offset // 4)
        self.keys_at = base + i64(plan.keys_offset // 4)
        self.floats, self.ints = args.scratch("float32"), args.scratch("int32")
        self.top_k = args.integer("top_k")
        self.out_at = args.b.let(t * self.top_k)

    def run(self) -> None:
        """All rows when they are few, else the best by score."""
        args, b = self.args, self.b
        at = args.block("at")
        visible = b.let(div(at.position(self.t) + i64(1), args.integer("every")))
        out = args["selection"]
        with b.when(visible <= i64(self.top_k)):
            with b.loop(visible) as j:
                out[self.out_at + j] = i32(j)
            with b.loop(self.top_k, start=visible) as j:
                out[self.out_at + j] = i32(-1)
        with b.otherwise():
            self._queries()
            self._scores(visible, Pages.of(args, "rows", at.segment(self.t)))
            self._take(visible, *self._threshold(visible))

    def _queries(self) -> None:
        """Query panels and `weight * scale` of each head; lanes past the last head weigh 0."""
        args, b, plan = self.args, self.b, self.plan
        start = b.let(self.t * (plan.heads * plan.width))
        for p in range(plan.panels):
            to = b.let(self.base + i64(p * plan.width * LANES))
            load_queries(b, args["q"], start, i64(p * LANES), plan.heads, plan.width, self.floats, to)
        scale = args.number("scale")
        with b.loop(plan.panels * LANES) as h:
            self.floats[self.weights_at + h] = 0.0
        with b.loop(plan.heads) as h:
            weight = mul(scale, args["weights"][self.t * plan.heads + h])
            self.floats[self.weights_at + h] = weight

    def _scores(self, visible: Expr, pages: Pages) -> None:
        """Keys of all visible rows: heads in lanes, panels in order, then `reduce16`."""
        b, plan, tile = self.b, self.plan, self.args.variant.wide[0]
        last = b.let(visible - i64(1))
        with b.loop(b.let(ceil_div(visible, tile))) as i:
            first = b.let(i * tile)
            sums = b.local(tile * LANES)
            zero(b, sums, tile)
            with b.loop(plan.panels) as p:
                panel = Panel(self.floats, b.let(self.base + p * (plan.width * LANES)))
                (acc,) = dot_tile(
                    b, pages.buf, lambda r: pages.row(imin(first + r, last)), tile, [panel], plan.width
                )
                weights = b.let(self.floats.load(self.weights_at + p * LANES))
                with b.unroll(tile) as r:
                    dots = vmax(0.0, acc.load(r * LANES))
                    sums.store(r * LANES, fma(weights, dots, sums.load(r * LANES)))
            for r in range(tile):
                score = reduce16(b, sums, r * LANES)
                raw = b.let(bits(select(score == f32(0.0), f32(0.0), score), "int32"))  # -0 ties with 0
                flip = op.bitwise_and(op.shift_right(raw, i32(31)), i32(0x7FFFFFFF))
                self.ints[self.keys_at + first + i64(r)] = op.bitwise_xor(raw, flip)

    def _threshold(self, visible: Expr) -> tuple[Expr, Expr]:
        """The `top_k`-th largest key, and how many rows with that key are taken: a radix select."""
        b, keys = self.b, self.ints
        prefix, mask, left = b.variable(i32(0)), b.variable(i32(0)), b.variable(i32(self.top_k))
        for shift in (24, 16, 8, 0):
            with b.loop(256) as d:
                keys[self.histogram_at + d] = i32(0)
            with b.loop(visible) as j:
                key = b.let(op.bitwise_xor(keys[self.keys_at + j], i32(_SIGN)))
                with b.when(op.bitwise_and(key, mask[0]) == prefix[0]):
                    digit = op.bitwise_and(op.shift_right(key, i32(shift)), i32(255))
                    cell = b.let(self.histogram_at + i64(digit))
                    keys[cell] = keys[cell] + i32(1)
            above, digit, found = b.variable(i32(0)), b.variable(i32(0)), b.variable(i32(0))
            with b.loop(256) as step, b.when(found[0] == i32(0)):
                here = b.let(keys[self.histogram_at + (i64(255) - step)])
                with b.when(above[0] + here >= left[0]):
                    digit[0] = i32(i64(255) - step)
                    found[0] = i32(1)
                with b.otherwise():
                    above[0] = above[0] + here
            left[0] = left[0] - above[0]
            prefix[0] = op.bitwise_or(prefix[0], op.shift_left(digit[0], i32(shift)))
            mask[0] = op.bitwise_or(mask[0], i32(_signed(255 << shift)))
        return b.let(op.bitwise_xor(prefix[0], i32(_SIGN))), b.let(left[0])

    def _take(self, visible: Expr, threshold: Expr, equal: Expr) -> None:
        b, out = self.b, self.args["selection"]
        left, taken = b.variable(equal), b.variable(i64(0))
        with b.loop(visible) as j:
            key = b.let(self.ints[self.keys_at + j])
            with b.when((key > threshold) | ((key == threshold) & (left[0] > i32(0)))):
                out[self.out_at + taken[0]] = i32(j)
                taken[0] = taken[0] + i64(1)
                with b.when(key == threshold):
                    left[0] = left[0] - i32(1)


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
