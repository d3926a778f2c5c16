"""The chosen experts over the rows that chose them: lists, hidden rows, results, and their sum.

A use is a row with one of its choices. Uses are sorted by expert, and cut into tiles that one warp can do: so
an expert's weights are read once for all rows of a tile, and few rows need few blocks. Each use has its own
hidden row and result, and the bits of these depend on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ds4c.ir.kernel import KernelSpec
from ds4c_runtime.launches import Dim
from ds4c_targets.common.builder import Buf
from ds4c_targets.common.expr import Expr, i32, i64, mul, select, tirx
from ds4c_targets.common.mathlib import swiglu_of
from ds4c_targets.gpu.args import Args, Part
from ds4c_targets.gpu.product import Product, TileShape, product_tile, warp_tiles
from ds4c_targets.gpu.rows import per_channel
from ds4c_targets.gpu.scan import block_starts
from ds4c_targets.gpu.scratch_moe import MoeScratch
from ds4c_targets.gpu.tuning import WARP, Tuning


def moe_experts(spec: KernelSpec, tuning: Tuning) -> list[Part]:
    """Sum of the chosen experts in the order of the choices; only experts with rows are visited."""
    plan = MoeScratch.of(spec, tuning)
    return [
        _lists(Args(spec, tuning, "lists"), plan),
        _hidden(spec, tuning, plan),
        _results(spec, tuning, plan),
        _sum(Args(spec, tuning, "sum"), plan),
    ]


@dataclass(frozen=True)
class _Lists:
    """Tiles and uses in scratch."""

    args: Args
    plan: MoeScratch

    @property
    def count(self) -> Buf:
        """Number of tiles, one element."""
        return self.args.view("scratch", "int32")

    @property
    def uses(self) -> Buf:
        """Uses by expert."""
        return self.args.view("scratch", "int32", self.plan.uses_offset)

    @property
    def _tiles(self) -> Buf:
        return self.args.view("scratch", "int32", self.plan.tiles_offset)

    def write_tile(self, tile: Expr, expert: Expr, first: Expr, end: Expr) -> None:
        """One entry of the table of tiles."""
        for i, value in enumerate((expert, first, end)):
            self._tiles[tile + i * self.plan.max_tiles] = value

    def read_tile(self, tile: Expr) -> tuple[Expr, Expr, Expr]:
        """Expert, place of the first use, place behind the last."""
        expert, first, end = (self.args.b.let(self._tiles[tile + i * self.plan.max_tiles]) for i in range(3))
        return expert, first, end


def _lists(args: Args, plan: MoeScratch) -> Part:
    """Sort the uses by expert: one block, a thread for every expert counts its uses and then places them."""
    b, lists, experts = args.b, _Lists(args, plan), args["experts"]
    total = b.let(args["count"][0] * plan.choices)
    rounds = -(-plan.experts // b.threads)
    numbers = [b.let(b.tx + i * b.threads) for i in range(rounds)]
    counts = [b.variable(i32(0)) for _ in numbers]
    with b.loop(total) as use:
        expert = b.let(experts[use])
        for number, count in zip(numbers, counts, strict=True):
            count[0] = count[0] + select(tirx.EQ(expert, number), i32(1), i32(0))
    sizes = [b.let(count[0]) for count in counts]
    tiles = [b.let(tirx.truncdiv(size + (plan.tile - 1), i32(plan.tile))) for size in sizes]
    starts, _ = block_starts(b, sizes)
    tile_starts, tile_count = block_starts(b, tiles)
    with b.when(b.tx < 1):
        lists.count[0] = tile_count
    for number, size, start, tile, first in zip(numbers, sizes, starts, tiles, tile_starts, strict=True):
        with b.loop(tile) as i:
            at = b.let(start + i * plan.tile)
            end = tirx.Min(at + plan.tile, start + size)
            lists.write_tile(first + i, number, at, end)
    places = [b.variable(start) for start in starts]
    with b.loop(total) as use:
        expert = b.let(experts[use])
        for number, place in zip(numbers, places, strict=True):
            with b.when(tirx.EQ(expert, number)):
                lists.uses[place[0]] = use
                place[0] = place[0] + 1
    return args.finish()


def _hidden(spec: KernelSpec, tuning: Tuning, plan: MoeScratch) -> Part:
    """`swiglu(w1 @ x, w3 @ x) * routing weight` of every use."""
    args, shape = _launch(spec, tuning, "hidden", ("w1", "w3"))
    b, lists, clamp = args.b, _Lists(args, plan), args.number("clamp")
    hidden = args.view("scratch", "float32", plan.hidden_offset)

    def store(place: Expr, n: Expr, gate: Expr, up: Expr) -> None:
        use = b.let(lists.uses[place])
        value = mul(args["weights"][use], swiglu_of(b, gate, up, clamp))
        hidden[i64(use) * plan.hidden + i64(n)] = value

    def x_at(place: Expr) -> Expr:
        return i64(tirx.truncdiv(lists.uses[place], i32(plan.choices))) * plan.width

    _tiles(lists, shape, Product(args, ("w1", "w3"), plan.hidden, 0, args["x"], x_at, store))
    return args.finish()


def _results(spec: KernelSpec, tuning: Tuning, plan: MoeScratch) -> Part:
    """`w2 @ hidden` of every use."""
    args, shape = _launch(spec, tuning, "results", ("w2",))
    lists = _Lists(args, plan)
    hidden = args.view("scratch", "float32", plan.hidden_offset)
    results = args.view("scratch", "float32", plan.results_offset)

    def store(place: Expr, n: Expr, value: Expr) -> None:
        results[i64(lists.uses[place]) * plan.width + i64(n)] = value

    def x_at(place: Expr) -> Expr:
        return i64(lists.uses[place]) * plan.hidden

    _tiles(lists, shape, Product(args, ("w2",), plan.width, 0, hidden, x_at, store))
    return args.finish()


def _launch(spec: KernelSpec, tuning: Tuning, name: str, weights: tuple[str, ...]) -> tuple[Args, TileShape]:
    """A launch of blocks that are large enough for the uses of one row."""
    choices, rows = spec.operand("experts").shape[1], spec.operand(weights[0]).shape[1]
    shape = TileShape.of(tuning, rows * choices, len(weights))
    return Args(spec, tuning, name, threads=shape.warps * WARP), shape


def _tiles(lists: _Lists, shape: TileShape, product: Product) -> None:
    """A product for each tile of uses (the tokens of the product are their places), a row of blocks each."""
    args, plan = product.args, lists.plan
    b = args.b
    args.grid = (args.grid[0], Dim(plan.max_tiles, "rows", times=plan.choices), args.grid[2])
    with b.when(b.by < lists.count[0]):
        expert, first, end = lists.read_tile(b.by)
        base = b.let(i64(expert) * product.rows)
        with warp_tiles(args, shape, shape.tiles(product.rows)) as tile:
            product_tile(replace(product, base=base), shape, tile, first, end)


def _sum(args: Args, plan: MoeScratch) -> Part:
    """Results of a row, added in the order of its choices."""
    results, y = args.view("scratch", "float32", plan.results_offset), args["y"]
    with per_channel(args, "y", plan.width) as (t, c):
        first = args.b.let(i64(t) * (plan.choices * plan.width) + c)
        total = results[first]
        for choice in range(1, plan.choices):
            total = total + results[first + choice * plan.width]
        y[i64(t) * plan.width + c] = total
    return args.finish()
