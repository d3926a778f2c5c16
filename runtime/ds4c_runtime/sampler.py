"""Choice of the next token from logits: deterministic in (parameters, history, position, logits).

The random number of a token is a function of seed and position, not of how many were drawn before, so
a session that was rewound draws the same tokens again. Knows no text and no stop rules.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ds4c_runtime.errors import BackendFailedError, InvalidRequestError
from ds4c_runtime.step import Logits

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens. The defaults are greedy.

    Attributes:
        temperature: 0 takes the largest logit; otherwise logits are divided by it.
        top_k: keep the `top_k` most likely tokens; 0 keeps all.
        top_p: keep the fewest most likely tokens whose probability reaches it; 1 keeps all.
        min_p: drop tokens less likely than this share of the most likely one.
        repetition_penalty: logits of tokens in the history are divided (if positive) or multiplied by it.
        presence_penalty: subtracted from the logit of each token in the history.
        frequency_penalty: subtracted once per occurrence in the history.
        logit_bias: added to logits, by token id.
        seed: 0 to 2^64 - 1; `None` lets the engine draw one.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    seed: int | None = None

    def validate(self, vocab_size: int) -> None:
        """Refuse values outside their range.

        Raises:
            InvalidRequestError: `field` is `sampling.NAME`.
        """
        _expect("temperature", self.temperature, 0 <= self.temperature <= 100, "0 to 100")
        _expect("top_k", self.top_k, 0 <= self.top_k < 2**31, "0 or more")
        _expect("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, at most 1")
        _expect("min_p", self.min_p, 0 <= self.min_p <= 1, "0 to 1")
        _expect(
            "repetition_penalty",
            self.repetition_penalty,
            0 < self.repetition_penalty <= 100,
            "above 0, at most 100",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value: float = getattr(self, name)
            _expect(name, value, -100 <= value <= 100, "-100 to 100")
        for token, bias in self.logit_bias.items():
            _expect("logit_bias", token, 0 <= token < vocab_size, f"token ids in [0, {vocab_size})")
            _expect("logit_bias", bias, -1000 <= bias <= 1000, "-1000 to 1000")
        if self.seed is not None:
            _expect("seed", self.seed, 0 <= self.seed < 2**64, "0 to 2^64 - 1")

    @property
    def needs_counts(self) -> bool:
        """Whether the counts of the history change anything."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


class Sampler:
    """Chooses tokens by fixed parameters."""

    def __init__(self, params: SamplingParams, seed: int = 0) -> None:
        """Keep parameters; `seed` is used if they have none."""
        self.params = params
        self.seed = seed if params.seed is None else params.seed

    def sample(
        self, logits: Logits, position: int, counts: Counts | None = None, banned: Collection[int] = ()
    ) -> int:
        """Choose the token at a position.

        Args:
            logits: `[V]` float32, not changed.
            position: position the token will have.
            counts: `[V]` int64, occurrences in the history; needed if `params.needs_counts`.
            banned: tokens that must not be chosen.

        Raises:
            BackendFailedError: a logit is NaN or positive infinity, or none is finite.
            InvalidRequestError: `banned` leaves no token.
        """
        scores = self._adjusted(logits, counts, banned)
        if self.params.temperature == 0:
            return int(np.argmax(scores))
        tokens, weights = self._kept(scores)
        reached = np.cumsum(weights)
        target = uniform(self.seed, position) * reached[-1]
        return int(tokens[min(int(np.searchsorted(reached, target, side="right")), len(tokens) - 1)])

    def _adjusted(self, logits: Logits, counts: Counts | None, banned: Collection[int]) -> Floats:
        scores = logits.astype(np.float64)
        best = scores.max()
        if not math.isfinite(best):
            raise BackendFailedError(
                f"sampling failed: expected finite logits, got a largest logit of {best}"
            )
        params = self.params
        for token, bias in params.logit_bias.items():
            scores[token] += bias
        if params.needs_counts:
            assert counts is not None, "penalties need counts"
            seen = counts > 0
            repeated = scores[seen]
            penalty = params.repetition_penalty
            scores[seen] = np.where(repeated > 0, repeated / penalty, repeated * penalty)
            scores -= params.presence_penalty * seen + params.frequency_penalty * counts
        scores[list(banned)] = -math.inf
        if not math.isfinite(scores.max()):
            raise InvalidRequestError(
                "sampling refused: expected a token that may be chosen, got stop tokens that ban all",
                field="stop.min_output_tokens",
            )
        return scores

    def _kept(self, scores: Floats) -> tuple[NDArray[np.int64], Floats]:
        """Tokens that may be drawn, by falling probability (ties: lower id first), and their weights."""
        params = self.params
        order = np.argsort(-scores, kind="stable")
        if params.top_k:
            order = order[: params.top_k]
        weights = np.exp((scores[order] - scores[order[0]]) / params.temperature)
        keep = int(np.count_nonzero(weights >= max(params.min_p, 1e-300)))
        if params.top_p < 1:
            reached = np.cumsum(weights) / weights.sum()
            keep = min(keep, int(np.searchsorted(reached, params.top_p)) + 1)
        return order[:keep], weights[:keep]


def uniform(seed: int, position: int) -> float:
    """Number in [0, 1) that depends on seed and position only (Philox, a counter-based generator)."""
    raw = np.random.Philox(key=np.array([seed, position], np.uint64)).random_raw()
    return (int(raw) >> 11) * 2.0**-53


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms of probabilities under the model's own distribution, before any parameter.

    `top` holds the most likely tokens, falling, ties by lower id.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(logits: Logits, token: int, alternatives: int) -> TokenLogprobs:
    """Log-probability of a token and of the `alternatives` most likely ones."""
    scores = logits.astype(np.float64)
    best = scores.max()
    scores -= best + math.log(float(np.exp(scores - best).sum()))
    order = np.argsort(-scores, kind="stable")[:alternatives].tolist()
    return TokenLogprobs(token, float(scores[token]), tuple((i, float(scores[i])) for i in order))


def _expect(name: str, value: float, is_valid: bool, expected: str) -> None:
    if not is_valid or not math.isfinite(value):
        raise InvalidRequestError(
            f"sampling refused: expected {name} {expected}, got {value}", field=f"sampling.{name}"
        )
