"""One source for all GPUs: what the targets compile differs in numbers of their `target.yaml` at most."""

from __future__ import annotations

import dataclasses

import pytest
from xdsl.dialects.builtin import ModuleOp

from ds4c.ir.dialect import make_context
from ds4c.ir.kernel import Program
from ds4c.models.deepseek_v4 import build_module
from ds4c.models.ir_weights import ir_weights
from ds4c.models.presets import PRESETS
from ds4c.passes.pipeline import PipelineOptions, pipeline
from ds4c.passes.program import program_of
from ds4c.passes.target import get_target

pytestmark = pytest.mark.slow


def lowered(target: str) -> Program:
    config = PRESETS["tiny-8"]
    module: ModuleOp = build_module(config, ir_weights(config, 512, lambda name: "float32"))
    for item in pipeline(PipelineOptions(target=target, context=512, horizon=12, rows=16, logit_rows=16)):
        item.apply(make_context(), module)
    return program_of(module)


@pytest.mark.parametrize("other", ["rocm", "metal"])
def test_kernels_are_those_of_cuda(other: str) -> None:
    from ds4c_targets.gpu.compile import program_parts
    from ds4c_targets.gpu.target import GpuTarget

    cuda, mine = get_target("cuda"), get_target(other)
    assert isinstance(cuda, GpuTarget)
    assert isinstance(mine, GpuTarget)
    program = lowered("cuda")
    assert lowered(other) == program
    tuning = mine.description.tuning
    differing = {
        field.name
        for field in dataclasses.fields(tuning)
        if getattr(tuning, field.name) != getattr(cuda.description.tuning, field.name)
    }
    assert not differing, "equal numbers so far; compare kernels under the same numbers where they differ"
    expected, found = program_parts(program, cuda.description.tuning), program_parts(program, tuning)
    for symbol, parts in expected.items():
        texts = [part.function.script() for part in parts]
        assert [part.function.script() for part in found[symbol]] == texts, symbol
        assert [(p.bindings, p.grid, p.threads) for p in found[symbol]] == [
            (p.bindings, p.grid, p.threads) for p in parts
        ]
