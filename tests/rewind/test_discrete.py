"""Rewinds on devices whose memory the host cannot see, as a card's: nothing goes past the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from artifacts import Build
from fake_executable import FakeDevice, FakeMachine, fake_machine, small_manifest
from fakes.discrete import DiscreteCpu, DiscreteFake, DiscreteRows
from port import CopyMode
from rewind.bug_scenarios import Stored, logits_of, rows_of
from rewind.row_machine import LateCopies, row_manifest
from rewind.table import BY_SNAPSHOT, IN_PLACE, MAX_WIDTH, PHASES, Table, Way, transactions
from rewind.test_copy_modes import machine, walk_on
from rewind.truth import TreeTruth
from rewind.walker import CHAPTERS, Walk
from sizes import slow

from ds4c_runtime import devices
from ds4c_runtime.device.base import SINGLE
from ds4c_runtime.device.copy_thread import CopyThread
from ds4c_runtime.local import open_local

BORDERS = transactions([0, 1, 2, 3, *range(123, PHASES)])
LATER_LAP = 256


def test_nothing_but_the_device_sees_its_bytes() -> None:
    manifest = small_manifest()
    device = DiscreteFake(manifest)
    io, states = device.allocate_io(manifest), device.allocate(manifest.arenas.state_slot)
    for look in (lambda a: a[0], lambda a: a[:4], np.frombuffer, bytes, memoryview):
        with pytest.raises((TypeError, ValueError)):
            look(states)
    with pytest.raises((KeyError, TypeError)):
        device.call("fork", [io, np.zeros(len(states), np.uint8)], SINGLE)


def test_the_logits_come_down_after_steps_and_inputs_go_up_before_every_call() -> None:
    made = fake_machine(device_type=DiscreteFake)
    device, session = made.device, made.open()
    assert isinstance(device, DiscreteFake)
    session.prefill(list(range(20)), chunk=10)
    session.take_snapshot()
    session.fork(20)
    assert (device.uploads, device.downloads, device.calls) == (4, 2, 4)


@pytest.mark.parametrize(("late", "mode"), [(True, CopyMode.HOST_ASYNC), slow(False, CopyMode.DEVICE)])
def test_random_sessions(mode: CopyMode, late: bool, seed: int, tmp_path: Path) -> None:
    """A part of the walks of `test_copy_modes.py`."""
    copies = LateCopies() if late else CopyThread()
    walk = walk_on(machine(copies, DiscreteFake), mode, 3.5, f"{seed} {mode} {late}", tmp_path)
    walk.run(60, chapter_length=60)


@pytest.mark.slow
@pytest.mark.parametrize(("horizon", "way"), [(MAX_WIDTH, IN_PLACE), (0, BY_SNAPSHOT)])
def test_transactions_at_the_borders(horizon: int, way: Way) -> None:
    outcome = Table(DiscreteRows(row_manifest("bfloat16", horizon))).run(BORDERS, LATER_LAP, way)
    assert outcome.is_clean, outcome.first


def prepared(device_type: type[FakeDevice], mode: CopyMode) -> FakeMachine:
    return fake_machine(copy_mode=mode, device_type=device_type)


@pytest.mark.parametrize("mode", CopyMode)
@pytest.mark.parametrize(("home", "away"), [(DiscreteFake, FakeDevice), (FakeDevice, DiscreteFake)])
def test_a_session_moves_between_devices(
    home: type[FakeDevice], away: type[FakeDevice], mode: CopyMode, tmp_path: Path
) -> None:
    first, second = prepared(home, mode), prepared(away, mode)
    session = first.open()
    session.prefill(list(range(100, 170)))
    session.rewind(68)
    stored = Stored(tmp_path)
    stored.save(first, session)
    moved = stored.load(second)
    assert rows_of(second, moved) == rows_of(first, session)
    assert {s.position for s in moved.snapshots()} == {s.position for s in session.snapshots()}
    moved.rewind(40)
    row = moved.logits()
    assert row is not None
    assert row.tobytes() == logits_of(moved.history)


def test_compiled_kernels(built: Build, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of operation, place of snapshots and shortage, with saves, on the kernels of an artifact."""
    here = devices.BuiltIn("fakes.discrete", DiscreteCpu.__name__, ("cpu",))
    monkeypatch.setitem(devices.BUILT_IN, "discrete", here)
    made = built("tiny-8")
    model = open_local(made.artifact, device="discrete")
    assert isinstance(model.device, DiscreteCpu)
    walk = Walk(model, TreeTruth(model, made.config), seed, tmp_path)
    walk.run(400, chapter_length=400 // len(CHAPTERS))
    assert model.device.downloads > 400
