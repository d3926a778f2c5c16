"""Hyper-connections: control vector with Sinkhorn, entry and exit mixes, final collapse.

The products of a row with `fn` read all of `fn`, so a row is cut into slices, a block each; a second launch
adds the slices in order and does the rest of the row. A control vector fits into a warp: lane = entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm.tirx import op

from ds4c.ir.kernel import KernelSpec
from ds4c_runtime.launches import ONE, Dim
from ds4c_targets.common.builder import Buf
from ds4c_targets.common.expr import Expr, f32, i32, i64, imin, mul, select, vmax
from ds4c_targets.common.mathlib import exp, inverse_rms, sigmoid
from ds4c_targets.gpu.args import Args, Part
from ds4c_targets.gpu.kernels.norm import square_sum_of
from ds4c_targets.gpu.rows import per_channel, per_row, thread_channels
from ds4c_targets.gpu.scratch_hyper import HyperScratch
from ds4c_targets.gpu.tir import GpuKernel
from ds4c_targets.gpu.tuning import WARP, Tuning


def _slices(spec: KernelSpec, tuning: Tuning) -> Part:
    """Products of one slice of a row with every row of `fn`, and its sum of squares, to the scratch."""
    args, plan = Args(spec, tuning, "slices"), HyperScratch.of(spec, tuning)
    b, x, fn = args.b, args["x"], args["fn"]
    args.grid = (Dim(plan.slices), args.rows("x"), ONE)
    warps = b.threads // WARP
    parts = b.shared(warps * WARP)
    with b.when(b.by < i32(args["count"][0])):
        totals = b.local(WARP)
        with b.unroll(WARP) as i:
            totals[i] = 0.0
        row, first = b.let(i64(b.by) * plan.channels), b.let(b.bx * plan.slice_width)
        last = b.let(i32(imin(first + plan.slice_width, plan.channels)))
        with b.loop(-(-plan.slice_width // b.threads)) as i:
            c = b.let(first + i * b.threads + b.tx)
            with b.when(c < last):
                value = b.let(x[row + c])
                for m in range(plan.parts):
                    weight = fn.load(i64(m * plan.channels) + c, 1)
                    totals[m] = b.fma(value, weight, totals[m])
                totals[plan.parts] = b.fma(value, value, totals[plan.parts])
        parts[b.tx] = b.warp_sums([totals[i] for i in range(WARP)])
        b.barrier()
        with b.when(b.tx < WARP):
            total = b.let(parts[b.tx])
            for warp in range(1, warps):
                total = b.let(total + parts[b.tx + warp * WARP])
            to = b.let((i64(b.by) * plan.slices + b.bx) * WARP + b.tx)
            args.view("scratch", "float32")[to] = total
    return args.finish()


class _Control:
    """The control vector of a row in every warp: lane `l` holds entry `l`."""

    def __init__(self, args: Args, plan: HyperScratch, t: Expr, groups: Sequence[int]) -> None:
        self.args, self.plan, self.b = args, plan, args.b
        b, scratch = args.b, args.view("scratch", "float32")
        first = b.let(i64(t) * (plan.slices * WARP) + b.lane)
        total = b.variable(scratch[first])
        with b.loop(plan.slices, start=1) as s:
            total[0] = total[0] + scratch[first + s * WARP]
        m = b.let(total[0])
        sums = b.shuffle(m, i32(plan.parts))
        self.inverse = inverse_rms(b, sums, plan.channels, args.number("norm_eps"))
        self.z = self._affine(m, groups)

    def _affine(self, m: Expr, groups: Sequence[int]) -> Expr:
        """`m / rms * scale + base`, a scale for each group of entries; lanes past the last repeat it."""
        args, b = self.args, self.b
        entry = b.let(i32(imin(b.lane, self.plan.parts - 1)))
        group, end = i32(0), 0
        for size in groups[:-1]:
            end += size
            group = b.let(group + select(entry >= i32(end), i32(1), i32(0)))
        scale, base = args["scale"].load(group, 1), args["base"].load(entry, 1)
        return b.let(b.fma(mul(self.inverse, m), scale, base))

    def gates(self) -> Expr:
        """Sigmoid of every entry."""
        return self.b.let(sigmoid(self.b, self.z))

    def entries(self, value: Expr, first: int, count: int) -> list[Expr]:
        """Entries of a lane-wise value, in every lane."""
        return [self.b.shuffle(value, i32(first + i)) for i in range(count)]


def _sinkhorn(b: GpuKernel, z: Expr, n: int, iters: int, eps: float) -> Expr:
    """Softmax over the columns of each row, then alternating column and row normalisation; lane = entry."""

    def reduce(value: Expr, distances: list[int], combine: Callable[[Expr, Expr], Expr]) -> Expr:
        found = b.let(value)
        for distance in distances:
            found = b.let(combine(found, b.exchange(found, distance)))
        return found

    within = [1 << k for k in range(n.bit_length() - 1)]  # lanes of one row
    across = [n << k for k in range(n.bit_length() - 1)]  # lanes of one column
    top = reduce(z, within, vmax)
    e = b.let(exp(b, z - top))
    mix = b.variable(f32(eps) + e / reduce(e, within, lambda p, q: p + q))

    def normalise(distances: list[int]) -> None:
        value = b.let(mix[0])
        mix[0] = value / (f32(eps) + reduce(value, distances, lambda p, q: p + q))

    normalise(across)
    with b.loop(iters - 1):
        normalise(within)
        normalise(across)
    return b.let(mix[0])


def _mix(args: Args, plan: HyperScratch, t: Expr) -> list[Expr]:
    """Write post and mix of a row; gives pre, in every lane. All threads of the block call it."""
    b, n, eps = args.b, plan.streams, args.number("eps")
    control = _Control(args, plan, t, [n, n, n * n])
    gates = control.gates()
    entry = b.let(op.bitwise_and(b.lane, i32(n * n - 1)))
    mix = _sinkhorn(b, b.shuffle(control.z, entry + 2 * n), n, args.integer("iters"), eps)
    posts = b.shuffle(gates, op.bitwise_and(b.lane, i32(n - 1)) + n)
    with b.when(b.tx < n):
        args["post"][i64(t) * n + b.tx] = mul(2.0, posts)
    with b.when(b.tx < n * n):
        args["mix"][i64(t) * (n * n) + b.tx] = mix
    return [b.let(f32(eps) + pre) for pre in control.entries(gates, 0, n)]


def hc_mix(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Control vector of a site: pre, post and the doubly normalised mix."""
    args, plan = Args(spec, tuning, "finish", threads=WARP), HyperScratch.of(spec, tuning)
    with per_row(args, "x") as t:
        pre = _mix(args, plan, t)
        with args.b.when(args.b.tx == 0):
            for i, value in enumerate(pre):
                args["pre"][i64(t) * plan.streams + i] = value
    return [_slices(spec, tuning), args.finish()]


def _collapsed(b: GpuKernel, x: Buf, row: Expr, width: int, pre: Sequence[Expr], c: Expr) -> Expr:
    """`sum_j pre[j] * x[j, c]`, streams ascending."""
    total = mul(pre[0], x[row + c])
    for j in range(1, len(pre)):
        total = b.fma(pre[j], x[row + (c + j * width)], total)
    return b.let(total)


def hc_pre(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Input of a sublayer: the streams weighted by pre."""
    args = Args(spec, tuning)
    b, (n, width) = args.b, args.shape("x")[1:]
    with per_channel(args, "x", width) as (t, c):
        pre = [b.let(args["pre"][i64(t) * n + j]) for j in range(n)]
        row = b.let(i64(t) * (n * width))
        args["u"][i64(t) * width + c] = _collapsed(b, args["x"], row, width, pre, c)
    return [args.finish()]


def hc_enter(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """`hc_mix`, `hc_pre` and `rms_norm` of each row."""
    args, plan = Args(spec, tuning, "finish"), HyperScratch.of(spec, tuning)
    b, x, gain, width = args.b, args["x"], args["gain"], plan.width
    with per_row(args, "x") as t:
        pre = _mix(args, plan, t)
        row = b.let(i64(t) * plan.channels)
        sums = square_sum_of(b, width, lambda c: _collapsed(b, x, row, width, pre, c))
        scale = inverse_rms(b, sums, width, args.number("norm_eps"))
        with thread_channels(b, width) as c:
            value = mul(scale, _collapsed(b, x, row, width, pre, c))
            args["h"][i64(t) * width + c] = mul(value, gain.load(c, 1))
    return [_slices(spec, tuning), args.finish()]


def hc_post(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Next streams: `out[k] = post[k] * y + sum_j mix[j, k] * x[j]`, streams ascending."""
    args = Args(spec, tuning)
    b, (n, width) = args.b, args.shape("x")[1:]
    with per_channel(args, "x", width) as (t, c):
        value = b.let(args["y"][i64(t) * width + c])
        row = b.let(i64(t) * (n * width) + c)
        old = [b.let(args["x"][row + j * width]) for j in range(n)]
        for k in range(n):
            total = mul(args["post"][i64(t) * n + k], value)
            for j in range(n):
                total = b.fma(args["mix"][i64(t) * (n * n) + (j * n + k)], old[j], total)
            args["out"][row + k * width] = total
    return [args.finish()]


def hc_collapse(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Final collapse of the streams by sigmoid weights."""
    args, plan = Args(spec, tuning, "finish"), HyperScratch.of(spec, tuning)
    b, n, width = args.b, plan.streams, plan.width
    with per_row(args, "x") as t:
        control = _Control(args, plan, t, [n])
        gates = control.gates()
        pre = [b.let(f32(args.number("eps")) + gate) for gate in control.entries(gates, 0, n)]
        row = b.let(i64(t) * plan.channels)
        with thread_channels(b, width) as c:
            args["h"][i64(t) * width + c] = _collapsed(b, args["x"], row, width, pre, c)
    return [_slices(spec, tuning), args.finish()]
