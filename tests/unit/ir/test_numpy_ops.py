"""Tensor ops against formulations written out entry by entry in float64."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ds4c.ir import numpy_ops as ops
from ds4c.ir.block import Block
from ds4c.models.rope import angle_tables

F64 = NDArray[np.float64]


def close(got: Any, want: Any) -> bool:
    """Equal to float64 rounding of a few operations."""
    return bool(np.allclose(got, want, rtol=1e-12, atol=1e-13))


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_sigmoid_and_softplus_at_the_ends() -> None:
    x = np.array([-1000.0, -30.0, -1.0, 0.0, 1.0, 30.0, 1000.0])
    with np.errstate(over="raise", invalid="raise"):
        got, soft = ops.sigmoid(x), ops.softplus(x)
    assert close(got[1:-1], [logistic(v) for v in x[1:-1]])
    assert (got[0], got[-1]) == (0.0, 1.0)
    assert np.allclose(soft[1:-1], [math.log(1 + math.exp(v)) for v in x[1:-1]], rtol=1e-12)
    assert (soft[0], soft[-1]) == (0.0, 1000.0)
    assert ops.sigmoid(x.astype(np.float32)).dtype == np.float32


def test_embed_repeats_the_row_for_every_copy(rng: np.random.Generator) -> None:
    table = rng.normal(size=(7, 3))
    x = ops.embed(np.array([5, 0], np.int32), table, 4)
    assert x.shape == (2, 4, 3)
    for copy in range(4):
        assert np.array_equal(x[:, copy], table[[5, 0]])


def test_linear_and_take_rows(rng: np.random.Generator) -> None:
    x, w = rng.normal(size=(3, 4)), rng.normal(size=(5, 4))
    want = [[sum(x[t, k] * w[n, k] for k in range(4)) for n in range(5)] for t in range(3)]
    assert close(ops.linear(x, w), want)
    assert np.array_equal(ops.take_rows(x, np.array([2, 2, 0])), x[[2, 2, 0]])


def test_grouped_linear_pairs_row_blocks_with_channel_blocks(rng: np.random.Generator) -> None:
    x, w = rng.normal(size=(2, 6)), rng.normal(size=(4, 3))
    want = np.concatenate([x[:, :3] @ w[:2].T, x[:, 3:] @ w[2:].T], axis=1)
    assert close(ops.grouped_linear(x, w, 2), want)


def test_norms(rng: np.random.Generator) -> None:
    x, gain, eps = rng.normal(size=(3, 6)), rng.normal(size=6), 0.25
    for t in range(3):
        root = math.sqrt(sum(v * v for v in x[t]) / 6 + eps)
        assert close(ops.rms_norm(x, gain, eps)[t], x[t] / root * gain)
        for half in (slice(0, 3), slice(3, 6)):
            root = math.sqrt(sum(v * v for v in x[t, half]) / 3 + eps)
            assert close(ops.head_norm(x, 2, eps)[t, half], x[t, half] / root)


def test_rope_table_is_the_angle_of_the_position() -> None:
    frequencies = np.array([1.0, 0.1, 1e-4])
    coarse, fine = angle_tables(frequencies, 70000)
    positions = np.array([0, 1, 255, 256, 257, 65535, 69999], np.int32)
    table = ops.rope_table(positions, coarse, fine, np.float64)
    angles = positions[:, None] * frequencies
    assert np.allclose(table[:, 0], np.cos(angles), atol=1e-10)
    assert np.allclose(table[:, 1], np.sin(angles), atol=1e-10)


def test_rope_rotates_pairs_of_the_last_channels(rng: np.random.Generator) -> None:
    heads, width, turned = 2, 6, 4
    x, angles = rng.normal(size=(3, heads * width)), rng.normal(size=(3, turned // 2))
    table = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    got = ops.rope(x, table, heads, inverse=False).reshape(3, heads, width)
    for t in range(3):
        for h in range(heads):
            row = x[t].reshape(heads, width)[h]
            assert np.array_equal(got[t, h, :2], row[:2])
            for i in range(turned // 2):
                z = complex(row[2 + 2 * i], row[3 + 2 * i]) * np.exp(1j * angles[t, i])
                assert close(got[t, h, 2 + 2 * i : 4 + 2 * i], [z.real, z.imag])
    assert close(ops.rope(got.reshape(3, -1), table, heads, inverse=True), x)


def test_position_bias_follows_the_absolute_position(rng: np.random.Generator) -> None:
    x, bias = rng.normal(size=(5, 2)), rng.normal(size=(4, 2))
    got = ops.add_position_bias(x, bias, Block.of((0, 6, 3), (1, 3, 2)))
    assert np.array_equal(got, x + bias[[2, 3, 0, 3, 0]])


@pytest.mark.parametrize(
    ("gate", "up", "want"),
    [
        (1.0, 2.0, logistic(1.0) * 2),
        (50.0, 2.0, 10 * logistic(10.0) * 2),  # the gate is clamped from above
        (-50.0, 2.0, -50 * logistic(-50.0) * 2),  # and not from below
        (1.0, 50.0, logistic(1.0) * 10),  # up is clamped on both sides
        (1.0, -50.0, logistic(1.0) * -10),
    ],
)
def test_swiglu_clamps(gate: float, up: float, want: float) -> None:
    got = ops.swiglu(np.array([[gate]]), np.array([[up]]), 10.0)
    assert np.allclose(got, want, rtol=1e-12, atol=0)


# ------------------------------------------------------------------------------------ hyper-connections


def hc_by_hand(x: F64, fn: F64, base: F64, scale: F64, iters: int, eps: float) -> tuple[F64, F64, F64]:
    """One row, entry by entry; `mix[j][k]` weighs stream `j` in the next stream `k`."""
    n, flat = len(x), x.reshape(-1)
    control = fn @ (flat / math.sqrt(np.mean(flat**2) + 1e-6))
    pre = np.array([logistic(control[j] * scale[0] + base[j]) + eps for j in range(n)])
    post = np.array([2 * logistic(control[n + j] * scale[1] + base[n + j]) for j in range(n)])
    m = np.zeros((n, n))
    for j in range(n):
        z = [math.exp(control[2 * n + j * n + k] * scale[2] + base[2 * n + j * n + k]) for k in range(n)]
        m[j] = [v / sum(z) + eps for v in z]

    def columns() -> None:
        for k in range(n):
            m[:, k] = m[:, k] / (sum(m[j, k] for j in range(n)) + eps)

    columns()
    for _ in range(iters - 1):
        for j in range(n):
            m[j] = m[j] / (sum(m[j]) + eps)
        columns()
    return pre, post, m


@pytest.mark.parametrize("iters", [1, 2, 20])
def test_hc_mix_is_sinkhorn_with_columns_last(iters: int, rng: np.random.Generator) -> None:
    n, d = 3, 5
    x, fn = rng.normal(size=(4, n, d)), rng.normal(size=((2 + n) * n, n * d))
    base, scale = rng.normal(size=(2 + n) * n), np.array([0.7, 1.3, 2.0])
    pre, post, mix = ops.hc_mix(x, fn, base, scale, iters, 1e-3, 1e-6)
    for t in range(4):
        want = hc_by_hand(x[t], fn, base, scale, iters, 1e-3)
        for got, expected in zip((pre[t], post[t], mix[t]), want, strict=True):
            assert close(got, expected)
    mix = ops.hc_mix(x, fn, base, scale, iters, 1e-12, 1e-6)[2]
    assert np.allclose(mix.sum(axis=1), 1, atol=1e-6)  # for each next stream, over the streams before
    assert not np.allclose(mix.sum(axis=2), 1, atol=1e-6)


def test_hc_post_contracts_the_first_index_of_the_mix(rng: np.random.Generator) -> None:
    n, d = 3, 2
    x, y = rng.normal(size=(2, n, d)), rng.normal(size=(2, d))
    post, mix = rng.normal(size=(2, n)), rng.normal(size=(2, n, n))
    got = ops.hc_post(x, y, post, mix)
    for t in range(2):
        for k in range(n):
            want = post[t, k] * y[t] + sum(mix[t, j, k] * x[t, j] for j in range(n))
            assert close(got[t, k], want)
    assert not np.allclose(got, ops.hc_post(x, y, post, mix.transpose(0, 2, 1)))


def test_hc_pre_and_collapse(rng: np.random.Generator) -> None:
    n, d = 3, 4
    x, pre = rng.normal(size=(2, n, d)), rng.normal(size=(2, n))
    for t in range(2):
        assert close(ops.hc_pre(x, pre)[t], sum(pre[t, j] * x[t, j] for j in range(n)))
    fn, base, scale = rng.normal(size=(n, n * d)), rng.normal(size=n), np.array([1.7])
    got = ops.hc_collapse(x, fn, base, scale, 1e-3, 1e-6)
    for t in range(2):
        flat = x[t].reshape(-1)
        control = fn @ (flat / math.sqrt(np.mean(flat**2) + 1e-6))
        weigh = [logistic(control[j] * 1.7 + base[j]) + 1e-3 for j in range(n)]
        assert close(got[t], sum(weigh[j] * x[t, j] for j in range(n)))


# -------------------------------------------------------------------------------------------- experts


def score_of(logit: float) -> float:
    return math.sqrt(math.log(1 + math.exp(logit)))


def test_scored_routing_selects_with_the_bias_and_weighs_without_it() -> None:
    logits, bias = np.array([[2.0, 1.0, 0.0, -1.0]]), np.array([0.0, 0.0, 5.0, 0.0])
    experts, weights = ops.route_top(logits, bias, 2, 1.5)
    assert experts.tolist() == [[2, 0]]
    chosen = [score_of(0.0), score_of(2.0)]
    assert close(weights, [[1.5 * s / sum(chosen) for s in chosen]])


def test_scored_routing_gives_ties_to_the_lower_expert() -> None:
    experts, _ = ops.route_top(np.array([[1.0, 3.0, 3.0, 1.0, 3.0]]), np.zeros(5), 4, 1.0)
    assert experts.tolist() == [[1, 2, 4, 0]]


def test_hash_routing_takes_the_experts_of_the_token_in_the_order_of_the_table() -> None:
    logits = np.array([[0.0, 1.0, 2.0, 3.0]] * 2)
    table = np.array([[0, 1], [3, 1], [2, 0]], np.int32)
    experts, weights = ops.route_hash(logits, np.array([1, 2]), table, 2.0)
    assert experts.tolist() == [[3, 1], [2, 0]]
    assert experts.dtype == np.int32
    for row, chosen in zip(weights, ([3.0, 1.0], [2.0, 0.0]), strict=True):
        scores = [score_of(v) for v in chosen]
        assert close(row, [2.0 * s / sum(scores) for s in scores])


def test_routing_of_scores_that_are_all_zero_divides_by_the_guard() -> None:
    _, weights = ops.route_top(np.full((1, 3), -1e4), np.zeros(3), 2, 1.0)
    assert np.array_equal(weights, np.zeros((1, 2)))


def test_experts_are_summed_with_their_weights(rng: np.random.Generator) -> None:
    e, i, d = 4, 3, 5
    w1, w3 = rng.normal(size=(e, i, d)) * 3, rng.normal(size=(e, i, d)) * 3
    w2, x = rng.normal(size=(e, d, i)), rng.normal(size=(2, d)) * 3
    experts, weights = np.array([[2, 0], [1, 3]]), rng.random((2, 2))
    got = ops.moe_experts(x, experts, weights, w1, w3, w2, 2.0)
    for t in range(2):
        want = np.zeros(d)
        for k in range(2):
            n = experts[t, k]
            gate, up = np.minimum(w1[n] @ x[t], 2.0), np.clip(w3[n] @ x[t], -2.0, 2.0)
            want += weights[t, k] * (w2[n] @ (gate * np.array([logistic(v) for v in gate]) * up))
        assert np.allclose(got[t], want, rtol=1e-11, atol=1e-12)
