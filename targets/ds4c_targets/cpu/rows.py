"""Loop patterns shared by all kernels: channels of a row, rows of a step, tiles of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ds4c_targets.cpu.tir import LANES, Buf, Expr, Kernel, div, i64

_PARALLEL_WORK = 1 << 16
"""Elements of work from which a fork-join (about 3 us) pays."""


def channels(b: Kernel, width: int, body: Callable[[Expr, int], None]) -> None:
    """Call `body(channel, lanes)` for the channels of a row: vectors of 16, then single ones."""
    full = width // LANES
    if full:
        with b.loop(full) as i:
            body(i * LANES, LANES)
    if width % LANES:
        with b.loop(width, start=full * LANES) as i:
            body(i, 1)


def split(b: Kernel, count: Expr, work: int | Expr, body: Callable[[Expr], None]) -> None:
    """Independent rounds `body(i)` for `i < count`: in parallel when `count * work` is large.

    Args:
        b: kernel under construction.
        count: number of rounds, int64.
        work: cost of one round, in vector operations or so.
        body: emits one round; it is emitted twice and must not depend on other rounds.
    """
    with b.when(count * i64(work) >= i64(_PARALLEL_WORK)), b.parallel(count) as i:
        body(i)
    with b.otherwise(), b.loop(count) as i:
        body(i)


def row_tiles(b: Kernel, count: Expr, sizes: Sequence[int], body: Callable[[int, Expr], None]) -> None:
    """Cover `count` rows: tiles of `sizes[0]`, then at most one tile of each smaller size.

    `sizes` ends in 1 and every size is at most twice the next one, so that each rest is covered.
    `body(rows, first)` emits one tile; its result may not depend on the size of the tile.
    """
    largest = sizes[0]
    tiles = b.let(div(count, largest))
    with b.loop(tiles) as i:
        body(largest, i * largest)
    at = b.variable(tiles * largest)
    for size in sizes[1:]:
        with b.when(count - at[0] >= i64(size)):
            first = b.let(at[0])
            body(size, first)
            at[0] = first + size


def copy_row(b: Kernel, target: Buf, to: Expr, source: Buf, at: Expr, width: int) -> None:
    """Copy `width` elements; float sources of another type are widened to float32."""
    channels(b, width, lambda c, n: target.store(to + c, source.load(at + c, n)))
