"""Sessions on the fake device: rewind, fork, copy-on-write, refusals, failures.

Without room for snapshots, so that whatever is not in place is a rebuild; `test_snapshots.py` has them.
"""

from __future__ import annotations

import dataclasses
import random
from functools import partial

import fake_executable
import numpy as np
import port
import pytest
from fake_executable import FakeMachine, small_manifest
from port import (
    device_calls,
    fail_next_call,
    memory_of,
    page_references,
    pages_of,
    poison_dead,
    shared_blocks,
    step_together,
)

from ds4c_runtime.errors import (
    BackendFailedError,
    ContextLengthError,
    InvalidRequestError,
    MemoryBudgetError,
    NotInArtifactError,
    PositionOutOfRangeError,
    RewindTooDearError,
    SessionLimitError,
    StateInvalidError,
)
from ds4c_runtime.reports import RebuildReason, RewindCause, RewindKind
from ds4c_runtime.session import Session

HORIZON = 6
fake_machine = partial(fake_executable.fake_machine, snapshot_bytes=0)


class Oracle:
    """Logits of fresh sessions, remembered by token prefix."""

    def __init__(self) -> None:
        self.machine = fake_machine(max_sessions=1)
        self.memo: dict[tuple[int, ...], np.ndarray] = {}

    def logits(self, tokens: tuple[int, ...]) -> np.ndarray:
        if tokens not in self.memo:
            session = self.machine.open()
            session.prefill(tokens)
            logits = session.logits()
            assert logits is not None
            self.memo[tokens] = logits
            session.close()
        return self.memo[tokens]


ORACLE = Oracle()


def tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1024), k=count)


def check(machine: FakeMachine, *sessions: Session) -> None:
    """Poison what may not be read, then compare every session with a fresh one."""
    port.poison(machine, *sessions)
    for session in sessions:
        logits = session.logits()
        if session.position == 0:
            assert logits is None
        else:
            assert logits is not None
            assert np.array_equal(logits, ORACLE.logits(session.history))
    port.check(machine, *sessions)


@pytest.mark.parametrize("chunks", [[60], [1] * 60, [24, 24, 12], [5, 1, 23, 7, 24], [3, 4, 5, 16, 17, 15]])
def test_logits_do_not_depend_on_chunks(chunks: list[int]) -> None:
    machine, given = fake_machine(), tokens(60)
    session, at = machine.open(), 0
    for size in chunks:
        session.step(given[at : at + size])
        at += size
    check(machine, session)


def test_every_position_has_its_own_logits() -> None:
    machine, given = fake_machine(), tokens(70)
    session = machine.open()
    rows = session.step(given, all_logits=True)
    assert rows.shape == (70, 1024)
    for at in range(1, 71):
        assert np.array_equal(rows[at - 1], ORACLE.logits(tuple(given[:at])))
    assert len({row.tobytes() for row in rows}) == 70


def test_logits_depend_on_every_token_of_the_history() -> None:
    given = tokens(90)
    whole = ORACLE.logits(tuple(given))
    for at in range(90):
        other = list(given)
        other[at] = (other[at] + 1) % 1024
        assert not np.array_equal(whole, ORACLE.logits(tuple(other))), at


@pytest.mark.parametrize("position", [1, 4, 7, 16, 33, 64, 65, 100])
def test_rewind_at_every_distance(position: int) -> None:
    """Distances to beyond the horizon, at phases of both ratios, after single steps and a block."""
    for distance in range(min(position, HORIZON + 2) + 1):
        for block in (True, False):
            machine = fake_machine()
            session, given = machine.open(), tokens(position, seed=position)
            session.prefill(given[: position - distance])
            if block and distance:
                session.step(given[position - distance :])
            else:
                for token in given[position - distance :]:
                    session.step([token])
            to, in_place = position - distance, distance <= HORIZON or distance == position
            plan = session.plan_rewind(to)
            assert session.can_rewind(to) == in_place
            report = session.rewind(to)
            expected = (
                RewindKind.NONE if distance == 0 else RewindKind.IN_PLACE if in_place else RewindKind.REBUILD
            )
            assert report.kind is expected is plan.kind
            assert (report.from_position, report.to_position) == (position, to)
            assert report.replayed_tokens == (0 if in_place else to) == plan.replay_tokens
            assert report.rebuild_reason is (
                RebuildReason.NOT_REBUILT if in_place else RebuildReason.NO_SNAPSHOT
            )
            assert report.base_position == (to if in_place else 0) == plan.base_position
            check(machine, session)
            session.prefill(tokens(40, seed=99))
            check(machine, session)


def test_horizon_counts_from_the_highest_row_ever_written() -> None:
    machine = fake_machine()
    session = machine.open()
    session.prefill(tokens(40))
    session.rewind(36)
    session.step(tokens(2, seed=1))
    assert (session.position, session.high_water) == (38, 40)
    assert session.can_rewind(34)
    assert not session.can_rewind(33)
    assert session.rewind(34).kind is RewindKind.IN_PLACE
    check(machine, session)
    assert session.rewind(33).kind is RewindKind.REBUILD
    assert (session.high_water, session.floor) == (33, 0)
    check(machine, session)


def test_rewind_to_zero_and_again() -> None:
    machine = fake_machine()
    session = machine.open()
    session.prefill(tokens(50))
    report = session.rewind(0)
    assert (report.kind, report.replayed_tokens) == (RewindKind.IN_PLACE, 0)
    assert session.logits() is None
    assert memory_of(machine).free_pages == memory_of(machine).pages
    session.prefill(tokens(5, seed=3))
    assert session.rewind(0).kind is RewindKind.IN_PLACE
    session.prefill(tokens(50, seed=4))
    check(machine, session)


def test_saved_logits_are_used_and_else_one_token_is_replayed() -> None:
    machine = fake_machine()
    session, given = machine.open(), tokens(45)
    session.prefill(given[:40])
    session.step(given[40:], all_logits=True)
    calls = device_calls(machine)
    session.rewind(42)
    assert np.array_equal(session.logits(), ORACLE.logits(tuple(given[:42])))
    assert device_calls(machine) == calls
    assert session.last_rewind is not None
    assert session.last_rewind.replayed_tokens == 0
    session.rewind(40)  # the whole block is rejected: where it began, the logits are held too
    assert np.array_equal(session.logits(), ORACLE.logits(tuple(given[:40])))
    assert device_calls(machine) == calls
    assert session.last_rewind.replayed_tokens == 0
    session.rewind(39)
    assert np.array_equal(session.logits(), ORACLE.logits(tuple(given[:39])))
    assert device_calls(machine) == calls + 1
    assert session.last_rewind.replayed_tokens == 1
    assert session.last_rewind.kind is RewindKind.IN_PLACE
    assert session.high_water == 45
    session.logits()
    assert device_calls(machine) == calls + 1


def test_refused_rewinds_change_nothing() -> None:
    machine = fake_machine()
    session = machine.open()
    session.prefill(tokens(60))
    before = (session.history, session.epoch, session.high_water, session.last_rewind, device_calls(machine))
    for to in (-1, 61, 10**9, -(2**63)):
        with pytest.raises(PositionOutOfRangeError, match=r"expected a position in \[0, 60\], got"):
            session.rewind(to)
        assert not session.can_rewind(to)
    with pytest.raises(RewindTooDearError) as refused:
        session.rewind(30, max_replay_tokens=29)
    assert (refused.value.replay_tokens, refused.value.base_position) == (30, 0)
    assert before == (
        session.history,
        session.epoch,
        session.high_water,
        session.last_rewind,
        device_calls(machine),
    )
    check(machine, session)
    assert session.rewind(30, max_replay_tokens=30).kind is RewindKind.REBUILD
    assert session.epoch == 1


def test_no_op_rewind_keeps_epoch_and_logits() -> None:
    machine = fake_machine()
    session = machine.open()
    session.prefill(tokens(20))
    calls = device_calls(machine)
    assert session.rewind(20).kind is RewindKind.NONE
    assert session.epoch == 0
    session.logits()
    assert device_calls(machine) == calls


def test_deferred_rewind_is_rebuilt_by_the_next_prefill() -> None:
    machine = fake_machine()
    session, given = machine.open(), tokens(60)
    session.prefill(given)
    report = session.rewind(30, defer=True, cause=RewindCause.STOP)
    assert (report.kind, report.cause, report.replayed_tokens) == (RewindKind.DEFERRED, RewindCause.STOP, 0)
    assert not session.state_valid
    assert session.history == tuple(given[:30])
    for read in (session.logits, lambda: session.step([1])):
        with pytest.raises(StateInvalidError):
            read()
    assert session.plan_rewind(30).kind is RewindKind.REBUILD
    assert session.plan_rewind(30).rebuild_reason is RebuildReason.SNAPSHOT_INVALIDATED
    session.prefill([7])
    check(machine, session)


def test_estimated_seconds_follow_measured_speed() -> None:
    machine = fake_machine()
    session = machine.open()
    session.prefill(tokens(60))
    plan = session.plan_rewind(40)
    assert plan.estimated_seconds > 0
    assert session.plan_rewind(20).estimated_seconds == pytest.approx(plan.estimated_seconds / 2)
    assert session.plan_rewind(58).estimated_seconds == 0


def test_fork_shares_pages_and_copies_on_write_both_ways() -> None:
    machine = fake_machine()
    parent = machine.open("parent")
    parent.prefill(tokens(75))
    child, report = parent.fork(72)
    assert (report.kind, report.cause) == (RewindKind.IN_PLACE, RewindCause.BRANCH)
    assert (report.from_position, report.to_position) == (75, 72)
    pages = pages_of(parent)
    assert pages_of(child) == pages
    assert page_references(machine, pages) == [2, 2, 2]
    check(machine, parent, child)
    parent.step(tokens(9, seed=1))
    after = pages_of(parent)
    assert after[:2] == pages[:2]
    assert after[2] != pages_of(child)[2]
    assert page_references(machine, pages_of(child)) == [2, 2, 1]
    child.step(tokens(9, seed=2))
    check(machine, parent, child)
    grandchild, _ = child.fork()
    child.step(tokens(20, seed=5))
    grandchild.step(tokens(20, seed=6))
    check(machine, parent, child, grandchild)
    parent.close()
    grandchild.close()
    check(machine, child)
    child.close()
    assert memory_of(machine).free_pages == memory_of(machine).pages
    check(machine)


def test_parent_that_rewinds_into_a_shared_page_copies_it() -> None:
    """The case of decisions.md 6: other tokens after a rewind must not show in the other branch."""
    machine = fake_machine()
    parent = machine.open()
    parent.prefill(tokens(64))
    child, _ = parent.fork()
    parent.rewind(60)
    parent.step(tokens(40, seed=8))
    check(machine, parent, child)
    child.rewind(59)
    check(machine, parent, child)


@pytest.mark.parametrize("at", range(30, 51))
def test_fork_at_every_position(at: int) -> None:
    machine = fake_machine()
    parent = machine.open()
    parent.prefill(tokens(50))
    in_place = parent.can_rewind(at)
    child, report = parent.fork(at)
    assert in_place == (at >= 50 - HORIZON)
    assert report.kind is (RewindKind.IN_PLACE if in_place else RewindKind.REBUILD)
    assert report.replayed_tokens == (0 if in_place else at)
    assert (child.position, child.high_water) == (at, at)
    assert child.floor == (44 if in_place else 0)
    check(machine, parent, child)
    for to in range(at - 1, max(at - 9, 0), -1):
        again, _ = child.fork()
        assert again.can_rewind(to) == (to >= max(44 if in_place else 0, at - HORIZON))
        again.rewind(to)
        check(machine, parent, child, again)
        again.close()


def test_fork_refusals_leave_no_session() -> None:
    machine = fake_machine(max_sessions=2)
    parent = machine.open()
    parent.prefill(tokens(40))
    for at in (-1, 41):
        with pytest.raises(PositionOutOfRangeError):
            parent.fork(at)
    with pytest.raises(ContextLengthError):
        parent.fork(capacity=39)
    child, _ = parent.fork(0)
    with pytest.raises(SessionLimitError):
        parent.fork()
    assert child.position == 0
    child.close()
    fail_next_call(machine)
    with pytest.raises(BackendFailedError):
        parent.fork()
    assert memory_of(machine).sessions == 1
    check(machine, parent)


def test_fork_without_the_entry_point_is_refused() -> None:
    manifest = small_manifest()
    capabilities = dataclasses.replace(manifest.capabilities, fork=False)
    machine = fake_machine(dataclasses.replace(manifest, capabilities=capabilities))
    session = machine.open()
    session.prefill([1])
    with pytest.raises(NotInArtifactError):
        session.fork()


def test_two_sessions_in_one_step() -> None:
    machine = fake_machine()
    first, second = machine.open("a"), machine.open("b")
    first.prefill(tokens(33))
    second.prefill(tokens(18, seed=1))
    results = step_together(machine, [(first, tokens(7, seed=2), 2), (second, [5], 1)])
    assert [r.shape for r in results] == [(2, 1024), (1, 1024)]
    assert np.array_equal(results[0][-1], ORACLE.logits(first.history))
    assert np.array_equal(results[0][0], ORACLE.logits(first.history[:-1]))
    assert np.array_equal(results[1][0], ORACLE.logits(second.history))
    check(machine, first, second)
    fail_next_call(machine)
    with pytest.raises(BackendFailedError):
        step_together(machine, [(first, [1], 1), (second, [1], 1)])
    assert not first.state_valid
    assert not second.state_valid
    first.rebuild()
    second.rebuild()
    check(machine, first, second)


def test_step_refusals() -> None:
    machine = fake_machine()
    session = machine.open(capacity=30)
    for bad in ([1024], [-1], [0, 5000]):
        with pytest.raises(InvalidRequestError, match=r"expected ids in \[0, 1024\)") as refused:
            session.prefill(bad)
        assert refused.value.field == "tokens"
    with pytest.raises(InvalidRequestError):
        session.step([])
    for batch, wanted in (([], 0), ([1], 2), ([1], -1)):
        with pytest.raises(InvalidRequestError, match="at least one token and no more logit rows"):
            step_together(machine, [(session, batch, wanted)])
    with pytest.raises(InvalidRequestError, match="expected each session once"):
        step_together(machine, [(session, [1], 1), (session, [1], 1)])
    with pytest.raises(InvalidRequestError, match="at most 24 rows"):
        session.advance(tokens(25), 1)
    with pytest.raises(InvalidRequestError, match="at most 16 logit rows"):
        session.advance(tokens(20), 17)
    for chunk in (0, -1, 25):
        with pytest.raises(InvalidRequestError, match=f"a chunk of 1 to 24 tokens, got {chunk}"):
            session.prefill([1], chunk=chunk)
    session.prefill(tokens(30))
    with pytest.raises(ContextLengthError) as full:
        session.step([1])
    assert (full.value.n_prompt_tokens, full.value.n_ctx) == (31, 30)
    for capacity in (0, 257, -1):
        with pytest.raises(InvalidRequestError):
            machine.open(capacity=capacity)
    check(machine, session)


def test_page_pool_exhaustion_is_refused_before_any_work() -> None:
    machine = fake_machine(max_sessions=3, page_count=4)
    first = machine.open()
    first.prefill(tokens(64))
    child, _ = first.fork()
    second = machine.open()
    second.prefill(tokens(40))
    for session in (second, first):
        before = (session.history, device_calls(machine))
        with pytest.raises(MemoryBudgetError, match="expected 1 free pages of 32 tokens, got 0 of 4"):
            session.prefill(tokens(30))
        assert before == (session.history, device_calls(machine))
    check(machine, first, second, child)
    # Both pages of `first` are shared, so a rebuild would free none and need two.
    first.rewind(60)
    with pytest.raises(MemoryBudgetError):
        first.rewind(40)
    # To make the logits of token 59 again writes into a shared page, which needs a copy as any write.
    for write in (first.logits, lambda: first.step([1])):
        with pytest.raises(MemoryBudgetError):
            write()
    check(machine, second, child)
    assert first.state_valid
    child.close()
    check(machine, first, second)
    assert first.rewind(40).kind is RewindKind.REBUILD
    check(machine, first, second)


def test_batched_step_without_pages_leaves_both_sessions_alone() -> None:
    machine = fake_machine(max_sessions=2, page_count=3)
    first, second = machine.open(), machine.open()
    first.prefill(tokens(32))
    second.prefill(tokens(32, seed=1))
    with pytest.raises(MemoryBudgetError):
        step_together(machine, [(first, [1], 1), (second, [1], 1)])
    assert memory_of(machine).free_pages == 1
    check(machine, first, second)


def test_closed_session_refuses_everything() -> None:
    machine = fake_machine()
    session = machine.open()
    session.prefill([1, 2])
    session.close()
    session.close()
    for call in (
        session.logits,
        session.fork,
        session.rebuild,
        lambda: session.step([1]),
        lambda: session.rewind(1),
    ):
        with pytest.raises(StateInvalidError, match="open session"):
            call()
    check(machine)


def test_device_failure_at_each_call_of_a_prefill() -> None:
    given = tokens(100)
    for failing in range(5):
        machine = fake_machine()
        session = machine.open()
        fail_next_call(machine, failing)
        with pytest.raises(BackendFailedError, match="InjectedError"):
            session.prefill(given)
        assert session.history == tuple(given[: 24 * failing])
        assert session.state_valid == (failing == 0)
        check(machine)
        session.prefill(given[24 * failing :])
        assert session.history == tuple(given)
        check(machine, session)


def test_device_failure_at_each_call_of_a_rebuild() -> None:
    given = tokens(90)
    for failing in range(3):
        machine = fake_machine()
        session = machine.open()
        session.prefill(given)
        fail_next_call(machine, failing)
        with pytest.raises(BackendFailedError):
            session.rewind(60)
        assert session.history == tuple(given[:60])
        assert not session.state_valid
        report = session.rewind(60)
        assert (report.kind, report.rebuild_reason) == (
            RewindKind.REBUILD,
            RebuildReason.SNAPSHOT_INVALIDATED,
        )
        check(machine, session)


def test_device_failure_while_logits_are_made_again() -> None:
    machine = fake_machine()
    session, given = machine.open(), tokens(50)
    session.prefill(given)
    session.rewind(47)
    fail_next_call(machine)
    with pytest.raises(BackendFailedError):
        session.logits()
    assert not session.state_valid
    assert session.history == tuple(given[:47])
    child, report = session.fork(40)
    assert report.kind is RewindKind.REBUILD
    session.rebuild()
    check(machine, session, child)


def test_rings_one_row_too_small_are_found() -> None:
    """Mutation check of this suite: without the row before the horizon a rewind reads overwritten rows."""
    machine = fake_machine(small_manifest(capacity_change=-1))
    session, given = machine.open(), tokens(67)
    session.prefill(given)
    session.rewind(67 - HORIZON)
    assert not np.array_equal(session.logits(), ORACLE.logits(session.history))


def test_poison_is_noticed() -> None:
    machine = fake_machine()
    session = machine.open()
    session.prefill(tokens(40))
    poison_dead(machine, session, position=40, oldest=40)
    session.rewind(36)
    with pytest.raises(BackendFailedError, match="read of dead rows"):
        session.logits()


def test_digest_is_that_of_the_tokens_only() -> None:
    machine = fake_machine()
    session, other, given = machine.open(), machine.open(), tokens(40)
    session.prefill(given)
    first = session.digest
    session.step([3])
    assert session.digest != first
    session.rewind(40)
    assert session.digest == first
    other.prefill(given[:10])
    _ = other.digest
    other.prefill(given[10:])
    assert other.digest == first
    assert machine.open(tokenizer_sha256="ab" * 32).digest != machine.open().digest


def test_a_fork_shares_the_blocks_of_the_history() -> None:
    machine = fake_machine(small_manifest(context=1024))
    parent = machine.open()
    parent.prefill(tokens(700))
    child, _ = parent.fork(600)
    assert shared_blocks(parent, child, 600) == [True, True]
    assert child.history == tuple(tokens(700)[:600])


@pytest.mark.parametrize("state", ["valid", "restored", "stale", "never evaluated again", "empty"])
def test_position_0_is_reached_in_place_from_any_state(state: str) -> None:
    machine = fake_machine()
    session = machine.open()
    if state != "empty":
        session.prefill(tokens(100))
    if state == "restored":
        session.rewind(64)
    elif state == "stale":
        session.rewind(20, defer=True)
    elif state == "never evaluated again":
        fail_next_call(machine)
        with pytest.raises(BackendFailedError):
            session.step([1])
    source, kind = session.position, RewindKind.NONE if state == "empty" else RewindKind.IN_PLACE
    calls = device_calls(machine)
    assert session.can_rewind(0)
    plan = session.plan_rewind(0)
    assert (plan.kind, plan.rebuild_reason) == (kind, RebuildReason.NOT_REBUILT)
    assert (plan.base_position, plan.replay_tokens, plan.estimated_seconds) == (0, 0, 0.0)
    child, forked = session.fork(0)
    report = session.rewind(0, max_replay_tokens=0)
    for one in (forked._replace(kind=kind, cause=report.cause), report):
        assert (one.kind, one.rebuild_reason) == (kind, RebuildReason.NOT_REBUILT)
        assert (one.from_position, one.to_position, one.replayed_tokens) == (source, 0, 0)
    assert forked.kind is RewindKind.IN_PLACE
    assert device_calls(machine) == calls
    assert session.state_valid
    check(machine, session, child)
    for each, seed in ((session, 5), (child, 6)):
        each.prefill(tokens(50, seed=seed))
    check(machine, session, child)
