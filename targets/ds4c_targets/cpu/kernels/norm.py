"""Norms and other work on single rows: rms_norm, head_norm, rope, norm_rope, sums, swiglu, copies."""

from __future__ import annotations

from math import prod

from ds4c_targets.cpu.args import ROWS_AT, Args
from ds4c_targets.cpu.mathlib import inverse_rms, reduce16, swiglu_of, zero
from ds4c_targets.cpu.rows import channels, copy_row, split
from ds4c_targets.cpu.tir import (
    LANES,
    Buf,
    Expr,
    Kernel,
    add,
    cast,
    div,
    fma,
    i64,
    mod,
    mul,
    shuffle2,
)


def square_sum(b: Kernel, x: Buf, at: Expr, width: int) -> Expr:
    """Sum of squares of a row: 16 partial sums, then `reduce16`; a scalar."""
    acc = b.local(LANES)
    zero(b, acc, 1)

    def body(c: Expr, n: int) -> None:
        value = b.let(x.load(at + c, n))
        lane = i64(0) if n == LANES else c - i64(width // LANES * LANES)
        acc.store(lane, fma(value, value, acc.load(lane, n)))

    channels(b, width, body)
    return reduce16(b, acc)


def norm_row(
    b: Kernel,
    x: Buf,
    at: Expr,
    y: Buf,
    to: Expr,
    width: int,
    eps: float,
    gain: Buf | None,
    sums: Expr | None = None,
) -> None:
    """`y = x / sqrt(mean(x^2) + eps) * gain` for one row; `y` may be `x`."""
    scale = inverse_rms(b, square_sum(b, x, at, width) if sums is None else sums, width, eps)

    def body(c: Expr, n: int) -> None:
        value = mul(scale, x.load(at + c, n))
        y.store(to + c, value if gain is None else mul(value, gain.load(c, n)))

    channels(b, width, body)


def rms_norm(args: Args) -> None:
    """Rms norm of each row with a gain."""
    b, width = args.b, args.shape("x")[-1]
    x, y, gain, eps = args["x"], args["y"], args["gain"], args.number("eps")
    split(
        b,
        args.count(),
        width // 4,
        lambda t: norm_row(b, x, t * width, y, t * width, width, eps, gain),
    )


def _head_norm_row(args: Args, t: Expr, heads: int) -> None:
    b, width = args.b, args.shape("x")[-1] // heads
    with b.loop(heads) as h:
        at = b.let((t * heads + h) * width)
        norm_row(b, args["x"], at, args["y"], at, width, args.number("eps"), None)


def head_norm(args: Args) -> None:
    """Rms norm of each head, without a gain."""
    heads = args.integer("heads")
    split(args.b, args.count(), args.shape("x")[-1] // 4, lambda t: _head_norm_row(args, t, heads))


def rope_table(args: Args) -> None:
    """Cosines and sines of the positions by the sum of two tabulated angles, in float64."""
    b, at = args.b, args.block("at")
    steps, _, half = args.shape("fine")
    coarse, fine, table = args["coarse"], args["fine"], args["table"]

    def body(t: Expr) -> None:
        position = at.position(t)
        a, s = b.let(div(position, steps) * (2 * half)), b.let(mod(position, steps) * (2 * half))
        with b.loop(half) as i:
            ca, sa = b.let(coarse[a + i]), b.let(coarse[a + half + i])
            cb, sb = b.let(fine[s + i]), b.let(fine[s + half + i])
            minus = b.let(-(sa * sb))
            plus = b.let(ca * sb)
            table[t * (2 * half) + i] = cast(fma(ca, cb, minus), "float32")
            table[t * (2 * half) + half + i] = cast(fma(sa, cb, plus), "float32")

    split(b, at.rows(), half * 8, body)


_EVEN, _ODD = list(range(0, 32, 2)), list(range(1, 32, 2))
_FIRST = [lane for i in range(8) for lane in (i, 16 + i)]
_SECOND = [lane for i in range(8, 16) for lane in (i, 16 + i)]


def _rotate(a: Expr, c: Expr, cos: Expr, sin: Expr, inverse: bool) -> tuple[Expr, Expr]:
    s = mul(-1.0, sin) if inverse else sin
    return fma(a, cos, mul(-1.0, mul(c, s))), fma(a, s, mul(c, cos))


def rope_head(
    b: Kernel, x: Buf, at: Expr, y: Buf, to: Expr, table: Buf, row: Expr, half: int, inverse: bool
) -> None:
    """Rotate the `2 * half` channels from `at`; `y` may be `x`. `row` is the index of the table row."""
    vectors = half // LANES
    if vectors:
        with b.loop(vectors) as i:
            low, high = b.let(x.load(at + i * 32)), b.let(x.load(at + i * 32 + 16))
            cos, sin = b.let(table.load(row + i * LANES)), b.let(table.load(row + half + i * LANES))
            p, q = _rotate(shuffle2(low, high, _EVEN), shuffle2(low, high, _ODD), cos, sin, inverse)
            p, q = b.let(p), b.let(q)
            y.store(to + i * 32, shuffle2(p, q, _FIRST))
            y.store(to + i * 32 + 16, shuffle2(p, q, _SECOND))
    if half % LANES:
        with b.loop(half, start=vectors * LANES) as i:
            a, c = b.let(x[at + i * 2]), b.let(x[at + i * 2 + 1])
            p, q = _rotate(a, c, table[row + i], table[row + half + i], inverse)
            p, q = b.let(p), b.let(q)
            y[to + i * 2] = p
            y[to + i * 2 + 1] = q


def _rope_row(args: Args, x: Buf, t: Expr, heads: int, inverse: bool) -> None:
    b, y, table = args.b, args["y"], args["table"]
    width, half = args.shape("x")[-1] // heads, args.shape("table")[-1]
    keep = width - 2 * half
    with b.loop(heads) as h:
        at = b.let((t * heads + h) * width)
        if x is not y:
            copy_row(b, y, at, x, at, keep)
        rope_head(b, x, at + keep, y, at + keep, table, t * (2 * half), half, inverse)


def rope(args: Args) -> None:
    """Rotate adjacent pairs of the last channels of each head."""
    heads, inverse = args.integer("heads"), bool(args.spec.attr("inverse"))
    split(
        args.b,
        args.count(),
        args.shape("x")[-1] // 4,
        lambda t: _rope_row(args, args["x"], t, heads, inverse),
    )


def norm_rope(args: Args) -> None:
    """`rms_norm` (with a gain) or `head_norm`, then `rope`, with the bits of the two ops."""
    b, heads, width = args.b, args.integer("heads"), args.shape("x")[-1]

    def body(t: Expr) -> None:
        if args.has("gain"):
            at = b.let(t * width)
            norm_row(b, args["x"], at, args["y"], at, width, args.number("eps"), args["gain"])
        else:
            _head_norm_row(args, t, heads)
        _rope_row(args, args["y"], t, heads, False)

    split(b, args.count(), width // 2, body)


def add_rows(args: Args) -> None:
    """`z = x + y`."""
    b, x, y, z = args.b, args["x"], args["y"], args["z"]
    width = prod(args.shape("x")[1:])

    def body(t: Expr) -> None:
        at = b.let(t * width)
        channels(b, width, lambda c, n: z.store(at + c, add(x.load(at + c, n), y.load(at + c, n))))

    split(b, args.count(), width // 8, body)


def add_position_bias(args: Args) -> None:
    """`y = x + bias[position mod R]`."""
    b, x, y, bias, at = args.b, args["x"], args["y"], args["bias"], args.block("at")
    period, width = args.shape("bias")

    def body(t: Expr) -> None:
        row, base = b.let(t * width), b.let(mod(at.position(t), period) * width)
        channels(b, width, lambda c, n: y.store(row + c, add(x.load(row + c, n), bias.load(base + c, n))))

    split(b, at.rows(), width // 8, body)


def swiglu(args: Args) -> None:
    """`y = silu(min(gate, L)) * clip(up, -L, L)`."""
    b, gate, up, y, clamp = args.b, args["gate"], args["up"], args["y"], args.number("clamp")
    width = args.shape("gate")[-1]

    def body(t: Expr) -> None:
        at = b.let(t * width)
        channels(
            b,
            width,
            lambda c, n: y.store(at + c, swiglu_of(b, gate.load(at + c, n), up.load(at + c, n), clamp)),
        )

    split(b, args.count(), width, body)


def embed(args: Args) -> None:
    """Every copy of a row starts as the embedding of its token."""
    b, x, table, tokens = args.b, args["x"], args["table"], args["tokens"]
    *given, width = args.shape("x")[1:]
    copies = prod(given)  # 1 without a dimension of copies

    def body(t: Expr) -> None:
        source = b.let(i64(tokens[t]) * width)

        def store(c: Expr, n: int) -> None:
            value = b.let(table.load(source + c, n))
            for copy in range(copies):
                x.store(t * (copies * width) + (c + copy * width), value)

        channels(b, width, store)

    split(b, args.count(), copies * width // 8, body)


def take_rows(args: Args) -> None:
    """Rows of `x` by index."""
    b, x, y, rows = args.b, args["x"], args["y"], args["rows"]
    width = prod(args.shape("x")[1:])
    with b.loop(b.let(i64(rows[0]))) as i:
        copy_row(b, y, i * width, x, b.let(i64(rows[i + ROWS_AT]) * width), width)
