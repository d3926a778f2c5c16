"""What the passes have planned, as plain data: the writer of artifacts needs no IR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xdsl.dialects.builtin import ModuleOp

from ds4c.ir.state_ops import StateOp, states_of
from ds4c.ir.tensor_ops import WeightOp, shape
from ds4c.ir.types import StateKind
from ds4c.passes.elements import element_name
from ds4c.passes.plan import Plan
from ds4c.passes.plan_state import live_form


@dataclass(frozen=True)
class PlannedWeight:
    """Where a weight stands in the packed file, in bytes from its start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str
    offset: int


@dataclass(frozen=True)
class PlannedState:
    """A state with its layout.

    Attributes:
        rows: capacity of a ring, rows per page of an append state, 0 for host states.
        offset: bytes in the slot of a session (ring) or in a page (append).
        live: `(align, back)` of a ring: first live row at `c` is `c // align * align - back`.
    """

    name: str
    kind: Literal["ring", "append", "opaque", "host"]
    dtype: str
    rows: int
    width: int
    every: int
    offset: int
    live: tuple[int, int] | None


@dataclass(frozen=True)
class Planned:
    """Plan, states in order of declaration, weights by offset."""

    plan: Plan
    states: tuple[PlannedState, ...]
    weights: tuple[PlannedWeight, ...]


def planned_of(module: ModuleOp) -> Planned:
    """Read the plan off a module after plan-buffers."""
    plan = Plan.of(module, "artifact")
    states = tuple(_state(d, plan) for d in states_of(module))
    return Planned(plan, states, tuple(_weights(module)))


def _weights(module: ModuleOp) -> list[PlannedWeight]:
    found: dict[str, PlannedWeight] = {}
    for op in module.walk():
        if isinstance(op, WeightOp):
            assert op.layout is not None
            assert op.offset is not None
            name = op.weight.data
            dtype, offset = element_name(op.res.type), op.offset.value.data
            found[name] = PlannedWeight(name, dtype, shape(op.res), op.layout.data, offset)
    return sorted(found.values(), key=lambda w: w.offset)


def _state(decl: StateOp, plan: Plan) -> PlannedState:
    name, dtype, every = decl.state_name, element_name(decl.row), decl.row_every
    kind = decl.state_kind
    if kind is StateKind.HOST:
        return PlannedState(name, "host", dtype, 0, decl.width, every, 0, None)
    assert decl.offset is not None
    offset = decl.offset.value.data
    if kind is StateKind.APPEND:
        rows = plan.page_tokens // every
        return PlannedState(name, "append", dtype, rows, decl.width, every, offset, None)
    assert decl.capacity is not None
    return PlannedState(name, kind.value, dtype, decl.capacity, decl.width, every, offset, live_form(decl))
