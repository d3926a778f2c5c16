"""Queries as panels: 16 heads in the lanes of one vector.

With heads in lanes a row of keys plays the part of a row of activations in `dot_tile`: keys are read
where they lie (ring, block, pages), no row needs a neighbour, and no lane has to be masked.
"""

from __future__ import annotations

from collections.abc import Callable

from ds4c_targets.cpu.scratch import TASK_SLOTS
from ds4c_targets.cpu.tir import LANES, Buf, Expr, Kernel, div, i64, imin

_PARALLEL_WORK = 1 << 16


def run_tasks(b: Kernel, total: Expr, work: int, body: Callable[[Expr, Expr], None]) -> None:
    """Independent tasks `body(task, slot)`; `work` is the cost of one in vector operations."""
    with b.when(total * i64(work) >= i64(_PARALLEL_WORK)), b.parallel(TASK_SLOTS) as slot:
        with b.loop(b.let(ceil_div(total - slot, TASK_SLOTS))) as k:
            body(b.let(slot + k * TASK_SLOTS), slot)
    with b.otherwise(), b.loop(total) as task:
        body(task, i64(0))


def ceil_div(a: Expr, n: int) -> Expr:
    """`ceil(a / n)` for `a > -n`."""
    return div(a + i64(n - 1), n)


def load_queries(
    b: Kernel, q: Buf, at: Expr, first_head: Expr, heads: int, width: int, panel: Buf, to: Expr
) -> None:
    """Panel `[width][16]` of the heads from `first_head`; lanes past the last head repeat it."""
    rows = [b.let(at + imin(first_head + i64(lane), heads - 1) * width) for lane in range(min(LANES, heads))]
    rows += [rows[-1]] * (LANES - len(rows))
    with b.loop(width) as d:
        for lane, row in enumerate(rows):
            panel[to + d * LANES + lane] = q[row + d]
