"""`lower-to-kernels`: ops become calls of kernels named by digest, state versions become buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    FunctionType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
    TensorType,
    i32,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.utils.exceptions import PassFailedException

from ds4c.ir.attention_ops import CallKernelOp
from ds4c.ir.interp import attributes
from ds4c.ir.kernel import KernelSpec, Operand
from ds4c.ir.state_ops import (
    CloseOp,
    ForkOp,
    OpenOp,
    ReadRowsOp,
    RestoreOp,
    SnapshotOp,
    StateOp,
    states_of,
)
from ds4c.ir.tensor_ops import WeightOp, shape
from ds4c.ir.traits import states_read, states_replaced
from ds4c.ir.types import BlockType, MarksType, RowsType, StateKind, StateType, shape_text, widths
from ds4c.passes.elements import element_name
from ds4c.passes.plan import Plan
from ds4c.passes.plan_state import live_form
from ds4c.passes.row_space import capacity, row_space
from ds4c.passes.target import Target, get_target

COPIES = {"snapshot": SnapshotOp, "restore": RestoreOp}
"""Functions that copy live rows between the slots and the arena of snapshots, and the op they are made of."""


@dataclass(frozen=True)
class LowerToKernels(ModulePass):
    """Order is program order; a read of a version that was already replaced is an error here."""

    name = "lower-to-kernels"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Lower `@step`, `@snapshot`, `@restore` and `@fork`; other functions stay as text."""
        lowering = _Lowering(op, Plan.of(op, self.name), get_target(self.target))
        for function in list(op.body.block.ops):
            if not isinstance(function, func.FuncOp):
                continue
            name = function.sym_name.data
            if name == "step":
                lowering.function(function)
            elif name == "fork":
                lowering.fork(function)
            elif name in COPIES:
                lowering.copies(function)


@dataclass
class _Lowering:
    module: ModuleOp
    plan: Plan
    target: Target
    current: dict[str, SSAValue] = field(default_factory=dict[str, SSAValue])

    def __post_init__(self) -> None:
        self.decls = {d.state_name: d for d in states_of(self.module)}

    def function(self, function: func.FuncOp) -> None:
        self.current = {}
        ops = list(function.body.block.ops)
        calls: list[tuple[Operation, CallKernelOp]] = []
        for op in ops:
            if isinstance(op, OpenOp):
                self.current[_state(op.res)] = op.res
            elif not isinstance(op, WeightOp | func.ReturnOp | CloseOp):
                self._check_versions(op)
                calls.append((op, self._call(op)))
        for op, call in calls:  # only now: sizes of values follow from the ops that make them
            _replace_results(op, call)
        for op in reversed(ops):
            if not isinstance(op, WeightOp | func.ReturnOp) and op.parent is not None:
                op.detach()
                op.erase(safe_erase=False)

    def _check_versions(self, op: Operation) -> None:
        for value in (*states_read(op), *states_replaced(op)):
            if self.current[_state(value)] is not value:
                raise PassFailedException(
                    f"lower-to-kernels: @{_state(value)}: expected {op.name} to use the version in force, "
                    "got one that an earlier op replaced; move the read before the write"
                )
        results = [r for r in op.results if isinstance(r.type, StateType)]
        for value, result in zip(states_replaced(op), results, strict=True):
            self.current[_state(value)] = result

    def _call(self, op: Operation) -> CallKernelOp:
        spec, ins, buffers = self._spec(op)
        call = make_call(spec, ins, buffers, _tensor_results(op))
        Rewriter.insert_op(call, InsertPoint.before(op))
        return call

    def _spec(self, op: Operation) -> tuple[KernelSpec, list[SSAValue], list[str]]:
        operands: list[Operand] = []
        ins: list[SSAValue] = []
        buffers: list[str] = []
        for name, value in _operands(op):
            operands.append(self._operand(name, value))
            if isinstance(value.type, StateType):
                buffers.append(_state(value))
            else:
                ins.append(value)
        roles = {o.role for o in operands}
        for name, value in _results(op):
            if not isinstance(value.type, StateType):
                operands.append(self._result(name, op, value))
        if not roles & {"block", "rows"}:
            space = row_space(op.results[0])
            ins.append(space)
            operands.append(Operand("count", "count", "int32", (1,)))
        attrs = {k: v for k, v in attributes(op).items() if k != "operandSegmentSizes"}
        if "append" in roles or "window" in attrs:
            attrs["context"] = self.plan.context
        if "append" in roles:
            tables = (self.plan.max_segments, self.plan.pages_per_session)
            operands.append(Operand("pages", "pages", "int32", tables))
        if "marks" in roles:
            attrs |= self._live(self.decls[buffers[0]])
            operands += self._copy_operands(self.decls[buffers[0]])
        spec = KernelSpec(op.name.removeprefix("ds4."), tuple(sorted(attrs.items())), tuple(operands))
        scratch = self.target.scratch_bytes(spec)
        if scratch:
            spec = replace(
                spec, operands=(*spec.operands, Operand("scratch", "scratch", "uint8", (scratch,)))
            )
        return spec, ins, buffers

    def _operand(self, name: str, value: SSAValue) -> Operand:
        if isinstance(value.type, StateType):
            return self._state(name, self.decls[_state(value)])
        if isinstance(value.type, BlockType):
            rows = capacity(row_space(value), self.plan)
            return Operand(name, "block", "int32", (rows, self.plan.max_segments))
        if isinstance(value.type, MarksType):
            return Operand(name, "marks", "int32", (self.plan.max_marks,))
        if isinstance(value.type, RowsType):
            return Operand(name, "rows", "int32", (self.plan.max_logit_rows,))
        if isinstance(value.owner, WeightOp):
            layout = value.owner.layout.data if value.owner.layout else "row"
            return Operand(name, "weight", element_name(value.type), shape(value), layout)
        return Operand(name, "in", element_name(value.type), self._shape(value))

    def _result(self, name: str, op: Operation, value: SSAValue) -> Operand:
        if isinstance(value.type, BlockType):
            rows = capacity(value, self.plan)
            return Operand(name, "block", "int32", (rows, self.plan.max_segments))
        return Operand(name, "out", element_name(value.type), self._shape(value))

    def _shape(self, value: SSAValue) -> tuple[int, ...]:
        assert isinstance(value.type, TensorType)
        if DYNAMIC_INDEX in widths(value.type):
            raise PassFailedException(
                f"lower-to-kernels: a result of {_maker(value)}: expected static widths, got "
                f"{shape_text(shape(value))}; run the fusion that keeps it inside a kernel"
            )
        if isinstance(value.owner, ReadRowsOp):  # one entry per segment, not per row
            return (self.plan.max_segments, *widths(value.type))
        return (capacity(row_space(value), self.plan), *widths(value.type))

    def _state(self, name: str, decl: StateOp) -> Operand:
        assert decl.capacity is not None
        dtype = element_name(decl.row)
        every = decl.row_every
        if decl.state_kind is StateKind.APPEND:
            rows = self.plan.page_tokens // every
            return Operand(name, "append", dtype, (rows, decl.width), "", self.plan.page_bytes, every)
        return Operand(name, "ring", dtype, (decl.capacity, decl.width), "", self.plan.slot_bytes, every)

    def _live(self, decl: StateOp) -> dict[str, int]:
        align, back = live_form(decl)
        return {"align": align, "back": back}

    def _copy_operands(self, decl: StateOp) -> list[Operand]:
        """Where the rows of a ring stand in each snapshot, and the arena of snapshots."""
        return [
            Operand("offsets", "offsets", "int32", (self.plan.max_marks,)),
            Operand("snapshots", "snapshots", element_name(decl.row), ()),
        ]

    def fork(self, function: func.FuncOp) -> None:
        """`@fork(%args)`: ring rows only, since the runtime shares the pages of append states."""
        self._rings_only(function, ForkOp, "args", TensorType(i32, [4]))

    def copies(self, function: func.FuncOp) -> None:
        """`@snapshot(%marks)`, `@restore(%marks)`: the same, for a list of slots and positions."""
        self._rings_only(function, COPIES[function.sym_name.data], "marks", MarksType())

    def _rings_only(
        self, function: func.FuncOp, op_type: type[Operation], argument: str, of_type: Attribute
    ) -> None:
        block = Block(arg_types=[of_type])
        block.args[0].name_hint = argument
        name = function.sym_name.data
        for op in function.walk():
            if not isinstance(op, op_type):
                continue
            decl = self.decls[_state(op.operands[0])]
            if decl.state_kind is StateKind.APPEND:
                continue
            operands = [self._state("state", decl)]
            if isinstance(of_type, MarksType):
                operands.append(Operand(argument, "marks", "int32", (self.plan.max_marks,)))
                operands += self._copy_operands(decl)
            else:
                operands.append(Operand(argument, "in", "int32", (4,)))
            spec = KernelSpec(name, tuple(sorted(self._live(decl).items())), tuple(operands))
            block.add_op(make_call(spec, [block.args[0]], [decl.state_name], []))
        block.add_op(func.ReturnOp())
        types = FunctionType.from_lists([of_type], [])
        Rewriter.replace_op(function, func.FuncOp(name, types, Region(block)))


def _tensor_results(op: Operation) -> list[SSAValue]:
    return [r for r in op.results if not isinstance(r.type, StateType)]


def _replace_results(op: Operation, call: CallKernelOp) -> None:
    for old, new in zip(_tensor_results(op), call.outs, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)


def _maker(value: SSAValue) -> str:
    return "a function argument" if isinstance(value.owner, Block) else value.owner.name


def make_call(
    spec: KernelSpec, ins: Sequence[SSAValue], buffers: Sequence[str], outs: Sequence[SSAValue]
) -> CallKernelOp:
    """A kernel call of a spec."""
    return CallKernelOp(
        operands=[ins],
        properties={
            "kernel": StringAttr(spec.symbol),
            "spec": StringAttr(spec.to_json()),
            "buffers": ArrayAttr([SymbolRefAttr(b) for b in buffers]),
        },
        result_types=[[o.type for o in outs]],
    )


def _state(value: SSAValue) -> str:
    assert isinstance(value.type, StateType)
    return value.type.state_name


def _operands(op: Operation) -> Iterator[tuple[str, SSAValue]]:
    """Present operands with their names, `w0, w1, ..` for a variadic `w`."""
    for name, _ in cast(IRDLOperation, op).get_irdl_definition().operands:
        value = getattr(op, name)
        if isinstance(value, SSAValue):
            yield name, value
        elif value is not None:
            yield from ((f"{name}{i}", v) for i, v in enumerate(value))


def _results(op: Operation) -> Iterator[tuple[str, SSAValue]]:
    for name, _ in cast(IRDLOperation, op).get_irdl_definition().results:
        value = getattr(op, name)
        if isinstance(value, SSAValue):
            yield name, value
        else:
            yield from ((f"{name}{i}", v) for i, v in enumerate(value))
