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
from ds4c_targets.common.expr import Expr, i32, i64, mul, tirx
from ds4c_targets.gpu.args import Args
from ds4c_targets.gpu.formats import Format, Vector, format_of
from ds4c_targets.gpu.tir import GpuKernel
from ds4c_targets.gpu.tuning import WARP, Tuning

_CHUNK = 4
"""Channels whose weights are decoded at once; a load of the left side."""


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
    b, lanes, size = product.args.b, product.format.vector(product.width), len(rows) * len(tokens)
    step = min(lanes, _CHUNK)
    accs = [_zeros(b, size) for _ in product.weights]
    starts = [b.let(tirx.truncdiv(product.x_at(token), i64(step))) for token in tokens]

    def add(vectors: Sequence[Expr]) -> None:
        loaded = [[_load(product, rows, w, v) for w in product.weights] for v in vectors]
        for vector, matrices in zip(vectors, loaded, strict=True):
            at = b.let(i64(vector) * (lanes // step))
            parts = [
                _zeros(b, size) if m[0].scale is not None else acc
                for m, acc in zip(matrices, accs, strict=True)
            ]
            for chunk in range(lanes // step):
                wanted = slice(chunk * step, (chunk + 1) * step)
                weights = [[[b.let(v) for v in row.values[wanted]] for row in m] for m in matrices]
                for t, start in enumerate(starts):
                    x = b.elements(product.x.load((start + at + chunk) * step, step))
                    for part, matrix in zip(parts, weights, strict=True):
                        for r, row in enumerate(matrix, t * len(rows)):
                            part[r] = _dot(b, x, row, part[r])
            for acc, part, matrix in zip(accs, parts, matrices, strict=True):
                _add_scaled(b, acc, part, matrix, len(tokens))

    _lane_vectors(b, product.width // lanes, product.args.tuning.gemv_ahead if len(tokens) == 1 else 1, add)
    return accs


def _zeros(b: GpuKernel, size: int) -> Buf:
    found = b.local(size)
    for i in range(size):
        found[i] = 0.0
    return found


def _load(product: Product, rows: Sequence[Expr], weight: str, vector: Expr) -> list[Vector]:
    return [product.format.load(product.args, weight, row, vector) for row in rows]


def _dot(b: GpuKernel, x: Sequence[Expr], weights: Sequence[Expr], total: Expr) -> Expr:
    for value, weight in zip(x, weights, strict=True):
        total = b.fma(value, weight, total)
    return total


def _add_scaled(b: GpuKernel, acc: Buf, part: Buf, rows: Sequence[Vector], tokens: int) -> None:
    """Add the sums of a vector, if they are not in `acc` yet."""
    for t in range(tokens):
        for i, row in enumerate(rows, t * len(rows)):
            if row.scale is not None:
                scaled = part[i] if row.unit == 1.0 else mul(row.unit, part[i])
                acc[i] = b.fma(row.scale, scaled, acc[i])


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
