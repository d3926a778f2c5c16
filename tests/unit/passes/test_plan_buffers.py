"""Addresses: no two live buffers overlap, all are aligned, and makers and readers agree on sizes."""

import math
from collections.abc import Iterator
from itertools import pairwise

import pytest
from example_modules import TINY, FakeTarget, stage
from sizes import slow
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import PassFailedException

from ds4c.ir.attention_ops import CallKernelOp
from ds4c.ir.kernel import BlockLayout, MarksLayout, Operand
from ds4c.ir.state_ops import find_state, states_of
from ds4c.ir.tensor_ops import WeightOp
from ds4c.ir.types import StateKind
from ds4c.passes.elements import element_bytes
from ds4c.passes.plan import Plan
from ds4c.passes.program import program_of

Argument = tuple[Operand, SSAValue | None, str, int]
"""Operand of the spec, its value (None for states, pages and scratch), arena and offset."""


def arguments(call: CallKernelOp) -> Iterator[Argument]:
    """Operands of a call beside their values and addresses, worked out from the roles alone."""
    assert call.offsets is not None
    ins, outs = list(call.ins), list(call.outs)
    operands = call.kernel_spec.operands
    valueless = ("ring", "append", "pages", "scratch", "offsets", "snapshots")
    with_value = [o for o in operands if o.role not in valueless]
    counted = [o for o in with_value if o.role != "count"]
    results = counted[len(counted) - len(outs) :] if outs else []
    for operand, address in zip(operands, call.offsets, strict=True):
        arena, offset = address.data.split(":")
        value = None
        if operand in results:
            value = outs.pop(0)
        elif operand in with_value:
            value = ins.pop(0)
        yield operand, value, arena, int(offset)
    assert not ins
    assert not outs


def size_of(operand: Operand) -> int:
    if operand.role == "block":
        return BlockLayout(*operand.shape).size * 4
    if operand.role == "marks":
        return MarksLayout(operand.shape[0], 0).size * 4
    return (
        operand.shape[0]
        if operand.role == "scratch"
        else math.prod(operand.shape) * element_bytes(operand.dtype)
    )


def calls_of(module: ModuleOp, function: str) -> list[Operation]:
    found = [f for f in module.body.block.ops if isinstance(f, func.FuncOp) and f.sym_name.data == function]
    return list(found[0].body.block.ops)


@pytest.fixture(params=[slow(each) if each == "tiny-128" else each for each in TINY])
def module(request: pytest.FixtureRequest) -> ModuleOp:
    return stage(request.param, "plan-buffers")


def test_live_buffers_do_not_overlap(module: ModuleOp) -> None:
    """Walk the calls in order; every written byte range must be free of values that are still to be read."""
    ops = calls_of(module, "step")
    last_read = {operand: i for i, op in enumerate(ops) for operand in op.operands}
    live: dict[SSAValue, tuple[int, int]] = {}
    written = 0
    for i, op in enumerate(ops):
        if not isinstance(op, CallKernelOp):
            continue
        claimed: list[tuple[int, int]] = []
        for operand, value, arena, offset in arguments(op):
            if arena != "workspace":
                continue
            span = (offset, offset + size_of(operand))
            if value is not None and value in live:
                start, end = live[value]
                is_same = span[0] == start and (span[1] == end or operand.role == "count")
                assert is_same, "a reader looks at another range than the maker wrote"
                continue
            assert value is None or value in op.outs
            taken = [*live.values(), *claimed]
            assert not any(a < span[1] and span[0] < b for a, b in taken), (op.kernel.data, operand.name)
            claimed.append(span)
            if value is not None:
                live[value] = span
                written += 1
        live = {v: s for v, s in live.items() if last_read.get(v, -1) > i}
    assert written > 50
    assert not live


def test_addresses_are_aligned_and_inside_their_arenas(module: ModuleOp) -> None:
    plan = Plan.of(module, "test")
    sizes = {"workspace": plan.workspace_bytes, "io": plan.io_bytes, "weights": plan.weights_bytes}
    for name in ("step", "snapshot", "restore", "fork"):
        for op in calls_of(module, name):
            if isinstance(op, CallKernelOp):
                for operand, _, arena, offset in arguments(op):
                    assert offset % 64 == 0
                    if arena in sizes and operand.role not in ("count", "weight", "pages"):
                        assert offset + size_of(operand) <= sizes[arena], (op.kernel.data, operand.name)
    assert all(size % 64 == 0 for size in sizes.values())


def test_makers_and_readers_agree_on_type_and_shape(module: ModuleOp) -> None:
    seen: dict[SSAValue, tuple[str, tuple[int, ...]]] = {}
    for op in calls_of(module, "step"):
        if isinstance(op, CallKernelOp):
            for operand, value, _, _ in arguments(op):
                if value is not None and operand.role != "count":
                    form = (operand.dtype, operand.shape)
                    assert seen.setdefault(value, form) == form, (op.kernel.data, operand.name)


def test_states_pages_and_io_stand_where_the_plan_says(module: ModuleOp) -> None:
    plan = Plan.of(module, "test")
    rings = [d for d in states_of(module) if d.state_kind in (StateKind.RING, StateKind.OPAQUE)]
    layout = MarksLayout(plan.max_marks, len(rings))
    mark_places = [plan.io_marks + 4 * layout.offsets(i) for i in range(len(rings))]
    used_places: list[int] = []
    for op in calls_of(module, "step"):
        if not isinstance(op, CallKernelOp):
            continue
        buffers = [b.string_value() for b in op.buffers]
        for operand, value, arena, offset in arguments(op):
            if operand.role in ("ring", "append"):
                decl = find_state(module, buffers.pop(0))
                assert decl.offset is not None
                assert (arena, offset) == (
                    "states" if operand.role == "ring" else "pages",
                    decl.offset.value.data,
                )
                is_ring = decl.state_kind is not StateKind.APPEND
                assert operand.stride_bytes == (plan.slot_bytes if is_ring else plan.page_bytes)
                assert operand.every == decl.row_every
            elif operand.role == "offsets":
                assert offset in mark_places
                used_places.append(offset)
            elif operand.role == "snapshots":
                assert (arena, offset) == ("snapshots", 0)
            elif operand.role == "pages":
                assert (arena, offset) == ("io", plan.io_page_tables)
            elif value is not None and value.name_hint == "at":
                assert (arena, offset) == ("io", plan.io_block)
    assert sorted(used_places) == mark_places  # every ring has its own list of places
    last = [op for op in calls_of(module, "step") if isinstance(op, CallKernelOp)][-1]
    assert list(arguments(last))[-2][2:] == ("io", plan.io_logits)


def test_weights_do_not_overlap(module: ModuleOp) -> None:
    target = FakeTarget()
    spans: dict[str, tuple[int, int]] = {}
    for op in module.walk():
        if isinstance(op, WeightOp):
            assert op.offset is not None
            assert op.layout is not None
            shape = tuple(op.res.type.get_shape())
            dtype = {"f32": "float32", "f64": "float64", "i32": "int32"}[str(op.res.type.element_type)]
            at = op.offset.value.data
            spans[op.weight.data] = (at, at + target.packed_bytes(op.layout.data, dtype, shape))
    ordered = sorted(spans.values())
    assert ordered[0][0] == 4096
    assert all(a[1] <= b[0] for a, b in pairwise(ordered))
    assert ordered[-1][1] <= Plan.of(module, "test").weights_bytes


def test_the_program_names_every_kernel_once(module: ModuleOp) -> None:
    program = program_of(module)
    assert [e.name for e in program.entry_points] == ["step", "snapshot", "restore", "fork"]
    for entry in program.entry_points:
        for call in entry.calls:
            assert len(call.args) == len(program.kernels[call.kernel].operands)
            assert {a.arena for a in call.args} <= set(entry.arenas)
    assert all(spec.symbol == name for name, spec in program.kernels.items())
    called = {c.kernel for e in program.entry_points for c in e.calls}
    assert called == set(program.kernels)


def test_a_program_needs_addresses() -> None:
    with pytest.raises(
        PassFailedException, match=r"expected planned calls, got none; run plan-buffers first"
    ):
        program_of(stage("tiny-8", "lower-to-kernels"))
