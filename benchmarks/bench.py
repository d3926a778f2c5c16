"""What every figure gets: the files, the engines that are loaded, and how often to measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.own import Files, OwnModel

PROMPT = 512
"""Tokens before the first decode step."""


class Peer(Protocol):
    """Another engine with one sequence."""

    @property
    def position(self) -> int:
        """Tokens so far."""
        ...

    def clear(self) -> None:
        """Forget all tokens."""
        ...

    def step(self, tokens: Sequence[int], *, all_logits: bool = False) -> NDArray[np.float32]:
        """Append tokens; logits of the last one, or of all."""
        ...


@dataclass(frozen=True)
class Bench:
    """One weight type of one run.

    Attributes:
        peers: engines by name; only those that can run here and whose logits agreed.
        pairs: pairs of a comparison.
        cache: folder for compiled helpers.
        cpu: processor that all sides run on.
    """

    files: Files
    own: OwnModel
    peers: Mapping[str, Peer]
    pairs: int
    cache: Path
    cpu: int

    @property
    def weights(self) -> str:
        """`f32` or `bf16`."""
        return self.files.weights
