"""Loop patterns shared by the kernels: a block a row, a thread a channel."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from ds4c_runtime.launches import ONE, Dim
from ds4c_targets.common.expr import Expr, i32
from ds4c_targets.gpu.args import Args
from ds4c_targets.gpu.tir import GpuKernel
from ds4c_targets.gpu.tuning import WARP, Tuning


@contextmanager
def per_row(args: Args, name: str, count: Expr | None = None) -> Generator[Expr]:
    """The body for each row of operand `name`, a block each; `count` rows, or those of operand `count`."""
    b = args.b
    args.grid = (args.rows(name), *args.grid[1:])
    rows = i32(args["count"][0]) if count is None else i32(count)
    with b.when(b.bx < rows):
        yield b.bx


@contextmanager
def per_head(args: Args, name: str, heads: int) -> Generator[tuple[Expr, Expr]]:
    """The body for each row and head of operand `name`, a warp each; rows are those of operand `count`."""
    b = args.b
    warps = b.threads // WARP
    args.grid = (Dim(-(-heads // warps)), args.rows(name), ONE)
    head = b.let(b.bx * warps + b.warp)
    with b.when(b.by < i32(args["count"][0])), b.when(head < heads):
        yield b.by, head


@contextmanager
def per_channel(args: Args, name: str, width: int, count: Expr | None = None) -> Generator[tuple[Expr, Expr]]:
    """The body for each row of operand `name` and each of `width` channels, a thread each."""
    b = args.b
    args.grid = (Dim(-(-width // b.threads)), args.rows(name), ONE)
    rows = i32(args["count"][0]) if count is None else i32(count)
    channel = b.let(b.bx * b.threads + b.tx)
    with b.when(b.by < rows), b.when(channel < width):
        yield b.by, channel


@contextmanager
def lane_channels(b: GpuKernel, width: int, start: int = 0) -> Generator[Expr]:
    """The body for each channel from `start` on, dealt out to the lanes of the warp; ascending in each lane.

    Not every lane does the same number, so no shuffle may stand in it.
    """
    rounds = -(-(width - start) // WARP)
    with b.loop(rounds) as i:
        c = b.let(i * WARP + b.lane + start)
        if (width - start) % WARP:
            with b.when(c < width):
                yield c
        else:
            yield c


@contextmanager
def thread_channels(b: GpuKernel, width: int) -> Generator[Expr]:
    """The body for each channel, dealt out to the threads of the block; ascending in each thread.

    Not every thread does the same number, so no barrier and no shuffle may stand in it.
    """
    full, rest = divmod(width, b.threads)
    if rest:
        with b.loop(full + 1) as i:
            c = b.let(i * b.threads + b.tx)
            with b.when(c < width):
                yield c
        return
    with b.loop(full) as i:
        yield b.let(i * b.threads + b.tx)


def threads_for(count: int, tuning: Tuning) -> int:
    """Whole warps for `count` threads, at most those of a block."""
    return min(tuning.threads, -(-count // WARP) * WARP)


def closed_windows(args: Args, windows: str, every: int) -> Dim:
    """A block for each window of `every` tokens that may close in a step; `windows` is their block operand.

    `n` rows of one segment close at most `ceil(n / every)` windows.
    """
    most, segments = args.shape(windows)
    return Dim(most, "rows", base=segments - 1, per=every)
