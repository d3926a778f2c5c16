"""OCP's MXFP4: blocks of 32 e2m1 numbers (sign, two bits of exponent, one of mantissa) with an e8m0 scale.

The codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; the scale is `2**(e - 127)`, infinite for 255.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ds4c_targets.gpu.formats.base import Format, Vector, check_blocks, parts

if TYPE_CHECKING:
    from ds4c_targets.common.expr import Expr
    from ds4c_targets.gpu.args import Args

_BLOCK = 32


class _Mxfp4(Format):
    """All codes row by row, then from a multiple of 64 bytes all scales.

    A block is four words; the codes of channels `8 w + 2 i` and `8 w + 2 i + 1` stand at bits `4 i` and
    `4 i + 16` of word `w`, where one shift and one mask bring both to their places in two float16.
    """

    name = layout = "mxfp4"

    def vector(self, width: int) -> int:
        check_blocks(self.name, width, _BLOCK)
        return _BLOCK

    def packed_bytes(self, rows: int, width: int) -> int:
        check_blocks(self.name, width, _BLOCK)
        return parts(rows * width // 2, rows * width // _BLOCK)[-1]

    def pack(self, array: NDArray[Any]) -> NDArray[Any]:
        """From uint8 `[..., N, K / 32, 17]`, the blocks of GGUF.

        These are the scale and 16 bytes, channels 0 to 15 in the low halves and 16 to 31 in the high ones.
        """
        scales, pairs = array[..., 0], array[..., 1:]
        codes = np.concatenate([pairs & 15, pairs >> 4], axis=-1).reshape(-1, 4, 2).astype(np.uint32)
        shifts = np.arange(4, dtype=np.uint32) * 4
        words = np.bitwise_or.reduce(codes[..., 0] << shifts | codes[..., 1] << (shifts + 16), axis=1)
        start, end = parts(pairs.size, scales.size)
        out = np.zeros(end, np.uint8)
        out[: pairs.size] = words.astype("<u4").view(np.uint8)
        out[start : start + scales.size] = scales.reshape(-1)
        return out

    def load(self, args: Args, operand: str, row: Expr, vector: Expr) -> Vector:
        from ds4c_targets.common.expr import i64
        from ds4c_targets.gpu.words import load_words, power_of_two, two_e2m1

        width, rows = args.shape(operand)[-1], args.matrix_rows(operand)
        start, _ = parts(rows * width // 2, rows * width // _BLOCK)
        block = args.b.let(i64(row) * (width // _BLOCK) + i64(vector))
        words = load_words(args, operand, block * 4, 4)
        scale = args.b.let(power_of_two(args.view(operand, "uint8", start)[block]))
        values = [value for word in words for i in range(4) for value in two_e2m1(args.b, word, i)]
        return Vector(values, scale, 2.0**14)


FORMAT = _Mxfp4()
