"""Matrix products as tasks: a few panels against all rows, in tiles of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ds4c_targets.cpu.args import Variant
from ds4c_targets.cpu.dot import Panel, dot_tile, panel_size
from ds4c_targets.cpu.rows import row_tiles
from ds4c_targets.cpu.tir import LANES, Buf, Expr, Kernel, i64

_TASK_PANELS = 4
_PARALLEL_WEIGHTS = 1 << 16
"""Weights from which a fork-join pays even for one row."""


@dataclass(frozen=True)
class Product:
    """Rows of `x` times one or more packed matrices of the same shape.

    Attributes:
        x: left side, float32.
        row_at: element index in `x` of a row.
        width: channels `K`.
        matrices: for each matrix, its panel by number; matrices of one product are computed together.
        panels: panels of one matrix.
        store: `store(row, panel, *vectors)` receives 16 results of each matrix.
    """

    x: Buf
    row_at: Callable[[Expr], Expr]
    width: int
    matrices: tuple[Callable[[Expr], Panel], ...]
    panels: int
    store: Callable[..., None]

    @property
    def task_panels(self) -> int:
        """Panels of one matrix in a task."""
        return max(1, _TASK_PANELS // len(self.matrices))

    @property
    def tasks(self) -> int:
        """Number of independent tasks."""
        return -(-self.panels // self.task_panels)

    @property
    def weights(self) -> int:
        """Weights of all matrices."""
        return len(self.matrices) * self.panels * LANES * self.width


def panel_of(w: Buf, width: int, base: int | Expr = 0) -> Callable[[Expr], Panel]:
    """Panels of a packed matrix that starts at element `base`."""
    return lambda p: Panel(w, i64(base) + p * panel_size(w, width))


def panel_count(rows: int) -> int:
    """Panels of a matrix with that many output rows."""
    return (rows + LANES - 1) // LANES


def store_lanes(b: Kernel, y: Buf, at: Expr, panel: Expr, rows: int, value: Expr) -> None:
    """Write the valid lanes of a panel of a matrix with `rows` output rows to `y[at + 16 * panel]`."""
    rest = rows % LANES
    if rest == 0:
        y.store(at + panel * LANES, value)
        return
    kept = b.let(value)
    with b.when(panel < i64(rows // LANES)):
        y.store(at + panel * LANES, kept)
    with b.otherwise():
        lanes = b.local(LANES)
        lanes.store(0, kept)
        with b.unroll(rest) as lane:
            y[at + panel * LANES + lane] = lanes[lane]


def _tile(b: Kernel, product: Product, rows: int, row: Expr, first: Expr, panels: range, fresh: bool) -> None:
    used = [matrix(first + i64(p)) for p in panels for matrix in product.matrices]
    start = b.let(row)
    # the panels of a task stand one after another, so the next task's begin behind the others of this one
    jump = (len(panels) - 1) * panel_size(used[0].buf, product.width) // LANES if fresh else None
    accs = dot_tile(b, product.x, lambda r: product.row_at(start + r), rows, used, product.width, jump)
    each = len(product.matrices)
    for i, p in enumerate(panels):
        with b.unroll(rows) as r:
            vectors = [acc.load(r * LANES) for acc in accs[i * each : (i + 1) * each]]
            product.store(start + r, first + i64(p), *vectors)


def _all_rows(b: Kernel, variant: Variant, product: Product, count: Expr, first: Expr, size: int) -> None:
    def body(rows: int, row: Expr) -> None:
        step = max(1, variant.panels(rows) // len(product.matrices))
        for at in range(0, size, step):
            _tile(b, product, rows, row, first, range(at, min(size, at + step)), rows != variant.wide[0])

    row_tiles(b, count, [rows for rows, _ in variant.tiles], body)


def product_task(b: Kernel, variant: Variant, product: Product, count: Expr, task: Expr) -> None:
    """One task of a product: `task_panels` panels (fewer in the last task), `count` rows."""
    size = product.task_panels
    full, rest = divmod(product.panels, size)
    first = b.let(task * size)
    if full and rest:
        with b.when(task < i64(full)):
            _all_rows(b, variant, product, count, first, size)
        with b.otherwise():
            _all_rows(b, variant, product, count, first, rest)
    else:
        _all_rows(b, variant, product, count, first, size if full else rest)


def run_products(b: Kernel, variant: Variant, count: Expr, products: Sequence[Product]) -> None:
    """All tasks of some products in one fork-join, or serially when the weights are few."""
    tasks = sum(p.tasks for p in products)
    big = sum(p.weights for p in products) >= _PARALLEL_WEIGHTS and tasks > 1
    with b.when(count > i64(0)), b.parallel(tasks) if big else b.loop(tasks) as task:
        start = 0
        for product in products:
            end = start + product.tasks
            if len(products) == 1:
                product_task(b, variant, product, count, task)
            else:
                with b.when((task >= i64(start)) & (task < i64(end))):
                    product_task(b, variant, product, count, b.let(task - i64(start)))
            start = end
