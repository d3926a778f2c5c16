"""The suite must notice a ring that is one row too small, whatever the state."""

from __future__ import annotations

from pathlib import Path

import pytest
from artifacts import DEMO, Build, checkpoint_of, tokens_for
from rewind_reference import Memo

from ds4c.build import BuildOptions, build
from ds4c.models.architecture import load_config
from ds4c.models.config import ModelConfig
from ds4c.passes import plan_state, prove_rewind
from ds4c.passes.windows import ReadSet
from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.local import open_local
from ds4c_runtime.manifest import Manifest

HORIZON = 5


def build_with_small_ring(
    every: int, checkpoint: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Build with the rings of one kind a row short and the proof silenced."""
    derive = plan_state.derive_capacity

    def short(reads: ReadSet, distance: int) -> int:
        return derive(reads, distance) - (reads.every == every)

    with monkeypatch.context() as patch:
        patch.setattr(plan_state, "derive_capacity", short)
        patch.setattr(prove_rewind, "prove", lambda *_: None)
        build(
            checkpoint, folder, BuildOptions(horizon=HORIZON, context=512, rows=32, logit_rows=32, segments=2)
        )


@pytest.mark.parametrize(("name", "every"), [("tiny-8", 1), ("tiny-8", 4), ("tiny-8", 8), ("tiny-delta", 1)])
def test_a_ring_one_row_short_is_found(
    name: str, every: int, tmp_path: Path, built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = built(name).checkpoint
    build_with_small_ring(every, checkpoint, tmp_path / "m", monkeypatch)
    config = load_config(checkpoint / "config.json")
    with pytest.raises(ArtifactError, match="expected a capacity of at least"):
        open_local(tmp_path / "m")
    model = open_local(tmp_path / "m", sessions=2, check_rings=False)
    memo = Memo(model, config)
    straight, garbage = tokens_for(config, 80, 1), tokens_for(config, 80, 2)
    memo.fill(straight)
    wrong = 0
    for start in range(8, 40):
        session = model.session()
        session.prefill(straight[:start])
        session.step(garbage[:2])
        session.step(garbage[2:HORIZON])  # two blocks, or the logits at the target were held
        session.rewind(start)
        try:
            memo.check(session)  # evaluates the last token again, which needs the last row of the ring
            session.step(straight[start : start + 9], all_logits=True)
            memo.check(session)
        except AssertionError:
            wrong += 1
        session.close()
    assert wrong > 0


@pytest.mark.parametrize(("name", "first"), [("tiny-8", "l0.raw"), ("tiny-delta", "l0.conv")])
def test_the_proof_refuses_such_a_ring(
    name: str, first: str, tmp_path: Path, built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    derive = plan_state.derive_capacity
    monkeypatch.setattr(plan_state, "derive_capacity", lambda r, d: derive(r, d) - 1)
    from ds4c.errors import CompileError

    with pytest.raises(CompileError, match=f"prove-rewind: @{first}: expected .* wants the row of position"):
        build(built(name).checkpoint, tmp_path / "m", BuildOptions(context=512))
    assert not list(tmp_path.iterdir())


def test_the_bundled_model_has_the_planned_rings(built: Build) -> None:
    manifest = Manifest.read(built("demo").artifact)
    config = load_config(DEMO / "config.json")
    assert isinstance(config, ModelConfig)
    distance = manifest.limits.horizon + 1
    for ring in manifest.rings:
        span = config.sliding_window - 1 if ring.name.endswith("raw") else {4: 7, 128: 127}[ring.every]
        assert ring.capacity == span + distance


def test_an_opaque_state_has_a_plane_for_every_token_of_the_horizon_and_two(built: Build) -> None:
    manifest = Manifest.read(built("tiny-delta").artifact)
    kinds = {ring.name: (ring.kind, ring.capacity - manifest.limits.horizon) for ring in manifest.rings}
    assert kinds == {
        f"l{i}.{n}": k for i in range(3) for n, k in (("conv", ("ring", 4)), ("delta", ("opaque", 2)))
    }


def test_checkpoint_helper_knows_the_bundled_model(tmp_path: Path) -> None:
    assert checkpoint_of("demo", tmp_path) == DEMO
