"""Weights as the IR names them, and how each is made from checkpoint tensors.

Which there are is said by the architecture: experts are stacked, rows are put in another order, tables are
computed; most are one checkpoint tensor under its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c.models.architecture import Config, architecture_of

Array = NDArray[Any]
Load = Callable[[str], Array]
StoredDtype = Callable[[str], str]
"""Name of a checkpoint tensor -> NumPy name of the stored type (`float32`, `bfloat16`, ...)."""
Make = Callable[[Sequence[Array]], Array]


def stack(parts: Sequence[Array]) -> Array:
    """One tensor as it is, several along a new first dimension."""
    return parts[0] if len(parts) == 1 else np.stack(parts)


@dataclass(frozen=True)
class IrWeight:
    """One `ds4.weight`.

    Attributes:
        dtype: `float32`, `bfloat16` (matrices stored so), `int32` or `float64` (angle tables).
        sources: names of the checkpoint tensors that it is made of; none for a computed table.
        make: from the sources, which are of `dtype` unless that is float64, to the array.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    sources: tuple[str, ...]
    make: Make = field(default=stack, repr=False)


def ir_weights(config: Config, context: int, stored: StoredDtype) -> dict[str, IrWeight]:
    """Every weight of the step function by IR name."""
    return {w.name: w for w in architecture_of(config).ir_weights(config, context, stored)}


def load_ir_weight(weight: IrWeight, load: Load) -> Array:
    """The array of a weight: float32, bfloat16, int32 or float64 as `weight.dtype` says.

    Raises:
        Whatever `load` raises for a tensor it does not have.
    """
    parts = [load(s) for s in weight.sources]
    if weight.dtype != "bfloat16":  # bfloat16 weights are kept as stored: exact and half the bytes
        parts = [p.astype(weight.dtype) for p in parts]
    return weight.make(parts).reshape(weight.shape)


class IrWeightMap(Mapping[str, Array]):
    """Weights by IR name, loaded when asked for; what the interpreter takes."""

    def __init__(self, config: Config, context: int, stored: StoredDtype, load: Load) -> None:
        self._load = load
        self.table = ir_weights(config, context, stored)

    @staticmethod
    def of_arrays(config: Config, context: int, arrays: Mapping[str, Array]) -> IrWeightMap:
        """From arrays in memory under the names of the checkpoint."""
        return IrWeightMap(config, context, lambda n: arrays[n].dtype.name, lambda n: arrays[n])

    def __getitem__(self, name: str) -> Array:
        return load_ir_weight(self.table[name], self._load)

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)
