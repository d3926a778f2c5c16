"""The exhaustive tables: all phases x widths 1..6 x accepted 0..q, ratio 4 and 128, rings and rows jointly.

They run on the runtime's own manifest, store, timeline and session code with exact compressors in NumPy
(`row_machine`), in float32 and bfloat16; the last tests run a part of them on compiled kernels, whose states
are float32. The oracle is a machine in another layout that never saw a rejected token (`official_layout`).
What the tables can find is shown on the rules of that layout that were wrong, and on rings a row too short.

The borders run in every storage and copy mode; all 3,456 transactions in one of each, the others in
`make test-more`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from artifacts import Build, Built, tokens_for
from port import CopyMode, poison, poison_sessions
from rewind.rollback_rules import judge
from rewind.row_machine import STORAGE, LateCopies, Restored, RowDevice, all_live, row_manifest
from rewind.table import (
    BY_HAND,
    BY_SNAPSHOT,
    FAILURES,
    IN_PLACE,
    MAX_WIDTH,
    PHASES,
    Case,
    Table,
    Way,
    transactions,
)
from rewind_reference import Memo
from sizes import more, slow

from ds4c_runtime.device.copy_thread import CopyThread
from ds4c_runtime.local import open_local
from ds4c_runtime.manifest import RingState
from ds4c_runtime.reports import RewindKind

LATER_LAP = 256
FIRST_LAP = 0
ALL = transactions()
BORDERS = transactions([0, 1, 2, 3, *range(123, PHASES)])
HORIZON = MAX_WIDTH


def test_there_are_as_many_transactions_as_elsewhere() -> None:
    assert len(ALL) == 128 * (2 + 3 + 4 + 5 + 6 + 7) == 3456


# ------------------------------------------------------------------------------------ in place


def table(storage: str = "float32", horizon: int = HORIZON, short: str = "") -> Table:
    return Table(RowDevice(row_manifest(storage, horizon, short)))


MIXED = "bfloat16 rows, float32 scores"
"""Rows that are rounded and rows that are not."""


@pytest.mark.parametrize("storage", [each if each == MIXED else slow(each) for each in STORAGE])
def test_in_place_at_the_borders(storage: str) -> None:
    outcome = table(storage).run(BORDERS, FIRST_LAP, IN_PLACE)
    assert outcome.is_clean, outcome.first


@pytest.mark.slow
@pytest.mark.parametrize(
    ("storage", "lap"),
    [
        ("float32", LATER_LAP),
        more("float32", FIRST_LAP),
        *(more(storage, LATER_LAP) for storage in STORAGE if storage != "float32"),
    ],
)
def test_in_place_every_transaction(storage: str, lap: int) -> None:
    outcome = table(storage).run(ALL, lap, IN_PLACE)
    assert outcome.total == 3456
    assert outcome.is_clean, outcome.first


# ------------------------------------------------------------------------------- by a snapshot


def snapshot_table(
    storage: str = "float32", mode: CopyMode = CopyMode.DEVICE, *, late: bool = False
) -> Table:
    """No horizon: every rejected token takes the snapshot that was saved right before the block.

    Save, overwrite and restore follow each other with no wait in between; the rings have a row more than is
    live, so that a block of 6 overwrites live rows. `late`: no copy is done before it is waited for.
    """
    copies = LateCopies() if late else CopyThread()
    return Table(RowDevice(row_manifest(storage, horizon=0), copies=copies), mode)


STORED = [*(("float32", mode) for mode in CopyMode), ("bfloat16", CopyMode.DEVICE)]
FIRST = ("float32", CopyMode.HOST_ASYNC)
"""The mode in which most happens late."""


@pytest.mark.parametrize(("storage", "mode"), [each if each == FIRST else slow(*each) for each in STORED])
def test_by_snapshot_at_the_borders(storage: str, mode: CopyMode) -> None:
    outcome = snapshot_table(storage, mode).run(BORDERS, FIRST_LAP, BY_SNAPSHOT)
    assert outcome.is_clean, outcome.first


@pytest.mark.parametrize("mode", [CopyMode.HOST_ASYNC, slow(CopyMode.HOST_PINNED)])
def test_by_snapshot_with_copies_that_are_as_late_as_they_can_be(mode: CopyMode) -> None:
    outcome = snapshot_table(mode=mode, late=True).run(BORDERS, LATER_LAP, BY_SNAPSHOT)
    assert outcome.is_clean, outcome.first


@pytest.mark.slow
def test_by_snapshot_with_tokens_given_again() -> None:
    outcome = snapshot_table().run(BORDERS, LATER_LAP, BY_HAND)
    assert outcome.is_clean, outcome.first


@pytest.mark.slow
@pytest.mark.parametrize(("storage", "mode"), [each if each == FIRST else more(*each) for each in STORED])
def test_by_snapshot_every_transaction(storage: str, mode: CopyMode) -> None:
    outcome = snapshot_table(storage, mode).run(ALL, LATER_LAP, BY_SNAPSHOT)
    assert outcome.total == 3456
    assert outcome.is_clean, outcome.first


# ------------------------------------------------------------ one after the other, and in passing


def two_in_a_row(pair: Table, way: Way, phases: range) -> None:
    """The state that a rollback left is what the next one starts from."""
    second = np.random.default_rng(1).permutation(len(ALL)).tolist()
    parent = pair.model.open()
    for index, first in enumerate(transactions(phases)):
        start = LATER_LAP + first.phase
        parent.prefill(pair.truth.tokens[parent.position : start])
        child, _ = parent.fork(start)
        for case in (first, ALL[second[index]]):
            pair.transaction(child, child.position, case, way)
        pair.check_future(child, child.position)
        child.close()


@pytest.mark.parametrize(
    "phases", [range(126, PHASES), slow(range(122, 126)), more(range(122))], ids=["last", "border", "others"]
)
def test_two_transactions_in_a_row(phases: range) -> None:
    two_in_a_row(table(horizon=2 * MAX_WIDTH), IN_PLACE, phases)
    two_in_a_row(snapshot_table(mode=CopyMode.HOST_ASYNC), BY_SNAPSHOT, phases)


@pytest.mark.parametrize("mode", [slow(CopyMode.DEVICE), CopyMode.HOST_ASYNC])
def test_snapshots_inside_a_step_that_begins_at_every_phase(mode: CopyMode) -> None:
    """Rows before the block are the ring's, rows inside it the block's own; two borders, and back to each."""
    inside = snapshot_table(mode=mode)
    for phase in range(PHASES):
        session = inside.model.open()
        session.prefill(inside.truth.tokens[:phase])
        session.step(inside.truth.tokens[phase:300])
        session.step(inside.truth.garbage[300:306])
        for to in (259, 256, 128):
            report = session.rewind(to)
            assert (report.kind, report.base_position) == (_kind(to), to // 128 * 128)
            poison_sessions(session)
            inside.check_now(session)
        inside.check_future(session, 128)
        session.close()


def _kind(to: int) -> RewindKind:
    return RewindKind.SNAPSHOT_REPLAY if to % 128 else RewindKind.SNAPSHOT


# -------------------------------------------------------------- what the tables are able to find


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "ratio", "wrong_bytes", "wrong_meaning", "of_these_narrow"),
    [
        ("old", 4, 2688, 1280, 320),
        ("old", 128, 2688, 35, 10),
        ("direct", 4, 1152, 768, 0),
        ("direct", 128, 0, 0, 0),
        ("replay", 4, 0, 0, 0),
        ("replay", 128, 0, 0, 0),
    ],
)
def test_rules_of_the_other_layout(
    rule: str, ratio: int, wrong_bytes: int, wrong_meaning: int, of_these_narrow: int
) -> None:
    """Both oracles on rules whose failures are known; `narrow` are blocks of at most 4."""
    found = judge(rule, ratio)
    assert (len(found.wrong_bytes), len(found.wrong_meaning)) == (wrong_bytes, wrong_meaning)
    assert sum(case.q <= 4 for case in found.wrong_meaning) == of_these_narrow
    if rule == "old":
        assert found.wrong_bytes[0] == Case(phase=0, q=1, accepted=0)
    if rule == "direct" and ratio == 4:
        assert min(case.q for case in found.wrong_bytes) == 5


@pytest.mark.slow
def test_narrow_failures_of_the_old_rule_are_the_known_ones() -> None:
    accepted = {
        ratio: {
            (c.phase % ratio, c.q, c.accepted)
            for c in judge("old", ratio).wrong_meaning
            if c.q <= 4 and c.accepted
        }
        for ratio in (4, 128)
    }
    assert accepted[4] == {(1, 4, 1), (1, 4, 2), (2, 3, 1), (2, 4, 1)}
    assert accepted[128] == {(125, 4, 1), (125, 4, 2), (126, 3, 1), (126, 4, 1)}


@pytest.mark.parametrize("ring", ["", *(ring.name for ring in row_manifest("float32", HORIZON).rings)])
def test_a_ring_one_row_short_is_found(ring: str) -> None:
    """Two blocks, together the whole horizon, and back, with the token before evaluated once more.

    Of the planned rings no phase may fail, of short ones the first that does is enough.
    """
    short, wrong = table(short=ring), 0
    for phase in range(PHASES):
        start = LATER_LAP + phase
        session = short.model.open()
        session.prefill(short.truth.tokens[:start])
        for part in (short.truth.garbage[:2], short.truth.garbage[2:HORIZON]):
            session.step(part)
        IN_PLACE.after(session, start, [])
        try:
            short.check_now(session)
        except FAILURES:
            wrong += 1
        session.close()
        if wrong:
            break
    assert bool(wrong) == bool(ring)


def only_previous_window(ring: RingState, position: int) -> range:
    """What the wrong rule saved of ratio 4: rows 0-3."""
    live = all_live(ring, position)
    return live if ring.every != 4 else range(live.start, max(live.start, position // 4 * 4))


def no_ratio_128(ring: RingState, position: int) -> range:
    """What the wrong rule saved of ratio 128: nothing."""
    return range(0) if ring.every == 128 else all_live(ring, position)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "first", "count"),
    [(only_previous_window, Case(123, 6, 0), 6), (no_ratio_128, Case(123, 6, 0), 35)],
)
def test_the_wrong_rules_are_found_in_our_layout_too(rule: Restored, first: Case, count: int) -> None:
    """A block that wraps writes over rows that the window still needs: the fewest cases of all layouts.

    Where the accepted part reaches a multiple of 128, the snapshot inside the step is the base.
    """
    careless = Table(RowDevice(row_manifest("float32", horizon=0), restored=rule))
    outcome = careless.run(transactions(range(120, PHASES)), LATER_LAP, BY_SNAPSHOT, follow=False)
    assert (len(outcome.wrong_bytes), outcome.wrong_bytes[0]) == (count, first)


@pytest.mark.slow
def test_rows_that_are_used_before_they_are_rounded_are_found() -> None:
    """In bfloat16 a block must use its own rows as the ring will have them."""
    careless = Table(RowDevice(row_manifest("bfloat16", HORIZON), round_own_rows=False))
    assert careless.run(transactions([0, 127]), LATER_LAP, IN_PLACE).wrong_bytes


# ------------------------------------------------------------------------- on compiled kernels


class Compiled:
    """An artifact, a straight stream of tokens with a memo of every position, and tokens to reject."""

    LENGTH = 512

    def __init__(self, made: Built, device: str | None = None) -> None:
        self.model = open_local(made.artifact, sessions=4, device=device)
        self.memo = Memo(self.model, made.config)
        self.right = tokens_for(made.config, self.LENGTH, seed=1)
        self.wrong = tokens_for(made.config, self.LENGTH, seed=2)
        self.memo.fill(self.right)

    def run(self, cases: Sequence[Case], lap: int, follow: int, away: int = 0) -> int:
        """Transactions, then `follow` right tokens; returns how many were run.

        With `away`, that many more tokens are rejected: beyond the horizon, so that it takes a snapshot.
        """
        parent = self.model.session()
        for case in cases:
            start = lap + case.phase
            parent.prefill(self.right[parent.position : start])
            poison(self.model)  # the slot of the last child holds many rows that this one needs
            child, _ = parent.fork(start)
            commit = start + case.accepted
            way = BY_SNAPSHOT if away else IN_PLACE
            way.before(child)
            child.step(self.right[start:commit] + self.wrong[commit : start + case.q], all_logits=True)
            child.prefill(self.wrong[:away])
            way.after(child, commit, self.right[start:commit])
            poison(self.model, child)
            self.memo.check(child)
            child.prefill(self.right[commit : min(commit + follow, self.LENGTH)])
            self.memo.check(child)
            child.close()
        parent.close()
        return len(cases)


COMPILED = ["tiny-128", more("tiny-8"), "tiny-delta"]


@pytest.fixture(scope="module", params=COMPILED)
def compiled(built: Build, request: pytest.FixtureRequest) -> Compiled:
    return Compiled(built(request.param))


def test_every_phase_on_compiled_kernels(compiled: Compiled) -> None:
    """Two transactions a phase, which over the phases are all widths and accepted counts."""
    by_phase = [transactions([phase]) for phase in range(PHASES)]
    cases = [mine[(7 * phase + k) % len(mine)] for phase, mine in enumerate(by_phase) for k in (0, 13)]
    assert {(c.q, c.accepted) for c in cases} == {(c.q, c.accepted) for c in transactions([0])}
    assert compiled.run(cases, lap=128, follow=5) == 256


def test_every_phase_by_snapshot_on_compiled_kernels(compiled: Compiled) -> None:
    cases = [transactions([phase])[(11 * phase) % 27] for phase in range(PHASES)]
    assert {(c.q, c.accepted) for c in cases} == {(c.q, c.accepted) for c in transactions([0])}
    assert compiled.run(cases, lap=128, follow=5, away=13) == 128


def test_snapshots_inside_a_step_on_compiled_kernels(compiled: Compiled) -> None:
    """Steps of 64 rows with a border inside, at each of its rows."""
    for start in range(193, 256):
        session = compiled.model.session()
        session.prefill(compiled.right[:start])
        session.step(compiled.right[start : start + 64])
        session.prefill(compiled.wrong[:13])
        report = session.rewind(256)
        assert (report.kind, report.base_position) == (RewindKind.SNAPSHOT, 256)
        poison(compiled.model, session)
        compiled.memo.check(session)
        session.prefill(compiled.right[256:261])
        compiled.memo.check(session)
        session.close()


@pytest.mark.slow
def test_every_transaction_on_compiled_kernels(compiled: Compiled) -> None:
    assert compiled.run(ALL, lap=128, follow=5) == 3456


@pytest.mark.slow
def test_two_windows_later_on_compiled_kernels(compiled: Compiled) -> None:
    cases = [transactions([phase])[(5 * phase) % 27] for phase in range(PHASES)]
    assert compiled.run(cases, lap=128, follow=264) == 128
