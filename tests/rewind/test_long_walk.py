"""1,000 and 10,000 operations on compiled models, each equal to a session that never rewound."""

from __future__ import annotations

from pathlib import Path

import pytest
from artifacts import Build
from rewind.walker import CHAPTERS, FRESH_EVERY, OPERATIONS, Walk

from ds4c_runtime.local import open_local
from ds4c_runtime.reports import RewindKind

MODELS = ("tiny-8", "tiny-128", "tiny-delta")


def walk(built: Build, name: str, seed: int, operations: int, folder: Path) -> Walk:
    made = built(name)
    model = open_local(made.artifact)
    walk = Walk(model, made.config, seed, folder)
    walk.run(operations, chapter_length=max(1, operations // (len(CHAPTERS) * max(1, operations // 4000))))
    return walk


@pytest.mark.parametrize("name", MODELS)
def test_a_thousand_operations(built: Build, name: str, seed: int, tmp_path: Path) -> None:
    done = walk(built, name, seed, 1_000, tmp_path)
    assert set(OPERATIONS) <= set(done.done)
    assert {kind for kind, count in done.kinds.items() if count} == set(RewindKind)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_ten_thousand_operations(built: Build, name: str, seed: int, tmp_path: Path) -> None:
    done = walk(built, name, seed + 1, 10_000, tmp_path)
    assert sum(done.done[name] for name in OPERATIONS) == 10_000
    assert done.done["compared with a fresh session"] >= 10_000 // FRESH_EVERY
    for kind in (RewindKind.IN_PLACE, RewindKind.SNAPSHOT, RewindKind.SNAPSHOT_REPLAY, RewindKind.REBUILD):
        assert done.kinds[kind] > 100
