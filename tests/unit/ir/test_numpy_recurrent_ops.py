"""Meaning of the recurrent ops: loops written out here, and the functions of transformers where it is."""

import math
from typing import Any

import numpy as np
import pytest

from ds4c.ir import numpy_recurrent_ops as ops
from ds4c.ir.block import Block

BLOCK = Block.of((1, 5, 4), (0, 0, 3), (2, 9, 0), (3, 2, 1))
ROWS, SEGMENTS = BLOCK.num_rows, len(BLOCK.slots)
KEY_HEADS, HEADS, KEYS, VALUES = 2, 6, 4, 3


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def segments() -> list[tuple[int, int, int]]:
    return [(b, int(BLOCK.segment_starts[b]), int(BLOCK.segment_starts[b + 1])) for b in range(SEGMENTS)]


def test_convolution_looks_at_old_and_own_rows(rng: np.random.Generator) -> None:
    old, own, taps = rng.normal(size=(SEGMENTS, 3, 5)), rng.normal(size=(ROWS, 5)), rng.normal(size=(4, 5))
    got = ops.causal_conv(old, own, taps, BLOCK)
    for b, lo, hi in segments():
        for t in range(lo, hi):
            for c in range(5):
                total = 0.0
                for i in range(4):
                    at = t - 3 + i
                    total += taps[i, c] * (own[at, c] if at >= lo else old[b, at - lo + 3, c])
                assert got[t, c] == pytest.approx(total * logistic(total), rel=1e-12)


def test_gates(rng: np.random.Generator) -> None:
    a, b = rng.normal(size=(5, 3)) * 20, rng.normal(size=(5, 3))
    rate, bias = np.exp(rng.normal(size=3)), rng.normal(size=3)
    decay, beta = ops.delta_gates(a, b, rate, bias)
    for t in range(5):
        for h in range(3):
            softplus = math.log1p(math.exp(a[t, h] + bias[h]))
            assert decay[t, h] == pytest.approx(math.exp(-rate[h] * softplus), rel=1e-9)
            assert beta[t, h] == pytest.approx(logistic(b[t, h]))
    assert ((decay >= 0) & (decay <= 1)).all()


def delta_inputs(rng: np.random.Generator, dtype: Any = np.float64) -> tuple[np.ndarray, ...]:
    """Queries, keys and values of all rows, gates, and the planes before the block."""
    qkv = rng.normal(size=(ROWS, 2 * KEY_HEADS * KEYS + HEADS * VALUES))
    decay, beta = rng.uniform(0.5, 1, (ROWS, HEADS)), rng.uniform(0, 1, (ROWS, HEADS))
    old = rng.normal(size=(SEGMENTS, 1, HEADS * KEYS * VALUES))
    return tuple(x.astype(dtype) for x in (qkv, decay, beta, old))


def test_delta_rule_by_hand(rng: np.random.Generator) -> None:
    qkv, decay, beta, old = delta_inputs(rng)
    o, planes = ops.gated_delta(qkv, decay, beta, old, BLOCK, KEY_HEADS, KEYS, 1e-6)
    for b, lo, hi in segments():
        for h in range(HEADS):
            state = old[b, 0].reshape(HEADS, KEYS, VALUES)[h].copy()
            for t in range(lo, hi):
                group = h // (HEADS // KEY_HEADS) * KEYS
                q, k = qkv[t, group:][:KEYS], qkv[t, KEY_HEADS * KEYS + group :][:KEYS]
                v = qkv[t, 2 * KEY_HEADS * KEYS + h * VALUES :][:VALUES]
                q, k = (x / math.sqrt(sum(x * x) + 1e-6) for x in (q, k))
                state = decay[t, h] * state
                state += np.outer(k, beta[t, h] * (v - state.T @ k))
                assert np.allclose(o[t, h * VALUES : (h + 1) * VALUES], state.T @ q / 2, rtol=1e-12)
                assert np.allclose(planes[t].reshape(HEADS, KEYS, VALUES)[h], state, rtol=1e-12)


def test_a_token_learnt_whole_is_answered_whole() -> None:
    """With a step size of 1 the plane maps the key to the value exactly: what makes it a delta rule."""
    rng = np.random.default_rng(1)
    qkv, decay, _, old = delta_inputs(rng)
    keys, values = KEY_HEADS * KEYS, qkv[:, 2 * KEY_HEADS * KEYS :]
    qkv[:, :keys] = qkv[:, keys : 2 * keys]  # ask for the key just learnt
    o, _ = ops.gated_delta(qkv, decay, np.ones_like(decay), old, BLOCK, KEY_HEADS, KEYS, 0.0)
    assert np.allclose(o * math.sqrt(KEYS), values, rtol=1e-9)


def test_the_last_plane_is_all_that_a_block_hands_on(rng: np.random.Generator) -> None:
    qkv, decay, beta, old = delta_inputs(rng)
    one = Block.of((0, 0, ROWS))
    whole, planes = ops.gated_delta(qkv, decay, beta, old[:1], one, KEY_HEADS, KEYS, 1e-6)
    plane, parts = old[:1], []
    for t in range(ROWS):
        row = slice(t, t + 1)
        o, now = ops.gated_delta(
            qkv[row], decay[row], beta[row], plane, Block.of((0, t, 1)), KEY_HEADS, KEYS, 1e-6
        )
        plane = now[:, None]
        parts.append(o)
    assert np.array_equal(np.concatenate(parts), whole)
    assert np.array_equal(plane[:, 0], planes[-1:])


def test_gated_norm(rng: np.random.Generator) -> None:
    x, gate, gain = rng.normal(size=(4, 6)), rng.normal(size=(4, 6)), rng.normal(size=3)
    got = ops.gated_norm(x, gate, gain, 1e-3)
    for t in range(4):
        for h in range(2):
            part = x[t, 3 * h : 3 * h + 3]
            scale = 1 / math.sqrt(np.mean(part**2) + 1e-3)
            for c in range(3):
                g = gate[t, 3 * h + c]
                assert got[t, 3 * h + c] == pytest.approx(part[c] * scale * gain[c] * g * logistic(g))


# ----------------------------------------------------------------------------------- against transformers


@pytest.mark.oracle
def test_delta_rule_of_transformers(rng: np.random.Generator) -> None:
    import torch
    from transformers.models.qwen3_next.modeling_qwen3_next import (
        torch_chunk_gated_delta_rule,
        torch_recurrent_gated_delta_rule,
    )

    qkv, decay, beta, old = delta_inputs(rng, np.float32)
    got, planes = ops.gated_delta(qkv, decay, beta, old, BLOCK, KEY_HEADS, KEYS, 1e-6)
    ends = (KEY_HEADS * KEYS, 2 * KEY_HEADS * KEYS)
    for b, lo, hi in segments():
        if lo == hi:
            continue
        parts = np.split(qkv[lo:hi], ends, axis=1)
        q, k, v = (torch.tensor(p).reshape(1, hi - lo, -1, w) for p, w in zip(parts, (4, 4, 3), strict=True))
        given = {
            "g": torch.tensor(np.log(decay[None, lo:hi])),
            "beta": torch.tensor(beta[None, lo:hi]),
            "initial_state": torch.tensor(old[b].reshape(1, HEADS, KEYS, VALUES)),
            "output_final_state": True,
            "use_qk_l2norm_in_kernel": True,
        }
        for rule in (torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule):
            o, last = rule(q, k, v, **given)
            assert np.abs(o[0].numpy().reshape(hi - lo, -1) - got[lo:hi]).max() <= 2e-6
            assert np.abs(last[0].numpy().reshape(-1) - planes[hi - 1]).max() <= 2e-6


@pytest.mark.oracle
def test_convolution_and_norm_of_transformers(rng: np.random.Generator) -> None:
    import torch
    from transformers.models.qwen3_next import modeling_qwen3_next as hf

    own, taps = (rng.normal(size=s).astype(np.float32) for s in ((7, 5), (4, 5)))
    got = ops.causal_conv(np.zeros((1, 3, 5), np.float32), own, taps, Block.of((0, 0, 7)))
    want = hf.causal_conv1d_fn(torch.tensor(own.T[None]), torch.tensor(taps.T.copy()), activation="silu")
    assert np.abs(want[0].numpy().T - got).max() <= 1e-6
    x, gate, gain = (rng.normal(size=s).astype(np.float32) for s in ((4, 6), (4, 6), (3,)))
    norm = hf.Qwen3NextRMSNormGated(3, eps=1e-6)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor(gain))
        want = norm(torch.tensor(x.reshape(-1, 3)), torch.tensor(gate.reshape(-1, 3)))
    assert np.abs(want.numpy().reshape(4, 6) - ops.gated_norm(x, gate, gain, 1e-6)).max() <= 1e-6
