"""Weights of DeepSeek-V4 for the IR: experts stacked (`experts.w1` is `[E, I, d]`), angle tables computed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ds4c.models.config import ModelConfig
from ds4c.models.ir_weights import IrWeight, StoredDtype
from ds4c.models.rope import angle_tables, layer_frequencies
from ds4c.models.tensors import TensorRole
from ds4c.models.weights import expected_tensors


def step_weights(config: ModelConfig, context: int, stored: StoredDtype) -> Iterator[IrWeight]:
    """Every weight of the step function."""
    tensors = expected_tensors(config)
    for name, spec in tensors.items():
        if ".ffn.experts." in name:
            continue
        dtype = "float32"
        if spec.role is TensorRole.INDEX:
            dtype = "int32"
        elif spec.role is TensorRole.MATRIX and stored(name) == "bfloat16":
            dtype = "bfloat16"
        yield IrWeight(name, spec.shape, dtype, (name,))
    for layer in range(config.num_hidden_layers):
        for part in ("w1", "w2", "w3"):
            prefix = f"layers.{layer}.ffn.experts."
            sources = tuple(f"{prefix}{e}.{part}.weight" for e in range(config.n_routed_experts))
            exact = all(stored(s) == "bfloat16" for s in sources)
            shape = (len(sources), *tensors[sources[0]].shape)
            yield IrWeight(f"{prefix}{part}", shape, "bfloat16" if exact else "float32", sources)
    for table in ("main", "compress"):
        yield from _angles(config, context, table)


def _angles(config: ModelConfig, context: int, table: str) -> Iterator[IrWeight]:
    shapes = [a.shape for a in angle_tables(np.zeros(config.qk_rope_head_dim // 2), context)]
    for index, part in enumerate(("coarse", "fine")):
        yield IrWeight(
            f"rope.{table}.{part}",
            shapes[index],
            "float64",
            (),
            lambda _, index=index: angle_tables(layer_frequencies(config, table), context)[index],
        )
