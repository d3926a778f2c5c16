"""Whole models as CUDA and Metal text on the emulator: the tokens of the CPU, and every promise of rewind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from artifacts import Build, Built, tokens_for
from rewind.table import PHASES, transactions
from rewind.test_tables import Compiled
from rewind.walker import OPERATIONS, Walk

from ds4c_runtime.local import LocalModel, open_local
from ds4c_runtime.transport import CopyMode

pytestmark = pytest.mark.slow

TARGETS = ("cuda:sm_90", "metal")
MODELS = ("tiny-128", "tiny-8", "tiny-delta", "demo")
EMULATOR = "emulator"
GENERATED = 48


def emulated(built: Build, name: str, target: str, **options: object) -> tuple[Built, LocalModel]:
    made = built(name, target=target)
    return made, open_local(made.artifact, device=EMULATOR, **options)  # pyright: ignore[reportArgumentType]


def greedy(model: LocalModel, prompt: list[int], count: int) -> list[int]:
    session = model.session()
    found: list[int] = []
    session.prefill(prompt[:-1])
    logits = session.step(prompt[-1:])[-1]
    while len(found) < count:
        found.append(int(np.argmax(logits)))
        logits = session.step(found[-1:])[-1]
    session.close()
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_the_cpu(built: Build, name: str, target: str) -> None:
    made, model = emulated(built, name, target)
    prompt = tokens_for(made.config, 150, seed=5)
    expected = greedy(open_local(built(name).artifact), prompt, GENERATED)
    assert greedy(model, prompt, GENERATED) == expected


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_whole_and_one_by_one(built: Build, name: str, target: str) -> None:
    """And near those of the CPU, whose sums run in another order."""
    made, model = emulated(built, name, target, sessions=2)
    tokens = tokens_for(made.config, 64 + 64 + 9, seed=6)
    whole, single = model.session("whole"), model.session("single")
    rows = [whole.step(tokens[at : at + 64], all_logits=True) for at in range(0, len(tokens), 64)]
    steps = [single.step([token]) for token in tokens]
    assert np.concatenate(rows).tobytes() == np.concatenate(steps).tobytes()
    cpu = open_local(built(name).artifact).session()
    near = [cpu.step(tokens[at : at + 64], all_logits=True) for at in range(0, len(tokens), 64)]
    scale = np.abs(np.concatenate(near)).max()
    assert np.abs(np.concatenate(rows) - np.concatenate(near)).max() <= 2e-4 * scale


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["tiny-128", "tiny-8", "tiny-delta"])
def test_a_walk_of_rewinds(built: Build, name: str, target: str, seed: int, tmp_path: Path) -> None:
    made, model = emulated(built, name, target)
    walk = Walk(model, made.config, seed, tmp_path)
    walk.run(200, chapter_length=25)
    assert sum(walk.done[each] for each in OPERATIONS) == 200


@pytest.fixture(scope="module", params=TARGETS)
def four_layers(built: Build, request: pytest.FixtureRequest) -> Compiled:
    return Compiled(built("four-layers", target=request.param), device=EMULATOR)


def test_every_transaction(four_layers: Compiled) -> None:
    """All phases, widths and accepted counts, in place."""
    assert four_layers.run(transactions(), lap=128, follow=2) == 3456


def test_every_phase_by_snapshot(four_layers: Compiled) -> None:
    cases = [transactions([phase])[(11 * phase) % 27] for phase in range(PHASES)]
    assert four_layers.run(cases, lap=128, follow=5, away=13) == 128


@pytest.mark.parametrize("mode", list(CopyMode))
@pytest.mark.parametrize("target", TARGETS)
def test_a_snapshot_comes_back(built: Build, target: str, mode: CopyMode) -> None:
    made, model = emulated(built, "tiny-8", target, copy_mode=mode)
    tokens = tokens_for(made.config, 260, seed=7)
    session = model.session()
    session.prefill(tokens[:200])
    before = session.step(tokens[200:201])[-1].tobytes()
    info = session.pin(position=201)
    session.prefill(tokens[201:])
    session.rewind(100)
    session.prefill(tokens[:77])
    session.rewind_to_snapshot(info.snapshot_id)
    assert session.position == 201
    restored = session.logits()
    assert restored is not None
    assert restored.tobytes() == before
    after = session.step(tokens[201:202])[-1].tobytes()
    other = open_local(made.artifact, device=EMULATOR).session()
    other.prefill(tokens[:201])
    assert other.step(tokens[201:202])[-1].tobytes() == after
