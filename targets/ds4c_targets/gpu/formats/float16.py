"""float16, row by row; read as words of two, since Metal has no vector of eight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4c_targets.gpu.formats.base import RowFormat, Vector

if TYPE_CHECKING:
    from ds4c_targets.common.expr import Expr
    from ds4c_targets.gpu.args import Args


class _Float16(RowFormat):
    def load(self, args: Args, operand: str, row: Expr, vector: Expr) -> Vector:
        from ds4c_targets.common.expr import cast, i64
        from ds4c_targets.gpu.words import load_words, two_halves

        width = args.shape(operand)[-1]
        channels = self.vector(width)
        if channels == 1:
            return Vector([cast(args.b.let(args[operand][i64(row) * width + i64(vector)]), "float32")])
        at = i64(row) * (width // 2) + i64(vector) * (channels // 2)
        words = load_words(args, operand, at, channels // 2)
        return Vector([value for word in words for value in two_halves(args.b, word)])


FORMAT = _Float16("float16", 2)
