"""Rewinds on emulated texts, compared with the model of sessions and with sessions that never rewound."""

from __future__ import annotations

from pathlib import Path

import pytest
from artifacts import Build
from emulated.models import TARGETS, emulated
from port import machine_like
from rewind.script import Script
from rewind.truth import TreeTruth
from rewind.twin import Twin
from rewind.walker import OPERATIONS, Walk

from ds4c_runtime.store.session_store import SessionStore, Storage

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("name", "target"), [("tiny-8", TARGETS[0]), ("tiny-delta", TARGETS[1])])
def test_every_border_once(built: Build, name: str, target: str, tmp_path: Path) -> None:
    made, model = emulated(built, name, target)
    truth = TreeTruth(model, made.config, fresh_every=1000)
    script = Script(
        Twin(machine_like(model, 3), truth), SessionStore(model.manifest, Storage(tmp_path)), fails=False
    )
    script.run()
    assert script.done >= 60


@pytest.mark.more
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["tiny-128", "tiny-8", "tiny-delta"])
def test_a_walk_of_rewinds(built: Build, name: str, target: str, seed: int, tmp_path: Path) -> None:
    made, model = emulated(built, name, target)
    walk = Walk(model, TreeTruth(model, made.config), seed, tmp_path)
    walk.run(200, chapter_length=25)
    assert walk.operations == 200
    assert len(walk.done) > len(OPERATIONS) // 2
