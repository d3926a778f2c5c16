"""How weights lie in memory: 16-row panels for matrices, rows for everything else.

`panel16` of `[N, K]` is `[ceil(N / 16)][K][16]` float32, or `[ceil(N / 16)][ceil(K / 2)][16][2]`
bfloat16; rows past `N` and channels past `K` are zero. A stack `[E, N, K]` is packed matrix by
matrix. float16 weights are widened to float32, as conversion in the kernel would cost more than
the bytes it saves. This module needs NumPy only.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c.errors import TargetError

PANEL = 16
ROW = "row"
PANEL16 = "panel16"

_SIZES = {"float32": 4, "float64": 8, "int32": 4, "uint16": 2}


def memory_dtype(dtype: str, layout: str) -> str:
    """Element type of a kernel's buffer for a weight or activation of `dtype`."""
    if layout == PANEL16 and dtype == "bfloat16":
        return "int32"  # a pair of channels
    return {"float16": "float32", "bfloat16": "uint16", "int64": "int32"}.get(dtype, dtype)


def panel_elements(dtype: str, rows: int, width: int) -> int:
    """Buffer elements of one packed matrix `[rows, width]`."""
    steps = (width + 1) // 2 if dtype == "bfloat16" else width
    return (rows + PANEL - 1) // PANEL * PANEL * steps


def packed_elements(layout: str, dtype: str, shape: tuple[int, ...]) -> int:
    """Buffer elements of a packed weight."""
    if layout == PANEL16:
        return prod(shape[:-2]) * panel_elements(dtype, *shape[-2:])
    if layout == ROW:
        return prod(shape)
    raise TargetError(f"cpu weight layout: expected {ROW} or {PANEL16}, got {layout!r}")


def packed_bytes(layout: str, dtype: str, shape: tuple[int, ...]) -> int:
    """Size of a packed weight in bytes."""
    kind = memory_dtype(dtype, layout)
    if kind not in _SIZES:
        raise TargetError(f"cpu weight: expected a dtype of {sorted(_SIZES)}, got {dtype}")
    return packed_elements(layout, dtype, shape) * _SIZES[kind]


def pack(array: NDArray[Any], layout: str) -> NDArray[Any]:
    """Packed form of a weight, C-contiguous.

    Raises:
        TargetError: unknown layout, or an int64 value that int32 cannot hold.
    """
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    if array.dtype == np.int64:
        narrow = array.astype(np.int32)
        if not np.array_equal(narrow, array):
            raise TargetError(f"cpu weight: expected values that int32 holds, got {np.abs(array).max()}")
        array = narrow
    if layout == ROW:
        return np.ascontiguousarray(array)
    if layout != PANEL16:
        raise TargetError(f"cpu weight layout: expected {ROW} or {PANEL16}, got {layout!r}")
    return _panels(array)


def _panels(array: NDArray[Any]) -> NDArray[Any]:
    pair = 2 if array.dtype.itemsize == 2 else 1
    *stack, rows, width = array.shape
    padding = [(0, 0)] * len(stack) + [(0, -rows % PANEL), (0, -width % pair)]
    full = np.pad(array.view(np.uint16) if pair == 2 else array, padding)
    split = full.reshape(-1, full.shape[-2] // PANEL, PANEL, full.shape[-1] // pair, pair)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 2, 4)).view(array.dtype)
