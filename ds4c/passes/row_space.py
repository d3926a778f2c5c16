"""Which block (or row list) the leading `?` of a value counts, and how large it can be."""

from __future__ import annotations

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Block, SSAValue
from xdsl.utils.exceptions import PassFailedException

from ds4c.ir.tensor_ops import WeightOp, WindowsOp
from ds4c.ir.types import BlockType, RowsType
from ds4c.passes.plan import Plan


def row_space(value: SSAValue) -> SSAValue:
    """The `!ds4.block` or `!ds4.rows` value that says how many rows `value` has."""
    owner = value.owner
    if isinstance(owner, Block):
        if isinstance(value.type, BlockType | RowsType):
            return value
        blocks = [a for a in owner.args if isinstance(a.type, BlockType)]
        if len(blocks) != 1:
            raise PassFailedException(f"row space: expected one block argument, got {len(blocks)}")
        return blocks[0]
    if isinstance(value.type, BlockType):
        return value
    operands = list(owner.operands)
    lists = [v for v in operands if isinstance(v.type, RowsType)]
    blocks = [v for v in operands if isinstance(v.type, BlockType)]
    if lists or blocks:
        return (lists or blocks)[-1]  # pool has the block first and its windows last
    for operand in operands:
        if isinstance(operand.type, TensorType) and not isinstance(operand.owner, WeightOp):
            return row_space(operand)
    raise PassFailedException(f"row space: expected {owner.name} to have an operand with rows, got none")


def capacity(space: SSAValue, plan: Plan) -> int:
    """Largest number of rows in a space."""
    if isinstance(space.type, RowsType):
        return plan.max_logit_rows
    if isinstance(space.owner, WindowsOp):
        return plan.max_rows // space.owner.every.value.data + plan.max_segments
    return plan.max_rows
