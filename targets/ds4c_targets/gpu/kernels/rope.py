"""Rotary positions: the table of a block's positions, and the rotation of heads, alone or after a norm."""

from __future__ import annotations

from ds4c.ir.kernel import KernelSpec
from ds4c_targets.common.builder import Buf
from ds4c_targets.common.expr import Expr, div, f32, i64, mod, mul
from ds4c_targets.gpu.args import Args, Part
from ds4c_targets.gpu.kernels.norm import head_scale
from ds4c_targets.gpu.rows import lane_channels, per_channel, per_head, threads_for
from ds4c_targets.gpu.tir import GpuKernel
from ds4c_targets.gpu.tuning import Tuning

_Pair = tuple[Expr, Expr]
"""A number as the sum of two float32: the nearest one, and what is left."""


def _product(b: GpuKernel, x: _Pair, y: _Pair) -> _Pair:
    """`x * y`: the rounded product of the high parts, and all that it lacks (Dekker 1971, with fma)."""
    high = b.let(b.fma(x[0], y[0], 0.0))  # not `*`: a compiler may not see that it is a product
    rest = b.fma(x[0], y[0], mul(-1.0, high))
    return high, b.let(b.fma(x[0], y[1], b.fma(x[1], y[0], rest)))


def _sum(b: GpuKernel, x: _Pair, y: _Pair) -> Expr:
    """`x + y` rounded to one float32: exact sum of the high parts (Knuth), then the rests."""
    total = b.let(x[0] + y[0])
    other = b.let(total - x[0])
    lost = b.let((x[0] - (total - other)) + (y[0] - other))
    return total + (lost + (x[1] + y[1]))


def rope_table(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Cosines and sines of the positions by the sum of two tabulated angles, in pairs of float32.

    Not every GPU has float64. The result is that of the float64 formula but where it lies within about
    2**-45 of the middle of two float32.
    """
    steps, _, half = spec.operand("fine").shape
    args = Args(spec, tuning, threads=threads_for(half, tuning))
    b, at, table = args.b, args.block("at"), args["table"]

    def load(name: str, index: Expr) -> _Pair:
        count = args.shape(name)[0] * 2 * half
        return b.let(args[name][index]), b.let(args[name][index + count])

    with per_channel(args, "table", half, at.rows()) as (t, c):
        position = at.position(i64(t))
        first, second = b.let(div(position, steps) * (2 * half)), b.let(mod(position, steps) * (2 * half))
        ca, sa = load("coarse", first + c), load("coarse", first + half + c)
        cb, sb = load("fine", second + c), load("fine", second + half + c)
        to = b.let(i64(t) * (2 * half) + c)
        table[to] = _sum(b, _product(b, ca, cb), _negated(b, _product(b, sa, sb)))
        table[to + half] = _sum(b, _product(b, sa, cb), _product(b, ca, sb))
    return [args.finish()]


def _negated(b: GpuKernel, x: _Pair) -> _Pair:
    return b.let(f32(0.0) - x[0]), b.let(f32(0.0) - x[1])


def _rotate(b: GpuKernel, a: Expr, c: Expr, cos: Expr, sin: Expr, inverse: bool) -> tuple[Expr, Expr]:
    s = mul(-1.0, sin) if inverse else sin
    return b.fma(a, cos, mul(-1.0, mul(c, s))), b.fma(a, s, mul(c, cos))


def _rotated_pairs(args: Args, t: Expr, values: _Pair, to: Expr, pair: Expr, inverse: bool) -> None:
    """Write one rotated pair of channels."""
    b, table, y, half = args.b, args["table"], args["y"], args.shape("table")[-1]
    row = b.let(i64(t) * (2 * half) + pair)
    p, q = _rotate(b, *values, table[row], table[row + half], inverse)
    p, q = b.let(p), b.let(q)
    y[to] = p
    y[to + 1] = q


def rope(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Rotate adjacent pairs of the last channels of each head."""
    args = Args(spec, tuning)
    heads, inverse, half = args.integer("heads"), bool(spec.attr("inverse")), args.shape("table")[-1]
    b, x, y, width = args.b, args["x"], args["y"], args.shape("x")[-1] // heads
    keep = width - 2 * half
    with per_head(args, "x", heads) as (t, head):
        at = b.let((i64(t) * heads + head) * width)
        with lane_channels(b, keep) as c:
            y[at + c] = x[at + c]
        with lane_channels(b, half) as pair:
            to = b.let(at + (pair * 2 + keep))
            _rotated_pairs(args, t, (b.let(x[to]), b.let(x[to + 1])), to, pair, inverse)
    return [args.finish()]


def norm_rope(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """`rms_norm` (with a gain) or `head_norm`, then `rope`."""
    args = Args(spec, tuning)
    heads, half = args.integer("heads"), args.shape("table")[-1]
    b, x, y, width = args.b, args["x"], args["y"], args.shape("x")[-1] // heads
    keep = width - 2 * half
    gain: Buf | None = args["gain"] if args.has("gain") else None
    with per_head(args, "x", heads) as (t, head):
        at = b.let((i64(t) * heads + head) * width)
        scale = head_scale(args, x, at, width)

        def normed(c: Expr) -> Expr:
            value = mul(scale, x[at + c])
            return b.let(value if gain is None else mul(value, gain.load(c, 1)))

        with lane_channels(b, keep) as c:
            y[at + c] = normed(c)
        with lane_channels(b, half) as pair:
            first = b.let(pair * 2 + keep)
            _rotated_pairs(args, t, (normed(first), normed(first + 1)), at + first, pair, False)
    return [args.finish()]
