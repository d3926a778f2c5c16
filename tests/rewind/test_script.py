"""Rewinds to every border on the fake device, and what sessions do to each other where there is no room."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_executable import fake_machine, small_manifest
from port import CopyMode, SnapshotOrigin, largest_snapshot
from rewind.script import Script
from rewind.truth import FakeTruth
from rewind.twin import Twin

from ds4c_runtime.store.session_store import SessionStore, Storage

PAGE = 32
ENOUGH = 13
"""Pages with which nothing of `crowd` is refused."""
TRUTH = FakeTruth()


@pytest.mark.parametrize("mode", CopyMode)
def test_every_border_once(mode: CopyMode, tmp_path: Path) -> None:
    machine = fake_machine(max_sessions=3, copy_mode=mode)
    store = SessionStore(machine.manifest, Storage(tmp_path))
    script = Script(Twin(machine, TRUTH, mode), store, fails=True, turns=10)
    script.run()
    assert script.done >= 60


def crowd(twin: Twin) -> None:
    """Pins, forks, replays and steps of two, each refused or not; snapshots go where they may."""
    truth, pairs = twin.truth, twin.pairs

    def more(number: int, count: int, way: int) -> list[int]:
        return truth.more(pairs[number].tokens, count, way)

    for number in range(3):
        twin.open()
        twin.prefill(pairs[number], more(number, 2 * PAGE + 5 - 20 * number, number), 24)
        twin.check(more=True)
    twin.close(pairs[2])
    first, second = pairs
    for act in (
        lambda: twin.pin(first, PAGE),
        lambda: twin.snapshot(first, SnapshotOrigin.TURN_END),
        lambda: twin.step(first, more(0, 3, 1)),
        lambda: twin.fork(first, first.position - 4),
        lambda: twin.pin(first, first.position - 3),
        lambda: twin.step(pairs[-1], truth.garbage(2, 1)),
        lambda: twin.step_together([(second, more(1, 4, 0)), (first, more(0, 2, 2))]),
        lambda: twin.prefill(first, more(0, PAGE, 0), 24),
        lambda: twin.snapshot(second),
        lambda: twin.rewind(first, PAGE + 3),
        lambda: twin.prefill(first, more(0, PAGE - 2, 2), 24),
        lambda: twin.rewind(second, second.position - 9),
        lambda: twin.restore(first, max(first.model.held, key=lambda h: h.order)) if first.model.held else 0,
        lambda: twin.prefill(first, more(0, 5, 0), 24),
        lambda: twin.rewind(first, first.position - 7),
        lambda: twin.fork(second, second.position - 1),
        lambda: twin.close(pairs[-1]),
        lambda: twin.rewind(first, 0),
        lambda: twin.prefill(first, more(0, 3 * PAGE, 1), 24),
    ):
        act()
        twin.check(more=True)


def test_pages_that_do_or_do_not_suffice() -> None:
    refused: list[int] = []
    for pages in range(1, ENOUGH + 1):
        twin = Twin(fake_machine(max_sessions=3, page_count=pages), TRUTH)
        crowd(twin)
        refused.append(twin.refused["pages"])
    assert all(refused[: ENOUGH // 2])
    assert not refused[-1]


def test_pages_for_what_comes_after_a_snapshot_inside_a_page() -> None:
    """A state is given up to come back later; by then another session has taken the pages."""
    refused: list[int] = []
    for pages in range(4, 8):
        twin = Twin(fake_machine(max_sessions=2, page_count=pages), TRUTH)
        for number, count in ((0, PAGE + 5), (1, 1)):
            assert twin.open()
            twin.prefill(twin.pairs[number], TRUTH.more((), count, number), 24)
        first, second = twin.pairs
        assert twin.pin(first, PAGE + 5)
        assert twin.prefill(first, TRUTH.more(first.tokens, 12, 0), 24)
        assert twin.rewind(first, PAGE + 9, defer=True)
        assert twin.prefill(second, TRUTH.more(second.tokens, 2 * PAGE - 1, 1), 24)
        twin.rewind(first, PAGE + 9)
        twin.check(more=True)
        refused.append(twin.refused["pages"])
    assert refused == [1, 0, 0, 0]


@pytest.mark.parametrize("mode", [CopyMode.DEVICE, CopyMode.HOST_ASYNC])
def test_bytes_that_do_or_do_not_suffice(mode: CopyMode) -> None:
    for largest in range(9):
        room = largest * largest_snapshot(small_manifest())
        crowd(Twin(fake_machine(max_sessions=3, snapshot_bytes=room, copy_mode=mode), TRUTH, mode))
