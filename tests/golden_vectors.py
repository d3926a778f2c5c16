"""Golden vectors of `tests/golden/*.npz`, with the weights they belong to; needs no torch.

Importable as `golden_vectors` by tests and by `tools/golden/make_golden.py`, which writes the files.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c.importers.safetensors import open_checkpoint
from ds4c.models.architecture import Config
from ds4c.models.generate import generate_weights
from ds4c.models.presets import preset

ROOT = Path(__file__).resolve().parents[1]
DEMO_FOLDER = ROOT / "demo" / "model"
GOLDEN_NAMES = ("tiny-128", "tiny-8", "demo")
"""The DeepSeek-V4 models; their float64 logits come from `tools/golden/reference64.py`."""
DELTA_NAME = "tiny-delta"
"""The second architecture; its float64 logits come from the module as built, run by the interpreter."""

TOLERANCE = 2e-5
"""Largest accepted absolute difference from float32 vectors, per unit of logit rms."""


@dataclass(frozen=True)
class Golden:
    """One file of golden vectors.

    Attributes:
        tokens: `[T]` token ids from position 0.
        positions: `[P]` positions of `logits`, `[P, V]` float32 from transformers.
        argmax: `[T]` most likely next token at every position.
        positions64: `[Q]` positions of `logits64`, `[Q, V]` float64; empty for the demo and the delta model.
        shorts: Prompts of 1 to 5 tokens with the logits `[n, V]` float32 at all their positions.
    """

    name: str
    seed: int
    weights_sha256: str
    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    logits: NDArray[np.float32]
    argmax: NDArray[np.int32]
    positions64: NDArray[np.int32]
    logits64: NDArray[np.float64]
    shorts: tuple[tuple[NDArray[np.int32], NDArray[np.float32]], ...] = field(repr=False)

    @property
    def config(self) -> Config:
        """Configuration of the model."""
        return open_checkpoint(DEMO_FOLDER).config if self.name == "demo" else preset(self.name)

    def weights(self) -> dict[str, NDArray[Any]]:
        """Give all tensors by native name, in the type they are stored in."""
        if self.name != "demo":
            return generate_weights(self.config, self.seed)
        checkpoint = open_checkpoint(DEMO_FOLDER)
        return {name: checkpoint.load(name) for name in checkpoint.names()}

    @property
    def tolerance(self) -> float:
        """Largest accepted absolute difference of float32 logits: 2e-5 at rms 1, in proportion above."""
        return TOLERANCE * max(1.0, float(np.sqrt(np.mean(np.square(self.logits, dtype=np.float64)))))


def load_golden(name: str) -> Golden:
    """Read `tests/golden/<name>.npz`; `name` is one of `GOLDEN_NAMES` or `DELTA_NAME`."""
    with np.load(ROOT / "tests" / "golden" / f"{name}.npz", allow_pickle=False) as data:
        is_tiny = "logits64" in data
        return Golden(
            name=name,
            seed=int(data["seed"]),
            weights_sha256=str(data["weights_sha256"]),
            tokens=data["tokens"],
            positions=data["positions"],
            logits=data["logits"],
            argmax=data["argmax"],
            positions64=data["positions64"] if is_tiny else np.empty(0, dtype=np.int32),
            logits64=data["logits64"] if is_tiny else np.empty((0, data["logits"].shape[1])),
            shorts=tuple((data[f"short{n}_tokens"], data[f"short{n}_logits"]) for n in range(1, 6)),
        )


def weights_sha256(weights: Mapping[str, NDArray[Any]]) -> str:
    """Digest of names, types and bytes of all tensors; compare it before comparing logits."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        values = np.ascontiguousarray(weights[name])
        digest.update(f"{name} {values.dtype.name} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
