"""`insert-snapshots`: snapshots inside a step, and snapshot, restore, fork and rewind functions.

All follow from the declarations alone: a state with rows that are overwritten (ring, opaque) is copied, an
append state is shared by its pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import DYNAMIC_INDEX, IndexType, ModuleOp, TensorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import SymbolTable
from xdsl.utils.exceptions import PassFailedException

from ds4c.ir.state_ops import (
    CloseOp,
    ForkOp,
    OpenOp,
    RestoreOp,
    RewindOp,
    SnapshotOp,
    SnapshotRowsOp,
    StateOp,
    WriteOp,
    states_of,
)
from ds4c.ir.types import MarksType, StateKind
from ds4c.passes.plan import Plan


@dataclass(frozen=True)
class InsertSnapshots(ModulePass):
    """No list of buffers is written by hand anywhere: the functions cover every declared state."""

    name = "insert-snapshots"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Add `@snapshot`, `@restore`, `@fork` and `@rewind`, and the argument `%marks` of `@step`.

        Raises:
            PassFailedException: no plan, or one of the names is taken.
        """
        plan = Plan.of(op, self.name)
        decls = [d for d in states_of(op) if d.state_kind is not StateKind.HOST]
        for function in (_snapshot(decls), _restore(decls), _fork(decls), _rewind(plan.horizon)):
            if SymbolTable.lookup_symbol(op, function.sym_name.data) is not None:
                raise PassFailedException(
                    f"insert-snapshots: @{function.sym_name.data}: expected a free name, got a function that "
                    "is there already"
                )
            op.body.block.add_op(function)
        step = SymbolTable.lookup_symbol(op, "step")
        if isinstance(step, func.FuncOp):
            _mark_step(step)


def _mark_step(step: func.FuncOp) -> None:
    """Copy the rows of the positions in `%marks` before the block's rows are written over others."""
    block = step.body.block
    marks = block.insert_arg(MarksType(), len(block.args))
    marks.name_hint = "marks"
    for op in list(block.ops):
        if isinstance(op, WriteOp):
            copy = SnapshotRowsOp(operands=[op.state, op.rows, op.at, marks])
            block.insert_op_before(copy, op)
    step.update_function_type()


def _function(
    name: str,
    arguments: Sequence[tuple[str, Attribute]],
    results: Sequence[Attribute],
    body: Callable[[Block, Sequence[SSAValue]], Sequence[SSAValue]],
) -> func.FuncOp:
    types = [t for _, t in arguments]
    block = Block(arg_types=types)
    for (hint, _), value in zip(arguments, block.args, strict=True):
        value.name_hint = hint
    block.add_op(func.ReturnOp(*body(block, block.args)))
    return func.FuncOp(name, (types, list(results)), Region(block))


def _rows(decl: StateOp) -> TensorType[Attribute]:
    return TensorType(decl.row.element_type, [DYNAMIC_INDEX, *decl.row.get_shape()[1:]])


def _index(*names: str) -> list[tuple[str, Attribute]]:
    return [(n, IndexType()) for n in names]


def _snapshot(decls: Sequence[StateOp]) -> func.FuncOp:
    def body(block: Block, args: Sequence[SSAValue]) -> list[SSAValue]:
        out: list[SSAValue] = []
        for decl in decls:
            opened = OpenOp.of(decl.state_name)
            copy = SnapshotOp(operands=[opened.res, *args], result_types=[_rows(decl)])
            block.add_ops([opened, copy])
            out.append(copy.res)
        return out

    return _function("snapshot", _index("slot", "at"), [_rows(d) for d in decls], body)


def _replacing(
    decls: Sequence[StateOp], make: Callable[[int, SSAValue], Operation]
) -> Callable[[Block, Sequence[SSAValue]], Sequence[SSAValue]]:
    """Body that opens every state, replaces it by `make(index, opened)` and closes it."""

    def body(block: Block, args: Sequence[SSAValue]) -> Sequence[SSAValue]:
        for i, decl in enumerate(decls):
            opened = OpenOp.of(decl.state_name)
            op = make(i, opened.res)
            block.add_ops([opened, op, CloseOp(operands=[op.results[0]])])
        return ()

    return body


def _restore(decls: Sequence[StateOp]) -> func.FuncOp:
    rows = [(d.state_name.replace(".", "_"), _rows(d)) for d in decls]

    def body(block: Block, args: Sequence[SSAValue]) -> Sequence[SSAValue]:
        slot, at, *saved = args

        def make(i: int, state: SSAValue) -> Operation:
            return RestoreOp(operands=[state, saved[i], slot, at], result_types=[state.type])

        return _replacing(decls, make)(block, args)

    return _function("restore", [*_index("slot", "at"), *rows], [], body)


def _fork(decls: Sequence[StateOp]) -> func.FuncOp:
    def body(block: Block, args: Sequence[SSAValue]) -> Sequence[SSAValue]:
        def make(i: int, state: SSAValue) -> Operation:
            return ForkOp(operands=[state, *args], result_types=[state.type])

        return _replacing(decls, make)(block, args)

    return _function("fork", _index("source", "target", "first", "at"), [], body)


def _rewind(horizon: int) -> func.FuncOp:
    def body(block: Block, args: Sequence[SSAValue]) -> Sequence[SSAValue]:
        to, position, high_water, floor = args
        op = RewindOp.make(to, position, high_water, floor, horizon)
        block.add_op(op)
        return [op.res]

    return _function("rewind", _index("to", "position", "high_water", "floor"), [IndexType()], body)
