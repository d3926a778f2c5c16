"""What a session holds and tells: logits at the end of its work, epochs, reports, rows. Without snapshots."""

from __future__ import annotations

import time
from functools import partial

import fake_executable
import numpy as np
import pytest
from fake_oracle import FakeOracle, random_tokens
from port import append_rows

from ds4c_runtime.generation import stale_report
from ds4c_runtime.reports import RebuildReason, RewindCause, RewindKind

fake_machine = partial(fake_executable.fake_machine, snapshot_bytes=0)
ORACLE = FakeOracle()


def test_the_epoch_counts_every_move_backwards() -> None:
    session = fake_machine().open()
    session.prefill(random_tokens(60, 1))
    epochs = [session.epoch]
    for to in (58, 58, 30, 0, 0):  # in place, none, a rebuild, to the beginning, none
        session.rewind(to)
        epochs.append(session.epoch)
    assert epochs == [0, 1, 1, 2, 3, 3]


@pytest.mark.parametrize("count", [1, 23, 24, 25, 48])
def test_a_prompt_ends_with_its_logits(count: int) -> None:
    """Also one of whole chunks of 24 tokens."""
    session = fake_machine().open()
    session.prefill(random_tokens(count, 1))
    session.logits()
    assert session.logits_replayed == 0


def test_a_rebuild_ends_with_its_logits() -> None:
    """Its last token is not run once more to have them."""
    machine = fake_machine()
    session = machine.open()
    session.prefill(random_tokens(60, 1))
    assert session.rewind(30).kind is RewindKind.REBUILD
    session.logits()
    assert session.logits_replayed == 0
    ORACLE.check(machine, session)


def test_a_rebuilt_fork_says_how_long_it_took() -> None:
    parent = fake_machine().open()
    parent.prefill(random_tokens(60, 1))
    started = time.perf_counter()
    _, report = parent.fork(30)
    assert report.kind is RewindKind.REBUILD
    assert 0 < report.replay_seconds <= time.perf_counter() - started


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 15])
def test_rows_of_pages_are_read_in_order(count: int) -> None:
    """Eight rows of four tokens stand on a page of 32."""
    machine = fake_machine()
    session = machine.open()
    session.prefill(random_tokens(63, 1))
    rows = append_rows(machine, session, "rows4", count)
    assert rows.shape == (count, 4)
    assert np.array_equal(rows, append_rows(machine, session, "rows4", 15)[:count])


def test_a_stale_session_is_rebuilt_from_the_beginning_as_far_as_anybody_knows() -> None:
    """What a generation tells that was cancelled before a chunk of the rebuild was run."""
    session = fake_machine().open()
    session.prefill(random_tokens(60, 1))
    session.rewind(30, defer=True)
    report = stale_report(session)
    assert (report.kind, report.cause) == (RewindKind.DEFERRED, RewindCause.CLIENT)
    assert (report.from_position, report.to_position, report.base_position) == (30, 30, 0)
    assert (report.replayed_tokens, report.restore_seconds, report.replay_seconds) == (0, 0, 0)
    assert report.rebuild_reason is RebuildReason.SNAPSHOT_INVALIDATED


def test_a_deferred_fork_says_so_and_is_rebuilt_later() -> None:
    machine = fake_machine()
    parent = machine.open()
    parent.prefill(random_tokens(60, 1))
    child, report = parent.fork(30, defer=True)
    assert (report.kind, report.cause, report.replayed_tokens) == (RewindKind.DEFERRED, RewindCause.BRANCH, 0)
    assert (child.state_valid, child.history) == (False, parent.history[:30])
    child.rebuild()
    ORACLE.check(machine, parent, child)
