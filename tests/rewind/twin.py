"""A machine and the model of it: each operation is done to both, and all that can be seen is compared.

The drivers (hypothesis, seeded walks, scripts) choose what is done; nothing here decides by what the sessions
under test say, but for which snapshots had to give way.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import port
import pytest
from port import CopyMode, Machine, Session, SnapshotOrigin
from rewind.truth import Truth, digest_of
from session_model import Held, Listed, Plan, SessionModel
from state_model import Reason, Refused, StateModel

from ds4c_runtime.errors import (
    BackendFailedError,
    MemoryBudgetError,
    PositionOutOfRangeError,
    RewindTooDearError,
    RuntimeFailure,
    SessionLimitError,
    StateInvalidError,
)
from ds4c_runtime.reports import RewindPlan, RewindReport
from ds4c_runtime.store.history_log import HistoryLog
from ds4c_runtime.store.session_store import SessionStore

ERRORS: dict[Reason, type[RuntimeFailure]] = {
    "position": PositionOutOfRangeError,
    "replay": RewindTooDearError,
    "pages": MemoryBudgetError,
    "slots": SessionLimitError,
    "stale": StateInvalidError,
}
NAMES = (f"n{number}" for number in itertools.count())
"""No two sessions of a run have one: their files are in one folder."""
P = TypeVar("P")
R = TypeVar("R")


@dataclass(eq=False)
class Pair:
    """A session and the model of it."""

    session: Session
    model: SessionModel

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.model.tokens

    @property
    def position(self) -> int:
        return self.model.position


def model_of(machine: Machine[Any], mode: CopyMode = CopyMode.DEVICE) -> StateModel:
    """An empty model of an empty machine, by its manifest and sizes."""
    limits, memory = machine.manifest.limits, port.memory_of(machine)
    largest, arena = port.largest_snapshot(machine.manifest), memory.snapshot_arena_bytes
    if mode is CopyMode.DEVICE:  # whatever the gaps between them
        room = (arena // largest - 1) // 2
    else:
        room = (memory.snapshot_budget - arena) // largest if arena >= 4 * largest - 64 else 0
    marks = limits.max_marks  # those of one step are there before others go
    surely = memory.snapshot_session_bytes // largest - marks, room - marks
    return StateModel(
        limits.horizon, limits.page_tokens, limits.max_rows, limits.max_logit_rows, memory.slots,
        memory.pages, surely,
    )  # fmt: skip


class Twin:
    """Operations on both; each returns whether it was not refused."""

    def __init__(self, machine: Machine[Any], truth: Truth, mode: CopyMode = CopyMode.DEVICE) -> None:
        self.machine, self.truth = machine, truth
        self.model = model_of(machine, mode)
        self.pairs: list[Pair] = []
        self.kinds: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    # ------------------------------------------------------------------------------------ both together

    def both(self, predict: Callable[[], P], do: Callable[[], R]) -> tuple[P, R] | None:
        """Do it to the model and to the machine: both refuse for the same reason, or none does."""
        try:
            want = predict()
        except Refused as refusal:
            self.refused[refusal.reason] += 1
            with pytest.raises(ERRORS[refusal.reason]):
                do()
            self.compare()
            return None
        return want, do()

    def did(self, predict: Callable[[], object], do: Callable[[], object]) -> bool:
        """The same, where nothing but the refusal and what shows afterwards is to be compared."""
        return self.done(self.both(predict, do))

    def done(self, result: object) -> bool:
        if result is not None:
            self.compare()
        return result is not None

    def compare(self) -> None:
        """All that sessions and machine show of themselves is what the model says."""
        self.model.told([self._listed(p.session) for p in self.pairs])
        references = self.model.references()
        for pair in self.pairs:
            session, s = pair.session, pair.model
            got = (
                session.position, session.state_valid, port.evaluated_tokens(session), session.floor,
                session.high_water, session.epoch, session.logits_replayed,
            )  # fmt: skip
            want = (
                s.position, s.is_valid, s.evaluated, s.reach.floor, s.reach.high_water, s.epoch, s.replays,
            )  # fmt: skip
            assert got == want, f"{session.session_id} is at {got}, expected {want}"
            assert session.history == s.tokens, "history differs"
            held = port.page_references(self.machine, port.pages_of(session))
            assert held == [references[p] for p in s.pages], "pages are shared otherwise"
        free = port.memory_of(self.machine).free_pages
        assert free == self.model.page_count - len(references), f"{free} free pages"

    def _listed(self, session: Session) -> list[Listed]:
        return [
            Listed(i.snapshot_id, i.position, i.digest, i.is_pinned, i.origin.value)
            for i in session.snapshots()
        ]

    def check(self, *pairs: Pair, more: bool = False) -> None:
        """Logits and live rows of sessions equal the truth, with NaN in whatever they must not read.

        Which rows those are is the model's word.
        """
        port.poison(self.machine)
        port.poison_free_snapshots(self.machine)
        for pair in self.pairs:
            s = pair.model
            port.poison_dead(self.machine, pair.session, position=s.evaluated, oldest=s.oldest_step)
        for pair in pairs or self.pairs:
            rows = self.both(lambda pair=pair: self.model.logits(pair.model), pair.session.logits)
            if rows is not None:
                self.truth.check(self.machine, pair.session, rows[1])
            port.check_session(pair.session)
        self.compare()
        if more:  # waits for copies
            port.check(self.machine)

    # ------------------------------------------------------------------------------------------ forwards

    def open(self) -> bool:
        opened = self.both(self.model.open, lambda: self.machine.open(next(NAMES)))
        if opened is not None:
            self.pairs.append(Pair(opened[1], opened[0]))
        return self.done(opened)

    def close(self, pair: Pair) -> bool:
        self.pairs.remove(pair)
        self.model.close(pair.model)
        pair.session.close()
        self.compare()
        return True

    def prefill(self, pair: Pair, tokens: Sequence[int], chunk: int) -> bool:
        return self.did(
            lambda: self.model.prefill(pair.model, tokens, chunk),
            lambda: pair.session.prefill(tokens, chunk=chunk),
        )

    def step(self, pair: Pair, tokens: Sequence[int]) -> bool:
        """Logits of every row are compared too."""
        rows = self.both(
            lambda: self.model.step(pair.model, tokens, all_logits=True),
            lambda: pair.session.step(tokens, all_logits=True),
        )
        if rows is not None:
            self._compare_rows(pair, rows[1])
        return self.done(rows)

    def step_together(self, work: Sequence[tuple[Pair, Sequence[int]]]) -> bool:
        rows = self.both(
            lambda: self.model.step_together([(p.model, tokens, 1) for p, tokens in work]),
            lambda: port.step_together(self.machine, [(p.session, tokens, 1) for p, tokens in work]),
        )
        for (pair, _), row in zip(work, rows[1] if rows is not None else (), strict=False):
            self._compare_rows(pair, row)
        return self.done(rows)

    def _compare_rows(self, pair: Pair, rows: port.Logits) -> None:
        want = self.truth.rows(pair.tokens, len(rows))
        assert want is None or [digest_of(row) for row in rows] == want, "logits of a block differ"

    def rebuild_chunk(self, pair: Pair) -> bool:
        return self.done(self.both(lambda: self.model.rebuild_chunk(pair.model), pair.session.rebuild_chunk))

    # ---------------------------------------------------------------------------------------- ways back

    def rewind(self, pair: Pair, to: int, *, most: int | None = None, defer: bool = False) -> bool:
        """Plan and report are the model's, and so is the refusal of a replay that is one token too dear."""
        if 0 <= to <= pair.position:
            plan, said = self.model.plan(pair.model, to), pair.session.plan_rewind(to)
            _same_plan(said, plan)
            assert pair.session.can_rewind(to) == (plan.kind != "rebuild")
        source = pair.position
        result = self.both(
            lambda: self.model.rewind(pair.model, to, most=most, defer=defer),
            lambda: pair.session.rewind(to, max_replay_tokens=most, defer=defer),
        )
        if result is not None:
            self._same_report(result[1], result[0], source)
            assert pair.session.last_rewind == result[1]
        return self.done(result)

    def _same_report(self, report: RewindReport, plan: Plan, source: int) -> None:
        self.kinds[plan.kind] += 1
        got = (
            report.kind.value, report.from_position, report.to_position, report.base_position,
            report.replayed_tokens, report.snapshot_id,
        )  # fmt: skip
        assert got == (plan.kind, source, plan.to, plan.base, plan.replay, plan.snapshot_id), report

    def fork(self, pair: Pair, at: int, *, defer: bool = False) -> bool:
        source = pair.position
        forked = self.both(
            lambda: self.model.fork(pair.model, at, defer=defer),
            lambda: pair.session.fork(at, session_id=next(NAMES), defer=defer),
        )
        if forked is not None:
            (model, plan), (session, report) = forked
            self._same_report(report, plan, source)
            self.pairs.append(Pair(session, model))
        return self.done(forked)

    def fail(self, pair: Pair, tokens: Sequence[int]) -> bool:
        """The device fails in a step: garbage is written, the history stays, the state is given up."""
        result = self.both(
            lambda: self.model.fail(pair.model, tokens),
            lambda: self._failing(lambda: pair.session.step(tokens)),
        )
        return self.done(result)

    def _failing(self, do: Callable[[], object]) -> None:
        port.fail_next_call(self.machine)
        try:
            do()
        except BackendFailedError:
            return
        finally:
            port.fail_no_call(self.machine)
        raise AssertionError("the failure was lost")

    def fail_to_rewind(self, pair: Pair, to: int) -> bool:
        """The device fails in a restore or a rebuild: the history is that of the target."""
        if self.model.plan(pair.model, to).is_near:
            return self.rewind(pair, to)
        return self.did(
            lambda: self.model.rewind(pair.model, to, fails=True),
            lambda: self._failing(lambda: pair.session.rewind(to)),
        )

    def lose(self, pair: Pair) -> bool:
        """As after a failure, on a device that does not fail."""
        self.model.lose(pair.model)
        port.lose_state(pair.session)
        self.compare()
        return True

    # ---------------------------------------------------------------------------------------- snapshots

    def snapshot(self, pair: Pair, origin: SnapshotOrigin = SnapshotOrigin.CLIENT) -> bool:
        return self.did(
            lambda: self.model.snapshot(pair.model, origin.value),
            lambda: pair.session.take_snapshot(origin),
        )

    def pin(self, pair: Pair, position: int) -> bool:
        """By position; it is refused too if there is no room that may be taken."""
        pinned: list[Held] = []

        def do() -> object:
            try:
                return pair.session.pin(position=position)
            except MemoryBudgetError:
                if pinned and self.model.pressed:
                    pinned.clear()
                    return None
                raise

        def predict() -> None:
            pinned.append(self.model.pin_at(pair.model, position))

        result = self.both(predict, do)
        for held in pinned:
            held.pinned = True
        return self.done(result)

    def pin_one(self, pair: Pair, held: Held, pinned: bool = True) -> bool:
        change = pair.session.pin if pinned else pair.session.unpin
        assert change(held.shot.snapshot_id).is_pinned == pinned
        held.pinned = pinned
        self.compare()
        return True

    def restore(self, pair: Pair, held: Held) -> bool:
        """To a retained snapshot: back, forwards, or to a branch that was left."""
        said = pair.session.plan_rewind_to_snapshot(held.shot.snapshot_id)
        source = pair.position
        result = self.both(
            lambda: self.model.restore(pair.model, held),
            lambda: pair.session.rewind_to_snapshot(held.shot.snapshot_id),
        )
        if result is not None:
            _same_plan(said, result[0])
            self._same_report(result[1], result[0], source)
        return self.done(result)

    def evict(self, held: Held) -> bool:
        """Losing a snapshot may cost time, never correctness."""
        self.model.evict(held.shot.snapshot_id)
        port.evict(self.machine, held.shot.snapshot_id)
        self.compare()
        return True

    # -------------------------------------------------------------------------------------------- files

    def save(self, files: SessionStore, pair: Pair, *, exact: bool) -> HistoryLog:
        """Write a session to a file and close it."""
        log = files.create(files.header(pair.session), pair.session)
        self.model.save(pair.model, exact=exact)
        files.save(log, pair.session, exact=exact)
        self.compare()
        self.close(pair)
        pair.model.detach()
        return log

    def load(self, files: SessionStore, log: HistoryLog, saved: Pair) -> Pair:
        """The session of a file, also on another machine."""
        session = port.load_session(self.machine, files, log)
        model = self.model.load(saved.model, self._listed(session))
        self.pairs.append(Pair(session, model))
        files.remove(log)
        self.compare()
        return self.pairs[-1]


def _same_plan(said: RewindPlan, plan: Plan) -> None:
    got = (said.kind.value, said.to_position, said.base_position, said.replay_tokens, said.snapshot_id)
    assert got == (plan.kind, plan.to, plan.base, plan.replay, plan.snapshot_id), said
