"""Tensors of a DeepSeek-V4 checkpoint: native names, shapes and roles.

Native names (`layers.N.attn.wq_a.weight`) are the canonical ones everywhere in ds4c; other
spellings are mapped by `ds4c.importers.names`. Draft layers (`mtp.*`) are not described here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from ds4c.models.config import ModelConfig


class TensorRole(StrEnum):
    """What a tensor is used for, which decides the types it may be stored in.

    MATRIX: weight of a linear layer or an embedding; any float type, quantised in shipped models.
    CONTROL: norms, sinks, biases, `ape` and hyper-connections; published as float32 or bfloat16.
    INDEX: expert ids by token; int32 or int64.
    """

    MATRIX = "matrix"
    CONTROL = "control"
    INDEX = "index"

    @property
    def is_integer(self) -> bool:
        """Say whether the tensor holds whole numbers rather than floats."""
        return self is TensorRole.INDEX


@dataclass(frozen=True)
class TensorSpec:
    """Shape (`[out, in]` for matrices) and role of one tensor."""

    shape: tuple[int, ...]
    role: TensorRole

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total


Item = tuple[str, TensorSpec]


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


def _matrix(name: str, *shape: int) -> Item:
    return name, TensorSpec(shape, TensorRole.MATRIX)


def _control(name: str, *shape: int) -> Item:
    return name, TensorSpec(shape, TensorRole.CONTROL)


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
        yield prefix + "gate.tid2eid", TensorSpec(shape, TensorRole.INDEX)
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
