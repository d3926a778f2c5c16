"""Ring capacities: the closed rules, the proof, and every transaction tried one by one."""

import math

import pytest
from example_modules import fresh_module
from xdsl.dialects.builtin import AffineMapAttr, ModuleOp
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.utils.exceptions import PassFailedException

from ds4c.ir.dialect import make_context
from ds4c.ir.state_ops import StateOp, find_state, states_of
from ds4c.ir.types import StateKind, rows_tensor
from ds4c.models.deepseek_v4 import append_reads, raw_reads, roll_reads
from ds4c.models.gated_delta_net import past_reads
from ds4c.passes.plan import Plan
from ds4c.passes.plan_state import PlanState, live_form, live_map, read_set
from ds4c.passes.prove_rewind import ProveRewind
from ds4c.passes.windows import CounterExample, ReadSet, derive_capacity, prove

READS: dict[str, tuple[AffineMap, int]] = {
    "raw 128": (raw_reads(128), 1),
    "raw 8": (raw_reads(8), 1),
    "R 4": (roll_reads(4, 2), 4),
    "R 8": (roll_reads(8, 1), 8),
    "R 128": (roll_reads(128, 1), 128),
    "planes": (past_reads(1, 1), 1),
    "taps": (past_reads(3, 0), 1),
}
WANTED_BEFORE = {"raw 128": 127, "raw 8": 7, "R 4": 7, "R 8": 7, "R 128": 127, "planes": 1, "taps": 3}
"""Rows before the position that the hungriest query reads; a ring holds these and the rewind distance."""


def ring(name: str, capacity: int | None = None) -> StateOp:
    reads, every = READS[name]
    kind = StateKind.OPAQUE if name == "planes" else StateKind.RING
    decl = StateOp.make("s", kind, rows_tensor(2), every, reads)
    if capacity is not None:
        decl.set_capacity(capacity)
    return decl


def reads_of(name: str) -> ReadSet:
    return read_set(ring(name))


def planned(*decls: StateOp, **options: int) -> ModuleOp:
    module = ModuleOp(list(decls))
    PlanState(**options).apply(make_context(), module)
    return module


@pytest.mark.parametrize("horizon", [0, 1, 5, 20, 64, 200])
@pytest.mark.parametrize("name", READS)
def test_capacity_is_the_closed_rule(name: str, horizon: int) -> None:
    want = WANTED_BEFORE[name] + horizon + 1
    assert derive_capacity(reads_of(name), horizon + 1) == want
    assert find_state(planned(ring(name), horizon=horizon), "s").capacity == want


def test_a_window_of_one_token_has_room_for_the_distance() -> None:
    """Nothing is ever read from such a ring, but a write after a rewind must not replace a later row."""
    reads = read_set(StateOp.make("s", StateKind.RING, rows_tensor(2), 1, raw_reads(1)))
    assert derive_capacity(reads, 7) == 7
    assert prove(reads, 7, 7) is None
    assert prove(reads, 6, 7) is not None


@pytest.mark.parametrize("distance", [1, 2, 7, 33])
@pytest.mark.parametrize("name", READS)
def test_proof_holds_and_fails_for_one_row_less(name: str, distance: int) -> None:
    reads = reads_of(name)
    need = derive_capacity(reads, distance)
    assert prove(reads, need, distance) is None
    for capacity in range(max(1, need - 3), need):
        bad = prove(reads, capacity, distance)
        assert isinstance(bad, CounterExample), capacity
        assert bad.wanted % capacity == bad.found % capacity
        assert bad.found == bad.wanted + capacity
        assert bad.position <= bad.high_water <= bad.position + distance
        first, last = reads.window(bad.query)
        assert first <= bad.wanted <= last


# ------------------------------------------------- every transaction, by a machine that knows no formula


class TaggedRing:
    """A ring whose rows say which position of which run wrote them: run 0 is the truth, others are drafts."""

    def __init__(self, capacity: int) -> None:
        self.rows: list[tuple[int, int] | None] = [None] * capacity

    def write(self, run: int, first: int, count: int) -> None:
        for p in range(first, first + count):
            self.rows[p % len(self.rows)] = (run, p)

    def wrong_row(self, reads: ReadSet, first: int, count: int) -> int | None:
        """First row that a query in the block misses among those before the block; None if it finds all."""
        for p in range(first, first + count):
            if (p + 1) % reads.every == 0:
                low, high = reads.window(p)
                for wanted in range(max(0, low), min(high, first - 1) + 1):
                    if self.rows[wanted % len(self.rows)] != (0, wanted):
                        return wanted
        return None


def transaction_faults(name: str, capacity: int, widths: range, starts: range) -> int:
    """Transactions after which a query misses a row: a draft of q rows of which a are kept, then the truth.

    Oracle one compares the live rows with those of a ring that never saw a draft; oracle two goes on with
    true tokens, one at a time, for more than two windows and looks at every row that is read.
    """
    reads, faults = reads_of(name), 0
    after = 2 * reads.every + WANTED_BEFORE[name] + 2 if reads.every <= 8 else reads.every + 2
    for start in starts:
        for q in widths:
            for accepted in range(q + 1):
                tried, clean = TaggedRing(capacity), TaggedRing(capacity)
                for r in (tried, clean):
                    r.write(0, 0, start)
                tried.write(1, start, q)  # read before write: the draft itself reads old rows only
                for r in (tried, clean):
                    r.write(0, start, accepted)
                position = start + accepted
                live = range(max(0, reads.begin(position)), position)
                is_wrong = any(tried.rows[p % capacity] != clean.rows[p % capacity] for p in live)
                for p in range(position, position + after):
                    if is_wrong or tried.wrong_row(reads, p, 1) is not None:
                        faults += 1
                        break
                    tried.write(0, p, 1)
    return faults


def starts_of(name: str) -> range:
    """Every phase in the first lap, and every phase of a later one."""
    every = READS[name][1]
    return range(2 * max(every, 8) + 3 * every) if every <= 8 else range(every, 2 * every)


@pytest.mark.parametrize("name", ["raw 8", "R 4", "R 8", "planes", "taps"])
def test_no_transaction_loses_a_row(name: str) -> None:
    need = derive_capacity(reads_of(name), 6)
    assert transaction_faults(name, need, range(1, 7), starts_of(name)) == 0
    assert transaction_faults(name, need - 1, range(1, 7), starts_of(name)) > 0


def test_no_transaction_loses_a_row_of_ratio_128() -> None:
    need = derive_capacity(reads_of("R 128"), 6)
    assert transaction_faults("R 128", need, range(1, 7), starts_of("R 128")) == 0
    edge = range(255, 256)  # only the last phase of a window needs every row
    assert transaction_faults("R 128", need - 1, range(6, 7), edge) > 0


def test_no_transaction_loses_a_row_of_the_window() -> None:
    need = derive_capacity(reads_of("raw 128"), 6)
    assert transaction_faults("raw 128", need, range(1, 7), range(126, 130)) == 0
    assert transaction_faults("raw 128", need - 1, range(6, 7), range(300, 301)) > 0


def test_a_too_small_ring_fails_only_at_some_phases() -> None:
    """The reason why phases are enumerated: a random test would seldom hit the phase that fails."""
    faults = [transaction_faults("R 4", 12, range(6, 7), range(s, s + 1)) for s in range(8, 16)]
    assert 0 < sum(f > 0 for f in faults) < len(faults)


# ------------------------------------------------------------------------------------- the pass itself


@pytest.mark.parametrize(
    ("ratios", "asked", "want"),
    [
        ((4, 128), 0, 128),
        ((4, 8), 0, 128),
        ((), 0, 128),
        ((4, 160), 0, 160),
        ((4, 24), 0, 144),
        ((4, 128), 256, 256),
        ((4, 8), 8, 8),
    ],
)
def test_page_tokens(ratios: tuple[int, ...], asked: int, want: int) -> None:
    decls = [StateOp.make(f"r{r}", StateKind.APPEND, rows_tensor(2), r, append_reads(r)) for r in ratios]
    plan = Plan.of(planned(*decls, page_tokens=asked), "test")
    assert plan.page_tokens == want
    assert plan.pages_per_session == math.ceil(plan.context / want)
    assert plan.page_bytes == sum(math.ceil(want // r * 2 * 4 / 64) * 64 for r in ratios)


def test_page_tokens_that_cut_a_row() -> None:
    with pytest.raises(PassFailedException, match=r"page_tokens: expected a multiple of 128, got 64"):
        planned(StateOp.make("r", StateKind.APPEND, rows_tensor(2), 128, append_reads(128)), page_tokens=64)


@pytest.mark.parametrize("name", READS)
def test_a_written_capacity_is_kept_or_refused(name: str) -> None:
    need = WANTED_BEFORE[name] + 11
    assert find_state(planned(ring(name, need + 5), horizon=10), "s").capacity == need + 5
    with pytest.raises(PassFailedException) as caught:
        planned(ring(name, need - 1), horizon=10)
    text = str(caught.value)
    assert f"@s has capacity {need - 1}, needs {need} for horizon 10: position " in text
    assert "wants the row of position" in text
    assert text.endswith("(newer token)")


@pytest.mark.parametrize("name", READS)
def test_the_live_map_names_the_first_row_of_the_next_query(name: str) -> None:
    decl, reads = find_state(planned(ring(name)), "s"), reads_of(name)
    for position in range(300):
        query = next(p for p in range(position, position + 200) if (p + 1) % reads.every == 0)
        assert decl.live_begin(position) == reads.window(query)[0]
    align, back = live_form(decl)
    assert (align, back) == (reads.every, decl.live_begin(0) * -1)


def test_a_live_map_of_another_form_is_refused() -> None:
    p = AffineExpr.dimension(0)
    odd = AffineMap(1, 0, ((p // 3) * 3 - 2, p))
    decl = StateOp.make("s", StateKind.RING, rows_tensor(2), 1, odd)
    decl.live = AffineMapAttr(live_map(decl))
    with pytest.raises(PassFailedException, match=r"@s: expected live rows of the form c // 1 \* 1 - k, got"):
        live_form(decl)


def test_a_read_set_with_more_phases_than_its_period_is_caught_by_the_proof() -> None:
    """The derivation enumerates the phases of `every`; a map with other phases is refused, not believed."""
    p = AffineExpr.dimension(0)
    odd = AffineMap(1, 0, ((p // 3) * 3 - 2, p))
    module = planned(StateOp.make("s", StateKind.RING, rows_tensor(2), 1, odd), horizon=4, context=64)
    with pytest.raises(PassFailedException, match=r"prove-rewind: @s: expected .* wants the row of position"):
        ProveRewind().apply(make_context(), module)


def test_offsets_of_rings_and_pages_do_not_overlap() -> None:
    module = fresh_module("tiny-128")
    PlanState(horizon=20, context=512, rows=64).apply(make_context(), module)
    plan = Plan.of(module, "test")
    for kind, total in ((StateKind.RING, plan.slot_bytes), (StateKind.APPEND, plan.page_bytes)):
        end = 0
        for decl in (d for d in states_of(module) if d.state_kind is kind):
            assert decl.offset is not None
            at = decl.offset.value.data
            assert at % 64 == 0
            assert at >= end
            rows = decl.capacity if kind is StateKind.RING else plan.page_tokens // decl.row_every
            assert rows is not None
            end = at + rows * decl.width * 4
        assert end <= total == -(-end // 64) * 64
    rings = {d.state_name: d.capacity for d in states_of(module) if d.state_kind is StateKind.RING}
    assert (rings["l0.raw"], rings["l2.kv"], rings["l3.kv"]) == (15 + 21, 7 + 21, 127 + 21)


def test_the_proof_is_fast_enough_to_run_in_every_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: one proof a kind of ring, not one a ring."""
    calls: list[tuple[int, int]] = []

    def counted(reads: ReadSet, capacity: int, distance: int) -> CounterExample | None:
        calls.append((capacity, distance))
        return prove(reads, capacity, distance)

    monkeypatch.setattr("ds4c.passes.prove_rewind.prove", counted)
    module = fresh_module("tiny-128")
    PlanState(horizon=20, context=512).apply(make_context(), module)
    ProveRewind().apply(make_context(), module)
    assert sorted(calls) == [(28, 21), (36, 21), (148, 21)]
