"""Kernels of snapshots against the interpreter: marks inside a step, copies out of a slot and back.

Rows that are not live hold NaN, the arena holds NaN, and both must be as before wherever nothing was due.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest
from unit.targets.kernel_lab import (
    VARIANTS,
    Lab,
    act,
    aligned,
    block_buffer,
    block_operand,
    nans,
    placed,
    spec,
    with_dead_rows,
)

from ds4c.cli.opt import parse_passes
from ds4c.ir.block import Block
from ds4c.ir.dialect import parse_module
from ds4c.ir.interp import Machine
from ds4c.ir.kernel import MarksLayout, Operand
from ds4c.passes.pipeline import run_pipeline

T, B, SLOTS, WIDTH, MARKS, HORIZON = 24, 3, 4, 20, 5, 3
MORE = 5
"""Rows between two slots, which are those of other states."""
UNIT = 16
"""Float32 elements of a unit of places."""


@dataclass(frozen=True)
class Form:
    """A ring by its read set; `align` and `back` of `live(c) = c // align * align - back`."""

    reads: str
    every: int
    align: int
    back: int
    capacity: int

    @property
    def text(self) -> str:
        state = f"tensor<?x{WIDTH}xf32>"
        return f"""
ds4.state @s ring : {state} every {self.every} reads affine_map<{self.reads}>
func.func @step(%x : {state}, %at : !ds4.block) {{
  %a = ds4.open : !ds4.state<@s>
  %n = ds4.write %a, %x at %at : !ds4.state<@s>, {state}
  ds4.close %n : !ds4.state<@s>
  func.return
}}
"""

    def live(self, at: int) -> np.ndarray:
        return np.arange(max(0, at // self.align * self.align - self.back), at)


FORMS = {
    "window": Form("(d0) -> (d0 - 7, d0)", 1, 1, 7, 11),
    "overlap": Form("(d0) -> (((d0 floordiv 4) * 4) - 4, d0)", 4, 4, 4, 11),
    "plain": Form("(d0) -> ((d0 floordiv 8) * 8, d0)", 8, 8, 0, 11),
    "last": Form("(d0) -> (d0 - 1, d0 - 1)", 1, 1, 1, 5),
}


@lru_cache
def module_of(name: str) -> Machine:
    """A machine only for its declarations; `machine` makes one with states."""
    module = parse_module(FORMS[name].text)
    run_pipeline(module, parse_passes(f"plan-state{{horizon={HORIZON} context=256}},insert-snapshots"))
    return Machine(module, {}, np.float32, slots=SLOTS)


def machine(name: str, slots: np.ndarray) -> Machine:
    made = Machine(module_of(name).module, {}, np.float32, slots=SLOTS)
    assert made.store["s"].shape == (SLOTS, FORMS[name].capacity, WIDTH)
    made.store["s"] = slots[:, : FORMS[name].capacity].copy()
    return made


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(tmp_path_factory.mktemp("snapshots"))
    for name, form in FORMS.items():
        stride = (form.capacity + MORE) * WIDTH * 4
        state = Operand("state", "ring", "float32", (form.capacity, WIDTH), "", stride, form.every)
        marks = [
            Operand("marks", "marks", "int32", (MARKS,)),
            Operand("offsets", "offsets", "int32", (MARKS,)),
            Operand("snapshots", "snapshots", "float32", ()),
        ]
        live = {"align": form.align, "back": form.back}
        rows = [act("rows", "in", T, WIDTH), block_operand("at", T, B)]
        made.add(f"{name} rows", spec("snapshot_rows", [state, *rows, *marks], **live))
        made.add(f"{name} snapshot", spec("snapshot", [state, *marks], **live))
        made.add(f"{name} restore", spec("restore", [state, *marks], **live))
    return made


def marks_buffer(marks: list[tuple[int, int]]) -> np.ndarray:
    """Owners and positions; what is behind the count is nonsense that nobody may read."""
    layout = MarksLayout(MARKS, 0)
    out = aligned((layout.size,), np.int32)
    out[...] = 1 << 24
    out[0] = len(marks)
    for index, (owner, position) in enumerate(marks):
        out[layout.owners + index] = owner
        out[layout.positions + index] = position
    return out


def places(form: Form, marks: list[tuple[int, int]]) -> tuple[np.ndarray, int]:
    """Places in units, out of order and with gaps; size of the arena in elements."""
    out = aligned((UNIT * 4,), np.int32)
    out[...] = 1 << 24
    at = 1
    for index in reversed(range(len(marks))):
        out[index] = at
        at += -(-len(form.live(marks[index][1])) * WIDTH // UNIT) + 1
    return out, at * UNIT


def saved(arena: np.ndarray, offsets: np.ndarray, index: int, rows: int) -> np.ndarray:
    start = int(offsets[index]) * UNIT
    return arena[start : start + rows * WIDTH].reshape(rows, WIDTH)


def slots_with(form: Form, live_at: dict[int, int], rng: np.random.Generator) -> np.ndarray:
    """Slots that stand at positions: exactly their live rows are numbers, all others NaN."""
    found = nans(SLOTS, form.capacity + MORE, WIDTH)
    for slot, at in live_at.items():
        live = form.live(at)
        found[slot, live % form.capacity] = rng.standard_normal((len(live), WIDTH))
    return found


STEPS: dict[str, tuple[list[tuple[int, int, int]], list[tuple[int, int]]]] = {
    "at the end": ([(2, 9, 5)], [(0, 14)]),
    "after the first row": ([(2, 9, 5)], [(0, 10)]),
    "in the middle": ([(1, 13, 9)], [(0, 17)]),
    "one row": ([(0, 30, 1)], [(0, 31)]),
    "first lap from zero": ([(3, 0, 6)], [(0, 1), (0, 5), (0, 6)]),
    "first lap": ([(3, 3, 2)], [(0, 4), (0, 5)]),
    "every position": ([(2, 21, 5)], [(0, 22), (0, 23), (0, 24), (0, 25), (0, 26)]),
    "block longer than the ring": ([(1, 18, 24)], [(0, 19), (0, 24), (0, 32), (0, 41), (0, 42)]),
    "block longer than the ring from zero": ([(1, 0, 24)], [(0, 8), (0, 16), (0, 24)]),
    "several segments": ([(3, 40, 6), (0, 5, 8), (2, 16, 3)], [(0, 44), (1, 8), (1, 12), (2, 17), (2, 19)]),
    "owners out of order": ([(3, 40, 6), (0, 5, 8)], [(1, 13), (0, 41), (1, 6)]),
    "a segment without marks": ([(1, 7, 4), (0, 9, 4), (2, 0, 3)], [(2, 2), (0, 8)]),
    "far out": ([(2, 4_094, 5)], [(0, 4_096), (0, 4_099)]),
    "none": ([(2, 9, 5)], []),
}


@pytest.mark.parametrize("case", STEPS)
@pytest.mark.parametrize("name", FORMS)
def test_marks_of_a_step(lab: Lab, name: str, case: str) -> None:
    segments, marks = STEPS[case]
    form, block, rng = FORMS[name], Block.of(*segments), np.random.default_rng(7)
    slots = slots_with(form, {slot: first for slot, first, _ in segments}, rng)
    rows = rng.standard_normal((block.num_rows, WIDTH), dtype=np.float32)
    oracle = machine(name, slots)
    oracle.call("step", rows, block, np.array(marks, np.int32).reshape(-1, 2))
    offsets, size = places(form, marks)
    want = nans(size)
    for index, (segment, at) in enumerate(marks):
        kept = oracle.marked[(segments[segment][0], at)]["s"]
        assert len(kept) == len(form.live(at))
        assert not np.isnan(kept).any(), "only live rows are copied"
        saved(want, offsets, index, len(kept))[...] = kept
    for variant in VARIANTS:
        state, arena = placed(slots), nans(size)
        lab.call(
            f"{name} rows", variant,
            state=state, rows=with_dead_rows(rows, T), at=block_buffer(block, T, B),
            marks=marks_buffer(marks), offsets=offsets, snapshots=arena,
        )  # fmt: skip
        assert np.array_equal(arena, want, equal_nan=True)
        assert np.array_equal(state, slots, equal_nan=True), "the ring itself is left alone"


@pytest.mark.parametrize("name", FORMS)
def test_marks_at_every_phase_and_width(lab: Lab, name: str) -> None:
    """Blocks of 1 to 12 rows from 0 to 24, a mark at every position: what the rows before and inside give."""
    form, rng = FORMS[name], np.random.default_rng(8)
    for first in range(25):
        slots = slots_with(form, {1: first}, rng)
        for count in range(1, 13):
            block = Block.of((1, first, count))
            rows = rng.standard_normal((count, WIDTH), dtype=np.float32)
            marks = [(0, at) for at in range(first + 1, first + count + 1)][-MARKS:]
            offsets, size = places(form, marks)
            arena = nans(size)
            lab.call(
                f"{name} rows",
                state=slots, rows=with_dead_rows(rows, T), at=block_buffer(block, T, B),
                marks=marks_buffer(marks), offsets=offsets, snapshots=arena,
            )  # fmt: skip
            for index, (_, at) in enumerate(marks):
                live = form.live(at)
                own = [rows[p - first] if p >= first else slots[1, p % form.capacity] for p in live]
                got = saved(arena, offsets, index, len(live))
                assert np.array_equal(got, np.array(own, np.float32).reshape(-1, WIDTH))


COPIES: dict[str, list[tuple[int, int]]] = {
    "one": [(2, 14)],
    "first lap": [(0, 3)],
    "first row": [(1, 1)],
    "at a border": [(3, 16)],
    "before a border": [(3, 23)],
    "several slots": [(1, 9), (3, 40), (0, 2), (2, 4_099)],
    "none": [],
}


@pytest.mark.parametrize("case", COPIES)
@pytest.mark.parametrize("name", FORMS)
def test_snapshot_and_restore(lab: Lab, name: str, case: str) -> None:
    form, marks, rng = FORMS[name], COPIES[case], np.random.default_rng(9)
    slots = slots_with(form, dict(marks), rng)
    offsets, size = places(form, marks)
    oracle = machine(name, slots)
    given = {"marks": marks_buffer(marks), "offsets": offsets}
    for variant in VARIANTS:
        state, arena = placed(slots), nans(size)
        lab.call(f"{name} snapshot", variant, state=state, snapshots=arena, **given)
        want = nans(size)
        for index, (slot, at) in enumerate(marks):
            (kept,) = oracle.call("snapshot", slot, at)
            saved(want, offsets, index, len(kept))[...] = kept
        assert np.array_equal(arena, want, equal_nan=True)
        assert np.array_equal(state, slots, equal_nan=True)
        # Into slots that something else has written to: live rows come back, no other row changes.
        other = rng.standard_normal(slots.shape, dtype=np.float32)
        state, before = placed(other), placed(arena)
        lab.call(f"{name} restore", variant, state=state, snapshots=arena, **given)
        back = machine(name, other)
        for index, (slot, at) in enumerate(marks):
            back.call("restore", slot, at, saved(arena, offsets, index, len(form.live(at))))
        expected = other.copy()
        for slot, at in marks:
            live = form.live(at) % form.capacity
            expected[slot, live] = back.store["s"][slot, live]
        assert np.array_equal(state, expected)
        assert np.array_equal(arena, before, equal_nan=True)


@pytest.mark.parametrize("name", FORMS)
def test_a_mark_of_a_step_is_a_snapshot_after_it(lab: Lab, name: str) -> None:
    """The same bytes, whether a block ends at the position or goes on over it."""
    form, rng = FORMS[name], np.random.default_rng(10)
    for first, count in ((0, 9), (6, 7), (13, 24)):
        slots, rows = slots_with(form, {2: first}, rng), rng.standard_normal((count, WIDTH), dtype=np.float32)
        for at in range(first + 1, first + count + 1):
            offsets, size = places(form, [(0, at)])
            inside, after = nans(size), nans(size)
            block = Block.of((2, first, count))
            lab.call(
                f"{name} rows",
                state=slots, rows=with_dead_rows(rows, T), at=block_buffer(block, T, B),
                marks=marks_buffer([(0, at)]), offsets=offsets, snapshots=inside,
            )  # fmt: skip
            oracle = machine(name, slots)
            oracle.call("step", rows[: at - first], Block.of((2, first, at - first)))
            state = nans(SLOTS, form.capacity + MORE, WIDTH)
            state[:, : form.capacity] = oracle.store["s"]
            lab.call(
                f"{name} snapshot",
                state=state, marks=marks_buffer([(2, at)]), offsets=offsets, snapshots=after,
            )  # fmt: skip
            assert np.array_equal(inside, after, equal_nan=True)


def test_forms_are_those_of_the_plan() -> None:
    from ds4c.passes.plan_state import live_form

    for name, form in FORMS.items():
        decl = module_of(name).decls["s"]
        assert live_form(decl) == (form.align, form.back), name
        assert decl.capacity == form.capacity


def test_code_is_exact_and_needs_no_library(lab: Lab) -> None:
    lab.check_code()
