"""NumPy meaning of the ops of recurrent layers; as `numpy_ops`, in the dtype of the inputs.

Formulas: transformers `qwen3_next` (`torch_recurrent_gated_delta_rule`, `causal_conv1d_fn`, gated norm),
restated in the docstrings. Rows before position 0 are zero, as `read_rows` leaves them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c.ir.block import Block
from ds4c.ir.numpy_ops import rms_norm, sigmoid, softplus

Array = NDArray[Any]


def causal_conv(old: Array, own: Array, taps: Array, block: Block) -> Array:
    """`silu(sum_i taps[i] * row[p - K + 1 + i])` of every channel: `[T, C]`.

    `old` `[B, K-1, C]` from `read_rows`, `own` `[T, C]` the block's rows, `taps` `[K, C]`.
    """
    out = np.empty_like(own)
    for b in range(len(block.slots)):
        lo, hi = int(block.segment_starts[b]), int(block.segment_starts[b + 1])
        rows = np.concatenate([old[b], own[lo:hi]])
        for t in range(hi - lo):
            y = (rows[t : t + len(taps)] * taps).sum(axis=0)
            out[lo + t] = y * sigmoid(y)
    return out


def delta_gates(a: Array, b: Array, rate: Array, bias: Array) -> tuple[Array, Array]:
    """Decay `exp(-rate * softplus(a + bias))` and step size `sigmoid(b)` of every head: `[T, H]` twice."""
    return np.exp(-rate * softplus(a + bias)), sigmoid(b)


def gated_delta(
    qkv: Array,
    decay: Array,
    beta: Array,
    old: Array,
    block: Block,
    key_heads: int,
    key_width: int,
    eps: float,
) -> tuple[Array, Array]:
    """Outputs `[T, Hv*V]`, and the plane `[Hv, K, V]` (flat) after every row: `[T, Hv*K*V]`.

    For a value head with its key head's unit vectors `q` (over the root of K) and `k`, and its value `v`:
    `S = decay * S`, `S += k (beta * (v - S.T k)).T`, `o = S.T q`. The first `S` is `old` `[B, 1, ..]`.
    """
    rows, heads = decay.shape
    values = old.shape[2] // (heads * key_width)
    ends = (key_heads * key_width, 2 * key_heads * key_width)
    q, k = (_unit(p.reshape(rows, key_heads, key_width), eps) for p in np.split(qkv, ends, axis=1)[:2])
    q = q / qkv.dtype.type(key_width**0.5)
    q, k = (np.repeat(part, heads // key_heads, axis=1) for part in (q, k))
    v = qkv[:, ends[1] :].reshape(rows, heads, values)
    o, planes = np.empty_like(v), np.empty((rows, heads, key_width, values), qkv.dtype)
    for b in range(len(block.slots)):
        state = old[b, 0].reshape(heads, key_width, values)
        for t in range(int(block.segment_starts[b]), int(block.segment_starts[b + 1])):
            state = state * decay[t][:, None, None]
            delta = (v[t] - np.einsum("hkv,hk->hv", state, k[t])) * beta[t][:, None]
            state = state + k[t][:, :, None] * delta[:, None, :]
            o[t], planes[t] = np.einsum("hkv,hk->hv", state, q[t]), state
    return o.reshape(rows, heads * values), planes.reshape(rows, old.shape[2])


def _unit(x: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + x.dtype.type(eps))


def gated_norm(x: Array, gate: Array, gain: Array, eps: float) -> Array:
    """`rms_norm` of each head with the same gain `[V]`, times `silu(gate)`: `[T, H*V]`."""
    y = rms_norm(x.reshape(len(x), -1, len(gain)), gain, eps).reshape(x.shape)
    return y * (gate * sigmoid(gate))
