"""Operands of a kernel as typed buffers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ds4c.ir.kernel import KernelSpec, MarksLayout, Operand
from ds4c_targets.common.views import ROWS_AT, BlockView, Marks, Operands, Pages, Ring
from ds4c_targets.cpu.layout import PANEL, memory_dtype, packed_elements
from ds4c_targets.cpu.tir import Buf, Kernel


@dataclass(frozen=True)
class Variant:
    """What the shape of the code may depend on; results never do.

    Attributes:
        name: `generic` or `avx512`.
        tiles: rows and panels of a tile of a matrix product. The first is used for all rows that fill
            it; then at most one tile of each smaller number of rows follows, so a number of rows is at
            most twice the next one, and the last is 1.
    """

    name: str
    tiles: tuple[tuple[int, int], ...]

    @property
    def wide(self) -> tuple[int, int]:
        """Rows and panels of the repeated tile."""
        return self.tiles[0]

    def panels(self, rows: int) -> int:
        """Panels of the tile with that many rows."""
        return dict(self.tiles)[rows]


VARIANTS = {
    "avx512": Variant("avx512", ((8, 2), (6, 4), (4, 4), (2, 4), (1, 4))),
    "generic": Variant("generic", ((4, 1), (2, 2), (1, 4))),
}


class Args(Operands):
    """The kernel under construction with its operands by name.

    Attributes:
        spec: the kernel.
        variant: tile sizes.
    """

    def __init__(self, spec: KernelSpec, variant: Variant) -> None:
        super().__init__(spec)
        self._b = Kernel()
        self.variant = variant
        self._bufs: dict[str, list[Buf]] = {}
        for operand in spec.operands:
            views = ("int32", "int64") if operand.role == "scratch" else ()
            dtype = "float32" if operand.role == "scratch" else memory_dtype(operand.dtype, operand.layout)
            self._bufs[operand.name] = self.b.param(operand.name, dtype, _elements(operand), views)

    @property
    def b(self) -> Kernel:
        """The builder."""
        return self._b

    def __getitem__(self, name: str) -> Buf:
        """Buffer of an operand."""
        return self._bufs[name][0]

    def scratch(self, dtype: str) -> Buf:
        """The scratch operand as float32, int32 or int64; parts of different types are disjoint."""
        return self._bufs["scratch"][("float32", "int32", "int64").index(dtype)]


def _elements(operand: Operand) -> int:
    if operand.role == "weight":
        return packed_elements(operand.layout, operand.dtype, operand.shape)
    if operand.role in ("ring", "append", "scratch", "snapshots"):
        return 1 << 40  # a pool: its size is not the kernel's business
    if operand.role == "marks":
        return MarksLayout(operand.shape[0], 0).size
    return prod(operand.shape)


__all__ = ["PANEL", "ROWS_AT", "VARIANTS", "Args", "BlockView", "Marks", "Pages", "Ring", "Variant"]
