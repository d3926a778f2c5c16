"""Transcendental functions as exact sequences of IEEE operations.

All work on scalars and vectors alike and give the same bits for both, on every target. Polynomials are the
Taylor series of `exp` and `atanh`; the ranges are chosen so that the dropped terms are below 3e-9.
"""

from __future__ import annotations

from math import factorial

from tvm.tirx import op

from ds4c_targets.common.builder import Builder
from ds4c_targets.common.expr import Expr, add, bits, cast, like, mul, select, tirx, vmax, vmin

_LOG2E = 1.4426950408889634
_LN2_HIGH = 0.693145751953125  # 16 bits, so that n * _LN2_HIGH is exact for |n| < 256
_LN2_LOW = 1.42860682030941723212e-6
_EXP_MIN, _EXP_MAX = -86.0, 88.0  # 2**n stays a normal float


def exp(b: Builder, x: Expr) -> Expr:
    """`e**x` to about 1e-7 relative; exactly 0 below -86 and capped at `e**88`."""
    t = b.let(vmax(_EXP_MIN, vmin(_EXP_MAX, x)))
    n = b.let(b.rint(mul(_LOG2E, t)))
    r = b.let(b.fma(-_LN2_LOW, n, b.fma(-_LN2_HIGH, n, t)))
    p = like(1.0 / factorial(7), r)
    for k in (6, 5, 4, 3, 2, 1, 0):
        p = b.fma(p, r, 1.0 / factorial(k))
    scale = op.shift_left(cast(n, "int32"), _int_like(23, n))
    return select(x < like(_EXP_MIN, x), like(0.0, x), bits(bits(p, "int32") + scale, "float32"))


def _int_like(value: int, other: Expr) -> Expr:
    return like(tirx.IntImm("int32", value), other)


def sigmoid(b: Builder, x: Expr) -> Expr:
    """`1 / (1 + e**-x)`."""
    return like(1.0, x) / add(1.0, exp(b, mul(-1.0, x)))


def softplus(b: Builder, x: Expr) -> Expr:
    """`log(1 + e**x)` as `log1p(e**-|x|) + max(x, 0)`.

    `log1p(y) = 2 atanh(y / (2 + y))`, whose series needs eight terms for `y` in `[0, 1]`.
    """
    y = b.let(exp(b, vmin(x, mul(-1.0, x))))
    s = b.let(y / add(2.0, y))
    q = b.let(mul(s, s))
    p = like(2.0 / 15, s)
    for k in (13, 11, 9, 7, 5, 3, 1):
        p = b.fma(p, q, 2.0 / k)
    return b.fma(p, s, vmax(0.0, x))


def swiglu_of(b: Builder, gate: Expr, up: Expr, clamp: float) -> Expr:
    """`silu(min(gate, L)) * clip(up, -L, L)`."""
    g = b.let(vmin(clamp, gate))
    return mul(mul(g, sigmoid(b, g)), vmax(-clamp, vmin(clamp, up)))


def inverse_rms(b: Builder, square_sum: Expr, width: int, eps: float) -> Expr:
    """`1 / sqrt(sum / width + eps)`, a scalar."""
    return b.let(like(1.0, square_sum) / b.sqrt(b.fma(1.0 / width, square_sum, eps)))
