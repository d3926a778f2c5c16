"""`fuse-index-select`: indexer scores and selection in one op, so that no score is ever stored."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from ds4c.ir.attention_ops import IndexScoresOp, IndexSelectOp, SelectRowsOp
from ds4c.passes.fusion import apply_pattern, has_one_use


class _Fuse(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SelectRowsOp, rewriter: PatternRewriter) -> None:
        scores = op.scores.owner
        if not isinstance(scores, IndexScoresOp) or not has_one_use(scores.scores):
            return
        if scores.at is not op.at or scores.every != op.every:
            return
        fused = IndexSelectOp(
            operands=[scores.q, scores.weights, scores.rows, op.at],
            properties={"every": op.every, "scale": scores.scale, "top_k": op.top_k},
            result_types=[op.selection.type],
        )
        rewriter.replace(op, fused)
        rewriter.erase(scores)


@dataclass(frozen=True)
class FuseIndexSelect(ModulePass):
    """Leaves scores alone that have a second reader."""

    name = "fuse-index-select"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Fuse every selection."""
        apply_pattern(op, _Fuse())
