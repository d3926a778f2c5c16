"""Tensors of a DeepSeek-V4 checkpoint: native names, shapes and roles.

Native names (`layers.N.attn.wq_a.weight`) are the canonical ones everywhere in ds4c; other
spellings are mapped by `ds4c.models.names`. Draft layers (`mtp.*`) are not described here.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ds4c.models.config import ModelConfig
from ds4c.models.tensors import Item, TensorRole, TensorSpec
from ds4c.models.tensors import control as _control
from ds4c.models.tensors import matrix as _matrix


def expected_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """List every tensor of the main model by native name, in the order of computation."""
    hidden, copies = config.hidden_size, config.hc_mult
    items: list[Item] = [_matrix("embed.weight", config.vocab_size, hidden)]
    for layer in range(config.num_hidden_layers):
        items.extend(_layer(config, layer))
    items += [
        _control("hc_head_fn", copies, copies * hidden),
        _control("hc_head_base", copies),
        _control("hc_head_scale", 1),
        _control("norm.weight", hidden),
        _matrix("head.weight", config.vocab_size, hidden),
    ]
    return dict(items)


def num_parameters(config: ModelConfig) -> int:
    """Count the elements of all tensors of the main model."""
    return sum(spec.num_elements for spec in expected_tensors(config).values())


def seeded_values(name: str, spec: TensorSpec, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale and shift bell-shaped values to the usual range of the tensor `name`."""
    if name.endswith(("norm.weight", "_scale")):
        return np.float32(1.0) + np.float32(0.2) * values
    if name.endswith("_base"):
        return np.float32(0.5) * values
    if name.endswith("gate.bias"):
        return np.float32(0.3) * values
    if name.endswith(("attn_sink", ".ape")) or name == "embed.weight":
        return values
    return np.float32(1.0 / np.sqrt(spec.shape[-1])) * values


def _layer(config: ModelConfig, layer: int) -> Iterator[Item]:
    prefix = f"layers.{layer}."
    yield from _hyper_connection(config, prefix + "hc_attn_")
    yield _control(prefix + "attn_norm.weight", config.hidden_size)
    yield from _attention(config, prefix + "attn.")
    if config.lanes(layer):
        yield from _compressor(config, layer, prefix + "attn.compressor.", config.head_dim)
    if config.has_indexer(layer):
        yield from _indexer(config, layer, prefix + "attn.indexer.")
    yield from _hyper_connection(config, prefix + "hc_ffn_")
    yield _control(prefix + "ffn_norm.weight", config.hidden_size)
    yield from _moe(config, layer, prefix + "ffn.")


def _hyper_connection(config: ModelConfig, prefix: str) -> Iterator[Item]:
    copies = config.hc_mult
    rows = (2 + copies) * copies
    yield _control(prefix + "fn", rows, copies * config.hidden_size)
    yield _control(prefix + "base", rows)
    yield _control(prefix + "scale", 3)


def _attention(config: ModelConfig, prefix: str) -> Iterator[Item]:
    hidden, width = config.hidden_size, config.num_attention_heads * config.head_dim
    groups, rank = config.o_groups, config.o_lora_rank
    yield _control(prefix + "attn_sink", config.num_attention_heads)
    yield _matrix(prefix + "wq_a.weight", config.q_lora_rank, hidden)
    yield _control(prefix + "q_norm.weight", config.q_lora_rank)
    yield _matrix(prefix + "wq_b.weight", width, config.q_lora_rank)
    yield _matrix(prefix + "wkv.weight", config.head_dim, hidden)
    yield _control(prefix + "kv_norm.weight", config.head_dim)
    yield _matrix(prefix + "wo_a.weight", groups * rank, width // groups)
    yield _matrix(prefix + "wo_b.weight", hidden, groups * rank)


def _compressor(config: ModelConfig, layer: int, prefix: str, width: int) -> Iterator[Item]:
    lane_width = config.lanes(layer) * width
    yield _control(prefix + "ape", config.ratio(layer), lane_width)
    yield _matrix(prefix + "wkv.weight", lane_width, config.hidden_size)
    yield _matrix(prefix + "wgate.weight", lane_width, config.hidden_size)
    yield _control(prefix + "norm.weight", width)


def _indexer(config: ModelConfig, layer: int, prefix: str) -> Iterator[Item]:
    yield _matrix(prefix + "wq_b.weight", config.index_n_heads * config.index_head_dim, config.q_lora_rank)
    yield _matrix(prefix + "weights_proj.weight", config.index_n_heads, config.hidden_size)
    yield from _compressor(config, layer, prefix + "compressor.", config.index_head_dim)


def _moe(config: ModelConfig, layer: int, prefix: str) -> Iterator[Item]:
    yield _matrix(prefix + "gate.weight", config.n_routed_experts, config.hidden_size)
    if config.is_hash(layer):
        shape = (config.vocab_size, config.num_experts_per_tok)
        yield prefix + "gate.tid2eid", TensorSpec(shape, TensorRole.INDEX, config.n_routed_experts)
    else:
        yield _control(prefix + "gate.bias", config.n_routed_experts)
    for expert in range(config.n_routed_experts):
        yield from _expert(config, f"{prefix}experts.{expert}.")
    yield from _expert(config, prefix + "shared_experts.")


def _expert(config: ModelConfig, prefix: str) -> Iterator[Item]:
    hidden, width = config.hidden_size, config.moe_intermediate_size
    yield _matrix(prefix + "w1.weight", width, hidden)
    yield _matrix(prefix + "w2.weight", hidden, width)
    yield _matrix(prefix + "w3.weight", width, hidden)
