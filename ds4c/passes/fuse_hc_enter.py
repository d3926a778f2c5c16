"""`fuse-hc-enter`: control vector, sublayer input and its norm in one op."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from ds4c.ir.tensor_ops import HcEnterOp, HcMixOp, HcPreOp, RmsNormOp
from ds4c.passes.fusion import apply_pattern, has_one_use


def _is_read_before(op: Operation, *values: SSAValue) -> bool:
    return any(use.operation.is_before_in_block(op) for value in values for use in value.uses)


class _Fuse(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: RmsNormOp, rewriter: PatternRewriter) -> None:
        pre = op.x.owner
        if not isinstance(pre, HcPreOp) or not has_one_use(pre.u):
            return
        mix = pre.pre.owner
        if not isinstance(mix, HcMixOp) or mix.x is not pre.x or not has_one_use(mix.pre):
            return
        if mix.norm_eps != op.eps or _is_read_before(op, mix.post, mix.mix):
            return
        fused = HcEnterOp(
            operands=[mix.x, mix.fn, mix.base, mix.scale, op.gain],
            properties={"iters": mix.iters, "eps": mix.eps, "norm_eps": mix.norm_eps},
            result_types=[op.y.type, mix.post.type, mix.mix.type],
        )
        rewriter.insert(fused)
        mix.post.replace_all_uses_with(fused.post)
        mix.mix.replace_all_uses_with(fused.mix)
        rewriter.replace(op, [], [fused.h])
        rewriter.erase(pre)
        rewriter.erase(mix)


@dataclass(frozen=True)
class FuseHcEnter(ModulePass):
    """Leaves a site alone whose `pre` or sublayer input has a second reader, or whose mix is read early."""

    name = "fuse-hc-enter"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Fuse every hyper-connection entry."""
        apply_pattern(op, _Fuse())
