"""`fuse-linear`: all products of one input in one op, so that a step has fewer, larger kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from ds4c.ir.tensor_ops import LinearOp, MultiLinearOp, WeightOp


def _fuse(group: Sequence[LinearOp]) -> None:
    first = group[0]
    for op in group[1:]:
        weight = op.w.owner
        assert isinstance(weight, WeightOp)
        if first.is_before_in_block(weight):  # moves up only: its other readers stay below it
            weight.detach()
            Rewriter.insert_op(weight, InsertPoint.before(first))
    fused = MultiLinearOp(
        operands=[first.x, [op.w for op in group]], result_types=[[op.y.type for op in group]]
    )
    Rewriter.insert_op(fused, InsertPoint.before(first))
    for op, result in zip(group, fused.y, strict=True):
        Rewriter.replace_op(op, [], [result])


@dataclass(frozen=True)
class FuseLinear(ModulePass):
    """Leaves an input with a single product alone; run it after the fusions that want single products."""

    name = "fuse-linear"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Fuse the products of each function, input by input."""
        for function in op.body.block.ops:
            if not isinstance(function, func.FuncOp):
                continue
            groups: dict[SSAValue, list[LinearOp]] = {}
            for linear in function.walk():
                if isinstance(linear, LinearOp) and isinstance(linear.w.owner, WeightOp):
                    groups.setdefault(linear.x, []).append(linear)
            for group in groups.values():
                if len(group) > 1:
                    _fuse(group)
