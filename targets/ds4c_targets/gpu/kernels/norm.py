"""Norms: a block does one row, a warp one head."""

from __future__ import annotations

from collections.abc import Callable

from ds4c.ir.kernel import KernelSpec
from ds4c_targets.common.builder import Buf
from ds4c_targets.common.expr import Expr, f32, i64, mul
from ds4c_targets.common.mathlib import inverse_rms
from ds4c_targets.gpu.args import Args, Part
from ds4c_targets.gpu.rows import lane_channels, per_head, per_row, thread_channels
from ds4c_targets.gpu.tir import GpuKernel
from ds4c_targets.gpu.tuning import Tuning


def rms_norm(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Rms norm of each row with a gain."""
    args = Args(spec, tuning)
    b, width, x, y, gain = args.b, args.shape("x")[-1], args["x"], args["y"], args["gain"]
    with per_row(args, "x") as t:
        at = b.let(i64(t) * width)
        scale = inverse_rms(b, square_sum(args, x, at, width), width, args.number("eps"))
        with thread_channels(b, width) as c:
            y[at + c] = mul(mul(scale, x[at + c]), gain.load(c, 1))
    return [args.finish()]


def head_norm(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Rms norm of each head, without a gain."""
    args = Args(spec, tuning)
    heads = args.integer("heads")
    b, width, x, y = args.b, args.shape("x")[-1] // heads, args["x"], args["y"]
    with per_head(args, "x", heads) as (t, head):
        at = b.let((i64(t) * heads + head) * width)
        scale = head_scale(args, x, at, width)
        with lane_channels(b, width) as c:
            y[at + c] = mul(scale, x[at + c])
    return [args.finish()]


def head_scale(args: Args, x: Buf, at: Expr, width: int) -> Expr:
    """`1 / rms` of channels from `at` on, by a warp: each lane its channels ascending, then `warp_sum`."""
    b = args.b
    total = b.variable(f32(0.0))
    with lane_channels(b, width) as c:
        value = b.let(x[at + c])
        total[0] = b.fma(value, value, total[0])
    return inverse_rms(b, b.warp_sum(total[0]), width, args.number("eps"))


def square_sum(args: Args, x: Buf, at: Expr, width: int) -> Expr:
    """Sum of squares of a row by the whole block."""
    return square_sum_of(args.b, width, lambda c: args.b.let(x[at + c]))


def square_sum_of(b: GpuKernel, width: int, value_at: Callable[[Expr], Expr]) -> Expr:
    """Sum of the squares of `value_at(channel)`: each thread its channels ascending, then `block_sum`."""
    total = b.variable(f32(0.0))
    with thread_channels(b, width) as c:
        value = value_at(c)
        total[0] = b.fma(value, value, total[0])
    return b.block_sum(total[0])
