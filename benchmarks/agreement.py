"""Do the engines compute the same model? No time counts before they do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.bench import Peer
from benchmarks.own import OwnModel, tokens_of
from ds4c.models.config import ModelConfig

TOKENS = 384
BATCH = 192
"""The peer takes the tokens in batches of that many."""


@dataclass(frozen=True)
class Limit:
    """What counts as the same model.

    A row is one position; its difference is the largest over the vocabulary. A few rows may differ by
    more: where two experts or two compressed rows are nearly as good, rounding decides which is taken.

    Attributes:
        median: most of the median row.
        near: a row up to this is near.
        share: least share of near rows.
    """

    median: float
    near: float
    share: float


LIMITS = {
    ("llama.cpp", "f32"): Limit(0.005, 0.05, 0.95),
    # llama.cpp rounds activations to bfloat16 where weights are; ours and transformers do not.
    ("llama.cpp", "bf16"): Limit(0.06, 0.2, 0.8),
    ("transformers", "f32"): Limit(0.0005, 0.005, 0.95),
    ("transformers", "bf16"): Limit(0.0005, 0.005, 0.95),
}


@dataclass(frozen=True)
class Agreement:
    """Differences of logits over `TOKENS` positions of random tokens; logits have rms about 1."""

    peer: str
    weights: str
    largest: float
    median: float
    near_share: float
    argmax_share: float
    agrees: bool

    def __str__(self) -> str:
        return (
            f"{self.weights} logits, ours - {self.peer}: "
            f"median row {self.median:.1e}, largest {self.largest:.1e}, "
            f"{self.near_share:.1%} of {TOKENS} rows near, argmax equal on {self.argmax_share:.1%}"
            f"{'' if self.agrees else ': NOT the same model'}"
        )


def compare(config: ModelConfig, weights: str, own: OwnModel, name: str, peer: Peer) -> Agreement:
    """Compare logits of the same random tokens."""
    tokens = tokens_of(config, TOKENS, seed=7)
    own.clear()
    ours = own.logits(tokens)
    peer.clear()
    theirs = np.concatenate(
        [peer.step(tokens[i : i + BATCH], all_logits=True) for i in range(0, TOKENS, BATCH)]
    )
    return judge(name, weights, ours, theirs)


def judge(name: str, weights: str, ours: np.ndarray, theirs: np.ndarray) -> Agreement:
    """Hold the differences of two arrays `[T, V]` against the limit of a peer."""
    limit = LIMITS[name, weights]
    rows = np.abs(ours - theirs).max(axis=1)
    median, share = float(np.median(rows)), float((rows <= limit.near).mean())
    agrees = bool(np.isfinite(rows).all()) and median <= limit.median and share >= limit.share
    argmax = float((ours.argmax(1) == theirs.argmax(1)).mean())
    return Agreement(name, weights, float(rows.max()), median, share, argmax, agrees)
