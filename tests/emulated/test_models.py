"""Whole models as CUDA and Metal text on the emulator: tokens as on the CPU, the same bits in any step.

Each model on one target; on the other, and every way of copying on both, in `make test-more`.
"""

from __future__ import annotations

import numpy as np
import pytest
from artifacts import Build, tokens_for
from emulated.models import CUDA, EMULATOR, METAL, TARGETS, emulated
from port import CopyMode
from sizes import more

from ds4c_runtime.local import LocalModel, open_local

pytestmark = pytest.mark.slow

SHORT = (("tiny-8", CUDA), ("tiny-delta", METAL), ("tiny-128", METAL))
LONG = (("tiny-8", METAL), ("tiny-delta", CUDA), ("tiny-128", CUDA), ("demo", CUDA), ("demo", METAL))
every_model = pytest.mark.parametrize(("name", "target"), [*SHORT, *(more(*each) for each in LONG)])

KEPT = ((CUDA, CopyMode.DEVICE), (CUDA, CopyMode.HOST_ASYNC))
"""A copy by the device alone, and one that the host takes while the device goes on."""
COPIES = [(target, mode) for target in TARGETS for mode in CopyMode]

GENERATED = 48


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


@every_model
def test_greedy_tokens_are_those_of_the_cpu(built: Build, name: str, target: str) -> None:
    made, model = emulated(built, name, target)
    prompt = tokens_for(made.config, 150, seed=5)
    expected = greedy(open_local(built(name).artifact), prompt, GENERATED)
    assert greedy(model, prompt, GENERATED) == expected


@every_model
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


@pytest.mark.parametrize(("target", "mode"), [c if c in KEPT else more(*c) for c in COPIES])
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
