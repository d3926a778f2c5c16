"""Exclusive sums of integers over the threads of a block."""

from __future__ import annotations

from collections.abc import Sequence

from ds4c_targets.common.expr import Expr, i32, select, tirx
from ds4c_targets.gpu.tir import GpuKernel
from ds4c_targets.gpu.tuning import WARP


def warp_sum_up_to(b: GpuKernel, value: Expr) -> Expr:
    """Sum of the values of the lanes up to this one; int32."""
    found, step = b.let(value), 1
    while step < WARP:
        before = b.shuffle(found, tirx.Max(b.lane - step, i32(0)))
        found = b.let(found + select(b.lane >= step, before, i32(0)))
        step *= 2
    return found


def block_starts(b: GpuKernel, values: Sequence[Expr]) -> tuple[list[Expr], Expr]:
    """For each of `values` (int32) the sum of those before it, and the sum of all.

    The order is: `values[0]` of all threads ascending, then `values[1]`, ... All threads of the block come.
    """
    warps = b.threads // WARP
    parts = b.shared(warps * len(values), "int32")
    upto = [warp_sum_up_to(b, value) for value in values]
    with b.when(b.lane >= WARP - 1):
        for i, found in enumerate(upto):
            parts[b.warp + i * warps] = found
    b.barrier()
    starts: list[Expr] = []
    total: Expr = i32(0)
    for i, (value, found) in enumerate(zip(values, upto, strict=True)):
        before = b.variable(total)
        for warp in range(warps):
            part = b.let(parts[i * warps + warp])
            before[0] = before[0] + select(b.warp > warp, part, i32(0))
            total = b.let(total + part)
        starts.append(b.let(before[0] + (found - value)))
    return starts, total
