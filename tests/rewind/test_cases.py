"""The rewinds that other engines refuse or get silently wrong: each compared with a fresh session, `==`.

(a) a draft in one batch, (b) the same tokens one by one, (c) two rewinds in a row, (d) across a closed
4-group, a closed 128-group and the window edge, (e) by 1 token at positions 0 mod 4 and 0 mod 128, (f) fork
at a partial position. (g), save and restore, comes with snapshots.
"""

from __future__ import annotations

from typing import Any

import pytest
from artifacts import Build, tokens_for
from port import Machine, Session, open_machine, poison
from rewind_reference import Memo

from ds4c_runtime.errors import PositionOutOfRangeError, RewindTooDearError
from ds4c_runtime.reports import RewindKind

HORIZON = 12
LENGTH = 280


class Case:
    """A model with one straight token stream and one of garbage."""

    def __init__(self, model: Machine[Any], memo: Memo) -> None:
        self.model, self.memo = model, memo
        self.straight = tokens_for(memo.config, LENGTH, seed=1)
        self.garbage = tokens_for(memo.config, LENGTH, seed=2)
        memo.fill(self.straight)

    def at(self, position: int) -> Session:
        """A session with the straight stream up to a position."""
        session = self.model.open()
        session.prefill(self.straight[:position])
        return session

    def go_wrong(self, session: Session, count: int, one_by_one: bool) -> None:
        wrong = self.garbage[:count]
        for part in [[t] for t in wrong] if one_by_one else [wrong]:
            session.step(part, all_logits=True)

    def check(self, session: Session, follow: int = 6) -> None:
        """Right now, and right while it goes on along the straight stream."""
        poison(self.model, session)
        self.memo.check(session)
        for _ in range(follow):
            p = session.position
            session.step(self.straight[p : p + 1])
            self.memo.check(session)


@pytest.fixture(scope="module", params=["tiny-8", "tiny-128", "tiny-delta"])
def case(built: Build, request: pytest.FixtureRequest) -> Case:
    made = built(request.param)
    model = open_machine(made.artifact, sessions=4)
    return Case(model, Memo(model, made.config))


@pytest.mark.parametrize("one_by_one", [False, True], ids=["in one batch", "one by one"])
@pytest.mark.parametrize("phase", [0, 1, 2, 3])
def test_a_b_draft_then_rewind(case: Case, phase: int, one_by_one: bool) -> None:
    for base in (4, 124, 252):
        for count in range(1, 9):
            session = case.at(base + phase)
            case.go_wrong(session, count, one_by_one)
            report = session.rewind(base + phase)
            assert (report.kind, report.replayed_tokens) == (RewindKind.IN_PLACE, 0)
            case.check(session, follow=5)
            session.close()


def test_c_rewinds_in_a_row(case: Case) -> None:
    session = case.at(133)
    case.go_wrong(session, 6, one_by_one=False)
    session.rewind(136)
    case.go_wrong(session, 1, one_by_one=True)
    session.rewind(133)
    session.rewind(129)
    assert session.last_rewind is not None
    assert session.last_rewind.kind is RewindKind.IN_PLACE
    case.check(session)
    session.close()


@pytest.mark.parametrize("edge", [4, 8, 16, 17, 128, 129, 144, 256])
def test_d_across_closed_groups_and_the_window_edge(case: Case, edge: int) -> None:
    for before in (1, 2, 5):
        session = case.at(edge - before if edge > before else 0)
        start = session.position
        case.go_wrong(session, min(HORIZON, before + 6), one_by_one=False)
        assert session.rewind(start).kind in (RewindKind.IN_PLACE, RewindKind.NONE)
        case.check(session)
        session.close()


@pytest.mark.parametrize("position", [4, 8, 12, 128, 132, 256])
def test_e_by_one_token_at_group_borders(case: Case, position: int) -> None:
    for at in (position, position + 1):
        session = case.at(at)
        assert session.rewind(at - 1).kind is RewindKind.IN_PLACE
        case.check(session)
        session.close()


@pytest.mark.parametrize("at", [1, 5, 127, 130, 139])
def test_f_fork_at_a_partial_position(case: Case, at: int) -> None:
    parent = case.at(min(at + 4, 140))
    child, report = parent.fork(at)
    assert report.kind is RewindKind.IN_PLACE
    case.go_wrong(parent, 7, one_by_one=True)  # the parent goes another way on shared pages
    case.check(child)
    parent.rewind(at)
    case.check(parent)
    child.rewind(max(0, at - 1))
    case.check(child)
    child.close()
    parent.close()


def test_every_distance_says_what_it_did(case: Case) -> None:
    for back in range(HORIZON + 3):
        session = case.at(150)
        report = session.rewind(150 - back)
        if back == 0:
            expected = RewindKind.NONE
        else:
            expected = RewindKind.IN_PLACE if back <= HORIZON else RewindKind.SNAPSHOT_REPLAY
        assert report.kind is expected
        assert report.replayed_tokens == (150 - back - 128 if expected is RewindKind.SNAPSHOT_REPLAY else 0)
        case.check(session)
        session.close()


def test_rewind_to_zero_and_start_again(case: Case) -> None:
    session = case.at(200)
    session.rewind(0)
    assert session.logits() is None
    session.prefill(case.straight[:140])
    case.check(session)
    session.close()


def test_refusals_leave_the_session_alone(case: Case) -> None:
    session = case.at(100)
    for wrong in (-1, 101):
        with pytest.raises(PositionOutOfRangeError):
            session.rewind(wrong)
    with pytest.raises(RewindTooDearError):
        session.rewind(10, max_replay_tokens=9)
    case.check(session)
    session.close()


def test_logits_after_a_rewind_are_saved_or_replayed(case: Case) -> None:
    session = case.at(90)
    session.step(case.straight[90:94], all_logits=True)
    session.rewind(92)  # inside the block whose logits are held
    session.logits()
    assert session.last_rewind is not None
    assert session.last_rewind.replayed_tokens == 0
    session.rewind(85)
    session.logits()
    assert session.last_rewind.replayed_tokens == 1
    case.check(session)
    session.close()
