"""Matrix products: linear, several linears of one input, grouped, gated."""

from __future__ import annotations

from collections.abc import Sequence

from ds4c.ir.kernel import KernelSpec
from ds4c_targets.common.expr import Expr, i32, i64, tirx
from ds4c_targets.common.mathlib import swiglu_of
from ds4c_targets.gpu.args import Args, Part
from ds4c_targets.gpu.kernels.matrix import matrix_form, matrix_linear
from ds4c_targets.gpu.product import Product, TileShape, product_tile, token_tiles, warp_tiles
from ds4c_targets.gpu.tuning import WARP, Tuning


def _plain(args: Args, w: str, y: str) -> Product:
    rows, width = args.shape(w)
    out = args[y]

    def store(t: Expr, n: Expr, value: Expr) -> None:
        out[i64(t) * rows + i64(n)] = value

    return Product(args, (w,), rows, 0, args["x"], lambda t: i64(t) * width, store)


def _products(spec: KernelSpec, tuning: Tuning, pairs: Sequence[tuple[str, str]]) -> list[Part]:
    """Products of one input in one launch: blocks of the first, then of the next."""
    shape = TileShape.of(tuning, sum(spec.operand(w).shape[0] for w, _ in pairs))
    args = Args(spec, tuning, threads=shape.warps * WARP)
    with token_tiles(args, "x") as (first, count):
        start = 0
        for w, y in pairs:
            product = _plain(args, w, y)
            with warp_tiles(args, shape, shape.tiles(product.rows), start) as tile:
                product_tile(product, shape, tile, first, count)
            start += shape.blocks(product.rows)
    return [args.finish()]


def linear(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """`y = w @ x`."""
    form = matrix_form(spec, tuning)
    if form is not None:
        return matrix_linear(spec, tuning, form)
    return _products(spec, tuning, [("w", "y")])


def multi_linear(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Several products of one input; each has the bits of `linear`."""
    weights = [o.name for o in spec.operands if o.role == "weight"]
    outputs = [o.name for o in spec.operands if o.role == "out"]
    return _products(spec, tuning, list(zip(weights, outputs, strict=True)))


def grouped_linear(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Block `g` of the output rows meets channel block `g` of the input."""
    rows, width = spec.operand("w").shape
    groups = int(spec.attr("groups"))
    each = rows // groups
    shape = TileShape.of(tuning, rows)
    args = Args(spec, tuning, threads=shape.warps * WARP)
    b, out, tiles = args.b, args["y"], shape.tiles(each)
    with token_tiles(args, "x") as (first, count), warp_tiles(args, shape, groups * tiles) as tile:
        g = b.let(tirx.truncdiv(tile, i32(tiles)))
        base = b.let(i64(g * each))

        def store(t: Expr, n: Expr, value: Expr) -> None:
            out[i64(t) * rows + base + i64(n)] = value

        def x_at(t: Expr) -> Expr:
            return i64(t) * (groups * width) + i64(g * width)

        product = Product(args, ("w",), each, base, args["x"], x_at, store)
        product_tile(product, shape, b.let(tirx.truncmod(tile, i32(tiles))), first, count)
    return [args.finish()]


def gated_linear(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """`swiglu(w1 @ x, w3 @ x)`; a warp computes the same rows of both."""
    rows, width = spec.operand("w1").shape
    shape = TileShape.of(tuning, rows, 2)
    args = Args(spec, tuning, threads=shape.warps * WARP)
    out, clamp = args["y"], args.number("clamp")

    def store(t: Expr, n: Expr, gate: Expr, up: Expr) -> None:
        out[i64(t) * rows + i64(n)] = swiglu_of(args.b, gate, up, clamp)

    product = Product(args, ("w1", "w3"), rows, 0, args["x"], lambda t: i64(t) * width, store)
    with token_tiles(args, "x") as (first, count), warp_tiles(args, shape, shape.tiles(rows)) as tile:
        product_tile(product, shape, tile, first, count)
    return [args.finish()]
