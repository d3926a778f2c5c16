"""`plan-buffers`: an address for every operand of every kernel call, and the sizes of all arenas."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from ds4c.ir.attention_ops import CallKernelOp
from ds4c.ir.kernel import ROWS_OFFSET, BlockLayout, MarksLayout, Operand
from ds4c.ir.state_ops import Int, find_state, states_of
from ds4c.ir.tensor_ops import WeightOp, shape
from ds4c.ir.types import StateKind
from ds4c.passes.elements import element_bytes, element_name
from ds4c.passes.plan import Plan, round64
from ds4c.passes.target import get_target

WEIGHTS_HEADER_BYTES = 4096
"""The packed weights file starts with a header of one page."""

IO_ARGUMENTS = {
    "tokens": "io_tokens",
    "at": "io_block",
    "logit_rows": "io_logit_rows",
    "args": "io_fork_args",
    "marks": "io_marks",
}
"""Function argument -> field of the plan that says where the runtime puts it."""


@dataclass(frozen=True)
class PlanBuffers(ModulePass):
    """Workspace by liveness (first fit), states and pages by plan-state, weights in order of first use."""

    name = "plan-buffers"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Set `offsets` on calls and weights, and the sizes of the plan."""
        plan = _plan_io(Plan.of(op, self.name), _vocabulary(op), len(ring_names(op)))
        plan = plan.with_sizes(weights_bytes=_plan_weights(op, self.target))
        workspace = 0
        for function in op.body.block.ops:
            if isinstance(function, func.FuncOp):
                workspace = max(workspace, _Function(op, plan, function).assign())
        plan.with_sizes(workspace_bytes=workspace).store(op)


def _vocabulary(module: ModuleOp) -> int:
    try:
        return find_state(module, "logits").width
    except KeyError:
        raise PassFailedException("plan-buffers: expected a host state @logits, got none") from None


def ring_names(module: ModuleOp) -> list[str]:
    """States that a snapshot copies, in order of declaration."""
    by_reference = (StateKind.HOST, StateKind.APPEND)
    return [d.state_name for d in states_of(module) if d.state_kind not in by_reference]


def _plan_io(plan: Plan, vocabulary: int, rings: int) -> Plan:
    """Lay out what the runtime fills in for a step, and the logits."""
    sizes = {
        "io_tokens": plan.max_rows * 4,
        "io_block": BlockLayout(plan.max_rows, plan.max_segments).size * 4,
        "io_page_tables": plan.max_segments * plan.pages_per_session * 4,
        "io_logit_rows": (ROWS_OFFSET + plan.max_logit_rows) * 4,
        "io_fork_args": 64,
        "io_marks": MarksLayout(plan.max_marks, rings).size * 4,
        "io_logits": plan.max_logit_rows * vocabulary * 4,
    }
    offset = 0
    offsets: dict[str, int] = {}
    for name, size in sizes.items():
        offsets[name] = offset
        offset += round64(size)
    return plan.with_sizes(io_bytes=offset, **offsets)


def _plan_weights(module: ModuleOp, target_name: str) -> int:
    target = get_target(target_name)
    offset = WEIGHTS_HEADER_BYTES
    placed: dict[str, int] = {}
    for op in module.walk():
        if not isinstance(op, WeightOp):
            continue
        name = op.weight.data
        if name not in placed:
            layout = op.layout.data if op.layout else "row"
            placed[name] = offset
            offset += round64(target.packed_bytes(layout, element_name(op.res.type), shape(op.res)))
        op.offset = Int(placed[name], 64)
    return offset


@dataclass
class _Arena:
    """First-fit allocation by liveness; every buffer starts at a multiple of 64 bytes."""

    size: int = 0
    live: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    def allocate(self, size: int, start: int, last_use: int) -> int:
        self.live = [b for b in self.live if b[2] >= start]
        need, at = round64(max(size, 1)), 0
        for begin, end, _ in sorted(self.live):
            if begin - at >= need:
                break
            at = max(at, end)
        self.live.append((at, at + need, last_use))
        self.size = max(self.size, at + need)
        return at


class _Function:
    """Addresses of one function's values."""

    def __init__(self, module: ModuleOp, plan: Plan, function: func.FuncOp) -> None:
        self.module, self.plan = module, plan
        self.rings = ring_names(module)
        self.ops = list(function.body.block.ops)
        self.arena = _Arena()
        self.where: dict[SSAValue, str] = {}
        for value in function.body.block.args:
            if value.name_hint in IO_ARGUMENTS:
                self.where[value] = f"io:{getattr(plan, IO_ARGUMENTS[value.name_hint])}"
        last = self.ops[-1]
        if (
            isinstance(last, func.ReturnOp)
            and last.operands
            and any(isinstance(o, CallKernelOp) for o in self.ops)
        ):
            self.where[last.operands[0]] = f"io:{plan.io_logits}"

    def assign(self) -> int:
        """Set `offsets` of every call; bytes of workspace used."""
        index = {op: i for i, op in enumerate(self.ops)}
        for i, op in enumerate(self.ops):
            if isinstance(op, WeightOp):
                assert op.offset is not None
                self.where[op.res] = f"weights:{op.offset.value.data}"
            if isinstance(op, CallKernelOp):
                for value, operand in zip(op.outs, result_operands(op), strict=True):
                    if value not in self.where:
                        last = max((index[u.operation] for u in value.uses), default=i)
                        at = self.arena.allocate(operand_bytes(operand), i, last)
                        self.where[value] = f"workspace:{at}"
                op.offsets = ArrayAttr([StringAttr(a) for a in self._addresses(op, i)])
        return self.arena.size

    def _addresses(self, op: CallKernelOp, step: int) -> Iterable[str]:
        ins, outs, buffers = iter(op.ins), iter(op.outs), iter(op.buffers)
        ring = 0
        results = set(result_operands(op))
        for operand in op.kernel_spec.operands:
            if operand in results:
                yield self.where[next(outs)]
            elif operand.role in ("ring", "append"):
                decl = find_state(self.module, next(buffers).string_value())
                assert decl.offset is not None
                if decl.state_name in self.rings:
                    ring = self.rings.index(decl.state_name)
                arena = "pages" if decl.state_kind is StateKind.APPEND else "states"
                yield f"{arena}:{decl.offset.value.data}"
            elif operand.role == "pages":
                yield f"io:{self.plan.io_page_tables}"
            elif operand.role == "offsets":
                marks = MarksLayout(self.plan.max_marks, len(self.rings))
                yield f"io:{self.plan.io_marks + 4 * marks.offsets(ring)}"
            elif operand.role == "snapshots":
                yield "snapshots:0"
            elif operand.role == "scratch":
                yield f"workspace:{self.arena.allocate(operand_bytes(operand), step, step)}"
            else:
                value = next(ins)
                if value not in self.where:
                    raise PassFailedException(
                        f"plan-buffers: operand {operand.name} of {op.kernel.data}: expected a value with an "
                        f"address, got {_describe(value)}"
                    )
                yield self.where[value]


def _describe(value: SSAValue) -> str:
    if isinstance(value.owner, Block):
        return f"argument {value.name_hint}; arguments must be one of {', '.join(IO_ARGUMENTS)}"
    return f"the result of {value.owner.name}; run lower-to-kernels first"


def result_operands(op: CallKernelOp) -> list[Operand]:
    """Operands of the spec that are results of the call, in order."""
    given = ("count", "pages", "scratch", "offsets", "snapshots")
    operands = [o for o in op.kernel_spec.operands if o.role not in given]
    return operands[len(operands) - len(op.outs) :]


def operand_bytes(operand: Operand) -> int:
    """Size of an activation, a derived block or scratch."""
    if operand.role == "block":
        return BlockLayout(*operand.shape).size * 4
    if operand.role == "scratch":
        return operand.shape[0]
    return math.prod(operand.shape) * element_bytes(operand.dtype)
