"""Rope frequencies and the angle tables of a step.

Source: `rope_parameters` handling of transformers `deepseek_v4` and DeepSeek's reference inference code;
YaRN after Peng et al. 2023 without its magnitude factor (cos and sin stay unscaled in V4).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c.models.config import ModelConfig, YarnScaling

FINE_STEP = 256
"""Positions per row of the coarse table; the fine table has this many rows."""


def inverse_frequencies(dims: int, base: float, yarn: YarnScaling | None) -> NDArray[np.float64]:
    """`[dims / 2]` frequencies `base^(-2i/dims)`, interpolated by YaRN if given.

    With `c(b) = dims * ln(L / (2 pi b)) / (2 ln base)` the ramp runs from `floor(c(beta_fast))` to
    `ceil(c(beta_slow))`; frequencies above the ramp are divided by `factor`.
    """
    f = 1.0 / base ** (np.arange(0, dims, 2, dtype=np.float64) / dims)
    if yarn is None:
        return f

    def turns(beta: float) -> float:
        span = yarn.original_max_position_embeddings / (beta * 2 * math.pi)
        return dims * math.log(span) / (2 * math.log(base))

    low, high = max(math.floor(turns(yarn.beta_fast)), 0), min(math.ceil(turns(yarn.beta_slow)), dims - 1)
    top = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(dims // 2) - low) / (top - low), 0, 1)
    return f / yarn.factor * ramp + f * (1 - ramp)


def layer_frequencies(config: ModelConfig, table: str) -> NDArray[np.float64]:
    """Frequencies of the `main` table (layers without compressor) or of the `compress` table."""
    if table == "main":
        return inverse_frequencies(config.qk_rope_head_dim, config.rope_theta, None)
    return inverse_frequencies(config.qk_rope_head_dim, config.compress_rope_theta, config.rope_scaling)


def angle_tables(frequencies: NDArray[np.float64], context: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Coarse `[ceil(context / 256), 2, r/2]` and fine `[256, 2, r/2]` tables of (cos, sin), float64.

    Position `256*a + b` has the angle `coarse[a] + fine[b]` (`ds4c.ir.numpy_ops.rope_table`).
    """

    def table(positions: NDArray[Any]) -> NDArray[Any]:
        angles = positions[:, None] * frequencies[None, :]
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)

    coarse = np.arange(-(-context // FINE_STEP), dtype=np.float64) * FINE_STEP
    return table(coarse), table(np.arange(FINE_STEP, dtype=np.float64))
