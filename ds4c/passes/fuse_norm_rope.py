"""`fuse-norm-rope`: a norm and the rotation of its result in one op."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from ds4c.ir.tensor_ops import HeadNormOp, NormRopeOp, RmsNormOp, RopeOp
from ds4c.passes.fusion import apply_pattern, has_one_use


class _Fuse(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: RopeOp, rewriter: PatternRewriter) -> None:
        norm = op.x.owner
        if op.inverse.value.data or not isinstance(norm, RmsNormOp | HeadNormOp) or not has_one_use(norm.y):
            return
        heads = op.heads.value.data
        if isinstance(norm, RmsNormOp) and heads != 1:
            return
        if isinstance(norm, HeadNormOp) and norm.heads.value.data != heads:
            return
        gain = [norm.gain] if isinstance(norm, RmsNormOp) else []
        fused = NormRopeOp(
            operands=[[norm.x], gain, [op.table]],
            properties={"heads": op.heads, "eps": norm.eps},
            result_types=[op.y.type],
        )
        rewriter.replace(op, fused)
        rewriter.erase(norm)


@dataclass(frozen=True)
class FuseNormRope(ModulePass):
    """Leaves a norm alone that has a second reader, or whose heads differ from the rotation's."""

    name = "fuse-norm-rope"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Fuse every rotation of a norm."""
        apply_pattern(op, _Fuse())
