"""Recurrent layers: short convolution, gates, gated delta rule, gated norm.

Every sum runs in one order whatever the step: taps, key channels and tokens ascending. So a prompt gives the
same bits in one step, in many, alone or beside other sessions, with any number of threads.
"""

from __future__ import annotations

from ds4c_targets.cpu.args import Args
from ds4c_targets.cpu.kernels.norm import square_sum
from ds4c_targets.cpu.mathlib import exp, inverse_rms, sigmoid, softplus
from ds4c_targets.cpu.rows import channels, split
from ds4c_targets.cpu.tir import Buf, Expr, Kernel, add, div, fma, i64, imax, like, mod, mul, splat, sqrt


def _silu(b: Kernel, x: Expr) -> Expr:
    return mul(x, sigmoid(b, x))


def causal_conv(args: Args) -> None:
    """Silu of `sum_i taps[i] * row[t - K + 1 + i]`, where rows before the segment come from `old`."""
    b, at, old, own, taps, y = (args.b, args.block("at"), *(args[n] for n in ("old", "own", "taps", "y")))
    count, width = args.shape("taps")
    span = count - 1

    def body(t: Expr) -> None:
        segment = at.segment(t)
        inside = b.let(t - at.start(segment))
        before = b.let((segment * span + inside) * width)  # oldest row of the window, if it is an old one
        first = b.let((t - i64(span)) * width)  # and if it is one of the block

        def channel(c: Expr, n: int) -> None:
            total = b.local(n)
            total.store(0, splat(0.0, n))
            for i in range(count):
                tap = b.let(taps.load(c + i64(i * width), n))
                with b.when(inside >= i64(span - i)):
                    total.store(0, fma(tap, own.load(first + (c + i64(i * width)), n), total.load(0, n)))
                with b.otherwise():
                    total.store(0, fma(tap, old.load(before + (c + i64(i * width)), n), total.load(0, n)))
            y.store(t * width + c, _silu(b, b.let(total.load(0, n))))

        channels(b, width, channel)

    split(b, at.rows(), count * width // 4, body)


def delta_gates(args: Args) -> None:
    """`decay = exp(-rate * softplus(a + bias))` and `beta = sigmoid(b)` of every head."""
    b, heads = args.b, args.shape("a")[1]
    a, rate, bias = args["a"], args["rate"], args["bias"]

    def body(t: Expr) -> None:
        row = b.let(t * heads)

        def channel(c: Expr, n: int) -> None:
            step = b.let(softplus(b, b.let(add(bias.load(c, n), a.load(row + c, n)))))
            args["decay"].store(row + c, exp(b, b.let(mul(-1.0, mul(rate.load(c, n), step)))))
            args["beta"].store(row + c, sigmoid(b, b.let(args["b"].load(row + c, n))))

        channels(b, heads, channel)

    split(b, args.count(), heads * 4, body)


def gated_norm(args: Args) -> None:
    """Rms norm of each head with one gain for all heads, times silu of the gate."""
    b, x, gate, gain, y = args.b, args["x"], args["gate"], args["gain"], args["y"]
    total, width, eps = args.shape("x")[1], args.shape("gain")[0], args.number("eps")

    def body(t: Expr) -> None:
        with b.loop(total // width) as head:
            at = b.let(t * total + head * width)
            scale = inverse_rms(b, square_sum(b, x, at, width), width, eps)

            def channel(c: Expr, n: int) -> None:
                normed = mul(mul(scale, x.load(at + c, n)), gain.load(c, n))
                y.store(at + c, mul(normed, _silu(b, b.let(gate.load(at + c, n)))))

            channels(b, width, channel)

    split(b, args.count(), total, body)


def gated_delta(args: Args) -> None:
    """One value head of one segment is a task; its tokens run in order, each from the plane before it."""
    b, at, heads = args.b, args.block("at"), args.shape("decay")[1]
    plane = args.shape("planes")[1]

    def task(i: Expr) -> None:
        segment, head = b.let(div(i, heads)), b.let(mod(i, heads))
        lo, hi = at.start(segment), at.start(segment + 1)
        offset = b.let(head * (plane // heads))
        with b.when(hi > lo):
            _token(args, lo, head, args["old"], b.let(segment * plane + offset))
        with b.loop(hi, start=b.let(lo + 1)) as t:
            _token(args, t, head, args["planes"], b.let((t - 1) * plane + offset))

    segments = at.segments()
    each = b.let(div(at.rows() * (plane // heads // 4), imax(1, segments)))
    split(b, b.let(segments * heads), each, task)


def _token(args: Args, t: Expr, head: Expr, source: Buf, source_at: Expr) -> None:
    """Row `t` of one head: decay the plane at `source_at`, learn the token, answer its query.

    Lane = value channel, so the only sums run over key channels, one multiply-add each.
    """
    b, heads = args.b, args.shape("decay")[1]
    key_heads, keys = args.integer("key_heads"), args.integer("key_width")
    total, width = args.shape("qkv")[1], args.shape("o")[1]
    values = width // heads
    qkv, planes, o = args["qkv"], args["planes"], args["o"]
    q = b.let(t * total + div(head, heads // key_heads) * keys)
    k = b.let(q + i64(key_heads * keys))
    v = b.let(t * total + (head * values + i64(2 * key_heads * keys)))
    to = b.let(t * (heads * keys * values) + head * (keys * values))
    query = b.let(mul(keys**-0.5, _inverse_length(b, qkv, q, keys, args.number("eps"))))
    key = _inverse_length(b, qkv, k, keys, args.number("eps"))
    decay, beta = b.let(args["decay"][t * heads + head]), b.let(args["beta"][t * heads + head])

    def channel(c: Expr, n: int) -> None:
        known, answer = b.local(n), b.local(n)
        known.store(0, splat(0.0, n))
        answer.store(0, splat(0.0, n))
        with b.loop(keys) as i:
            old = b.let(mul(decay, source.load(source_at + (i * values + c), n)))
            planes.store(to + (i * values + c), old)
            known.store(0, fma(b.let(mul(key, qkv[k + i])), old, known.load(0, n)))
        learnt = b.let(mul(beta, qkv.load(v + c, n) - known.load(0, n)))
        with b.loop(keys) as i:
            new = b.let(fma(b.let(mul(key, qkv[k + i])), learnt, planes.load(to + (i * values + c), n)))
            planes.store(to + (i * values + c), new)
            answer.store(0, fma(b.let(mul(query, qkv[q + i])), new, answer.load(0, n)))
        o.store(t * width + (head * values + c), answer.load(0, n))

    channels(b, values, channel)


def _inverse_length(b: Kernel, x: Buf, at: Expr, width: int, eps: float) -> Expr:
    """`1 / sqrt(sum of squares + eps)`, a scalar."""
    squares = square_sum(b, x, at, width)
    return b.let(like(1.0, squares) / sqrt(add(eps, squares)))
