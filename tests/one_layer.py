"""The smallest model that compiles: one layer with a ring of rows, and experts. For tests of builds alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ds4c.models.config import ModelConfig
from ds4c.models.generate import write_checkpoint
from ds4c.models.presets import preset


def one_layer(folder: Path) -> Path:
    """Write its checkpoint; returns `folder`."""
    tiny = preset("tiny-8")
    assert isinstance(tiny, ModelConfig)
    small = replace(tiny, num_hidden_layers=1, compress_ratios=(0,), hash_layers=(False,))
    write_checkpoint(small, folder, seed=1)
    return folder
