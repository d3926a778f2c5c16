"""The script of rewinds on the fake device and, with snapshots in every place, on compiled kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_executable import fake_machine
from port import CopyMode
from rewind.script import Script
from rewind.truth import FakeTruth
from rewind.twin import Twin

from ds4c_runtime.store.session_store import SessionStore, Storage


@pytest.mark.parametrize("mode", CopyMode)
def test_every_border_once(mode: CopyMode, tmp_path: Path) -> None:
    machine = fake_machine(max_sessions=3, copy_mode=mode)
    twin = Twin(machine, FakeTruth(), mode)
    script = Script(twin, SessionStore(machine.manifest, Storage(tmp_path)), fails=True, turns=10)
    script.run()
    assert script.done >= 60
