"""Tensors of a gated delta net checkpoint, and the weights that the step function makes of them.

Names are those of the published files (`model.layers.N.linear_attn.in_proj_qkvz.weight`). There the rows of
the two input projections stand key head by key head: `[q, k, v.., z..]` and `[b.., a..]`, `..` for the value
heads that the key head serves. The step function has them apart: `qkv` (all queries, all keys, all values:
the channels of the convolution), `z`, `b` and `a`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c.models.gated_delta_config import GatedDeltaConfig
from ds4c.models.ir_weights import IrWeight, Make, StoredDtype
from ds4c.models.tensors import Item, TensorSpec, control, matrix

Array = NDArray[Any]
EMBED, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


def expected_tensors(config: GatedDeltaConfig) -> dict[str, TensorSpec]:
    """Every tensor of the main model by name, in the order of computation."""
    hidden = config.hidden_size
    items: list[Item] = [matrix(EMBED, config.vocab_size, hidden)]
    for layer in range(config.num_hidden_layers):
        items += _layer(config, f"model.layers.{layer}.")
    items += [control(NORM, hidden), matrix(HEAD, config.vocab_size, hidden)]
    return dict(items)


def _layer(config: GatedDeltaConfig, prefix: str) -> Iterator[Item]:
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    yield control(prefix + "input_layernorm.weight", hidden)
    net = prefix + "linear_attn."
    yield matrix(net + "in_proj_qkvz.weight", config.conv_width + config.value_width, hidden)
    yield matrix(net + "in_proj_ba.weight", 2 * heads, hidden)
    yield control(net + "conv1d.weight", config.conv_width, 1, config.linear_conv_kernel_dim)
    yield control(net + "dt_bias", heads)
    yield control(net + "A_log", heads)
    yield control(net + "norm.weight", config.linear_value_head_dim)
    yield matrix(net + "out_proj.weight", hidden, config.value_width)
    yield control(prefix + "post_attention_layernorm.weight", hidden)
    for part in ("gate", "up"):
        yield matrix(f"{prefix}mlp.{part}_proj.weight", config.intermediate_size, hidden)
    yield matrix(prefix + "mlp.down_proj.weight", hidden, config.intermediate_size)


def native_name(name: str) -> str:
    """Map a stored name to the published one: the prefix `model.` may be missing."""
    return name if name.startswith(("model.", "lm_head.")) else f"model.{name}"


def seeded_values(name: str, spec: TensorSpec, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale and shift bell-shaped values to the usual range of the tensor `name`.

    With these a head forgets half of its state within 2 to 50 tokens.
    """
    if name.endswith("linear_attn.norm.weight"):
        return np.float32(1.0) + np.float32(0.2) * values
    if name.endswith("norm.weight"):  # the gain is one more
        return np.float32(0.2) * values
    if name.endswith("A_log"):
        return values - np.float32(2.0)
    if name.endswith("dt_bias"):
        return np.float32(0.5) * values
    if name == EMBED:
        return values
    return np.float32(1.0 / np.sqrt(spec.shape[-1])) * values


def step_weights(config: GatedDeltaConfig, context: int, stored: StoredDtype) -> Iterator[IrWeight]:
    """Every weight of the step function; `layers.N.` and a short name."""
    tensors = expected_tensors(config)

    def plain(name: str, source: str) -> IrWeight:
        return IrWeight(name, tensors[source].shape, _dtype(stored, source), (source,))

    yield plain("embed", EMBED)
    for layer in range(config.num_hidden_layers):
        source, to = f"model.layers.{layer}.", f"layers.{layer}."
        yield _gain(to + "input_norm", source + "input_layernorm.weight", config.hidden_size)
        yield from _net(config, source + "linear_attn.", to, stored)
        yield plain(to + "out", source + "linear_attn.out_proj.weight")
        yield _gain(to + "mlp_norm", source + "post_attention_layernorm.weight", config.hidden_size)
        for part in ("gate", "up", "down"):
            yield plain(to + part, f"{source}mlp.{part}_proj.weight")
    yield _gain("norm", NORM, config.hidden_size)
    yield plain("head", HEAD)


def _dtype(stored: StoredDtype, source: str) -> str:
    return "bfloat16" if stored(source) == "bfloat16" else "float32"


def _gain(name: str, source: str, width: int) -> IrWeight:
    """The published norms hold the gain less one."""
    return IrWeight(name, (width,), "float32", (source,), lambda parts: parts[0] + np.float32(1.0))


def _net(config: GatedDeltaConfig, source: str, to: str, stored: StoredDtype) -> Iterator[IrWeight]:
    c, hidden, heads = config, config.hidden_size, config.linear_num_value_heads
    qkvz, ba = source + "in_proj_qkvz.weight", source + "in_proj_ba.weight"
    served = heads // c.linear_num_key_heads
    value = served * c.linear_value_head_dim
    q, k, v, z = _rows(c.linear_num_key_heads, (c.linear_key_head_dim, c.linear_key_head_dim, value, value))
    b, a = _rows(c.linear_num_key_heads, (served, served))
    kinds = _dtype(stored, qkvz), _dtype(stored, ba)
    yield IrWeight(to + "qkv", (c.conv_width, hidden), kinds[0], (qkvz,), _taken(np.concatenate([q, k, v])))
    yield IrWeight(to + "z", (c.value_width, hidden), kinds[0], (qkvz,), _taken(z))
    yield IrWeight(to + "b", (heads, hidden), kinds[1], (ba,), _taken(b))
    yield IrWeight(to + "a", (heads, hidden), kinds[1], (ba,), _taken(a))
    taps = (c.linear_conv_kernel_dim, c.conv_width)
    conv = source + "conv1d.weight"
    yield IrWeight(to + "conv", taps, "float32", (conv,), lambda parts: parts[0][:, 0].T)
    yield IrWeight(to + "rate", (heads,), "float32", (source + "A_log",), _rate)
    yield IrWeight(to + "rate_bias", (heads,), "float32", (source + "dt_bias",))
    width = c.linear_value_head_dim
    yield IrWeight(to + "net_norm", (width,), "float32", (source + "norm.weight",))


def _rows(groups: int, sizes: tuple[int, ...]) -> list[NDArray[np.intp]]:
    """Row numbers of each part where every group has all parts, one after another."""
    table = np.arange(groups * sum(sizes)).reshape(groups, sum(sizes))
    ends = np.cumsum(sizes)
    return [table[:, end - size : end].reshape(-1) for size, end in zip(sizes, ends, strict=True)]


def _taken(rows: NDArray[np.intp]) -> Make:
    return lambda parts: parts[0][rows]


def _rate(parts: Sequence[Array]) -> Array:
    """`exp(A_log)`, rounded once."""
    return np.exp(parts[0].astype(np.float64)).astype(np.float32)
