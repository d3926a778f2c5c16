"""float32, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ds4c_targets.gpu.formats.base import RowFormat, Vector

if TYPE_CHECKING:
    from ds4c_targets.common.expr import Expr
    from ds4c_targets.gpu.args import Args


class _Float32(RowFormat):
    def load(self, args: Args, operand: str, row: Expr, vector: Expr) -> Vector:
        from ds4c_targets.common.expr import i64

        width = args.shape(operand)[-1]
        channels = self.vector(width)
        at = i64(row) * width + i64(vector) * channels
        return Vector(args.b.elements(args[operand].load(at, channels)))


FORMAT = _Float32("float32", 4)
