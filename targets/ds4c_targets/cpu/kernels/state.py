"""States and blocks: windows of a block, ring reads and writes, append, fork, snapshots."""

from __future__ import annotations

from ds4c_targets.cpu.args import Args, Marks, Pages, Ring
from ds4c_targets.cpu.rows import channels, copy_row, split
from ds4c_targets.cpu.tir import Buf, Expr, Kernel, div, i32, i64, imax, imin, mod, splat


def windows(args: Args) -> None:
    """The windows of `every` tokens that close inside a block, as a block of their own."""
    b, at, out, every = args.b, args.block("at"), args.block("windows"), args.integer("every")
    layout, buf = out.layout, out.buf
    segments = at.segments()
    rows = b.variable(i64(0))
    with b.loop(segments) as s:
        lo, hi = at.start(s), at.start(s + 1)
        buf[layout.segment_starts + s] = i32(rows[0])
        buf[layout.slots + s] = i32(at.slot(s))
        with b.when(hi > lo):
            first = at.position(lo)
            start = b.let(div(first, every))
            with b.loop(b.let(div(first + (hi - lo), every)), start=start) as j:
                row = b.let(rows[0])
                buf[layout.positions + row] = i32(j * every)
                buf[layout.row_segment + row] = i32(s)
                rows[0] = row + 1
    buf[layout.segment_starts + segments] = i32(rows[0])
    buf[0] = i32(rows[0])
    buf[1] = i32(segments)


def _zero_row(b: Kernel, out: Buf, at: Expr, width: int) -> None:
    channels(b, width, lambda c, n: out.store(at + c, splat(0.0, n)))


def read_rows(args: Args) -> None:
    """The `span` rows before each segment, oldest first; rows before position 0 are zero."""
    b, at, out = args.b, args.block("at"), args["rows"]
    span, width = args.shape("rows")[1:]
    with b.loop(at.segments()) as s:
        lo, hi = at.start(s), at.start(s + 1)
        ring = Ring.of(args, "state", at.slot(s))
        first = b.variable(i64(0))
        with b.when(hi > lo):
            first[0] = at.position(lo)
        with b.loop(span) as i:
            position = b.let(first[0] - i64(span) + i)
            to = b.let((s * span + i) * width)
            with b.when(position >= i64(0)):
                copy_row(b, out, to, ring.buf, b.let(ring.row(position)), width)
            with b.otherwise():
                _zero_row(b, out, to, width)


def write(args: Args) -> None:
    """Ring write of the block's rows: position `p` to row `p mod capacity`, the last `capacity` rows."""
    b, at, rows = args.b, args.block("at"), args["rows"]
    with b.loop(at.segments()) as s:
        lo, hi = at.start(s), at.start(s + 1)
        ring = Ring.of(args, "state", at.slot(s))
        with b.loop(hi, start=b.let(imax(lo, hi - i64(ring.capacity)))) as t:
            to = b.let(ring.row(at.position(t)))
            copy_row(b, ring.buf, to, rows, t * ring.width, ring.width)


def append(args: Args) -> None:
    """Rows of closed windows to their pages: the row of window `j` is row `j` of the segment."""
    b, at, rows = args.b, args.block("at"), args["rows"]
    every, width = args.spec.operand("state").every, args.shape("state")[1]

    def body(r: Expr) -> None:
        pages = Pages.of(args, "state", at.segment(r))
        to = b.let(pages.row(b.let(div(at.position(r), every))))
        copy_row(b, pages.buf, to, rows, r * width, width)

    split(b, at.rows(), width // 8, body)


def fork(args: Args) -> None:
    """Copy the live rows of a slot to another one (`args`: source, destination, first, at).

    Rows of positions `[max(0, live(first), at - capacity), at)` with `live(c) = c // align * align - back`;
    a negative `live` of small `c` is cut off at 0.
    """
    b, given = args.b, args["args"]
    source, target, first, at = (b.let(i64(given[i])) for i in range(4))
    align, back = args.integer("align"), args.integer("back")
    from_ring, to_ring = Ring.of(args, "state", source), Ring.of(args, "state", target)
    live = div(first, align) * align - i64(back)
    start = b.let(imax(i64(0), imax(live, at - i64(from_ring.capacity))))
    with b.loop(at, start=start) as position:
        row = b.let(mod(position, from_ring.capacity) * from_ring.width)
        copy_row(b, to_ring.buf, to_ring.base + row, from_ring.buf, from_ring.base + row, from_ring.width)


def snapshot_rows(args: Args) -> None:
    """Live rows at the marks of a step, before its rows are written: old ring rows, then own rows."""
    b, at, rows, marks = args.b, args.block("at"), args["rows"], Marks.of(args)
    width = args.shape("state")[1]
    with b.loop(marks.count) as m:
        segment, position = marks.owner(m), marks.position(m)
        lo = at.start(segment)
        first = at.position(lo)
        ring = Ring.of(args, "state", at.slot(segment))
        begin, to = marks.first(position), marks.place(m)
        with b.loop(b.let(imin(first, position)), start=begin) as p:
            copy_row(b, marks.arena, b.let(to + (p - begin) * width), ring.buf, b.let(ring.row(p)), width)
        with b.loop(position, start=b.let(imax(begin, first))) as p:
            copy_row(
                b, marks.arena, b.let(to + (p - begin) * width), rows, b.let((lo + p - first) * width), width
            )


def snapshot(args: Args) -> None:
    """Live rows of slots at positions, to the arena of snapshots."""
    _copy_live(args, is_restore=False)


def restore(args: Args) -> None:
    """Live rows of slots at positions, back from the arena of snapshots; no other row changes."""
    _copy_live(args, is_restore=True)


def _copy_live(args: Args, *, is_restore: bool) -> None:
    b, marks = args.b, Marks.of(args)
    with b.loop(marks.count) as m:
        position = marks.position(m)
        ring = Ring.of(args, "state", marks.owner(m))
        begin, to = marks.first(position), marks.place(m)
        with b.loop(position, start=begin) as p:
            saved, live = b.let(to + (p - begin) * ring.width), b.let(ring.row(p))
            if is_restore:
                copy_row(b, ring.buf, live, marks.arena, saved, ring.width)
            else:
                copy_row(b, marks.arena, saved, ring.buf, live, ring.width)
