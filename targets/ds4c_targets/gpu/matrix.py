"""Matrix units as data: which element of a tile each lane holds. No tvm here.

The maps take a lane (0 to `lanes - 1`) and the number of an element of that lane; both may be expressions, so
they use shifts and masks only. Sources: PTX ISA (mma.m16n8k16 with .f16), the RDNA 3 and RDNA 4 ISA guides
(v_wmma_f32_16x16x16_f16, wave of 32) and the CDNA 3 ISA guide (v_mfma_f32_16x16x16_f16).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Index = Any
"""An int, or an int32 expression."""
LaneMap = Callable[[Index, int], tuple[Index, Index]]


@dataclass(frozen=True)
class MatrixForm:
    """`D[rows, columns] += A[rows, depth] @ B[columns, depth].T`, float16 in and float32 out.

    Attributes:
        name: as in a tuning.
        function: of the text, or LLVM's name of the instruction.
        lanes: threads that work together.
        rows, columns, depth: of a tile.
        held: elements of a lane, of A, B and D.
        run: elements of A and of B that are neighbours along the depth.
        a, b: `(lane, i) -> (row, place along the depth)`; of B a row is a column of the tile.
        d: `(lane, i) -> (row, column)`.
        zeros: int32 arguments behind the operands.
    """

    name: str
    function: str
    lanes: int
    rows: int
    columns: int
    depth: int
    held: tuple[int, int, int]
    run: int
    a: LaneMap
    b: LaneMap
    d: LaneMap
    zeros: int = 0

    @property
    def is_intrinsic(self) -> bool:
        """Whether it is an instruction of LLVM; else a function of the text."""
        return self.function.startswith("llvm.")


def _low16(lane: Index, i: int) -> tuple[Index, Index]:
    return lane & 15, i


def _mma_a(lane: Index, i: int) -> tuple[Index, Index]:
    return (lane >> 2) + 8 * (i >> 1 & 1), (lane & 3) * 2 + (i & 1) + 8 * (i >> 2)


def _mma_b(lane: Index, i: int) -> tuple[Index, Index]:
    return lane >> 2, (lane & 3) * 2 + (i & 1) + 8 * (i >> 1)


def _mma_d(lane: Index, i: int) -> tuple[Index, Index]:
    return (lane >> 2) + 8 * (i >> 1), (lane & 3) * 2 + (i & 1)


def _eights(lane: Index, i: int) -> tuple[Index, Index]:
    return lane & 15, (lane >> 4) * 8 + i


def _fours(lane: Index, i: int) -> tuple[Index, Index]:
    return lane & 15, (lane >> 4) * 4 + i


def _turned(of: LaneMap) -> LaneMap:
    """The same elements with rows and columns exchanged."""

    def turned(lane: Index, i: int) -> tuple[Index, Index]:
        column, row = of(lane, i)
        return row, column

    return turned


def _interleaved(lane: Index, i: int) -> tuple[Index, Index]:
    return (lane >> 4) + 2 * i, lane & 15


_WMMA = "llvm.amdgcn.wmma.f32.16x16x16.f16"
_MFMA = "llvm.amdgcn.mfma.f32.16x16x16f16"
FORMS: Mapping[str, MatrixForm] = {
    form.name: form
    for form in (
        MatrixForm("mma", "ds4_mma_m16n8k16", 32, 16, 8, 16, (8, 4, 4), 2, _mma_a, _mma_b, _mma_d),
        MatrixForm("wmma-gfx11", _WMMA, 32, 16, 16, 16, (16, 16, 8), 16, _low16, _low16, _interleaved),
        MatrixForm("wmma-gfx12", _WMMA, 32, 16, 16, 16, (8, 8, 8), 8, _eights, _eights, _turned(_eights)),
        MatrixForm("mfma-gfx942", _MFMA, 64, 16, 16, 16, (4, 4, 4), 4, _fours, _fours, _turned(_fours), 3),
    )
}
"""Forms by name."""
