"""The best `top_k` of many keys, exactly: counting rounds, then an ordered compaction; no atomics."""

from __future__ import annotations

from tvm.tirx import op

from ds4c.ir.kernel import KernelSpec
from ds4c_runtime.launches import ONE, Dim
from ds4c_targets.common.expr import Expr, cast, div, i32, i64, select, tirx
from ds4c_targets.gpu.args import Args, Part
from ds4c_targets.gpu.index_plan import IndexPlan
from ds4c_targets.gpu.rows import thread_channels, threads_for
from ds4c_targets.gpu.tuning import WARP, Tuning

_ABOVE = 1 << 16
"""Counts of keys above the threshold stand above this bit, those of equal ones below it."""


def _visible(args: Args) -> Expr:
    b = args.b
    return b.let(i32(div(args.block("at").position(b.by) + i64(1), args.integer("every"))))


def take_all(spec: KernelSpec, tuning: Tuning, plan: IndexPlan) -> Part:
    """All visible rows, where there are never more than `top_k`."""
    args = Args(spec, tuning, "", threads_for(plan.top_k, tuning))
    b = args.b
    args.grid = (ONE, args.rows("q"), ONE)
    with b.when(i64(b.by) < args.block("at").rows()):
        _write_all(args, plan, _visible(args))
    return args.finish()


def _write_all(args: Args, plan: IndexPlan, visible: Expr) -> None:
    b = args.b
    with thread_channels(b, plan.top_k) as i:
        args["selection"][i64(b.by) * plan.top_k + i] = select(i < visible, i, i32(-1))


def select_level(spec: KernelSpec, tuning: Tuning, plan: IndexPlan, level: int) -> Part:
    """The best of each segment of candidates of a level: for the next level, or the result at the last."""
    args = Args(spec, tuning, f"select{level}", plan.threads)
    b, every = args.b, args.integer("every")
    args.grid = (_blocks(plan, level, every), args.rows("q"), ONE)
    with b.when(i64(b.by) < args.block("at").rows()):
        visible = _visible(args)
        if level == 0:
            with b.when((visible <= plan.top_k) & (b.bx < 1)):
                _write_all(args, plan, visible)
        count, before = visible, None
        for _ in range(level):
            before, count = count, b.let(_next(count, plan))
        has_work = (visible > plan.top_k) & (b.bx * plan.segment < count)
        with b.when(has_work if before is None else has_work & (before > plan.segment)):
            _Segment(args, plan, level, count).run()
    return args.finish()


def _blocks(plan: IndexPlan, level: int, every: int) -> Dim:
    """Blocks of a level: `tokens / every` rows, each level fewer by `top_k / segment` (at most a half)."""
    most = -(-plan.sizes[level] // plan.segment)
    base = 2 if level else 0
    return Dim(most, "tokens", base=base, times=plan.top_k**level, per=every * plan.segment ** (level + 1))


def _next(count: Expr, plan: IndexPlan) -> Expr:
    """Candidates of the next level: each segment gives `top_k`, or all of its own if it has fewer."""
    full = op.truncdiv(count - 1, plan.segment)
    return full * plan.top_k + tirx.Min(count - full * plan.segment, i32(plan.top_k))


class _Segment:
    """One segment of candidates; a thread has some neighbouring ones in registers."""

    def __init__(self, args: Args, plan: IndexPlan, level: int, count: Expr) -> None:
        self.args, self.plan, self.level, self.b = args, plan, level, args.b
        b = args.b
        self.each = plan.segment // b.threads
        self.first = b.let(b.bx * plan.segment)
        self.all = count
        self.count = b.let(tirx.Min(count - self.first, i32(plan.segment)))
        self.wanted = b.let(tirx.Min(self.count, i32(plan.top_k)))
        self.scratch = args.view("scratch", "uint32")
        self.at = self._at(level, self.first)
        self.keys = b.local(self.each, "uint32")
        self.mine = b.let(b.tx * self.each)

    def _at(self, level: int, first: Expr) -> Expr:
        size = self.plan.sizes[level]
        return self.b.let(i64(self.plan.keys_at[level]) + i64(self.b.by) * size + i64(first))

    def _rows_after(self, level: int) -> int:
        """Distance from the keys of a level to its row numbers."""
        return self.plan.rows * self.plan.sizes[level]

    def run(self) -> None:
        """Threshold, then the places of the keys above and at it."""
        b = self.b
        with b.unroll(self.each) as e:
            inside = tirx.Min(self.mine + e, self.count - 1)
            self.keys[e] = self.scratch[self.at + i64(inside)]
        threshold = self._threshold()
        counts = b.variable(i32(0))
        with b.unroll(self.each) as e, b.when(self.mine + e < self.count):
            above = select(self.keys[e] > threshold, i32(_ABOVE), i32(0))
            counts[0] = counts[0] + select(self.keys[e] < threshold, i32(0), tirx.Max(above, i32(1)))
        before, total = self._scan(counts[0])
        equal = b.let(self.wanted - op.shift_right(total, i32(16)))
        self._write(before, equal, threshold)

    def _threshold(self) -> Expr:
        """The largest key that at least the wanted number of keys reach, bit by bit."""
        b, warps = self.b, self.b.threads // WARP
        found = b.variable(tirx.IntImm("uint32", 0))
        counts = b.shared(2 * warps, "int32")
        with b.loop(32) as round_:
            bit = op.shift_left(tirx.IntImm("uint32", 1), cast(31 - round_, "uint32"))
            trial = b.let(op.bitwise_or(found[0], bit))
            count = b.variable(i32(0))
            with b.unroll(self.each) as e:
                reaches = (self.keys[e] >= trial) & (self.mine + e < self.count)
                count[0] = count[0] + select(reaches, i32(1), i32(0))
            part = b.warp_sum(count[0])
            turn = b.let(op.bitwise_and(round_, i32(1)) * warps)  # the last round may still be read
            with b.when(b.lane < 1):
                counts[turn + b.warp] = part
            b.barrier()
            total = b.variable(counts[turn])
            for warp in range(1, warps):
                total[0] = total[0] + counts[turn + warp]
            with b.when(total[0] >= self.wanted):
                found[0] = trial
        return b.let(found[0])

    def _scan(self, value: Expr) -> tuple[Expr, Expr]:
        """Sum of the values of the threads before, and of all; all threads come."""
        b, warps = self.b, self.b.threads // WARP
        running, step = b.variable(value), 1
        while step < WARP:
            other = b.shuffle(running[0], tirx.Max(b.lane - step, i32(0)))
            running[0] = running[0] + select(b.lane >= step, other, i32(0))
            step *= 2
        sums = b.shared(warps, "int32")
        with b.when(b.lane >= WARP - 1):
            sums[b.warp] = running[0]
        b.barrier()
        before, total = b.variable(running[0] - value), b.variable(i32(0))
        for warp in range(warps):
            part = b.let(sums[warp])
            before[0] = before[0] + select(b.warp > warp, part, i32(0))
            total[0] = total[0] + part
        return before[0], b.let(total[0])

    def _write(self, before: Expr, equal: Expr, threshold: Expr) -> None:
        """Each chosen candidate to its place: those above so far, and `equal` of those that are equal."""
        b = self.b
        above = b.variable(op.shift_right(before, i32(16)))
        same = b.variable(op.bitwise_and(before, i32(_ABOVE - 1)))
        with b.unroll(self.each) as e, b.when(self.mine + e < self.count):
            is_above = b.let(self.keys[e] > threshold)
            is_same = b.let((self.keys[e] >= threshold) & (self.keys[e] <= threshold))
            with b.when(is_above | (is_same & (same[0] < equal))):
                self._put(b.let(above[0] + tirx.Min(same[0], equal)), e)
            above[0] = above[0] + select(is_above, i32(1), i32(0))
            same[0] = same[0] + select(is_same, i32(1), i32(0))

    def _put(self, place: Expr, e: Expr) -> None:
        """Write the candidate of a register to a place among the chosen ones."""
        b, plan, level = self.b, self.plan, self.level
        here = self.mine + e
        row = b.variable(i32(0))
        if level == 0:
            row[0] = self.first + here
        else:
            row[0] = i32(self.scratch[self.at + i64(here) + self._rows_after(level)])
        result, at = self.args["selection"], i64(b.by) * plan.top_k + i64(place)
        if level + 1 == len(plan.sizes):
            result[at] = row[0]
            return
        with b.when(self.all <= plan.segment):
            result[at] = row[0]
        with b.otherwise():
            to = self._at(level + 1, b.bx * plan.top_k + place)
            self.scratch[to] = self.keys[e]
            self.scratch[to + self._rows_after(level + 1)] = cast(row[0], "uint32")
