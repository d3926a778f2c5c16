"""GGUF's q8_0: blocks of 32 channels, a float16 scale `d` and signed bytes `q`; a weight is `d * q`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ds4c_targets.gpu.formats.base import Format, Vector, check_blocks, parts

if TYPE_CHECKING:
    from ds4c_targets.common.expr import Expr
    from ds4c_targets.gpu.args import Args

_BLOCK = 32
_CHANNELS = 16


class _Q8(Format):
    """All bytes row by row, then from a multiple of 64 bytes all scales: loads of 16 bytes need that."""

    name = layout = "q8_0"

    def vector(self, width: int) -> int:
        check_blocks(self.name, width, _BLOCK)
        return _CHANNELS

    def packed_bytes(self, rows: int, width: int) -> int:
        check_blocks(self.name, width, _BLOCK)
        return parts(rows * width, 2 * rows * width // _BLOCK)[-1]

    def pack(self, array: NDArray[Any]) -> NDArray[Any]:
        """From uint8 `[..., N, K / 32, 34]`, the blocks of a file."""
        quants, scales = array[..., 2:], array[..., :2]
        start, end = parts(quants.size, scales.size)
        out = np.zeros(end, np.uint8)
        out[: quants.size] = quants.reshape(-1)
        out[start : start + scales.size] = scales.reshape(-1)
        return out

    def load(self, args: Args, operand: str, row: Expr, vector: Expr) -> Vector:
        from ds4c_targets.common.expr import cast, i64, tirx
        from ds4c_targets.gpu.words import load_words, signed_byte

        width, rows = args.shape(operand)[-1], args.matrix_rows(operand)
        start, _ = parts(rows * width, 2 * rows * width // _BLOCK)
        words = load_words(args, operand, i64(row) * (width // 4) + i64(vector) * (_CHANNELS // 4), 4)
        block = i64(row) * (width // _BLOCK) + i64(tirx.truncdiv(vector, tirx.IntImm("int32", 2)))
        scale = args.b.let(cast(args.view(operand, "float16", start)[block], "float32"))
        return Vector([signed_byte(word, i) for word in words for i in range(4)], scale)


FORMAT = _Q8()
