"""Hyper-connections: control vector with Sinkhorn, entry and exit mixes, final collapse."""

from __future__ import annotations

from collections.abc import Callable

from ds4c_targets.cpu.args import Args
from ds4c_targets.cpu.dot import Panel, dot_tile, panel_size
from ds4c_targets.cpu.kernels.norm import norm_row, square_sum
from ds4c_targets.cpu.mathlib import exp, inverse_rms, sigmoid
from ds4c_targets.cpu.product import panel_count
from ds4c_targets.cpu.rows import channels, row_tiles, split
from ds4c_targets.cpu.tir import LANES, Buf, Expr, Kernel, add, div, fma, i64, imin, mul, shuffle, splat, vmax

_TILE = 2  # rows of one product: 2 rows x 2 panels x 4 streams are 16 vectors
_CHUNK = 16  # rows of one task


def _control(args: Args, fn: str, row: Callable[[Expr, Buf], None]) -> None:
    """`row(t, m)` for every row with `m` the raw products of the flattened streams with `fn`.

    Each stream has accumulators of its own, added as `((s0 + s1) + s2) + s3`: four times as many
    independent chains, in an order that is the same for any number of rows.
    """
    b, x = args.b, args["x"]
    streams, each = args.shape("x")[1:]
    panels, width = panel_count(args.shape(fn)[0]), streams * each
    w = args[fn]
    pair = 2 if w.dtype == "int32" else 1
    used = [
        Panel(w, i64(p * panel_size(w, width) + s * each // pair * LANES), s * each)
        for p in range(panels)
        for s in range(streams)
    ]

    def body(rows: int, first: Expr) -> None:
        start = b.let(first)
        accs = dot_tile(b, x, lambda r: (start + r) * width, rows, used, each, 0 if rows == 1 else None)
        for r in range(rows):
            m = b.local(panels * LANES)
            for p in range(panels):
                total = accs[p * streams].load(r * LANES)
                for s in range(1, streams):
                    total = total + accs[p * streams + s].load(r * LANES)
                m.store(p * LANES, total)
            row(start + i64(r), m)

    def chunk(i: Expr) -> None:
        left = b.let(count - i * _CHUNK)
        row_tiles(b, b.let(imin(left, _CHUNK)), (_TILE, 1), lambda rows, at: body(rows, i * _CHUNK + at))

    count = args.count()
    split(b, b.let(div(count + i64(_CHUNK - 1), _CHUNK)), _CHUNK * width // 4, chunk)


def _affine(args: Args, parts: list[int]) -> tuple[Buf, Buf]:
    """Scale and base of every entry of the control vector, padded to whole vectors."""
    b, total = args.b, sum(parts)
    size = panel_count(total) * LANES
    scales, bases = b.local(size), b.local(size)
    with b.loop(size) as i:
        scales[i] = 0.0
        bases[i] = 0.0
    start = 0
    for index, part in enumerate(parts):
        with b.loop(start + part, start=start) as i:
            scales[i] = args["scale"].load(index, 1)
            bases[i] = args["base"].load(i, 1)
        start += part
    return scales, bases


def _group_reduce(value: Expr, steps: list[int], combine: Callable[[Expr, Expr], Expr], b: Kernel) -> Expr:
    """Combine lanes that differ in the bits of `steps`; every lane of a group gets the result."""
    found = value
    for step in steps:
        found = b.let(combine(found, shuffle(found, [lane ^ step for lane in range(LANES)])))
    return found


def _sinkhorn(b: Kernel, z: Expr, n: int, iters: int, eps: float) -> Expr:
    """Softmax over the columns of each row, then alternating column and row normalisation."""
    within = [1 << k for k in range(n.bit_length() - 1)]  # lanes of one row
    across = [n << k for k in range(n.bit_length() - 1)]  # lanes of one column
    top = _group_reduce(z, within, vmax, b)
    e = b.let(exp(b, z - top))
    mix = b.local(LANES)
    mix.store(0, add(eps, e / _group_reduce(e, within, add, b)))

    def normalise(steps: list[int]) -> None:
        value = b.let(mix.load(0))
        mix.store(0, value / add(eps, _group_reduce(value, steps, add, b)))

    normalise(across)
    with b.loop(iters - 1):
        normalise(within)
        normalise(across)
    return b.let(mix.load(0))


def _mix_row(args: Args, m: Buf, affine: tuple[Buf, Buf], t: Expr, pre: Buf, pre_at: Expr) -> None:
    """Write pre, post and mix of row `t` from the raw products `m`."""
    b, n = args.b, args.shape("x")[1]
    width, eps = n * args.shape("x")[2], args.number("eps")
    sums = square_sum(b, args["x"], t * width, width)
    inverse = inverse_rms(b, sums, width, args.number("norm_eps"))
    scales, bases = affine
    panels = panel_count((2 + n) * n)
    z = b.local((panels + 1) * LANES)  # one more, as the mix is read from entry 2 * n on
    for at in range(0, panels * LANES, LANES):
        z.store(at, fma(mul(inverse, m.load(at)), scales.load(at), bases.load(at)))
    z.store(panels * LANES, splat(0.0))
    gates = b.local(LANES)
    gates.store(0, sigmoid(b, b.let(z.load(0))))
    for i in range(n):
        pre[pre_at + i64(i)] = add(eps, gates[i])
        args["post"][t * n + i64(i)] = mul(2.0, gates[n + i])
    mix = b.local(LANES)
    mix.store(0, _sinkhorn(b, b.let(z.load(2 * n)), n, args.integer("iters"), eps))
    for i in range(n * n):
        args["mix"][t * (n * n) + i64(i)] = mix[i]


def _parts(n: int) -> list[int]:
    return [n, n, n * n]


def hc_mix(args: Args) -> None:
    """Control vector of a site: pre, post and the doubly normalised mix."""
    n = args.shape("x")[1]
    affine = _affine(args, _parts(n))
    _control(args, "fn", lambda t, m: _mix_row(args, m, affine, t, args["pre"], t * n))


def _pre_row(b: Kernel, x: Buf, t: Expr, n: int, width: int, pre: list[Expr], y: Buf) -> None:
    """`y[t] = sum_j pre[j] * x[t, j]`, streams ascending."""

    def body(c: Expr, lanes: int) -> None:
        total = mul(pre[0], x.load(t * (n * width) + c, lanes))
        for j in range(1, n):
            total = fma(pre[j], x.load(t * (n * width) + (c + i64(j * width)), lanes), total)
        y.store(t * width + c, total)

    channels(b, width, body)


def hc_pre(args: Args) -> None:
    """Input of a sublayer: the streams weighted by pre."""
    b, (n, width) = args.b, args.shape("x")[1:]

    def row(t: Expr) -> None:
        pre = [b.let(args["pre"][t * n + i64(j)]) for j in range(n)]
        _pre_row(b, args["x"], t, n, width, pre, args["u"])

    split(b, args.count(), n * width // 8, row)


def hc_enter(args: Args) -> None:
    """`hc_mix`, `hc_pre` and `rms_norm` of one row after the other, with the bits of the three ops."""
    b, (n, width) = args.b, args.shape("x")[1:]
    affine = _affine(args, _parts(n))

    def row(t: Expr, m: Buf) -> None:
        pre = b.local(n)
        _mix_row(args, m, affine, t, pre, i64(0))
        _pre_row(b, args["x"], t, n, width, [b.let(pre[j]) for j in range(n)], args["h"])
        norm_row(b, args["h"], t * width, args["h"], t * width, width, args.number("norm_eps"), args["gain"])

    _control(args, "fn", row)


def hc_post(args: Args) -> None:
    """Next streams: `out[k] = post[k] * y + sum_j mix[j, k] * x[j]`, streams ascending."""
    b, (n, width) = args.b, args.shape("x")[1:]
    x, y, out = args["x"], args["y"], args["out"]

    def row(t: Expr) -> None:
        post = [b.let(args["post"][t * n + i64(k)]) for k in range(n)]
        mix = [[b.let(args["mix"][t * (n * n) + i64(j * n + k)]) for k in range(n)] for j in range(n)]

        def body(c: Expr, lanes: int) -> None:
            value = b.let(y.load(t * width + c, lanes))
            old = [b.let(x.load(t * (n * width) + (c + i64(j * width)), lanes)) for j in range(n)]
            for k in range(n):
                total = mul(post[k], value)
                for j in range(n):
                    total = fma(mix[j][k], old[j], total)
                out.store(t * (n * width) + (c + i64(k * width)), total)

        channels(b, width, body)

    split(b, args.count(), n * width // 4, row)


def hc_collapse(args: Args) -> None:
    """Final collapse of the streams by sigmoid weights."""
    b, (n, width) = args.b, args.shape("x")[1:]
    scales, bases = _affine(args, [n])

    def row(t: Expr, m: Buf) -> None:
        sums = square_sum(b, args["x"], t * (n * width), n * width)
        inverse = inverse_rms(b, sums, n * width, args.number("norm_eps"))
        gates = b.local(LANES)
        gates.store(0, sigmoid(b, b.let(fma(mul(inverse, m.load(0)), scales.load(0), bases.load(0)))))
        pre = [b.let(add(args.number("eps"), gates[j])) for j in range(n)]
        _pre_row(b, args["x"], t, n, width, pre, args["h"])

    _control(args, "fn", row)
