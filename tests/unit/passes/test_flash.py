"""The whole pipeline on the shapes of DeepSeek-V4-Flash; no weights are needed for it."""

import time

import pytest
from example_modules import fake_target
from xdsl.dialects.builtin import ModuleOp

from ds4c.ir.dialect import make_context, verify_module
from ds4c.ir.state_ops import states_of
from ds4c.ir.types import StateKind
from ds4c.models.deepseek_v4 import build_module
from ds4c.models.ir_weights import ir_weights
from ds4c.models.presets import PRESETS
from ds4c.passes import prove_rewind
from ds4c.passes.pipeline import PipelineOptions, pipeline
from ds4c.passes.plan import Plan
from ds4c.passes.program import program_of
from ds4c.passes.prove_rewind import ProveRewind
from ds4c.passes.windows import CounterExample, ReadSet, prove

pytestmark = pytest.mark.slow

HORIZON = 64


@pytest.fixture(scope="module")
def lowered() -> tuple[ModuleOp, list[int]]:
    """The module after the pipeline, and the capacities of the rings that were proved."""
    proved: list[int] = []

    def counted(reads: ReadSet, capacity: int, distance: int) -> CounterExample | None:
        proved.append(capacity)
        return prove(reads, capacity, distance)

    config = PRESETS["flash"]
    module = build_module(config, ir_weights(config, 65536, lambda name: "bfloat16"))
    options = PipelineOptions(context=65536, horizon=HORIZON, rows=256, logit_rows=64)
    with pytest.MonkeyPatch.context() as patch, fake_target():
        patch.setattr(prove_rewind, "prove", counted)
        for item in pipeline(options):
            item.apply(make_context(), module)
    verify_module(module)
    return module, proved


def test_rings_follow_the_closed_rules(lowered: tuple[ModuleOp, list[int]]) -> None:
    module, _ = lowered
    before = {1: 127, 4: 7, 128: 127}
    rings = [d for d in states_of(module) if d.state_kind is StateKind.RING]
    assert len(rings) == 43 + 2 * (21 + 20 + 21)
    assert all(d.capacity == before[d.row_every] + HORIZON + 1 for d in rings)


def test_each_kind_of_ring_is_proved_once(lowered: tuple[ModuleOp, list[int]]) -> None:
    assert sorted(lowered[1]) == [72, 192, 192]


def test_the_proof_takes_less_than_three_seconds(lowered: tuple[ModuleOp, list[int]]) -> None:
    """Of processor time; it is measured alone, on the planned module."""
    started = time.process_time()
    ProveRewind().apply(make_context(), lowered[0])
    assert time.process_time() - started < 3


def test_layers_share_kernels(lowered: tuple[ModuleOp, list[int]]) -> None:
    program = program_of(lowered[0])
    assert len(program.entry_points[0].calls) > 1000
    assert len(program.kernels) < 70


def test_sizes(lowered: tuple[ModuleOp, list[int]]) -> None:
    """One token of horizon costs `43 raw rows + 41 pairs of pooled rows + 21 pairs of the indexer`."""
    plan = Plan.of(lowered[0], "test")
    raw, light, index, heavy = 512, 1024, 256, 512
    rows = 43 * 192 * raw + 2 * 72 * 21 * (light + index) + 2 * 192 * 20 * heavy
    assert plan.slot_bytes == 4 * rows
    assert plan.page_tokens == 128
    assert plan.page_bytes == 4 * (21 * 32 * (512 + 128) + 20 * 512)
