"""Recurrent layers: short convolution, gates, gated delta rule, gated norm.

Every sum runs in one order whatever the step: taps, key channels and tokens ascending.
"""

from __future__ import annotations

from ds4c.ir.kernel import KernelSpec
from ds4c_runtime.launches import Dim
from ds4c_targets.common.builder import Buf
from ds4c_targets.common.expr import Expr, f32, i32, i64, mul
from ds4c_targets.common.mathlib import exp, inverse_rms, sigmoid, softplus
from ds4c_targets.gpu.args import Args, Part
from ds4c_targets.gpu.rows import lane_channels, per_channel, per_head, threads_for
from ds4c_targets.gpu.tir import GpuKernel
from ds4c_targets.gpu.tuning import Tuning


def _silu(b: GpuKernel, x: Expr) -> Expr:
    return mul(x, sigmoid(b, x))


def causal_conv(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Silu of `sum_i taps[i] * row[t - K + 1 + i]`, where rows before the segment come from `old`."""
    args = Args(spec, tuning)
    b, at, old, own, taps = args.b, args.block("at"), args["old"], args["own"], args["taps"]
    count, width = args.shape("taps")
    span = count - 1
    with per_channel(args, "own", width, at.rows()) as (t, c):
        segment = at.segment(i64(t))
        inside = b.let(i64(t) - at.start(segment))
        before = b.let((segment * span + inside) * width + c)  # oldest row of the window, if it is an old one
        first = b.let((i64(t) - i64(span)) * width + c)  # and if it is one of the block
        total = b.variable(f32(0.0))
        for i in range(count):
            tap = b.let(taps.load(c + i * width, 1))
            with b.when(inside >= i64(span - i)):
                total[0] = b.fma(tap, own[first + i64(i * width)], total[0])
            with b.otherwise():
                total[0] = b.fma(tap, old[before + i64(i * width)], total[0])
        args["y"][i64(t) * width + c] = _silu(b, b.let(total[0]))
    return [args.finish()]


def delta_gates(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """`decay = exp(-rate * softplus(a + bias))` and `beta = sigmoid(b)` of every head."""
    heads = spec.operand("a").shape[1]
    args = Args(spec, tuning, threads=threads_for(heads, tuning))
    b = args.b
    with per_channel(args, "a", heads) as (t, head):
        at = b.let(i64(t) * heads + head)
        step = b.let(softplus(b, b.let(args["bias"].load(head, 1) + args["a"][at])))
        args["decay"][at] = exp(b, b.let(mul(-1.0, mul(args["rate"].load(head, 1), step))))
        args["beta"][at] = sigmoid(b, b.let(args["b"][at]))
    return [args.finish()]


def gated_norm(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Rms norm of each head with one gain for all heads, times silu of the gate."""
    args = Args(spec, tuning)
    b, x, gate, gain = args.b, args["x"], args["gate"], args["gain"]
    total, width = args.shape("x")[1], args.shape("gain")[0]
    with per_head(args, "x", total // width) as (t, head):
        at = b.let(i64(t) * total + head * width)
        scale = inverse_rms(b, _squares(b, x, at, width), width, args.number("eps"))
        with lane_channels(b, width) as c:
            normed = mul(mul(scale, x[at + c]), gain.load(c, 1))
            args["y"][at + c] = mul(normed, _silu(b, b.let(gate[at + c])))
    return [args.finish()]


def _squares(b: GpuKernel, x: Buf, at: Expr, width: int) -> Expr:
    """Sum of squares of some channels by a warp: each lane its channels ascending, then `warp_sum`."""
    total = b.variable(f32(0.0))
    with lane_channels(b, width) as c:
        value = b.let(x[at + c])
        total[0] = b.fma(value, value, total[0])
    return b.warp_sum(total[0])


def gated_delta(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """A warp does some value channels of one head of one segment; its tokens run in order.

    Thread = value channel, so that the only sums run over key channels, one multiply-add each, and a thread
    reads no plane but what it wrote itself for the token before.
    """
    heads, keys = spec.operand("decay").shape[1], int(spec.attr("key_width"))
    values = spec.operand("o").shape[1] // heads
    args = Args(spec, tuning, threads=threads_for(values, tuning))
    b, at = args.b, args.block("at")
    plane = heads * keys * values
    args.grid = (Dim(-(-values // b.threads)), Dim(heads), Dim(args.shape("at")[1]))
    channel, head, segment = b.let(b.bx * b.threads + b.tx), b.by, b.bz
    with b.when(segment < i32(at.segments())):
        lo, hi = at.start(i64(segment)), at.start(i64(segment) + 1)
        offset = b.let(i64(head) * (keys * values))
        token = _Token(args, head, channel, keys, values)
        with b.when(hi > lo):
            token.run(lo, args["old"], b.let(i64(segment) * plane + offset))
        with b.loop(b.let(i32(hi - lo)), start=1) as i:
            t = b.let(lo + i)
            token.run(t, args["planes"], b.let((t - 1) * plane + offset))
    return [args.finish()]


class _Token:
    """One value channel of one head: decay the plane, learn the token, answer its query."""

    def __init__(self, args: Args, head: Expr, channel: Expr, keys: int, values: int) -> None:
        self.args, self.b = args, args.b
        self.head, self.channel, self.keys, self.values = head, channel, keys, values
        self.heads, self.key_heads = args.shape("decay")[1], args.integer("key_heads")

    def run(self, t: Expr, source: Buf, source_at: Expr) -> None:
        """Row `t`, from the plane at `source_at`. All threads of the block call it."""
        args, b, keys, values = self.args, self.b, self.keys, self.values
        qkv, planes, eps = args["qkv"], args["planes"], args.number("eps")
        total, width = args.shape("qkv")[1], args.shape("o")[1]
        key_head = b.let(i32(self.head) // (self.heads // self.key_heads))
        q = b.let(t * total + key_head * keys)
        k = b.let(q + i64(self.key_heads * keys))
        v = b.let(t * total + (self.head * values + 2 * self.key_heads * keys) + self.channel)
        to = b.let((t * self.heads + self.head) * (keys * values) + self.channel)
        query = b.let(mul(keys**-0.5, self._inverse_length(qkv, q, eps)))
        key = self._inverse_length(qkv, k, eps)
        with b.when(self.channel < values):
            row = b.let(t * self.heads + self.head)
            decay, beta = b.let(args["decay"][row]), b.let(args["beta"][row])
            known, answer = b.variable(f32(0.0)), b.variable(f32(0.0))
            with b.loop(keys) as i:
                old = b.let(mul(decay, source[source_at + self.channel + i64(i) * values]))
                planes[to + i64(i) * values] = old
                known[0] = b.fma(b.let(mul(key, qkv[k + i])), old, known[0])
            learnt = b.let(mul(beta, qkv[v] - known[0]))
            with b.loop(keys) as i:
                weight = b.let(mul(key, qkv[k + i]))
                new = b.let(b.fma(weight, learnt, planes[to + i64(i) * values]))
                planes[to + i64(i) * values] = new
                answer[0] = b.fma(b.let(mul(query, qkv[q + i])), new, answer[0])
            args["o"][t * width + (self.head * values) + self.channel] = answer[0]

    def _inverse_length(self, x: Buf, at: Expr, eps: float) -> Expr:
        """`1 / sqrt(sum of squares + eps)`, in every lane."""
        squares = _squares(self.b, x, at, self.keys)
        return self.b.let(f32(1.0) / self.b.sqrt(f32(eps) + squares))
