"""Bytes of weights that one decode step has to read."""

from __future__ import annotations

from ds4c.models.config import ModelConfig
from ds4c.models.weights import TensorRole, expected_tensors


def active_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of one step of one row: all dense weights, the chosen experts, the shared one, the head.

    Of the embedding and of the table of hash layers it reads one row. Matrices are counted in their stored
    type, everything else as float32, as both engines keep it.

    Args:
        config: the model.
        dtype: `f32` or `bf16`.
    """
    matrix = {"f32": 4, "bf16": 2}[dtype]
    share = config.num_experts_per_tok / config.n_routed_experts
    total = 0.0
    for name, spec in expected_tensors(config).items():
        size: float = spec.num_elements * (matrix if spec.role is TensorRole.MATRIX else 4)
        if name == "embed.weight" or spec.role is TensorRole.INDEX:
            size /= config.vocab_size
        elif ".ffn.experts." in name:
            size *= share
        total += size
    return round(total)
