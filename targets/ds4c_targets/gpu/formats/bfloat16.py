"""bfloat16, row by row; read as words of two, because not every target has the type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4c_targets.gpu.formats.base import RowFormat, Vector

if TYPE_CHECKING:
    from ds4c_targets.common.expr import Expr
    from ds4c_targets.gpu.args import Args


class _BFloat16(RowFormat):
    def load(self, args: Args, operand: str, row: Expr, vector: Expr) -> Vector:
        from ds4c_targets.common.expr import i64
        from ds4c_targets.gpu.words import load_words, two_bfloats

        width = args.shape(operand)[-1]
        channels = self.vector(width)
        if channels == 1:
            return Vector([args.b.let(args[operand].load(i64(row) * width + i64(vector), 1))])
        at = i64(row) * (width // 2) + i64(vector) * (channels // 2)
        words = load_words(args, operand, at, channels // 2)
        return Vector([value for word in words for value in two_bfloats(word)])


FORMAT = _BFloat16("bfloat16", 2)
