"""A random walk over sessions, each compared with fresh ones after every move."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from fake_executable import FakeMachine, fake_machine
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ds4c_runtime.errors import (
    BackendFailedError,
    MemoryBudgetError,
    PositionOutOfRangeError,
    SessionLimitError,
)
from ds4c_runtime.reports import RewindKind
from ds4c_runtime.session import Session, step_sessions

CAPACITY = 256
MEMO: dict[tuple[int, ...], np.ndarray] = {}
FRESH = fake_machine(max_sessions=1)


def fresh_logits(tokens: tuple[int, ...]) -> np.ndarray:
    if tokens not in MEMO:
        session = FRESH.open()
        session.prefill(tokens)
        logits = session.logits()
        assert logits is not None
        MEMO[tokens] = logits
        session.close()
    return MEMO[tokens]


class SessionMachine(RuleBasedStateMachine):
    """Prefill, step, rewind, fork, garbage blocks, failures and closing, on three slots and 14 pages."""

    @initialize()
    def begin(self) -> None:
        self.machine: FakeMachine = fake_machine(max_sessions=3, page_count=14)
        self.sessions: list[Session] = [self.machine.open()]
        self.expected: list[tuple[int, ...]] = [()]

    def pick(self, index: int) -> int:
        return index % len(self.sessions)

    def tokens(self, seed: int, count: int) -> list[int]:
        # Few different tokens, so that histories repeat and the memo hits, and few bits to shrink.
        return [(seed * 7 + i * i) % 5 + 10 for i in range(count)]

    @rule(index=st.integers(0, 2), seed=st.integers(0, 4), count=st.integers(1, 40), chunk=st.integers(1, 24))
    def prefill(self, index: int, seed: int, count: int, chunk: int) -> None:
        i = self.pick(index)
        count = min(count, CAPACITY - len(self.expected[i]))
        added = self.tokens(seed, count)
        try:
            self.sessions[i].prefill(added, chunk=chunk)
        except MemoryBudgetError:
            return
        self.expected[i] += tuple(added)

    @rule(index=st.integers(0, 2), seed=st.integers(0, 4), count=st.integers(1, 7))
    def step(self, index: int, seed: int, count: int) -> None:
        i = self.pick(index)
        session = self.sessions[i]
        if not session.state_valid or len(self.expected[i]) + count > CAPACITY:
            return
        added = self.tokens(seed, count)
        try:
            rows = session.step(added, all_logits=True)
        except MemoryBudgetError:
            return
        for n, row in enumerate(rows):
            assert np.array_equal(row, fresh_logits((*self.expected[i], *added[: n + 1])))
        self.expected[i] += tuple(added)

    @rule(index=st.integers(0, 2), back=st.integers(0, 12))
    def rewind(self, index: int, back: int) -> None:
        i = self.pick(index)
        self.rewind_to(i, max(0, len(self.expected[i]) - back))

    @rule(index=st.integers(0, 2), share=st.floats(0, 1))
    def rewind_far(self, index: int, share: float) -> None:
        i = self.pick(index)
        self.rewind_to(i, int(len(self.expected[i]) * share))

    def rewind_to(self, i: int, to: int) -> None:
        session = self.sessions[i]
        plan, can = session.plan_rewind(to), session.can_rewind(to)
        assert can == (plan.kind is not RewindKind.REBUILD)
        in_reach = session.state_valid and to >= max(session.floor, session.high_water - session.horizon)
        in_place = in_reach or to == 0
        assert (plan.kind in (RewindKind.NONE, RewindKind.IN_PLACE)) == in_place
        try:
            report = session.rewind(to)
        except MemoryBudgetError:
            assert not in_place
            return
        assert report.kind is plan.kind
        assert report.replayed_tokens == plan.replay_tokens
        self.expected[i] = self.expected[i][:to]

    @rule(index=st.integers(0, 2), seed=st.integers(5, 9), count=st.integers(1, 6))
    def garbage_block(self, index: int, seed: int, count: int) -> None:
        """A draft block that is rejected as a whole."""
        i = self.pick(index)
        session, before = self.sessions[i], len(self.expected[i])
        if not session.state_valid or before + count > CAPACITY:
            return
        try:
            session.step(self.tokens(seed, count))
        except MemoryBudgetError:
            return
        assert session.rewind(before).kind is RewindKind.IN_PLACE

    @precondition(lambda self: len(self.sessions) < 3)
    @rule(index=st.integers(0, 2), back=st.integers(0, 10), then_back=st.integers(0, 8))
    def fork(self, index: int, back: int, then_back: int) -> None:
        i = self.pick(index)
        at = max(0, len(self.expected[i]) - back)
        parent = self.sessions[i]
        in_place = parent.plan_rewind(at).kind in (RewindKind.NONE, RewindKind.IN_PLACE)
        try:
            child, report = parent.fork(at)
        except MemoryBudgetError:
            assert not in_place
            return
        assert (report.kind is RewindKind.IN_PLACE) == in_place
        self.sessions.append(child)
        self.expected.append(self.expected[i][:at])
        self.equal_to_fresh_sessions()
        # A child that is rewound at once is where floors and copied rows matter.
        self.rewind_to(len(self.sessions) - 1, max(0, at - then_back))

    @rule(index=st.integers(0, 2), pinned=st.booleans())
    def snapshot(self, index: int, pinned: bool) -> None:
        session = self.sessions[self.pick(index)]
        if session.state_valid:
            with suppress(MemoryBudgetError):  # the logits may need a page
                taken = session.take_snapshot()
                if taken is not None and pinned:
                    session.pin(taken.snapshot_id)

    @rule(index=st.integers(0, 2), number=st.integers(0, 20))
    def restore(self, index: int, number: int) -> None:
        """Go to a snapshot, also of a branch that was left."""
        i = self.pick(index)
        session = self.sessions[i]
        every = session.timeline.ring.entries
        if every:
            entry = every[number % len(every)]
            with suppress(MemoryBudgetError):
                report = session.rewind_to_snapshot(entry.snapshot.snapshot_id)
                assert report.to_position == entry.position
                self.expected[i] = entry.snapshot.history.tokens()

    @rule(index=st.integers(0, 2), number=st.integers(0, 20))
    def unpin(self, index: int, number: int) -> None:
        session = self.sessions[self.pick(index)]
        every = session.snapshots()
        if every:
            session.unpin(every[number % len(every)].snapshot_id)

    @rule(index=st.integers(0, 2), number=st.integers(0, 20))
    def evict(self, index: int, number: int) -> None:
        """Losing a snapshot may cost time, never correctness."""
        every = self.sessions[self.pick(index)].timeline.ring.entries
        if every:
            self.machine.store.snapshots.evict(every[number % len(every)].snapshot)

    @precondition(lambda self: len(self.sessions) < 3)
    @rule()
    def open(self) -> None:
        self.sessions.append(self.machine.open())
        self.expected.append(())

    @precondition(lambda self: len(self.sessions) > 1)
    @rule(index=st.integers(0, 2))
    def close(self, index: int) -> None:
        i = self.pick(index)
        self.sessions.pop(i).close()
        self.expected.pop(i)

    @precondition(lambda self: len(self.sessions) > 1)
    @rule(seed=st.integers(0, 4), counts=st.tuples(st.integers(1, 6), st.integers(1, 6)))
    def step_two(self, seed: int, counts: tuple[int, int]) -> None:
        if any(not s.state_valid or s.position + 6 > CAPACITY for s in self.sessions[:2]):
            return
        added = [self.tokens(seed + n, count) for n, count in enumerate(counts)]
        work = [(s, t, 1) for s, t in zip(self.sessions, added, strict=False)]
        try:
            rows = step_sessions(self.machine.stepper, work)
        except MemoryBudgetError:
            return
        for i, row in enumerate(rows):
            self.expected[i] += tuple(added[i])
            assert np.array_equal(row[0], fresh_logits(self.expected[i]))

    @rule(index=st.integers(0, 2), seed=st.integers(0, 4))
    def fail(self, index: int, seed: int) -> None:
        """A step whose device writes garbage and fails: history stays, the state is given up."""
        i = self.pick(index)
        session = self.sessions[i]
        if not session.state_valid or session.position + 3 > CAPACITY:
            return
        self.machine.device.fail_at = {self.machine.device.calls}
        try:
            session.step(self.tokens(seed, 3))
        except MemoryBudgetError:
            self.machine.device.fail_at = set()
            return
        except BackendFailedError:
            assert session.state_valid == (session.position == 0)
            return
        raise AssertionError("the failure was lost")

    @rule(index=st.integers(0, 2), beyond=st.integers(1, 2**40))
    def refused(self, index: int, beyond: int) -> None:
        session = self.sessions[self.pick(index)]
        for to in (-beyond, session.position + beyond):
            with pytest.raises(PositionOutOfRangeError):
                session.rewind(to)
        if len(self.sessions) == 3:
            with pytest.raises(SessionLimitError):
                session.fork()

    @invariant()
    def equal_to_fresh_sessions(self) -> None:
        if not hasattr(self, "sessions"):
            return
        self.machine.store.poison_free()
        for session in self.sessions:
            session.timeline.poison_dead_rows()
        for session, expected in zip(self.sessions, self.expected, strict=True):
            assert session.history == expected
            session.timeline.check_integrity()
            if not session.state_valid or not expected:
                continue
            try:
                logits = session.logits()
            except MemoryBudgetError:
                continue
            assert logits is not None
            assert np.array_equal(logits, fresh_logits(expected))
        self.machine.store.check_integrity()


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
