"""States and blocks: windows of a block, ring reads and writes, append, fork."""

from __future__ import annotations

from ds4c_targets.cpu.args import Args, Pages, Ring
from ds4c_targets.cpu.rows import channels, copy_row, split
from ds4c_targets.cpu.tir import Buf, Expr, Kernel, div, i32, i64, imax, mod, splat


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
