"""States and blocks: windows of a block, ring reads and writes, append, fork, snapshots; blocks copy rows."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from ds4c.ir.kernel import KernelSpec
from ds4c_runtime.launches import ONE, Dim
from ds4c_targets.common.builder import Buf
from ds4c_targets.common.expr import Expr, div, i32, i64, imax, imin, mod
from ds4c_targets.common.views import Marks, Pages, Ring
from ds4c_targets.gpu.args import Args, Part
from ds4c_targets.gpu.rows import closed_windows, per_row, thread_channels, threads_for
from ds4c_targets.gpu.tir import GpuKernel
from ds4c_targets.gpu.tuning import Tuning


def _copy_row(b: GpuKernel, target: Buf, to: Expr, source: Buf, at: Expr, width: int) -> None:
    """Copy `width` elements by the whole block."""
    with thread_channels(b, width) as c:
        target[to + c] = source.load(at + c, 1)


def _args(spec: KernelSpec, tuning: Tuning, operand: str) -> Args:
    """A launch whose blocks have a thread for each channel of an operand, as far as threads go."""
    return Args(spec, tuning, threads=threads_for(spec.operand(operand).shape[-1], tuning))


def windows(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """The windows of `every` tokens that close inside a block, as a block of their own."""
    args = Args(spec, tuning, threads=threads_for(spec.operand("windows").shape[0], tuning))
    b, at, out, every = args.b, args.block("at"), args.block("windows"), args.integer("every")
    layout, buf = out.layout, out.buf
    segments = at.segments()
    is_first = b.let(b.tx < 1)
    rows = b.variable(i64(0))
    with b.loop(segments) as s:
        lo, hi = at.start(s), at.start(s + 1)
        with b.when(is_first):
            buf[layout.segment_starts + s] = i32(rows[0])
            buf[layout.slots + s] = i32(at.slot(s))
        with b.when(hi > lo):
            first = at.position(lo)
            start = b.let(div(first, every))
            count = b.let(div(first + (hi - lo), every) - start)
            with b.loop(b.let(div(count + (b.threads - 1), b.threads))) as i:
                k = b.let(i64(i * b.threads + b.tx))
                with b.when(k < count):
                    buf[layout.positions + rows[0] + k] = i32((start + k) * every)
                    buf[layout.row_segment + rows[0] + k] = i32(s)
            rows[0] = rows[0] + count
    with b.when(is_first):
        buf[layout.segment_starts + segments] = i32(rows[0])
        buf[0] = i32(rows[0])
        buf[1] = i32(segments)
    return [args.finish()]


def read_rows(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """The `span` rows before each segment, oldest first; rows before position 0 are zero."""
    args = _args(spec, tuning, "rows")
    b, at, out = args.b, args.block("at"), args["rows"]
    most, span, width = args.shape("rows")
    args.grid = (Dim(span), Dim(most), ONE)
    with b.when(i64(b.by) < at.segments()):
        lo, hi = at.start(b.by), at.start(b.by + 1)
        ring = Ring.of(args, "state", at.slot(b.by))
        first = b.variable(i64(0))
        with b.when(hi > lo):
            first[0] = at.position(lo)
        position = b.let(first[0] - i64(span) + i64(b.bx))
        to = b.let((i64(b.by) * span + i64(b.bx)) * width)
        with b.when(position >= i64(0)):
            _copy_row(b, out, to, ring.buf, b.let(ring.row(position)), width)
        with b.otherwise(), thread_channels(b, width) as c:
            out[to + c] = 0.0
    return [args.finish()]


def write(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Ring write of the block's rows: position `p` to row `p mod capacity`, the last `capacity` rows."""
    args = _args(spec, tuning, "rows")
    b, at, rows = args.b, args.block("at"), args["rows"]
    with per_row(args, "rows", at.rows()) as t:
        segment = at.segment(t)
        ring = Ring.of(args, "state", at.slot(segment))
        with b.when(i64(t) >= at.start(segment + i64(1)) - i64(ring.capacity)):
            to = b.let(ring.row(at.position(t)))
            _copy_row(b, ring.buf, to, rows, b.let(i64(t) * ring.width), ring.width)
    return [args.finish()]


def append(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Rows of closed windows to their pages: the row of window `j` is row `j` of the segment."""
    args = _args(spec, tuning, "rows")
    b, at, rows = args.b, args.block("at"), args["rows"]
    every, width = args.spec.operand("state").every, args.shape("state")[1]
    args.grid = (closed_windows(args, "at", every), ONE, ONE)
    with b.when(i64(b.bx) < at.rows()):
        pages = Pages.of(args, "state", at.segment(b.bx))
        to = b.let(pages.row(b.let(div(at.position(b.bx), every))))
        _copy_row(b, pages.buf, to, rows, b.let(i64(b.bx) * width), width)
    return [args.finish()]


@contextmanager
def _positions(args: Args, first: Expr, end: Expr, blocks: int) -> Generator[Expr]:
    """The body for each position of `[first, end)`, dealt out to the blocks; nothing if it is empty."""
    b = args.b
    count = b.let(imax(0, end - first))
    with b.loop(b.let(div(count + (blocks - 1), blocks))) as i:
        position = b.let(first + i64(i * blocks + b.bx))
        with b.when(position < end):
            yield position


def _blocks(args: Args, blocks: int) -> int:
    """Make the grid of a launch whose blocks share the rows of one ring."""
    found = min(args.shape("state")[0], blocks)
    args.grid = (Dim(found), ONE, ONE)
    return found


def fork(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Copy the live rows of a slot to another one (`args`: source, destination, first, at).

    Rows of positions `[max(0, live(first), at - capacity), at)` with `live(c) = c // align * align - back`;
    a negative `live` of small `c` is cut off at 0.
    """
    args = _args(spec, tuning, "state")
    b, given = args.b, args["args"]
    source, target, first, at = (b.let(i64(given[i])) for i in range(4))
    align, back = args.integer("align"), args.integer("back")
    from_ring, to_ring = Ring.of(args, "state", source), Ring.of(args, "state", target)
    live = div(first, align) * align - i64(back)
    start = b.let(imax(i64(0), imax(live, at - i64(from_ring.capacity))))
    with _positions(args, start, at, _blocks(args, tuning.copy_blocks)) as position:
        row = b.let(mod(position, from_ring.capacity) * from_ring.width)
        _copy_row(b, to_ring.buf, to_ring.base + row, from_ring.buf, from_ring.base + row, from_ring.width)
    return [args.finish()]


def snapshot_rows(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Live rows at the marks of a step, before its rows are written: old ring rows, then own rows."""
    args = _args(spec, tuning, "state")
    b, at, rows, marks = args.b, args.block("at"), args["rows"], Marks.of(args)
    width, blocks = args.shape("state")[1], _blocks(args, tuning.step_copy_blocks)
    with b.loop(marks.count) as m:
        segment, position = marks.owner(m), marks.position(m)
        lo = at.start(segment)
        first = at.position(lo)
        ring = Ring.of(args, "state", at.slot(segment))
        begin, to = marks.first(position), marks.place(m)
        with _positions(args, begin, b.let(imin(first, position)), blocks) as p:
            _copy_row(b, marks.arena, b.let(to + (p - begin) * width), ring.buf, b.let(ring.row(p)), width)
        with _positions(args, b.let(imax(begin, first)), position, blocks) as p:
            own = b.let((lo + p - first) * width)
            _copy_row(b, marks.arena, b.let(to + (p - begin) * width), rows, own, width)
    return [args.finish()]


def snapshot(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Live rows of slots at positions, to the arena of snapshots."""
    return _copy_live(spec, tuning, is_restore=False)


def restore(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Live rows of slots at positions, back from the arena of snapshots; no other row changes."""
    return _copy_live(spec, tuning, is_restore=True)


def _copy_live(spec: KernelSpec, tuning: Tuning, *, is_restore: bool) -> list[Part]:
    args = _args(spec, tuning, "state")
    b, marks, blocks = args.b, Marks.of(args), _blocks(args, tuning.copy_blocks)
    with b.loop(marks.count) as m:
        position = marks.position(m)
        ring = Ring.of(args, "state", marks.owner(m))
        begin, to = marks.first(position), marks.place(m)
        with _positions(args, begin, position, blocks) as p:
            saved, live = b.let(to + (p - begin) * ring.width), b.let(ring.row(p))
            if is_restore:
                _copy_row(b, ring.buf, live, marks.arena, saved, ring.width)
            else:
                _copy_row(b, marks.arena, saved, ring.buf, live, ring.width)
    return [args.finish()]
