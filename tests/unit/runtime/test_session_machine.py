"""Sessions on three slots as hypothesis drives them: each is what the model says and equals a fresh one."""

from __future__ import annotations

import os
from typing import Any

import pytest
from fake_executable import fake_machine, small_manifest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from port import Machine, SnapshotOrigin, largest_snapshot
from rewind.truth import FakeTruth, Truth
from rewind.twin import Pair, Twin

from ds4c_runtime.errors import PositionOutOfRangeError

INDEX = st.integers(0, 2)
NUMBER = st.integers(0, 20)
CHOICE = st.integers(0, 2)
SELDOM = st.integers(0, 3).map(lambda n: n == 3)
TRUTH = FakeTruth(most=250)


class SessionMachine(RuleBasedStateMachine):
    """Every operation of a session and failures of its device, with room for all sessions or for few."""

    truth: Truth = TRUTH
    fails = True
    """The device can be made to fail."""
    most = 70
    """Tokens of a prefill: two pages."""

    def machine(self, pages: int | None, room: int | None) -> Machine[Any]:
        """With so many pages, and so many of the largest snapshots; `None` is as many as are needed."""
        room = None if room is None else room * largest_snapshot(small_manifest())
        return fake_machine(max_sessions=3, page_count=pages, snapshot_bytes=room)

    @initialize(
        pages=st.sampled_from([None, 14, 9, 5]),
        room=st.sampled_from([None, None, 5]),
        count=st.integers(0, 150),
    )
    def begin(self, pages: int | None, room: int | None, count: int) -> None:
        self.twin = Twin(self.machine(pages, room), self.truth)
        self.twin.open()
        if count:
            self.twin.prefill(self.twin.pairs[0], self.truth.more((), count, 0), self.twin.model.max_rows)

    def pick(self, index: int) -> Pair:
        return self.twin.pairs[index % len(self.twin.pairs)]

    @rule(index=INDEX, choice=CHOICE, count=st.integers(1, 140), chunk=st.integers(1, 24))
    def prefill(self, index: int, choice: int, count: int, chunk: int) -> None:
        pair = self.pick(index)
        self.twin.prefill(pair, self.truth.more(pair.tokens, min(count, self.most), choice), chunk)

    @rule(index=INDEX, choice=CHOICE, count=st.integers(1, 7))
    def step(self, index: int, choice: int, count: int) -> None:
        pair = self.pick(index)
        if tokens := self.truth.more(pair.tokens, count, choice):
            self.twin.step(pair, tokens)

    @rule(index=INDEX, back=st.integers(0, 12), defer=SELDOM)
    def rewind(self, index: int, back: int, defer: bool) -> None:
        pair = self.pick(index)
        self.twin.rewind(pair, max(0, pair.position - back), defer=defer)

    @rule(index=INDEX, share=st.floats(0, 1), most=st.none() | st.integers(0, 40))
    def rewind_far(self, index: int, share: float, most: int | None) -> None:
        pair = self.pick(index)
        self.twin.rewind(pair, int(pair.position * share), most=most)

    @rule(index=INDEX)
    def rebuild_chunk(self, index: int) -> None:
        self.twin.rebuild_chunk(self.pick(index))

    @rule(index=INDEX, choice=CHOICE, count=st.integers(1, 6))
    def garbage_block(self, index: int, choice: int, count: int) -> None:
        """A draft block that is rejected as a whole."""
        pair = self.pick(index)
        at = pair.position
        if at + count <= self.truth.most and self.twin.step(pair, self.truth.garbage(count, choice)):
            assert self.twin.model.plan(pair.model, at).is_near
            self.twin.rewind(pair, at)

    @rule(index=INDEX, back=st.integers(0, 10), then_back=st.integers(0, 8), defer=SELDOM)
    def fork(self, index: int, back: int, then_back: int, defer: bool) -> None:
        """A child that is rewound at once is where floors and copied rows matter."""
        pair = self.pick(index)
        if self.twin.fork(pair, max(0, pair.position - back), defer=defer):
            self.twin.check()
            child = self.twin.pairs[-1]
            self.twin.rewind(child, max(0, child.position - then_back))

    @rule(index=INDEX, origin=st.sampled_from(list(SnapshotOrigin)))
    def snapshot(self, index: int, origin: SnapshotOrigin) -> None:
        self.twin.snapshot(self.pick(index), origin)

    @rule(index=INDEX, share=st.floats(0, 1))
    def pin(self, index: int, share: float) -> None:
        pair = self.pick(index)
        self.twin.pin(pair, int(pair.position * share))

    @rule(index=INDEX, number=NUMBER, what=st.sampled_from(["restore", "pin", "unpin", "evict"]))
    def with_a_snapshot(self, index: int, number: int, what: str) -> None:
        """Go to one, also of a branch that was left; keep it; let it go; lose it."""
        pair = self.pick(index)
        every = pair.model.held
        if not every:
            return
        held = every[number % len(every)]
        if what == "restore":
            self.twin.restore(pair, held)
        elif what == "evict":
            self.twin.evict(held)
        else:
            self.twin.pin_one(pair, held, what == "pin")

    @rule()
    def open(self) -> None:
        self.twin.open()

    @precondition(lambda self: len(self.twin.pairs) > 1)
    @rule(index=INDEX)
    def close(self, index: int) -> None:
        self.twin.close(self.pick(index))

    @precondition(lambda self: len(self.twin.pairs) > 1)
    @rule(choice=CHOICE, counts=st.tuples(st.integers(1, 6), st.integers(1, 6)))
    def step_two(self, choice: int, counts: tuple[int, int]) -> None:
        pairs = self.twin.pairs[:2]
        work = [(p, self.truth.more(p.tokens, n, choice)) for p, n in zip(pairs, counts, strict=True)]
        if all(tokens for _, tokens in work):
            self.twin.step_together(work)

    @rule(index=INDEX, choice=CHOICE)
    def fail(self, index: int, choice: int) -> None:
        """A step whose device writes garbage and fails."""
        pair = self.pick(index)
        if not self.fails:
            self.twin.lose(pair)
        elif pair.position + 3 <= self.truth.most:
            self.twin.fail(pair, self.truth.garbage(3, choice))

    @rule(index=INDEX, share=st.floats(0, 1))
    def fail_to_rewind(self, index: int, share: float) -> None:
        pair = self.pick(index)
        if self.fails:
            self.twin.fail_to_rewind(pair, int(pair.position * share))

    @rule(index=INDEX, beyond=st.integers(1, 2**40))
    def refused(self, index: int, beyond: int) -> None:
        pair = self.pick(index)
        for to in (-beyond, pair.position + beyond):
            assert not self.twin.rewind(pair, to)
            with pytest.raises(PositionOutOfRangeError):
                pair.session.fork(to)

    @invariant()
    def equal_to_fresh_sessions(self) -> None:
        if hasattr(self, "twin"):
            self.twin.check(more=True)


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # A person wants a short example, which takes a minute to find; CI wants to know that there is one.
    phases=[phase for phase in Phase if phase is not Phase.shrink or "CI" not in os.environ],
)
