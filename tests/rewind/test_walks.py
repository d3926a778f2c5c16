"""Random sessions on compiled artifacts: after every operation `==` the model and one that never rewound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from artifacts import Build
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from port import Machine, machine_like, open_machine
from rewind.truth import TreeTruth
from rewind.walker import CHAPTERS, OPERATIONS, Walk
from unit.runtime.test_session_machine import SessionMachine

MODELS = ("tiny-8", "tiny-128", "tiny-delta")
KINDS = {"none", "in_place", "snapshot", "snapshot_replay", "rebuild", "deferred"}


def walk(built: Build, name: str, seed: int, operations: int, folder: Path) -> Walk:
    made = built(name)
    model = open_machine(made.artifact)
    truth = TreeTruth(model, made.config)
    walk = Walk(model, truth, seed, folder)
    walk.run(operations, chapter_length=max(1, operations // (len(CHAPTERS) * max(1, operations // 4000))))
    assert walk.operations == operations
    assert truth.fresh_ones >= operations // 50
    return walk


@pytest.mark.parametrize(
    ("name", "operations"),
    [("tiny-8", 600), ("tiny-delta", 600), *(pytest.param(n, 1000, marks=pytest.mark.more) for n in MODELS)],
)
def test_every_operation(built: Build, name: str, operations: int, seed: int, tmp_path: Path) -> None:
    done = walk(built, name, seed, operations, tmp_path)
    assert set(+done.done) == {*OPERATIONS, "chapter"}
    assert set(+done.kinds) == KINDS
    assert done.refused["pages"]


@pytest.mark.more
@pytest.mark.parametrize("name", MODELS)
def test_ten_thousand_operations(built: Build, name: str, seed: int, tmp_path: Path) -> None:
    done = walk(built, name, seed + 1, 10_000, tmp_path)
    assert min(done.done[operation] for operation in OPERATIONS) > 10
    assert all(done.kinds[kind] > 100 for kind in KINDS)


@pytest.mark.more
@pytest.mark.parametrize("name", [*MODELS, "demo"])
def test_hypothesis_drives_compiled_sessions(built: Build, name: str) -> None:
    made = built(name)
    model = open_machine(made.artifact)

    class Compiled(SessionMachine):
        truth = TreeTruth(model, made.config)
        fails = False
        most = 140

        def machine(self, pages: int | None, room: int | None) -> Machine[Any]:
            return machine_like(model, 3, pages)

    run_state_machine_as_test(
        Compiled,
        settings=settings(
            max_examples=40,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
