"""Reductions of the cpu target, and the mathematics that it shares with the others."""

from __future__ import annotations

from ds4c_targets.common.mathlib import exp, inverse_rms, sigmoid, softplus, swiglu_of
from ds4c_targets.cpu.tir import LANES, Buf, Expr, Kernel, splat


def reduce16(b: Kernel, acc: Buf, at: int = 0) -> Expr:
    """Sum of 16 lanes as a balanced tree: lane `i` with lane `i + 8`, then `+ 4`, `+ 2`, `+ 1`."""
    parts = [acc[at + lane] for lane in range(LANES)]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [parts[i] + parts[i + half] for i in range(half)]
    return b.let(parts[0])


def zero(b: Kernel, acc: Buf, vectors: int, at: int = 0) -> None:
    """Set vectors of a local buffer to 0."""
    with b.unroll(vectors) as v:
        acc.store(at + v * LANES, splat(0.0))


__all__ = ["exp", "inverse_rms", "reduce16", "sigmoid", "softplus", "swiglu_of", "zero"]
