"""`verify-model`: rules of a whole module that no single op can check."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from ds4c.ir.state_ops import AppendOp, CloseOp, CompressorStepOp, OpenOp, StateOp, states_of
from ds4c.ir.traits import next_version, states_read
from ds4c.ir.types import StateKind, StateType


@dataclass(frozen=True)
class VerifyModel(ModulePass):
    """Every state is opened and closed once a function, and read in the order its kind asks for.

    Rings and opaque states are read in the version before the block's rows are written; append rows are read
    in the version after: read before write for rings, write before read for append rows. That is what makes
    prefill, decode and verify one function and what `plan-state` relies on.
    """

    name = "verify-model"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Raise `PassFailedException` at the first rule that does not hold; changes nothing."""
        decls = {d.state_name: d for d in states_of(op)}
        touched: set[str] = set()
        for function in op.body.block.ops:
            if isinstance(function, func.FuncOp):
                touched |= _check_function(function, decls)
        idle = [n for n, d in decls.items() if d.state_kind is not StateKind.HOST and n not in touched]
        if idle:
            names = ", ".join("@" + n for n in idle)
            raise PassFailedException(
                f"verify-model: states: expected every state to be used, got unused {names}"
            )


def _check_function(function: func.FuncOp, decls: dict[str, StateOp]) -> set[str]:
    where = f"verify-model: @{function.sym_name.data}"
    opened: dict[str, OpenOp] = {}
    closed: dict[str, int] = {}
    for op in function.walk():
        if isinstance(op, OpenOp):
            name = _name(op.res)
            if name in opened:
                raise PassFailedException(f"{where}: @{name}: expected one ds4.open, got two")
            opened[name] = op
        elif isinstance(op, CloseOp):
            closed[_name(op.value)] = closed.get(_name(op.value), 0) + 1
    for name, op in opened.items():
        times = closed.get(name, 0)
        if times > 1 or (times == 0 and next_version(op.res) is not None):
            raise PassFailedException(
                f"{where}: @{name}: expected one ds4.close of its last version, got {times}"
            )
        _check_order(where, name, op.res, decls[name])
    return set(opened)


def _check_order(where: str, name: str, opened: SSAValue, decl: StateOp) -> None:
    version: SSAValue | None = opened
    while version is not None:
        following = next_version(version)
        readers = [u.operation for u in version.uses if version in states_read(u.operation)]
        macros = [r for r in readers if isinstance(r, CompressorStepOp)]
        plain = [r for r in readers if r not in macros]
        by_position = decl.state_kind in (StateKind.RING, StateKind.OPAQUE)
        if plain and by_position and version is not opened:
            raise PassFailedException(
                f"{where}: @{name}: expected {decl.state_kind} rows to be read before the block's rows are "
                f"written, got {plain[0].name} after the write"
            )
        if plain and decl.state_kind is StateKind.APPEND and _appended(following):
            raise PassFailedException(
                f"{where}: @{name}: expected append rows to be written before they are read, "
                f"got {plain[0].name} before the write"
            )
        version = following


def _appended(version: SSAValue | None) -> bool:
    """Whether a later version is made by the step itself (a fork or restore replaces whole states)."""
    return version is not None and isinstance(version.owner, AppendOp | CompressorStepOp)


def _name(value: SSAValue) -> str:
    assert isinstance(value.type, StateType)
    return value.type.state_name
