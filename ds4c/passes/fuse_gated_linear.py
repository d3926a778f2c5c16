"""`fuse-gated-linear`: gate product, up product and SwiGLU in one op."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from ds4c.ir.tensor_ops import GatedLinearOp, LinearOp, SwigluOp
from ds4c.passes.fusion import apply_pattern, has_one_use


class _Fuse(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SwigluOp, rewriter: PatternRewriter) -> None:
        gate, up = op.gate.owner, op.up.owner
        if not isinstance(gate, LinearOp) or not isinstance(up, LinearOp) or gate.x is not up.x:
            return
        if gate is up or not (has_one_use(gate.y) and has_one_use(up.y)):
            return
        fused = GatedLinearOp(
            operands=[gate.x, gate.w, up.w], properties={"clamp": op.clamp}, result_types=[op.y.type]
        )
        rewriter.replace(op, fused)
        rewriter.erase(gate)
        rewriter.erase(up)


@dataclass(frozen=True)
class FuseGatedLinear(ModulePass):
    """Leaves a product alone that has a second reader."""

    name = "fuse-gated-linear"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Fuse every SwiGLU of two products of one input."""
        apply_pattern(op, _Fuse())
