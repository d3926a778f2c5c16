"""The exhaustive table: every phase, width and accepted count of a transaction, with two oracles.

A transaction is: a session of `start` tokens evaluates a block of `q`, of which `accepted` are right, and
goes back to `start + accepted`. Then

- bytes: every live row equals that of a machine that never saw a rejected token (dead rows are NaN), and so
  do the logits;
- meaning: the right tokens follow for more than two windows of 128, and every row pooled from then on and
  all logits equal that machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from port import CopyMode, Session, SnapshotOrigin, append_rows, live_bytes, machine_of, poison_dead
from rewind.official_layout import Position, straight
from rewind.row_machine import CONTEXT, VOCABULARY, RowDevice

from ds4c_runtime.errors import RuntimeFailure
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.reports import RewindKind

PHASES = 128
MAX_WIDTH = 6
PAGE = 128
MORE_THAN_TWO_WINDOWS = 264
SEED = 20261130
FAILURES = (AssertionError, RuntimeFailure)
"""What a wrong row gives: a comparison that fails, or the device that refuses to read a dead row."""


@dataclass(frozen=True, order=True)
class Case:
    """A transaction: phase of its start, block width, accepted tokens."""

    phase: int
    q: int
    accepted: int


def transactions(
    phases: Iterable[int] = range(PHASES), widths: Iterable[int] = range(1, MAX_WIDTH + 1)
) -> list[Case]:
    """All cases, in the order of rewind tables elsewhere."""
    return [Case(phase, q, accepted) for phase in phases for q in widths for accepted in range(q + 1)]


@dataclass
class Outcome:
    """What a run of the table found."""

    total: int = 0
    wrong_bytes: list[Case] = field(default_factory=list[Case])
    wrong_meaning: list[Case] = field(default_factory=list[Case])

    @property
    def first(self) -> str:
        """The first case of each oracle, for messages."""
        return f"bytes {self.wrong_bytes[:1]}, meaning {self.wrong_meaning[:1]}"

    @property
    def is_clean(self) -> bool:
        return not self.wrong_bytes and not self.wrong_meaning


class Truth:
    """The right tokens, tokens to reject, and every position of the machine that saw only the former."""

    def __init__(self, manifest: Manifest, seed: int = SEED) -> None:
        rng = np.random.default_rng(seed)
        self.tokens: list[int] = rng.integers(0, VOCABULARY, CONTEXT).tolist()
        self.garbage: list[int] = [
            (t + 1 + int(k)) % VOCABULARY
            for t, k in zip(self.tokens, rng.integers(0, VOCABULARY - 1, CONTEXT), strict=True)
        ]
        self.positions: list[Position] = straight(manifest, self.tokens)

    def block(self, start: int, case: Case) -> list[int]:
        """Tokens of a block: right ones, then ones that differ from the right one everywhere."""
        right = start + case.accepted
        return self.tokens[start:right] + self.garbage[right : start + case.q]


@dataclass(frozen=True)
class Way:
    """A way back: what is done before the block, and after it.

    `after` takes the session, the position to go to and the accepted tokens of the block.
    """

    before: Callable[[Session], None]
    after: Callable[[Session, int, Sequence[int]], None]


def nothing(session: Session) -> None:
    """Nothing is prepared."""


def move_back(session: Session, to: int, accepted: Sequence[int]) -> None:
    """Within the horizon no data moves."""
    kind = RewindKind.IN_PLACE if to < session.position else RewindKind.NONE
    assert session.rewind(to).kind is kind


def save(session: Session) -> None:
    """A snapshot of what the block begins from; of position 0 there is none."""
    info = session.take_snapshot(SnapshotOrigin.BEFORE_DRAFT)
    assert (info is None) == (session.position == 0)


def restore_and_replay(session: Session, to: int, accepted: Sequence[int]) -> None:
    """Without a horizon: from the snapshot at the start, or from that of a page that the block has closed."""
    start, end = to - len(accepted), session.position
    base = max(start, to // PAGE * PAGE)
    want = (RewindKind.NONE, to) if to == end else (_far(to, base), base)
    report = session.rewind(to)
    assert (report.kind, report.base_position) == want


def _far(to: int, base: int) -> RewindKind:
    if not to:
        return RewindKind.IN_PLACE
    if not base:
        return RewindKind.REBUILD
    return RewindKind.SNAPSHOT_REPLAY if to > base else RewindKind.SNAPSHOT


def restore_then_step(session: Session, to: int, accepted: Sequence[int]) -> None:
    """The client goes to the start and gives the accepted tokens again."""
    start = to - len(accepted)
    session.rewind(start)
    session.prefill(accepted)


IN_PLACE = Way(nothing, move_back)
BY_SNAPSHOT = Way(save, restore_and_replay)
BY_HAND = Way(save, restore_then_step)


class Table:
    """Runs transactions on the runtime's own session code."""

    def __init__(self, device: RowDevice, copy_mode: CopyMode = CopyMode.DEVICE) -> None:
        self.model = machine_of(device.manifest, device, 3, copy_mode=copy_mode)
        self.truth = Truth(device.manifest)

    def run(self, cases: Sequence[Case], lap: int, way: Way, *, follow: bool = True) -> Outcome:
        """All cases with starts `lap + phase`; each on a fresh fork of a session that is there.

        Without `follow` only the bytes are compared.
        """
        outcome = Outcome()
        parent = self.model.open()
        for case in cases:
            start = lap + case.phase
            if parent.position != start:
                parent = self._parent(parent, start)
            child, _ = parent.fork(start)
            outcome.total += 1
            try:
                self.transaction(child, start, case, way)
            except FAILURES:
                outcome.wrong_bytes.append(case)
            if follow:
                try:
                    self.check_future(child, start + case.accepted)
                except FAILURES:
                    outcome.wrong_meaning.append(case)
            child.close()
        parent.close()
        return outcome

    def _parent(self, parent: Session, start: int) -> Session:
        if parent.position > start:
            parent.close()
            parent = self.model.open()
        parent.prefill(self.truth.tokens[parent.position : start])
        return parent

    def transaction(self, session: Session, start: int, case: Case, way: Way) -> None:
        """One block, the way back, and the bytes."""
        block = self.truth.block(start, case)
        way.before(session)
        session.step(block, all_logits=True)
        way.after(session, start + case.accepted, block[: case.accepted])
        at = start + case.accepted
        # Its logits are held, so nothing from before it is ever read again; the session is not asked.
        poison_dead(self.model, session, position=at, oldest=at)
        self.check_now(session)

    def check_now(self, session: Session) -> None:
        """Bytes of all live rows, and logits."""
        at = session.position
        want = self.truth.positions[at]
        for name, rows in live_bytes(self.model, session).items():
            assert rows == (want.rings | want.rows)[name], f"@{name} at {at}"
        logits = session.logits()
        assert (b"" if logits is None else logits.tobytes()) == want.logits, f"logits at {at}"

    def check_future(self, session: Session, at: int) -> None:
        """Rows and logits of the tokens that follow; `at` is where the session should be."""
        assert session.position == at
        end = at + MORE_THAN_TWO_WINDOWS
        logits = session.step(self.truth.tokens[at:end], all_logits=True)
        want = self.truth.positions
        assert logits.tobytes() == b"".join(p.logits for p in want[at + 1 : end + 1]), "logits"
        for state in self.model.manifest.appends:
            rows = append_rows(self.model, session, state.name, end // state.every)
            assert rows.tobytes() == want[end].rows[state.name], f"@{state.name}"
