"""Weights as the IR names them, and how each is made from checkpoint tensors.

Experts are stacked (`layers.N.ffn.experts.w1` is `[E, I, d]`), angle tables are computed; everything else is
one checkpoint tensor under its native name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c.models.config import ModelConfig
from ds4c.models.rope import angle_tables, layer_frequencies
from ds4c.models.weights import TensorRole, expected_tensors

Array = NDArray[Any]
Load = Callable[[str], Array]
StoredDtype = Callable[[str], str]
"""Native name -> NumPy name of the stored type (`float32`, `bfloat16`, ...)."""


@dataclass(frozen=True)
class IrWeight:
    """One `ds4.weight`.

    Attributes:
        dtype: `float32`, `bfloat16` (matrices stored so), `int32` or `float64` (angle tables).
        sources: native names; several are stacked along a new first dimension, none is computed.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    sources: tuple[str, ...]


def ir_weights(config: ModelConfig, context: int, stored: StoredDtype) -> dict[str, IrWeight]:
    """Every weight of the step function by IR name."""
    return {w.name: w for w in _weights(config, context, stored)}


def _weights(config: ModelConfig, context: int, stored: StoredDtype) -> Iterator[IrWeight]:
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
    half = config.qk_rope_head_dim // 2
    for table in ("main", "compress"):
        coarse, fine = angle_tables(np.zeros(half), context)
        yield IrWeight(f"rope.{table}.coarse", coarse.shape, "float64", ())
        yield IrWeight(f"rope.{table}.fine", fine.shape, "float64", ())


def load_ir_weight(weight: IrWeight, config: ModelConfig, context: int, load: Load) -> Array:
    """The array of a weight: float32, bfloat16, int32 or float64 as `weight.dtype` says.

    Raises:
        Whatever `load` raises for a tensor it does not have.
    """
    if not weight.sources:
        _, table, part = weight.name.split(".")
        coarse, fine = angle_tables(layer_frequencies(config, table), context)
        return coarse if part == "coarse" else fine
    parts = [load(s) for s in weight.sources]
    if weight.dtype != "bfloat16":  # bfloat16 weights are kept as stored: exact and half the bytes
        parts = [p.astype(weight.dtype) for p in parts]
    return parts[0].reshape(weight.shape) if len(parts) == 1 else np.stack(parts)


class IrWeightMap(Mapping[str, Array]):
    """Weights by IR name, loaded when asked for; what the interpreter takes."""

    def __init__(self, config: ModelConfig, context: int, stored: StoredDtype, load: Load) -> None:
        self._config, self._context, self._load = config, context, load
        self.table = ir_weights(config, context, stored)

    @staticmethod
    def of_arrays(config: ModelConfig, context: int, arrays: Mapping[str, Array]) -> IrWeightMap:
        """From arrays in memory under native names."""
        return IrWeightMap(config, context, lambda n: arrays[n].dtype.name, lambda n: arrays[n])

    def __getitem__(self, name: str) -> Array:
        return load_ir_weight(self.table[name], self._config, self._context, self._load)

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)
