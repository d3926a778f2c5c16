"""Random walks of rewinds on emulated texts, each step compared with sessions that never rewound."""

from __future__ import annotations

from pathlib import Path

import pytest
from artifacts import Build
from emulated.models import TARGETS, emulated
from rewind.walker import OPERATIONS, Walk

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["tiny-128", "tiny-8", "tiny-delta"])
def test_a_walk_of_rewinds(built: Build, name: str, target: str, seed: int, tmp_path: Path) -> None:
    made, model = emulated(built, name, target)
    walk = Walk(model, made.config, seed, tmp_path)
    walk.run(200, chapter_length=25)
    assert sum(walk.done[each] for each in OPERATIONS) == 200
