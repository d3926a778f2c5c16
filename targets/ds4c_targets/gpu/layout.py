"""How operands lie in the memory of a GPU: row-major, 16-bit floats as they are. Needs NumPy only."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c.errors import TargetError
from ds4c_targets.gpu.formats import Format, formats

ROW = "row"
SPLIT = "split"
"""float64 as float32 `[2, ...]`: the nearest float32 of each number, then what is left of it."""

_SIZES = {"float32": 4, "float16": 2, "uint16": 2, "int32": 4, "uint8": 1}


def memory_dtype(dtype: str) -> str:
    """Element type of a kernel's buffer for an operand of `dtype`."""
    return {"bfloat16": "uint16", "int64": "int32", "float64": "float32"}.get(dtype, dtype)


def packed_bytes(layout: str, dtype: str, shape: tuple[int, ...]) -> int:
    """Size of a packed weight in bytes.

    Raises:
        TargetError: an unknown dtype, or a layout or shape that it does not have.
    """
    if layout not in (ROW, SPLIT):
        return _format(layout).packed_bytes(prod(shape[:-1]), shape[-1])
    kind = memory_dtype(dtype)
    if kind not in _SIZES or (layout == SPLIT) != (dtype == "float64"):
        raise TargetError(f"gpu weight: expected a dtype of {sorted(_SIZES)}, got {dtype} as {layout}")
    return prod(shape) * _SIZES[kind] * (2 if layout == SPLIT else 1)


def pack(array: NDArray[Any], layout: str) -> NDArray[Any]:
    """Packed form of a weight, C-contiguous; formats with blocks come as those of their file.

    Raises:
        TargetError: unknown layout, or an int64 value that int32 cannot hold.
    """
    if layout == SPLIT:
        high = array.astype(np.float32)
        return np.ascontiguousarray(np.stack([high, (array - high).astype(np.float32)]))
    if layout != ROW:
        return _format(layout).pack(array)
    if array.dtype == np.int64:
        narrow = array.astype(np.int32)
        if not np.array_equal(narrow, array):
            raise TargetError(f"gpu weight: expected values that int32 holds, got {np.abs(array).max()}")
        array = narrow
    return np.ascontiguousarray(array)


def weight_layout(dtype: str) -> str:
    """Layout of a weight: `split` for float64, which not every GPU has, that of its format, or `row`."""
    if dtype == "float64":
        return SPLIT
    known = formats()
    return known[dtype].layout if dtype in known else ROW


def _format(layout: str) -> Format:
    for each in formats().values():
        if each.layout == layout != ROW:
            return each
    raise TargetError(f"gpu weight layout: expected one of {', '.join(_layouts())}, got {layout!r}")


def _layouts() -> list[str]:
    return sorted({ROW, SPLIT, *(f.layout for f in formats().values())})
