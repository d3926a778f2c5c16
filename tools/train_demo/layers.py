"""The mathematics of one DeepSeek-V4 layer for training: whole sequences, no state, functions of tensors.

Written for speed on a CPU: the raw window is two blocks of keys, experts see their tokens sorted and grouped.
The functions take the parameters of a block as a mapping from their Hugging Face names, so that
`torch.compile` sees tensors and the modules of `network.py` stay plain containers.

Dimension letters: `B` sequences, `T` tokens, `N` compressed rows, `n` residual streams, `d` hidden size,
`H` heads, `D` head size, `W` window, `R` compress ratio.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NEVER = -1e30
"""An additive mask that softmax turns into an exact zero."""

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class NetworkConfig:
    """Shape of the demo model; the defaults are those of the shipped checkpoint."""

    vocab_size: int = 1024
    hidden_size: int = 128
    expert_width: int = 96
    ratios: tuple[int, ...] = (0, 0, 4, 128, 4, 128)
    heads: int = 4
    head_dim: int = 64
    rope_dim: int = 16
    query_rank: int = 64
    window: int = 64
    output_groups: int = 2
    output_rank: int = 64
    experts: int = 8
    experts_per_token: int = 2
    hash_layers: int = 3
    routed_scale: float = 1.5
    swiglu_limit: float = 10.0
    index_heads: int = 16
    index_dim: int = 32
    index_topk: int = 64
    streams: int = 4
    sinkhorn_iterations: int = 5
    eps: float = 1e-6
    rope_theta: float = 10_000.0
    compress_rope_theta: float = 160_000.0
    yarn_original: int = 256
    yarn_factor: int = 16
    max_positions: int = 4096


class Rope(NamedTuple):
    """Cosine and sine `[T, rope_dim / 2]` of every position."""

    cos: Tensor
    sin: Tensor

    def reversed(self) -> "Rope":
        """The rotation by the opposite angle, as the output of attention needs it."""
        return Rope(self.cos, -self.sin)

    def per_head(self) -> "Rope":
        """The same with a dimension of size one for the heads: `[T, 1, rope_dim / 2]`."""
        return Rope(self.cos.unsqueeze(-2), self.sin.unsqueeze(-2))

    def every(self, ratio: int) -> "Rope":
        """The rows of positions 0, ratio, 2 * ratio, ...: those of the compressed rows."""
        return Rope(self.cos[::ratio], self.sin[::ratio])

    def at(self, positions: Tensor) -> "Rope":
        """The rows of the given positions."""
        return Rope(self.cos[positions], self.sin[positions])


def inverse_frequencies(rope_dim: int, theta: float, yarn: tuple[int, int] | None = None) -> Tensor:
    """Angles per token `[rope_dim / 2]`, float64; `yarn` is (original length, factor)."""
    frequencies = 1.0 / theta ** (torch.arange(0, rope_dim, 2, dtype=torch.float64) / rope_dim)
    if yarn is None:
        return frequencies
    length, factor = yarn

    def channel(turns: float) -> float:
        return rope_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(channel(32)), 0), min(math.ceil(channel(1)), rope_dim - 1)
    width = (high - low) or 0.001
    ramp = ((torch.arange(rope_dim // 2, dtype=torch.float64) - low) / width).clamp(0, 1)
    return frequencies / factor * ramp + frequencies * (1 - ramp)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Root-mean-square norm over the last dimension, with or without a learned scale."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotate the last `rope_dim` channels of `[..., D]` in adjacent pairs."""
    width = rope.cos.shape[-1] * 2
    plain, turned = x[..., :-width], x[..., -width:].unflatten(-1, (-1, 2))
    even, odd = turned[..., 0], turned[..., 1]
    pairs = torch.stack((even * rope.cos - odd * rope.sin, even * rope.sin + odd * rope.cos), -1)
    return torch.cat((plain, pairs.flatten(-2)), -1)


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """SwiGLU with the gate clamped from above and the other factor from both sides."""
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


# Hyper-connections: n copies of the residual stream, mixed by a nearly doubly stochastic matrix.


def stream_control(X: Tensor, hc: Weights, c: NetworkConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Read weights `[B, T, n]`, write weights `[B, T, n]` and mixing matrix `[B, T, n, n]` of one site."""
    B, T, n, _ = X.shape
    flat = X.flatten(2)
    mixes = (flat @ hc["fn"].t()) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6)
    scale, base = hc["scale"], hc["base"]
    read = torch.sigmoid(mixes[..., :n] * scale[0] + base[:n]) + c.eps
    write = 2 * torch.sigmoid(mixes[..., n : 2 * n] * scale[1] + base[n : 2 * n])
    # [n, n, B * T]: Sinkhorn runs over the two leading dimensions, which vectorises over tokens.
    M = (mixes[..., 2 * n :] * scale[2] + base[2 * n :]).reshape(B * T, n * n).t().reshape(n, n, B * T)
    M = torch.softmax(M, 1) + c.eps
    M = M / (M.sum(0, keepdim=True) + c.eps)
    for _ in range(c.sinkhorn_iterations - 1):
        M = M / (M.sum(1, keepdim=True) + c.eps)
        M = M / (M.sum(0, keepdim=True) + c.eps)
    return read, write, M.permute(2, 0, 1).reshape(B, T, n, n)


def stream_read(X: Tensor, hc: Weights, c: NetworkConfig) -> tuple[Tensor, Tensor, Tensor]:
    """The input of a site `[B, T, d]`, and what `stream_write` needs afterwards."""
    read, write, M = stream_control(X, hc, c)
    return (read.unsqueeze(-1) * X).sum(2), write, M


def stream_write(X: Tensor, y: Tensor, write: Tensor, M: Tensor) -> Tensor:
    """New streams `[B, T, n, d]`: the output of the site, weighted, plus the mixed old streams."""
    n = X.shape[2]
    streams: list[Tensor] = []
    for k in range(n):
        stream = write[..., k : k + 1] * y
        for j in range(n):
            stream = stream + M[..., j, k : k + 1] * X[..., j, :]
        streams.append(stream)
    return torch.stack(streams, 2)


def stream_collapse(X: Tensor, hc: Weights, eps: float) -> Tensor:
    """One vector `[..., d]` from the streams `[..., n, d]`, before the output head."""
    flat = X.flatten(-2)
    mixes = (flat @ hc["hc_fn"].t()) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6)
    read = torch.sigmoid(mixes * hc["hc_scale"] + hc["hc_base"]) + eps
    return (read.unsqueeze(-1) * X).sum(-2)


# Compression and attention.


def pool(keys: Tensor, scores: Tensor, ratio: int, width: int) -> Tensor:
    """Compressed rows `[B, T / R, width]`: per channel a softmax-weighted mean over the rows of a window.

    With `2 * width` channels windows overlap: the first half of the channels of the window before joins.
    """
    B, T, _ = keys.shape
    k, s = keys.view(B, T // ratio, ratio, -1), scores.view(B, T // ratio, ratio, -1)
    if k.shape[-1] == 2 * width:
        nothing = torch.zeros_like(k[:, :1, :, :width])
        k_before = torch.cat((nothing, k[:, :-1, :, :width]), 1)
        s_before = torch.cat((nothing + NEVER, s[:, :-1, :, :width]), 1)
        k, s = torch.cat((k_before, k[..., width:]), 2), torch.cat((s_before, s[..., width:]), 2)
    return (torch.softmax(s, 2) * k).sum(2)


def compress(h: Tensor, w: Weights, prefix: str, ratio: int, width: int, rope: Rope) -> Tensor:
    """The compressor `prefix` on the normed input `[B, T, d]`: pooled, normed, rotated rows."""
    B, T, _ = h.shape
    keys = h @ w[prefix + "kv_proj.weight"].t()
    scores = h @ w[prefix + "gate_proj.weight"].t()
    scores = (scores.view(B, T // ratio, ratio, -1) + w[prefix + "position_bias"]).view(B, T, -1)
    rows = rms_norm(pool(keys, scores, ratio, width), w[prefix + "kv_norm.weight"])
    return rotate(rows, rope.every(ratio))


def visible_rows(tokens: int, rows: int, ratio: int) -> Tensor:
    """`[T, N]`: row j is visible from position p when its window is complete, `j < (p + 1) // R`."""
    return torch.arange(rows).view(1, rows) < (torch.arange(tokens).view(tokens, 1) + 1) // ratio


def attend(
    q: Tensor,
    kv: Tensor,
    rows: Tensor | None,
    sinks: Tensor,
    window: int,
    ratio: int,
    selection: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Attention over the raw window, the compressed rows and the sink; keys are the values.

    Args:
        q: `[B, T, H, D]`, with T a multiple of the window.
        kv: Raw rows `[B, T, D]`.
        rows: Compressed rows `[B, N, D]`, or None in a layer without a compressor.
        sinks: One logit per head.
        window: Raw rows a query sees, itself included.
        ratio: Compress ratio of `rows`.
        selection: Additive mask `[B, T, N]` of the indexer, or None for all visible rows.

    Returns:
        Output `[B, T, H, D]` and the weights of the compressed rows `[B, T / W, H, W, N]`.
    """
    B, T, H, D = q.shape
    W, blocks = window, T // window
    q_block = q.view(B, blocks, W, H, D).transpose(2, 3).reshape(B, blocks, H * W, D)
    kv_block = kv.view(B, blocks, W, D)
    before = torch.cat((torch.zeros_like(kv_block[:, :1]), kv_block[:, :-1]), 1)
    kv_two = torch.cat((before, kv_block), 2)
    raw = (q_block @ kv_two.transpose(-1, -2)).view(B, blocks, H, W, 2 * W) * D**-0.5
    i, j = torch.arange(W).view(W, 1), torch.arange(2 * W).view(1, 2 * W) - W
    in_window = (j <= i) & (j > i - W)
    exists = torch.arange(blocks).view(blocks, 1, 1) * W + j.view(1, 1, -1) >= 0
    parts = [raw.masked_fill(~(in_window & exists).unsqueeze(1), NEVER)]
    if rows is not None:
        N = rows.shape[1]
        scores = (q_block.reshape(B, T * H, D) @ rows.transpose(-1, -2)).view(B, blocks, H, W, N) * D**-0.5
        scores = scores.masked_fill(~visible_rows(T, N, ratio).view(blocks, 1, W, N), NEVER)
        parts.append(scores if selection is None else scores + selection.view(B, blocks, 1, W, N))
    parts.append(sinks.view(1, 1, H, 1, 1).expand(B, blocks, H, W, 1))
    weights = torch.softmax(torch.cat(parts, -1), -1)
    out = weights[..., : 2 * W].reshape(B, blocks, H * W, 2 * W) @ kv_two
    row_weights = None
    if rows is not None:
        row_weights = weights[..., 2 * W : -1]
        out = out + (row_weights.reshape(B, T * H, -1) @ rows).view(B, blocks, H * W, D)
    return out.view(B, blocks, H, W, D).transpose(2, 3).reshape(B, T, H, D), row_weights


def query(h: Tensor, w: Weights, c: NetworkConfig, rope: Rope) -> tuple[Tensor, Tensor]:
    """Low-rank query input `[..., query_rank]` and rotated queries `[..., H, D]`."""
    low_rank = rms_norm(h @ w["q_a_proj.weight"].t(), w["q_a_norm.weight"])
    q = rms_norm((low_rank @ w["q_b_proj.weight"].t()).unflatten(-1, (c.heads, c.head_dim)))
    return low_rank, rotate(q, rope.per_head())


def raw_rows(h: Tensor, w: Weights, rope: Rope) -> Tensor:
    """The rows that the raw window holds: projected, normed, rotated."""
    return rotate(rms_norm(h @ w["kv_proj.weight"].t(), w["kv_norm.weight"]), rope)


def project_output(out: Tensor, w: Weights, c: NetworkConfig) -> Tensor:
    """The grouped low-rank output projection: `[B, T, H, D]` to `[B, T, d]`."""
    B, T = out.shape[:2]
    groups = out.reshape(B * T, c.output_groups, -1).transpose(0, 1)
    first = w["o_a_proj.weight"].view(c.output_groups, c.output_rank, -1).transpose(1, 2)
    return torch.bmm(groups, first).transpose(0, 1).reshape(B, T, -1) @ w["o_b_proj.weight"].t()


def index_scores(h: Tensor, low_rank: Tensor, w: Weights, c: NetworkConfig, rope: Rope) -> Tensor:
    """Scores `[B, T, N]` of the lightning indexer of a ratio-4 layer, not masked."""
    prefix, (B, T, _) = "compressor.indexer.", h.shape
    keys = compress(h, w, prefix, 4, c.index_dim, rope)
    q = (low_rank @ w[prefix + "q_b_proj.weight"].t()).view(B, T, c.index_heads, c.index_dim)
    q = rotate(q, rope.per_head())
    head_weights = (h @ w[prefix + "scorer.weights_proj.weight"].t()) * (
        c.index_dim**-0.5 * c.index_heads**-0.5
    )
    hits = torch.relu(q.reshape(B, T * c.index_heads, -1) @ keys.transpose(-1, -2))
    return (hits.view(B, T, c.index_heads, -1) * head_weights.unsqueeze(-1)).sum(2)


class AttentionOut(NamedTuple):
    """What the attention site of a block hands on."""

    streams: Tensor
    normed: Tensor
    low_rank: Tensor
    row_weights: Tensor | None


def attention_site(
    X: Tensor,
    ratio: int,
    c: NetworkConfig,
    w: Weights,
    hc: Weights,
    norm: Tensor,
    rope: Rope,
    selection: Tensor | None,
) -> AttentionOut:
    """Read the streams, attend, write the streams."""
    u, write, M = stream_read(X, hc, c)
    h = rms_norm(u, norm)
    low_rank, q = query(h, w, c, rope)
    rows = compress(h, w, "compressor.", ratio, c.head_dim, rope) if ratio else None
    out, row_weights = attend(q, raw_rows(h, w, rope), rows, w["sinks"], c.window, ratio, selection)
    y = project_output(rotate(out, rope.reversed().per_head()), w, c)
    return AttentionOut(stream_write(X, y, write, M), h, low_rank, row_weights)


def feed_forward_input(
    X: Tensor, c: NetworkConfig, hc: Weights, norm: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The normed input of the experts, and what `stream_write` needs afterwards."""
    u, write, M = stream_read(X, hc, c)
    return rms_norm(u, norm), write, M
