"""`expand-macros`: `compressor_step` becomes read_rows, pool, norm, rope, append and two ring writes."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from ds4c.ir.attention_ops import PoolOp
from ds4c.ir.state_ops import AppendOp, CompressorStepOp, Int, ReadRowsOp, WriteOp, find_state
from ds4c.ir.tensor_ops import RmsNormOp, RopeOp, shape
from ds4c.ir.types import StateType, rows_tensor


class _Expand(RewritePattern):
    def __init__(self, module: ModuleOp) -> None:
        self.module = module

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: CompressorStepOp, rewriter: PatternRewriter) -> None:
        assert isinstance(op.rows.type, StateType)
        every = find_state(self.module, op.rows.type.state_name).row_every
        lanes = op.lanes.value.data
        width = shape(op.kv_rows)[1]
        span = {"span": Int(every * lanes - 1, 64)}
        old_type = rows_tensor(every * lanes - 1, width)
        reads = [
            ReadRowsOp(operands=[s, op.at], properties=dict(span), result_types=[old_type])
            for s in (op.kv, op.score)
        ]
        pooled: TensorType = rows_tensor(width // lanes)
        pool = PoolOp(
            operands=[reads[0].rows, op.kv_rows, reads[1].rows, op.score_rows, op.at, op.windows],
            properties={"every": Int(every, 64), "lanes": op.lanes},
            result_types=[pooled],
        )
        norm = RmsNormOp(operands=[pool.rows, op.gain], properties={"eps": op.eps}, result_types=[pooled])
        rope = RopeOp(
            operands=[norm.y, op.table],
            properties={"heads": Int(1, 64), "inverse": Int(0, 64)},
            result_types=[pooled],
        )
        append = AppendOp(operands=[op.rows, rope.y, op.windows], result_types=[op.rows.type])
        kv = WriteOp(operands=[op.kv, op.kv_rows, op.at], result_types=[op.kv.type])
        score = WriteOp(operands=[op.score, op.score_rows, op.at], result_types=[op.score.type])
        new: list[Operation] = [*reads, pool, norm, rope, append, kv, score]
        rewriter.replace(op, new, [kv.res, score.res, append.res])


@dataclass(frozen=True)
class ExpandMacros(ModulePass):
    """Rings are read first and written last, rows are appended before anybody reads them."""

    name = "expand-macros"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace every macro."""
        PatternRewriteWalker(_Expand(op), apply_recursively=False).rewrite_module(op)
