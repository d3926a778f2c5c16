"""Sampling: order of the parameters, ties, determinism, and the law of what is drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ds4c_runtime.errors import BackendFailedError, InvalidRequestError
from ds4c_runtime.sampler import Sampler, SamplingParams, token_logprobs, uniform


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def drawn(params: SamplingParams, row: np.ndarray, count: int = 400, **extra: object) -> set[int]:
    sampler = Sampler(params, seed=3)
    return {sampler.sample(row, p, **extra) for p in range(count)}  # type: ignore[arg-type]


def test_greedy_takes_the_lower_id_of_a_tie_and_changes_nothing() -> None:
    row = logits(1, 3, 3, 2)
    before = row.copy()
    assert Sampler(SamplingParams()).sample(row, 0) == 1
    assert Sampler(SamplingParams(logit_bias={2: 0.5, 1: -1})).sample(row, 0) == 2
    assert Sampler(SamplingParams()).sample(row, 0, banned=(1,)) == 2
    assert np.array_equal(row, before)


def test_penalties() -> None:
    row = logits(2.0, 1.5, -1.0)
    counts = np.array([3, 0, 0])
    assert Sampler(SamplingParams(repetition_penalty=1.2)).sample(row, 0, counts) == 0
    assert Sampler(SamplingParams(repetition_penalty=1.4)).sample(row, 0, counts) == 1
    assert Sampler(SamplingParams(presence_penalty=0.4)).sample(row, 0, counts) == 0
    assert Sampler(SamplingParams(presence_penalty=0.6)).sample(row, 0, counts) == 1
    assert Sampler(SamplingParams(frequency_penalty=0.16)).sample(row, 0, counts) == 0
    assert Sampler(SamplingParams(frequency_penalty=0.17)).sample(row, 0, counts) == 1
    # Negative logits are multiplied, so that a penalty never helps.
    negative = logits(-1.0, -1.1)
    assert Sampler(SamplingParams(repetition_penalty=1.2)).sample(negative, 0, np.array([1, 0])) == 1


def test_top_k_top_p_min_p() -> None:
    row = np.log(np.array([0.5, 0.2, 0.2, 0.05, 0.05], np.float32))
    assert drawn(SamplingParams(temperature=1), row) == {0, 1, 2, 3, 4}
    assert drawn(SamplingParams(temperature=1, top_k=2), row) == {0, 1}
    assert drawn(SamplingParams(temperature=1, top_k=1), row) == {0}
    assert drawn(SamplingParams(temperature=1, top_p=0.49), row) == {0}
    assert drawn(SamplingParams(temperature=1, top_p=0.69), row) == {0, 1}
    assert drawn(SamplingParams(temperature=1, top_p=0.85), row) == {0, 1, 2}
    assert drawn(SamplingParams(temperature=1, min_p=0.39), row) == {0, 1, 2}
    assert drawn(SamplingParams(temperature=1, min_p=0.41), row) == {0}
    assert drawn(SamplingParams(temperature=1, min_p=1), row) == {0}
    assert drawn(SamplingParams(temperature=1), row, banned=(0, 4)) == {1, 2, 3}
    assert drawn(SamplingParams(temperature=0.05), row) == {0}


FLAT = np.zeros(8, np.float32)
"""Eight tokens of exactly an eighth: sums are exact, so that a tie with a bound is a tie."""
BIT = 2**-20


@pytest.mark.parametrize("count", range(1, 8))
def test_top_p_that_is_reached_exactly_keeps_no_more(count: int) -> None:
    for top_p, kept in ((count / 8 - BIT, count), (count / 8, count), (count / 8 + BIT, count + 1)):
        assert drawn(SamplingParams(temperature=1, top_p=top_p), FLAT) == set(range(kept))


def test_min_p_keeps_what_has_exactly_its_share() -> None:
    row = logits(0, -1, -1, -2)
    shares = np.exp(row.astype(np.float64))
    for share, kept, kept_above in ((shares[1], {0, 1, 2}, {0}), (shares[3], {0, 1, 2, 3}, {0, 1, 2})):
        assert drawn(SamplingParams(temperature=1, min_p=float(share)), row) == kept
        assert drawn(SamplingParams(temperature=1, min_p=float(np.nextafter(share, 1))), row) == kept_above
    assert drawn(SamplingParams(temperature=1, min_p=1), row) == {0}


def test_of_equal_tokens_the_lower_ids_are_kept() -> None:
    """At the border of top_k, and of top_p, which is a share of what top_k has left."""
    for count in (1, 2, 5, 7, 8):
        assert drawn(SamplingParams(temperature=1, top_k=count), FLAT) == set(range(count))
    assert drawn(SamplingParams(temperature=1, top_k=9), FLAT) == set(range(8))
    assert drawn(SamplingParams(temperature=1, top_k=4, top_p=0.5), FLAT) == {0, 1}
    assert drawn(SamplingParams(temperature=1, min_p=1), FLAT) == set(range(8))
    assert drawn(SamplingParams(temperature=1, top_k=2), logits(1, 3, 2, 2)) == {1, 2}


def test_frequencies_follow_the_distribution() -> None:
    row = np.log(np.array([0.6, 0.3, 0.1], np.float32))
    for temperature, expected in ((1.0, [0.6, 0.3, 0.1]), (2.0, [0.4729, 0.3344, 0.1931])):
        sampler = Sampler(SamplingParams(temperature=temperature, seed=1))
        counts = np.bincount([sampler.sample(row, p) for p in range(20_000)], minlength=3) / 20_000
        assert np.abs(counts - expected).max() < 0.012


def test_draws_depend_on_seed_and_position_only() -> None:
    row = np.zeros(1000, np.float32)
    first = [Sampler(SamplingParams(temperature=1, seed=7)).sample(row, p) for p in range(50)]
    sampler = Sampler(SamplingParams(temperature=1, seed=7), seed=99)
    assert [sampler.sample(row, p) for p in reversed(range(50))] == first[::-1]
    assert [Sampler(SamplingParams(temperature=1), seed=7).sample(row, p) for p in range(50)] == first
    assert [Sampler(SamplingParams(temperature=1, seed=8)).sample(row, p) for p in range(50)] != first
    values = [uniform(2**64 - 1, p) for p in range(2000)]
    assert 0 <= min(values) < max(values) < 1
    assert abs(np.mean(values) - 0.5) < 0.03
    # Pinned: a change of the generator changes what users get for a seed.
    assert [round(uniform(5, p), 6) for p in range(3)] == [0.733746, 0.717686, 0.846738]


def test_logits_that_are_not_finite() -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(BackendFailedError, match="finite"):
            Sampler(SamplingParams()).sample(logits(0, bad), 0)
    with pytest.raises(BackendFailedError):
        Sampler(SamplingParams()).sample(logits(-math.inf, -math.inf), 0)
    assert Sampler(SamplingParams(temperature=1)).sample(logits(-math.inf, 0), 0) == 1
    with pytest.raises(InvalidRequestError):
        Sampler(SamplingParams()).sample(logits(0, 0), 0, banned=(0, 1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0),
        ("presence_penalty", 101),
        ("frequency_penalty", -math.inf),
        ("logit_bias", {10: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: math.nan}),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_values_out_of_range_name_their_field(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        SamplingParams(**{field: value}).validate(10)  # type: ignore[arg-type]
    assert refused.value.field == f"sampling.{field}"


def test_limits_of_the_ranges_are_allowed() -> None:
    SamplingParams(0, 0, 1, 0, 1, 0, 0, {0: -1000, 9: 1000}, 0).validate(10)
    SamplingParams(100, 2**31 - 1, 1e-9, 1, 100, 100, -100, {}, 2**64 - 1).validate(10)


def test_logprobs_are_those_of_the_model() -> None:
    row = np.log(np.array([0.2, 0.5, 0.2, 0.1], np.float32)) + 7
    known = token_logprobs(row, 3, 3)
    assert known.token_id == 3
    assert known.logprob == pytest.approx(math.log(0.1), abs=1e-6)
    assert [i for i, _ in known.top] == [1, 0, 2]
    assert known.top[0][1] == pytest.approx(math.log(0.5), abs=1e-6)
    assert token_logprobs(row, 1, 0).top == ()
