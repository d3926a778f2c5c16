"""Matrix products: linear, several linears of one input, grouped, gated."""

from __future__ import annotations

from ds4c_targets.cpu.args import Args
from ds4c_targets.cpu.dot import Panel, panel_size
from ds4c_targets.cpu.mathlib import swiglu_of
from ds4c_targets.cpu.product import Product, panel_count, panel_of, run_products, store_lanes
from ds4c_targets.cpu.tir import LANES, Expr, i64


def _plain(args: Args, w: str, y: str) -> Product:
    rows, width = args.shape(w)
    out = args[y]

    def store(t: Expr, p: Expr, value: Expr) -> None:
        store_lanes(args.b, out, t * rows, p, rows, value)

    return Product(
        args["x"], lambda t: t * width, width, (panel_of(args[w], width),), panel_count(rows), store
    )


def linear(args: Args) -> None:
    """`y = w @ x`."""
    run_products(args.b, args.variant, args.count(), [_plain(args, "w", "y")])


def multi_linear(args: Args) -> None:
    """Several products of one input in one fork-join; each has the bits of `linear`."""
    weights = [o.name for o in args.spec.operands if o.role == "weight"]
    outputs = [o.name for o in args.spec.operands if o.role == "out"]
    products = [_plain(args, w, y) for w, y in zip(weights, outputs, strict=True)]
    run_products(args.b, args.variant, args.count(), products)


def _group(args: Args, groups: int, g: int) -> Product:
    rows, width = args.shape("w")
    each = rows // groups
    out, w = args["y"], args["w"]
    first = g * each // LANES

    def store(t: Expr, p: Expr, value: Expr) -> None:
        out.store(t * rows + (p + i64(first)) * LANES, value)

    return Product(
        args["x"],
        lambda t: t * (groups * width) + i64(g * width),
        width,
        (lambda p: Panel(w, (p + i64(first)) * panel_size(w, width)),),
        each // LANES,
        store,
    )


def grouped_linear(args: Args) -> None:
    """Block `g` of the output rows meets channel block `g` of the input."""
    groups = args.integer("groups")
    products = [_group(args, groups, g) for g in range(groups)]
    run_products(args.b, args.variant, args.count(), products)


def gated_linear(args: Args) -> None:
    """`swiglu(w1 @ x, w3 @ x)`; a task computes the same panels of both."""
    b, out, clamp = args.b, args["y"], args.number("clamp")
    rows, width = args.shape("w1")

    def store(t: Expr, p: Expr, gate: Expr, up: Expr) -> None:
        store_lanes(b, out, t * rows, p, rows, b.let(swiglu_of(b, gate, up, clamp)))

    matrices = (panel_of(args["w1"], width), panel_of(args["w3"], width))
    product = Product(args["x"], lambda t: t * width, width, matrices, panel_count(rows), store)
    run_products(b, args.variant, args.count(), [product])
