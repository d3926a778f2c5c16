"""Random sessions on compiled artifacts: after every operation `==` a session that never rewound."""

from __future__ import annotations

import numpy as np
import pytest
from artifacts import Build
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from rewind_reference import Memo, poison

from ds4c_runtime.local import LocalModel, open_local
from ds4c_runtime.reports import RewindKind
from ds4c_runtime.session import Session, step_sessions

HORIZON = 12
MOST = 300
"""Longest session of a walk: crosses two windows of 128 and the index selection."""


class Walk(RuleBasedStateMachine):
    """prefill, step, garbage block, rewind in place and beyond, fork, two sessions in one step, close."""

    model: LocalModel
    memo: Memo
    vocabulary: int

    sessions: Bundle[Session] = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[Session] = []

    @initialize(target=sessions)
    def first(self) -> Session:
        return self._track(self.model.session("first"))

    def _track(self, session: Session) -> Session:
        self.open.append(session)
        return session

    def _tokens(self, session: Session, count: int, branch: int) -> list[int]:
        """Few branches, so that prefixes meet again and the memo is short."""
        start = session.position
        count = min(count, MOST - start)
        return [(7 * (start + i) + 31 * branch * branch) % self.vocabulary for i in range(count)]

    @rule(session=sessions, count=st.integers(1, 140), chunk=st.integers(1, 64), branch=st.integers(0, 2))
    def prefill(self, session: Session, count: int, chunk: int, branch: int) -> None:
        session.prefill(self._tokens(session, count, branch), chunk=chunk)

    @rule(session=sessions, count=st.integers(1, 6), branch=st.integers(0, 2))
    def step(self, session: Session, count: int, branch: int) -> None:
        tokens = self._tokens(session, count, branch)
        if tokens:
            session.step(tokens, all_logits=True)

    @rule(session=sessions, count=st.integers(1, 8), kept=st.integers(0, 8), seed=st.integers(0, 99))
    def garbage_block(self, session: Session, count: int, kept: int, seed: int) -> None:
        """A verify block of which only a part is accepted."""
        good = self._tokens(session, min(kept, count), 0)
        start = session.position
        bad = np.random.default_rng(seed).integers(0, self.vocabulary, count - len(good)).tolist()
        if good + bad and start + len(good + bad) <= MOST:
            session.step(good + bad, all_logits=True)
            session.rewind(start + len(good))

    @rule(session=sessions, back=st.integers(0, HORIZON + 3))
    def rewind_a_little(self, session: Session, back: int) -> None:
        self._rewind(session, max(0, session.position - back))

    @rule(session=sessions, share=st.floats(0, 1))
    def rewind_anywhere(self, session: Session, share: float) -> None:
        self._rewind(session, int(share * session.position))

    def _rewind(self, session: Session, to: int) -> None:
        plan, before = session.plan_rewind(to), session.position
        legal = max(session.floor, session.high_water - HORIZON) <= to or to == 0
        in_place = plan.kind in (RewindKind.NONE, RewindKind.IN_PLACE)
        assert in_place == (legal or to == before)
        assert session.can_rewind(to) == (plan.kind is not RewindKind.REBUILD)
        report = session.rewind(to)
        assert (report.kind, report.from_position, report.to_position) == (plan.kind, before, to)
        assert session.position == to

    @rule(target=sessions, session=sessions, share=st.floats(0, 1))
    def fork(self, session: Session, share: float) -> object:
        if len(self.open) >= self.model.store.max_sessions - 1:  # one slot is the memo's
            return multiple()
        child, report = session.fork(int(share * session.position))
        assert report.to_position == child.position
        return self._track(child)

    @rule(a=sessions, b=sessions, branch=st.integers(0, 2))
    def step_two(self, a: Session, b: Session, branch: int) -> None:
        """Two sessions in one ragged step."""
        work = [(s, self._tokens(s, 3, branch), 1) for s in (a, b)]
        if a is not b and all(tokens for _, tokens, _ in work):
            step_sessions(self.model.stepper, work)

    @rule(target=sessions, session=consumes(sessions))
    def close(self, session: Session) -> object:
        if len(self.open) < 2:
            return session
        self.open.remove(session)
        session.close()
        return multiple()

    @invariant()
    def equals_a_fresh_session(self) -> None:
        for session in self.open:
            poison(self.model, session)
        for session in self.open:
            self.memo.check(session)
            session.timeline.check_integrity()
        self.model.store.check_integrity()

    def teardown(self) -> None:
        for session in self.open:
            session.close()


def run_walk(model: LocalModel, memo: Memo, vocabulary: int, examples: int, steps: int) -> None:
    machine = type("BoundWalk", (Walk,), {"model": model, "memo": memo, "vocabulary": vocabulary})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("name", ["tiny-8", "tiny-128", "tiny-delta"])
def test_every_operation_equals_a_fresh_session(built: Build, name: str) -> None:
    made = built(name)
    model = open_local(made.artifact, sessions=5)
    run_walk(model, Memo(model, made.config), made.config.vocab_size, examples=12, steps=25)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-8", "tiny-128", "tiny-delta", "demo"])
def test_long_walks(built: Build, name: str) -> None:
    made = built(name)
    model = open_local(made.artifact, sessions=5)
    run_walk(model, Memo(model, made.config), made.config.vocab_size, examples=40, steps=50)
