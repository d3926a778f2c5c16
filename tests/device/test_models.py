"""Whole models on a device: near the CPU's numbers, the same bits over chunks and graphs, and rewinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifacts import Build, tokens_for
from port import CopyMode
from rewind.truth import TreeTruth
from rewind.walker import Walk

from ds4c_runtime.local import LocalModel, open_local
from tests.device.conftest import OnDevice

MODELS = ("tiny-128", "tiny-8", "tiny-delta", "demo")
CHUNK = 64


def rows_of(model: LocalModel, tokens: list[int], chunk: int) -> np.ndarray:
    session = model.session("rows")
    rows = [session.step(tokens[at : at + chunk], all_logits=True) for at in range(0, len(tokens), chunk)]
    session.close()
    return np.concatenate(rows)


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, on_device: OnDevice) -> tuple[str, LocalModel]:
    if on_device.is_small and request.param != "tiny-8":
        pytest.skip("a small run takes one model")
    return request.param, on_device.open(request.param)


def test_logits_are_near_those_of_the_cpu(
    model: tuple[str, LocalModel], built: Build, on_device: OnDevice
) -> None:
    name, loaded = model
    tokens = tokens_for(built(name).config, 150, seed=6)
    got, want = (rows_of(m, tokens, CHUNK) for m in (loaded, open_local(built(name).artifact)))
    scale = np.abs(want).max()
    error = np.abs(got - want).max() / scale
    same = (got.argmax(axis=1) == want.argmax(axis=1)).mean()
    print(f"{name}: largest difference {error:.1e} of the largest logit, {same:.1%} of the same best token")
    assert error <= 2e-4
    assert same >= 0.99


def test_chunks_change_no_bit(model: tuple[str, LocalModel], built: Build) -> None:
    name, loaded = model
    tokens = tokens_for(built(name).config, 140, seed=8)
    whole = rows_of(loaded, tokens, CHUNK)
    for chunk in (1, 6):
        assert rows_of(loaded, tokens, chunk).tobytes() == whole.tobytes()


def test_graphs_change_no_bit(model: tuple[str, LocalModel], built: Build) -> None:
    name, loaded = model
    device: Any = loaded.device
    if not hasattr(device, "uses_graphs"):
        pytest.skip("this device has no graphs")
    tokens = tokens_for(built(name).config, 40, seed=9)
    captured = rows_of(loaded, tokens, 1)
    device.uses_graphs = False
    try:
        assert rows_of(loaded, tokens, 1).tobytes() == captured.tobytes()
    finally:
        device.uses_graphs = True
    assert rows_of(loaded, tokens, 1).tobytes() == captured.tobytes()


@pytest.mark.parametrize("name", ["tiny-8", "tiny-128"])
def test_a_walk_of_rewinds(on_device: OnDevice, name: str, seed: int, tmp_path: Path) -> None:
    if on_device.is_small and name != "tiny-8":
        pytest.skip("a small run takes one model")
    count = 25 if on_device.is_small else 200
    model = on_device.open(name)
    walk = Walk(model, TreeTruth(model, on_device.artifact(name).config), seed, tmp_path)
    walk.run(count, chapter_length=25)


@pytest.mark.parametrize("mode", CopyMode)
def test_a_snapshot_comes_back(on_device: OnDevice, mode: CopyMode) -> None:
    tokens = tokens_for(on_device.artifact("tiny-8").config, 260, seed=7)
    session = on_device.open("tiny-8", copy_mode=mode).session()
    session.prefill(tokens[:200])
    before = session.step(tokens[200:201])[-1].tobytes()
    info = session.pin(position=201)
    session.prefill(tokens[201:])
    session.rewind(100)
    session.rewind_to_snapshot(info.snapshot_id)
    restored = session.logits()
    assert restored is not None
    assert restored.tobytes() == before
