"""DeepSeek-V4 in plain NumPy float64, one token at a time: the arithmetic that golden vectors come from.

Written from the description of the architecture, apart from the dialect, the interpreter and every
kernel, so that a shared mistake is unlikely. It keeps every row of every position (no ring, no
overwriting): what a query may see is computed from positions alone. Slow and plain on purpose.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c.models.config import ModelConfig, YarnScaling

Vector = NDArray[np.float64]


def rms_norm(values: Vector, eps: float, weight: Vector | None = None) -> Vector:
    """Divide by the root mean square over the last axis, then scale."""
    normal = values / np.sqrt(np.mean(values * values, axis=-1, keepdims=True) + eps)
    return normal if weight is None else normal * weight


def sigmoid(values: Vector) -> Vector:
    """Logistic function."""
    return 1.0 / (1.0 + np.exp(-values))


def softmax(values: Vector, axis: int) -> Vector:
    """Softmax over one axis."""
    powers = np.exp(values - values.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def softplus(values: Vector) -> Vector:
    """log(1 + exp(x)) without overflow."""
    return np.log1p(np.exp(-np.abs(values))) + np.maximum(values, 0.0)


def rope_frequencies(dim: int, theta: float, yarn: YarnScaling | None) -> Vector:
    """Rotation per position of each pair, `[dim / 2]`, in radians; YaRN without a magnitude factor."""
    plain = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if yarn is None:
        return plain

    def pair_of(rotations: float) -> float:
        length = yarn.original_max_position_embeddings
        return dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_of(yarn.beta_fast)), 0)
    high: float = min(math.ceil(pair_of(yarn.beta_slow)), dim - 1)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0.0, 1.0)
    return plain * (1.0 - ramp) + plain / yarn.factor * ramp


def rotate(values: Vector, position: int, frequencies: Vector, direction: float = 1.0) -> Vector:
    """Rotate adjacent pairs of the last `2 * len(frequencies)` channels by the angle of `position`."""
    width = 2 * len(frequencies)
    cos, sin = np.cos(position * frequencies), direction * np.sin(position * frequencies)
    even, odd = values[..., -width::2], values[..., 1 - width :: 2]
    result = values.copy()
    result[..., -width::2] = even * cos - odd * sin
    result[..., 1 - width :: 2] = even * sin + odd * cos
    return result


@dataclass
class CompressorRows:
    """All rows of one compressor: projections `[p, lanes * width]` by position, compressed rows by index."""

    values: list[Vector] = field(default_factory=list)
    scores: list[Vector] = field(default_factory=list)
    compressed: list[Vector] = field(default_factory=list)


@dataclass
class LayerRows:
    """All rows of one layer: raw rows `[D]` by position, and those of its compressors."""

    raw: list[Vector] = field(default_factory=list)
    main: CompressorRows = field(default_factory=CompressorRows)
    index: CompressorRows = field(default_factory=CompressorRows)


class Reference64:
    """One timeline of a model; `step` appends a token.

    Args:
        config: The model.
        weights: Native names to arrays of any float or integer type.

    Attributes:
        layers: Every row computed so far, for comparing states.
        expert_margin: Smallest gap seen between the last chosen expert and the best one left out.
        index_margin: The same for compressed rows; a float32 run may differ where these are tiny.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, NDArray[Any]]) -> None:
        self.config = config
        self.weights = {
            name: value if value.dtype.kind == "i" else value.astype(np.float64)
            for name, value in weights.items()
        }
        self.position = 0
        self.layers = [LayerRows() for _ in range(config.num_hidden_layers)]
        self.frequencies = [
            rope_frequencies(config.qk_rope_head_dim, config.layer_rope_theta(i), config.layer_yarn(i))
            for i in range(config.num_hidden_layers)
        ]
        self.expert_margin = math.inf
        self.index_margin = math.inf

    def run(self, tokens: list[int]) -> Vector:
        """Append tokens; returns logits `[len(tokens), V]`."""
        return np.stack([self.step(token) for token in tokens])

    def step(self, token: int) -> Vector:
        """Append one token; returns the logits `[V]` that follow it."""
        config, weights, eps = self.config, self.weights, self.config.rms_norm_eps
        streams = np.repeat(weights["embed.weight"][token][None], config.hc_mult, axis=0)
        for layer in range(config.num_hidden_layers):
            prefix = f"layers.{layer}."
            inner, post, mix = self._control(streams, prefix + "hc_attn_")
            inner = rms_norm(inner, eps, weights[prefix + "attn_norm.weight"])
            streams = post[:, None] * self._attention(layer, inner) + mix.T @ streams
            inner, post, mix = self._control(streams, prefix + "hc_ffn_")
            inner = rms_norm(inner, eps, weights[prefix + "ffn_norm.weight"])
            streams = post[:, None] * self._moe(layer, inner, token) + mix.T @ streams
        self.position += 1
        raw = weights["hc_head_fn"] @ rms_norm(streams.reshape(-1), eps)
        pre = sigmoid(raw * weights["hc_head_scale"] + weights["hc_head_base"]) + config.hc_eps
        return weights["head.weight"] @ rms_norm(pre @ streams, eps, weights["norm.weight"])

    def _control(self, streams: Vector, prefix: str) -> tuple[Vector, Vector, Vector]:
        """Control values of one hyper-connection site: input of the sublayer, `post [n]`, mix `[n, n]`."""
        config, copies = self.config, self.config.hc_mult
        raw = self.weights[prefix + "fn"] @ rms_norm(streams.reshape(-1), config.rms_norm_eps)
        scale = np.repeat(self.weights[prefix + "scale"], [copies, copies, copies * copies])
        raw = raw * scale + self.weights[prefix + "base"]
        pre = sigmoid(raw[:copies]) + config.hc_eps
        post = 2.0 * sigmoid(raw[copies : 2 * copies])
        mix = softmax(raw[2 * copies :].reshape(copies, copies), axis=1) + config.hc_eps
        mix = mix / (mix.sum(axis=0, keepdims=True) + config.hc_eps)
        for _ in range(config.hc_sinkhorn_iters - 1):
            mix = mix / (mix.sum(axis=1, keepdims=True) + config.hc_eps)
            mix = mix / (mix.sum(axis=0, keepdims=True) + config.hc_eps)
        return pre @ streams, post, mix

    def _attention(self, layer: int, inner: Vector) -> Vector:
        config, weights, position = self.config, self.weights, self.position
        prefix, eps, rows = f"layers.{layer}.attn.", self.config.rms_norm_eps, self.layers[layer]
        frequencies = self.frequencies[layer]
        low_rank = rms_norm(weights[prefix + "wq_a.weight"] @ inner, eps, weights[prefix + "q_norm.weight"])
        query = (weights[prefix + "wq_b.weight"] @ low_rank).reshape(config.num_attention_heads, -1)
        query = rotate(rms_norm(query, eps), position, frequencies)
        raw = rms_norm(weights[prefix + "wkv.weight"] @ inner, eps, weights[prefix + "kv_norm.weight"])
        rows.raw.append(rotate(raw, position, frequencies))
        keys = rows.raw[max(0, position + 1 - config.sliding_window) :]
        if config.ratio(layer):
            self._compress(layer, prefix + "compressor.", rows.main, inner)
            keys = keys + [rows.main.compressed[index] for index in self._visible(layer, inner, low_rank)]
        stacked = np.stack(keys)
        scores = query @ stacked.T * config.head_dim**-0.5
        sinks = weights[prefix + "attn_sink"][:, None]
        probabilities = softmax(np.concatenate([scores, sinks], axis=1), axis=1)[:, :-1]
        heads = rotate(probabilities @ stacked, position, frequencies, -1.0)
        groups = heads.reshape(config.o_groups, -1)
        first = weights[prefix + "wo_a.weight"].reshape(config.o_groups, config.o_lora_rank, -1)
        return weights[prefix + "wo_b.weight"] @ np.einsum("gri,gi->gr", first, groups).reshape(-1)

    def _compress(self, layer: int, prefix: str, rows: CompressorRows, inner: Vector) -> None:
        """Append this token's projections; where a window closes, append its compressed row."""
        ratio, lanes, weights = self.config.ratio(layer), self.config.lanes(layer), self.weights
        bias = weights[prefix + "ape"][self.position % ratio]
        rows.values.append(weights[prefix + "wkv.weight"] @ inner)
        rows.scores.append(weights[prefix + "wgate.weight"] @ inner + bias)
        if (self.position + 1) % ratio:
            return
        start = self.position + 1 - ratio
        width = len(bias) // lanes
        # The last lane serves the window that closes, the first lane (of two) the window before it.
        spans = [(start, ratio, (lanes - 1) * width)]
        if lanes == 2 and start >= ratio:
            spans.insert(0, (start - ratio, ratio, 0))
        taken = [(p, o) for first, count, o in spans for p in range(first, first + count)]
        values = np.stack([rows.values[p][o : o + width] for p, o in taken])
        scores = np.stack([rows.scores[p][o : o + width] for p, o in taken])
        pooled = (softmax(scores, axis=0) * values).sum(axis=0)
        pooled = rms_norm(pooled, self.config.rms_norm_eps, weights[prefix + "norm.weight"])
        rows.compressed.append(rotate(pooled, start, self.frequencies[layer]))

    def _visible(self, layer: int, inner: Vector, low_rank: Vector) -> list[int]:
        """Indices of the compressed rows this query attends to, ascending."""
        config, weights, rows = self.config, self.weights, self.layers[layer]
        count = (self.position + 1) // config.ratio(layer)
        if not config.has_indexer(layer):
            return list(range(count))
        prefix = f"layers.{layer}.attn.indexer."
        self._compress(layer, prefix + "compressor.", rows.index, inner)
        if count <= config.index_topk:
            return list(range(count))
        query = (weights[prefix + "wq_b.weight"] @ low_rank).reshape(config.index_n_heads, -1)
        query = rotate(query, self.position, self.frequencies[layer])
        factor = config.index_head_dim**-0.5 * config.index_n_heads**-0.5
        head_weights = weights[prefix + "weights_proj.weight"] @ inner * factor
        scores = head_weights @ np.maximum(query @ np.stack(rows.index.compressed).T, 0.0)
        chosen, margin = _largest(scores, config.index_topk)
        self.index_margin = min(self.index_margin, margin)
        return sorted(chosen)

    def _moe(self, layer: int, inner: Vector, token: int) -> Vector:
        config, weights, prefix = self.config, self.weights, f"layers.{layer}.ffn."
        scores = np.sqrt(softplus(weights[prefix + "gate.weight"] @ inner))
        if config.is_hash(layer):
            chosen = [int(expert) for expert in weights[prefix + "gate.tid2eid"][token]]
        else:
            chosen, margin = _largest(scores + weights[prefix + "gate.bias"], config.num_experts_per_tok)
            self.expert_margin = min(self.expert_margin, margin)
        factor = config.routed_scaling_factor / (scores[chosen].sum() + 1e-20)
        result = self._expert(prefix + "shared_experts.", inner)
        for expert in chosen:
            result = result + factor * scores[expert] * self._expert(f"{prefix}experts.{expert}.", inner)
        return result

    def _expert(self, prefix: str, inner: Vector) -> Vector:
        weights, limit = self.weights, self.config.swiglu_limit
        gate = np.minimum(weights[prefix + "w1.weight"] @ inner, limit)
        up = np.clip(weights[prefix + "w3.weight"] @ inner, -limit, limit)
        return weights[prefix + "w2.weight"] @ (gate * sigmoid(gate) * up)


def _largest(scores: Vector, count: int) -> tuple[list[int], float]:
    """Choose the `count` largest, ties to the lower index; also the gap to the best one left out."""
    order = np.argsort(-scores, kind="stable")
    gap = scores[order[count - 1]] - scores[order[count]] if count < len(scores) else math.inf
    return [int(index) for index in order[:count]], float(gap)
