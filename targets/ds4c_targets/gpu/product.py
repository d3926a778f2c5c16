"""The one inner product of the GPU targets: a warp computes some output rows for some token rows.

Lane `l` adds the channels of the vectors `l, l + 32, ...` of a row in order, with one fma each (formats with
scales: the products of a vector, and then the scaled sum); a butterfly adds the lanes. So a result depends
neither on the tile it was computed in nor on the number of token rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ds4c.errors import TargetError
from ds4c_runtime.launches import Dim
from ds4c_targets.common.builder import Buf
from ds4c_targets.common.expr import Expr, f32, i32, i64, mul, tirx
from ds4c_targets.gpu.args import Args
from ds4c_targets.gpu.formats import Format, Vector, format_of
from ds4c_targets.gpu.tir import GpuKernel
from ds4c_targets.gpu.tuning import WARP, Tuning


@dataclass(frozen=True)
class Product:
    """Token rows times some rows of one or more matrices of the same shape and format.

    Attributes:
        args: the launch.
        weights: operands of the matrices; what they give for a token and an output row comes together.
        rows: output rows.
        base: row of the matrices that is output row 0.
        x: left side, float32.
        x_at: element index in `x` of a token row; a multiple of the channels of a weight vector (at most 4),
            which a load needs to see in the index itself.
        store: `store(token, row, *values)` receives a result of each matrix.
    """

    args: Args
    weights: tuple[str, ...]
    rows: int
    base: int | Expr
    x: Buf
    x_at: Callable[[Expr], Expr]
    store: Callable[..., None]

    @property
    def format(self) -> Format:
        """Format of the matrices."""
        found = {self.args.spec.operand(w).dtype for w in self.weights}
        if len(found) > 1:
            raise TargetError(f"gpu product: expected matrices of one format, got {', '.join(sorted(found))}")
        return format_of(found.pop())

    @property
    def width(self) -> int:
        """Channels `K`."""
        return self.args.shape(self.weights[0])[-1]


@dataclass(frozen=True)
class TileShape:
    """How output rows are dealt out; no result depends on it.

    Attributes:
        rows: output rows of a warp.
        warps: warps of a block.
    """

    rows: int
    warps: int

    @staticmethod
    def of(tuning: Tuning, rows: int, matrices: int = 1) -> TileShape:
        """Smaller tiles and blocks for few output rows, so that all of the device has something to do."""
        each, warps = max(1, tuning.gemv_rows // matrices), tuning.warps
        while warps > 1 and rows < tuning.gemv_blocks * each * warps:
            warps //= 2
        while each > 1 and rows < tuning.gemv_blocks * each * warps:
            each //= 2
        return TileShape(each, warps)

    def tiles(self, rows: int) -> int:
        """Warps that have something to do."""
        return -(-rows // self.rows)

    def blocks(self, rows: int) -> int:
        """Blocks for so many output rows."""
        return -(-self.tiles(rows) // self.warps)


@contextmanager
def token_tiles(args: Args, operand: str, axis: int = 1) -> Generator[tuple[Expr, Expr]]:
    """The body for each tile of token rows of operand `operand`: its first row, and the number of all."""
    b, size = args.b, args.tuning.gemv_tokens
    grid = list(args.grid)
    grid[axis] = args.rows(operand, per=size)
    args.grid = (grid[0], grid[1], grid[2])
    count = b.let(args["count"][0])
    first = b.let((b.bx, b.by, b.bz)[axis] * size)
    with b.when(first < count):
        yield first, count


@contextmanager
def warp_tiles(args: Args, shape: TileShape, tiles: int, start: int = 0) -> Generator[Expr]:
    """The body for each tile of output rows, a warp each, in the blocks from `start` on."""
    b = args.b
    blocks = -(-tiles // shape.warps)
    args.grid = (Dim(start + blocks), *args.grid[1:])
    tile = b.let((b.bx - start) * shape.warps + b.warp)
    with b.when(tirx.all(tile >= 0, tile < tiles) if start else tile < tiles):
        yield tile


def product_tile(product: Product, shape: TileShape, tile: Expr, first: Expr, end: Expr) -> None:
    """Results of one warp: tile `tile` of the output rows, tokens from `first` to at most `end`."""
    b, size = product.args.b, product.args.tuning.gemv_tokens
    assert shape.rows * size <= WARP
    rows = _output_rows(product, shape, tile)
    with b.when(end - first == 1):
        _tile(product, rows, tile * shape.rows, [first], end)
    with b.otherwise():
        tokens = [b.let(tirx.Min(first + i, end - 1)) for i in range(size)]
        _tile(product, rows, tile * shape.rows, tokens, end)


def _output_rows(product: Product, shape: TileShape, tile: Expr) -> list[Expr]:
    """Rows of the matrices; past the last one that one again."""
    b, last = product.args.b, product.rows - 1
    found = [tile * shape.rows + i for i in range(shape.rows)]
    if product.rows % shape.rows:
        found = [tirx.Min(row, i32(last)) for row in found]
    return [b.let(i64(product.base) + i64(row)) for row in found]


def _tile(product: Product, rows: list[Expr], first_row: Expr, tokens: list[Expr], end: Expr) -> None:
    b = product.args.b
    sums = _sums(product, rows, tokens)
    results = [b.warp_sums([acc[i] for i in range(len(rows) * len(tokens))]) for acc in sums]
    each = WARP // (len(rows) * len(tokens))
    slot = b.let(tirx.truncdiv(b.lane, i32(each)))
    token = b.let(tokens[0] + tirx.truncdiv(slot, i32(len(rows))))
    row = b.let(first_row + tirx.truncmod(slot, i32(len(rows))))
    with b.when(_is_result(b, each) & (token < end) & (row < product.rows)):
        product.store(token, row, *results)


def _is_result(b: GpuKernel, each: int) -> Expr:
    """Whether a lane is the first of the `each` lanes that hold one result."""
    return tirx.truncmod(b.lane, i32(each)) == 0


def _sums(product: Product, rows: list[Expr], tokens: list[Expr]) -> list[Buf]:
    """Sums of each lane, `[token][row]` for each matrix."""
    b, lanes = product.args.b, product.format.vector(product.width)
    accs = [b.local(len(rows) * len(tokens)) for _ in product.weights]
    for acc in accs:
        for i in range(len(rows) * len(tokens)):
            acc[i] = 0.0
    step = min(lanes, 4)
    starts = [b.let(tirx.truncdiv(product.x_at(token), i64(step))) for token in tokens]

    def add(vectors: Sequence[Expr]) -> None:
        loaded = [[[_load(product, w, row, v) for row in rows] for w in product.weights] for v in vectors]
        for vector, matrices in zip(vectors, loaded, strict=True):
            at = b.let(i64(vector) * (lanes // step))
            for t, start in enumerate(starts):
                loads = [product.x.load((start + at + i) * step, step) for i in range(lanes // step)]
                x = [value for four in loads for value in b.elements(four)]
                for acc, several in zip(accs, matrices, strict=True):
                    for r, weights in enumerate(several):
                        i = t * len(rows) + r
                        acc[i] = _add(b, x, weights, acc[i])

    ahead = product.args.tuning.gemv_ahead if len(tokens) == 1 else 1
    _lane_vectors(b, product.width // lanes, ahead, add)
    return accs


def _lane_vectors(b: GpuKernel, count: int, ahead: int, body: Callable[[Sequence[Expr]], None]) -> None:
    """Vectors of a lane, ascending, up to `ahead` of them at once."""
    rounds, rest = divmod(count, WARP)
    if rest:
        with b.loop(rounds + 1) as i:
            vector = b.let(i * WARP + b.lane)
            with b.when(vector < count):
                body([vector])
        return
    while rounds % ahead:
        ahead //= 2
    with b.loop(rounds // ahead) as i:
        body([b.let((i * ahead + k) * WARP + b.lane) for k in range(ahead)])


def _load(product: Product, weight: str, row: Expr, vector: Expr) -> Vector:
    found = product.format.load(product.args, weight, row, vector)
    return Vector([product.args.b.let(v) for v in found.values], found.scale, found.unit)


def _add(b: GpuKernel, x: list[Expr], weights: Vector, total: Expr) -> Expr:
    part = total if weights.scale is None else f32(0.0)
    for value, weight in zip(x, weights.values, strict=True):
        part = b.fma(value, weight, part)
    if weights.scale is None:
        return part
    return b.fma(weights.scale, part if weights.unit == 1.0 else mul(weights.unit, part), total)
