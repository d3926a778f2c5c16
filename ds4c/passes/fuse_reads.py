"""`fuse-reads`: pool and attention read the ring themselves instead of a copy of its old rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from ds4c.ir.attention_ops import AttentionOp, PoolOp
from ds4c.ir.state_ops import ReadRowsOp
from ds4c.ir.traits import next_version
from ds4c.passes.fusion import apply_pattern, erase_if_unused


def _old_rows(op: PoolOp | AttentionOp) -> tuple[tuple[int, ...], int]:
    """Indices of the operands that hold old rows, and how many rows before the block the op looks at."""
    if isinstance(op, PoolOp):
        return (0, 2), op.every.value.data * op.lanes.value.data - 1
    return (2,), op.window.value.data - 1


def _readable(value: SSAValue, op: PoolOp | AttentionOp, span: int) -> ReadRowsOp | None:
    read = value.owner
    if not isinstance(read, ReadRowsOp) or read.span.value.data != span or read.at is not op.at:
        return None
    following = next_version(read.state)
    is_replaced = following is not None and cast(Operation, following.owner).is_before_in_block(op)
    return None if is_replaced else read


class _Fuse(RewritePattern):
    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        if not isinstance(op, PoolOp | AttentionOp):
            return
        indices, span = _old_rows(op)
        reads = [_readable(op.operands[i], op, span) for i in indices]
        if any(r is None for r in reads):
            return
        for i, read in zip(indices, reads, strict=True):
            assert read is not None
            op.operands[i] = read.state
            erase_if_unused(read, rewriter)
        rewriter.notify_op_modified(op)


@dataclass(frozen=True)
class FuseReads(ModulePass):
    """Keeps a read of another span or block, or one whose ring is written before its rows are used."""

    name = "fuse-reads"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace copies of old rows by the ring."""
        apply_pattern(op, _Fuse())
