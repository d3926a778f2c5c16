"""Work on single channels: sums, swiglu, embedding, rows by index. A thread does one channel of one row."""

from __future__ import annotations

from math import prod

from ds4c.ir.kernel import KernelSpec
from ds4c_targets.common.expr import i64, mod
from ds4c_targets.common.mathlib import swiglu_of
from ds4c_targets.common.views import ROWS_AT
from ds4c_targets.gpu.args import Args, Part
from ds4c_targets.gpu.rows import per_channel
from ds4c_targets.gpu.tuning import Tuning


def add(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """`z = x + y`."""
    args = Args(spec, tuning)
    b, width = args.b, prod(args.shape("x")[1:])
    with per_channel(args, "x", width) as (t, c):
        at = b.let(i64(t) * width + c)
        args["z"][at] = args["x"][at] + args["y"][at]
    return [args.finish()]


def add_position_bias(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """`y = x + bias[position mod R]`."""
    args = Args(spec, tuning)
    b, at = args.b, args.block("at")
    period, width = args.shape("bias")
    with per_channel(args, "x", width, at.rows()) as (t, c):
        row = b.let(mod(at.position(i64(t)), period) * width + c)
        to = b.let(i64(t) * width + c)
        args["y"][to] = args["x"][to] + args["bias"].load(row, 1)
    return [args.finish()]


def swiglu(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """`y = silu(min(gate, L)) * clip(up, -L, L)`."""
    args = Args(spec, tuning)
    b, width, clamp = args.b, args.shape("gate")[-1], args.number("clamp")
    with per_channel(args, "gate", width) as (t, c):
        at = b.let(i64(t) * width + c)
        args["y"][at] = swiglu_of(b, args["gate"][at], args["up"][at], clamp)
    return [args.finish()]


def embed(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Every copy of a row starts as the embedding of its token."""
    args = Args(spec, tuning)
    b, *given, width = args.b, *args.shape("x")[1:]
    copies = prod(given)  # 1 without a dimension of copies
    with per_channel(args, "x", width) as (t, c):
        source = b.let(i64(args["tokens"][t]) * width + c)
        value = b.let(args["table"].load(source, 1))
        for copy in range(copies):
            args["x"][i64(t) * (copies * width) + (c + copy * width)] = value
    return [args.finish()]


def take_rows(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Rows of `x` by index."""
    args = Args(spec, tuning)
    b, rows, width = args.b, args["rows"], prod(args.shape("x")[1:])
    with per_channel(args, "y", width, rows[0]) as (i, c):
        row = b.let(i64(rows[i + ROWS_AT]))
        args["y"][i64(i) * width + c] = args["x"][row * width + c]
    return [args.finish()]
