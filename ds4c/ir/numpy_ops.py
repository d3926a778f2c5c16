"""NumPy meaning of every `ds4` op: the oracle of all passes and kernels.

Each function computes in the dtype of its inputs (float32 or float64). `T` is the number of rows of
the block, `B` its segments, `J` the number of rows that a `windows` block holds. States are passed as
pools `[slot, rows, width]`; functions that write change the pool in place.

Formulas: DeepSeek-V4 reference inference code and transformers `deepseek_v4` (modeling), restated in
the docstrings. Masks select and never multiply, since dead rows may hold NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c.ir.block import Block

Array = NDArray[Any]


def sigmoid(x: Array) -> Array:
    """`1 / (1 + exp(-x))`, without overflow warnings."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def softplus(x: Array) -> Array:
    """`log(1 + exp(x))`, stable on both sides."""
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


# ---------------------------------------------------------------- per-row tensor ops


def embed(tokens: Array, table: Array, copies: int) -> Array:
    """`[T]` int -> `[T, copies, d]`: every copy starts as the embedding row; `[T, d]` for `copies` 0."""
    if copies == 0:
        return table[tokens]
    return np.repeat(table[tokens][:, None, :], copies, axis=1)


def take_rows(x: Array, rows: Array) -> Array:
    """Rows of `x` by index: `[T, ...]`, `[n]` -> `[n, ...]`."""
    return x[rows]


def linear(x: Array, w: Array) -> Array:
    """`[T, K]`, `[N, K]` -> `[T, N]`; no bias anywhere in the model."""
    return x @ w.T


def grouped_linear(x: Array, w: Array, groups: int) -> Array:
    """`[T, G*K]`, `[G*N, K]` -> `[T, G*N]`: row block `g` of `w` meets channel block `g` of `x`."""
    t, k = x.shape[0], x.shape[1] // groups
    y = np.einsum("tgk,gnk->tgn", x.reshape(t, groups, k), w.reshape(groups, -1, k))
    return y.reshape(t, -1)


def rms_norm(x: Array, gain: Array | None, eps: float) -> Array:
    """`x / sqrt(mean(x^2) + eps) * gain` over the last axis."""
    y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps))
    return y if gain is None else y * gain


def head_norm(x: Array, heads: int, eps: float) -> Array:
    """Weightless rms norm of each head: `[T, H*D]` -> `[T, H*D]`."""
    return rms_norm(x.reshape(len(x), heads, x.shape[1] // heads), None, eps).reshape(x.shape)


def rope_table(positions: Array, coarse: Array, fine: Array, dtype: Any) -> Array:
    """Cosine and sine of `position * f_i`: `[T]` -> `[T, 2, r/2]` (cos, sin).

    `coarse` `[ceil(context / S), 2, r/2]` holds the angles of `S * a`, `fine` `[S, 2, r/2]` those of
    `b < S`, both float64; the sum of angles gives position `S*a + b` to double precision for any
    context, with no transcendental in a kernel.
    """
    step = len(fine)
    a, b = coarse[positions // step], fine[positions % step]
    cos = a[:, 0] * b[:, 0] - a[:, 1] * b[:, 1]
    sin = a[:, 1] * b[:, 0] + a[:, 0] * b[:, 1]
    return np.stack([cos, sin], axis=1).astype(dtype)


def rope(x: Array, table: Array, heads: int, inverse: bool) -> Array:
    """Rotate adjacent pairs of the last `r` channels of each head; `inverse` by the negative angle."""
    t, r = len(x), 2 * table.shape[2]
    y = x.reshape(t, heads, x.shape[1] // heads).copy()
    cos, sin = table[:, None, 0], table[:, None, 1] * (-1 if inverse else 1)
    tail = y[..., -r:]
    a, b = tail[..., 0::2].copy(), tail[..., 1::2].copy()
    tail[..., 0::2] = a * cos - b * sin
    tail[..., 1::2] = a * sin + b * cos
    return y.reshape(x.shape)


def add(x: Array, y: Array) -> Array:
    """Elementwise sum."""
    return x + y


def add_position_bias(x: Array, bias: Array, block: Block) -> Array:
    """Compressor score plus its bias row: `x[t] + bias[position mod R]`, bias `[R, W]`."""
    return x + bias[block.positions % len(bias)]


def swiglu(gate: Array, up: Array, clamp: float) -> Array:
    """`silu(min(gate, L)) * clip(up, -L, L)`; the gate has no lower clamp."""
    limit = gate.dtype.type(clamp)
    g = np.minimum(gate, limit)
    return g * sigmoid(g) * np.clip(up, -limit, limit)


# ---------------------------------------------------------------- hyper-connections


def hc_mix(
    x: Array, fn: Array, base: Array, scale: Array, iters: int, eps: float, norm_eps: float
) -> tuple[Array, Array, Array]:
    """Control vector of a hyper-connection site.

    `x` `[T, n, d]`, `fn` `[(2+n)*n, n*d]`, `base` `[(2+n)*n]`, `scale` `[3]`. With
    `m = fn @ rms(x)`: `pre = sigmoid(m0*s0 + b0) + eps`, `post = 2*sigmoid(m1*s1 + b1)`,
    `M = softmax_k(m2*s2 + b2) + eps`, then column normalisation and `iters - 1` rounds of rows, columns.

    Returns:
        pre `[T, n]`, post `[T, n]`, M `[T, n, n]`.
    """
    t, n = x.shape[0], x.shape[1]
    e = x.dtype.type(eps)
    m = linear(rms_norm(x.reshape(t, n * x.shape[2]), None, norm_eps), fn)
    pre = sigmoid(m[:, :n] * scale[0] + base[:n]) + e
    post = 2 * sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    z = (m[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(t, n, n)
    z = np.exp(z - z.max(axis=2, keepdims=True))
    mix = z / z.sum(axis=2, keepdims=True) + e
    mix = mix / (mix.sum(axis=1, keepdims=True) + e)
    for _ in range(iters - 1):
        mix = mix / (mix.sum(axis=2, keepdims=True) + e)
        mix = mix / (mix.sum(axis=1, keepdims=True) + e)
    return pre, post, mix


def hc_pre(x: Array, pre: Array) -> Array:
    """Input of the sublayer: `sum_j pre[j] * x[j]`; `[T, n, d]` -> `[T, d]`."""
    return np.einsum("tn,tnd->td", pre, x)


def hc_post(x: Array, y: Array, post: Array, mix: Array) -> Array:
    """Next streams: `x'[k] = post[k]*y + sum_j M[j,k]*x[j]` (contraction over the first index of M)."""
    return post[:, :, None] * y[:, None, :] + np.einsum("tjk,tjd->tkd", mix, x)


def hc_collapse(x: Array, fn: Array, base: Array, scale: Array, eps: float, norm_eps: float) -> Array:
    """Final collapse of the streams: `sum_j (sigmoid(fn @ rms(x) * scale + base) + eps)[j] * x[j]`."""
    m = linear(rms_norm(x.reshape(len(x), x.shape[1] * x.shape[2]), None, norm_eps), fn)
    return hc_pre(x, sigmoid(m * scale[0] + base) + x.dtype.type(eps))


# ---------------------------------------------------------------- states


def read_rows(pool: Array, block: Block, span: int) -> Array:
    """Rows of a ring that lie before the block: `[B, span, W]`.

    Row `i` of segment `b` is position `first(b) - span + i`; positions below 0 are left as zero and must
    be masked by the reader. Read before the block's rows are written.
    """
    out = np.zeros((len(block.slots), span, pool.shape[2]), pool.dtype)
    for b, slot in enumerate(block.slots):
        if block.length(b) == 0:
            continue
        wanted = np.arange(block.first(b) - span, block.first(b))
        keep = wanted >= 0
        out[b, keep] = pool[slot, wanted[keep] % pool.shape[1]]
    return out


def write(pool: Array, rows: Array, block: Block) -> None:
    """Ring write: position `p` goes to slot row `p mod C`; only the last `C` rows of a segment are kept."""
    capacity = pool.shape[1]
    for b, slot in enumerate(block.slots):
        lo, hi = int(block.segment_starts[b]), int(block.segment_starts[b + 1])
        lo = max(lo, hi - capacity)
        pool[slot, block.positions[lo:hi] % capacity] = rows[lo:hi]


def append(pool: Array, rows: Array, windows: Block, every: int) -> None:
    """Append-state write: the row of window `j` goes to row `j`; `windows` comes from `Block.windows`."""
    for b, slot in enumerate(windows.slots):
        lo, hi = int(windows.segment_starts[b]), int(windows.segment_starts[b + 1])
        pool[slot, windows.positions[lo:hi] // every] = rows[lo:hi]


def pool(
    old_kv: Array, kv: Array, old_score: Array, score: Array, block: Block, every: int, lanes: int
) -> Array:
    """Pooled rows of the windows that close in the block: `[J, D]`.

    `old_*` `[B, span, lanes*D]` from `read_rows`, `kv`, `score` `[T, lanes*D]` the block's own rows. One
    lane: window `j` is positions `every*j .. every*j+every-1`. Two lanes (overlap): the previous window's
    first `D` channels come before the current window's last `D` channels. The weight is a softmax over
    the rows for each channel; positions below 0 have weight 0.
    """
    width = kv.shape[1] // lanes
    windows = block.windows(every)
    out = np.zeros((windows.num_rows, width), kv.dtype)
    for b in range(len(block.slots)):
        for j in range(int(windows.segment_starts[b]), int(windows.segment_starts[b + 1])):
            at = int(windows.positions[j])
            parts = [(np.arange(at, at + every), slice((lanes - 1) * width, lanes * width))]
            if lanes == 2:
                parts.insert(0, (np.arange(at - every, at), slice(0, width)))
            k = np.concatenate([_rows_at(old_kv, kv, block, b, p)[:, s] for p, s in parts])
            z = np.concatenate([_rows_at(old_score, score, block, b, p)[:, s] for p, s in parts])
            live = np.concatenate([p for p, _ in parts]) >= 0
            k, z = k[live], z[live]
            e = np.exp(z - z.max(axis=0))
            out[j] = (e / e.sum(axis=0) * k).sum(axis=0)
    return out


def _rows_at(old: Array, own: Array, block: Block, segment: int, positions: Array) -> Array:
    """Rows of a segment at absolute positions, old ones from `read_rows`, the others from the block."""
    first = block.first(segment)
    start, span = int(block.segment_starts[segment]), old.shape[1]
    assert int(positions[0]) >= first - span
    return np.stack(
        [own[start + p - first] if p >= first else old[segment, span + p - first] for p in positions.tolist()]
    )


# ---------------------------------------------------------------- attention and selection


def visible_rows(position: int, every: int) -> int:
    """Compressed rows that the query at `position` may see: `(position + 1) // every`."""
    return (position + 1) // every


def index_scores(q: Array, weights: Array, pool: Array, block: Block, every: int, scale: float) -> Array:
    """Lightning-indexer scores, `-inf` where a row is not visible: `[T, max visible rows]`.

    `q` `[T, h*D]`, `weights` `[T, h]` (may be negative), `pool` `[slot, rows, D]`:
    `score_j = sum_h weights_h * scale * relu(q_h . row_j)`.
    """
    heads, width = weights.shape[1], pool.shape[2]
    most = max([visible_rows(int(p), every) for p in block.positions], default=0)
    out = np.full((len(q), most), -np.inf, q.dtype)
    for t, (p, b) in enumerate(zip(block.positions.tolist(), block.row_segment.tolist(), strict=True)):
        n = visible_rows(p, every)
        dots = np.maximum(q[t].reshape(heads, width) @ pool[block.slots[b], :n].T, 0)
        out[t, :n] = ((weights[t] * q.dtype.type(scale))[:, None] * dots).sum(axis=0)
    return out


def select_rows(scores: Array, block: Block, every: int, top_k: int) -> NDArray[np.int32]:
    """Row numbers of the `top_k` best visible rows, ascending, padded with -1: `[T, top_k]`.

    Ties go to the lower row; all visible rows are taken when there are at most `top_k`.
    """
    out = np.full((len(scores), top_k), -1, np.int32)
    for t, p in enumerate(block.positions.tolist()):
        n = visible_rows(p, every)
        k = min(n, top_k)
        best = np.argsort(-scores[t, :n], kind="stable")[:k]
        out[t, :k] = np.sort(best)
    return out


def attention(
    q: Array,
    sink: Array,
    old: Array,
    own: Array,
    block: Block,
    scale: float,
    window: int,
    rows: Array | None = None,
    selection: Array | None = None,
    every: int = 0,
) -> Array:
    """Attention over the raw window and compressed rows, with a sink: `[T, H*D]`.

    `q` `[T, H*D]`, `sink` `[H]`, `old` `[B, span, D]` from `read_rows`, `own` `[T, D]` (keys are the
    values), `rows` the pool `[slot, n, D]` of compressed rows. The query at `p` sees positions
    `max(0, p-window+1) .. p` and rows `j < (p+1)//every` (those of `selection` `[T, k]` if given). The
    sink joins the softmax as one more, unscaled logit without a value.
    """
    heads, width = len(sink), own.shape[1]
    out = np.zeros_like(q)
    for t, (p, b) in enumerate(zip(block.positions.tolist(), block.row_segment.tolist(), strict=True)):
        keys = [_rows_at(old, own, block, b, np.arange(max(0, p - window + 1), p + 1))]
        if rows is not None:
            chosen = np.arange(visible_rows(p, every))
            if selection is not None:
                chosen = selection[t][selection[t] >= 0]
            keys.append(rows[block.slots[b], chosen])
        k = np.concatenate(keys)
        s = q[t].reshape(heads, width) @ k.T * q.dtype.type(scale)
        top = np.maximum(s.max(axis=1), sink)[:, None]
        e = np.exp(s - top)
        w = e / (e.sum(axis=1, keepdims=True) + np.exp(sink[:, None] - top))
        out[t] = (w @ k).reshape(-1)
    return out


# ---------------------------------------------------------------- mixture of experts


def _route_weights(scores: Array, experts: Array, scale: float) -> Array:
    chosen = np.take_along_axis(scores, experts, axis=1)
    total = chosen.sum(axis=1, keepdims=True) + scores.dtype.type(1e-20)
    return chosen / total * scores.dtype.type(scale)


def route_top(logits: Array, bias: Array, top_k: int, scale: float) -> tuple[NDArray[np.int32], Array]:
    """Scored routing: experts int32 `[T, k]` by descending `sqrt(softplus(logit)) + bias`, and weights.

    The bias only selects; weights are `score / (sum + 1e-20) * scale`. Ties go to the lower expert.
    """
    scores = np.sqrt(softplus(logits))
    experts = np.argsort(-(scores + bias), axis=1, kind="stable")[:, :top_k].astype(np.int32)
    return experts, _route_weights(scores, experts, scale)


def route_hash(logits: Array, tokens: Array, table: Array, scale: float) -> tuple[NDArray[np.int32], Array]:
    """Hash routing: experts `[T, k]` are `table[token]`, weights from the scores as in `route_top`."""
    scores = np.sqrt(softplus(logits))
    experts = table[tokens].astype(np.int32)
    return experts, _route_weights(scores, experts, scale)


def moe_experts(
    x: Array, experts: Array, weights: Array, w1: Array, w3: Array, w2: Array, clamp: float
) -> Array:
    """Sum of the chosen experts, in the order of `experts`: `[T, d]`.

    `w1`, `w3` `[E, I, d]` (gate, up), `w2` `[E, d, I]`; the routing weight multiplies the hidden
    activation before `w2`, as DeepSeek's reference code does.
    """
    out = np.zeros_like(x)
    for t in range(len(x)):
        for e, weight in zip(experts[t], weights[t], strict=True):
            hidden = swiglu(w1[e] @ x[t], w3[e] @ x[t], clamp) * weight
            out[t] += w2[e] @ hidden
    return out
