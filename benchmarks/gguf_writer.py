"""Writes a checkpoint as a `deepseek4` GGUF that llama.cpp reads: the same arrays, bit for bit.

Key and tensor names are those of llama.cpp v0.5.0; GGUF is written by the PyPI package `gguf`. The file has
no vocabulary (`tokenizer.ggml.model` is `none`): benchmarks pass token ids.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c.importers.safetensors import Checkpoint
from ds4c.models.config import ModelConfig

Array = NDArray[Any]
ARCHITECTURE = "deepseek4"
SQRT_SOFTPLUS_GATE = 4
"""llama.cpp's number of the gate `sqrt(softplus(x))`."""

_WHOLE = {
    "embed.weight": "token_embd.weight",
    "head.weight": "output.weight",
    "norm.weight": "output_norm.weight",
    "hc_head_fn": "output_hc_fn.weight",
    "hc_head_base": "output_hc_base.weight",
    "hc_head_scale": "output_hc_scale.weight",
}
_OF_LAYER = {
    "attn_norm.weight": "attn_norm.weight",
    "attn.attn_sink": "attn_sinks.weight",
    "attn.wq_a.weight": "attn_q_a.weight",
    "attn.q_norm.weight": "attn_q_a_norm.weight",
    "attn.wq_b.weight": "attn_q_b.weight",
    "attn.wkv.weight": "attn_kv.weight",
    "attn.kv_norm.weight": "attn_kv_a_norm.weight",
    "attn.wo_a.weight": "attn_output_a.weight",
    "attn.wo_b.weight": "attn_output_b.weight",
    "attn.compressor.ape": "attn_compressor_ape.weight",
    "attn.compressor.wkv.weight": "attn_compressor_kv.weight",
    "attn.compressor.wgate.weight": "attn_compressor_gate.weight",
    "attn.compressor.norm.weight": "attn_compressor_norm.weight",
    "attn.indexer.wq_b.weight": "indexer.attn_q_b.weight",
    "attn.indexer.weights_proj.weight": "indexer.proj.weight",
    "attn.indexer.compressor.ape": "indexer_compressor_ape.weight",
    "attn.indexer.compressor.wkv.weight": "indexer_compressor_kv.weight",
    "attn.indexer.compressor.wgate.weight": "indexer_compressor_gate.weight",
    "attn.indexer.compressor.norm.weight": "indexer_compressor_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "ffn.gate.weight": "ffn_gate_inp.weight",
    "ffn.gate.bias": "exp_probs_b.bias",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid.weight",
    "ffn.shared_experts.w1.weight": "ffn_gate_shexp.weight",
    "ffn.shared_experts.w2.weight": "ffn_down_shexp.weight",
    "ffn.shared_experts.w3.weight": "ffn_up_shexp.weight",
    **{
        f"hc_{part}_{piece}": f"hc_{part}_{piece}.weight"
        for part in ("attn", "ffn")
        for piece in ("fn", "base", "scale")
    },
}
_STACKED = {"w1": "ffn_gate_exps.weight", "w2": "ffn_down_exps.weight", "w3": "ffn_up_exps.weight"}
_WIDENED = ("attn.indexer.weights_proj.weight", "ffn.gate.weight")
"""Small matrices that llama.cpp's graph takes as float32 only; widening bfloat16 is exact."""


def write_gguf(checkpoint: Checkpoint, path: Path) -> None:
    """Write the main model of a checkpoint; appears under its name when complete.

    Raises:
        ValueError: another architecture, or rotary angles are scaled, whose keys this writer does not know.
        ModuleNotFoundError: the package `gguf` is not installed (extra `peers`).
    """
    import gguf  # pyright: ignore[reportMissingImports]

    config = checkpoint.config
    if not isinstance(config, ModelConfig):
        raise ValueError(
            f"GGUF: expected deepseek_v4, got {checkpoint.architecture.model_type}; use bench-72m"
        )
    if config.rope_scaling is not None:
        raise ValueError("GGUF: expected a configuration without rope_scaling, got one; use bench-72m")
    staging = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    writer: Any = gguf.GGUFWriter(staging, ARCHITECTURE)
    try:
        _write_keys(writer, config)
        for name, array in _tensors(checkpoint, config):
            _add(writer, gguf, name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with staging.open("rb") as file:
            os.fsync(file.fileno())
        staging.rename(path)
    finally:
        staging.unlink(missing_ok=True)


def _write_keys(writer: Any, config: ModelConfig) -> None:
    layers = config.num_hidden_layers
    writer.add_name("bench")
    writer.add_tokenizer_model("none")
    for key, value in _integers(config).items():
        writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
    reals = {
        "rope.freq_base": config.rope_theta,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.compress_rope_freq_base": config.compress_rope_theta,
        "expert_weights_scale": config.routed_scaling_factor,
        "hyper_connection.epsilon": config.hc_eps,
    }
    for key, value in reals.items():
        writer.add_float32(f"{ARCHITECTURE}.{key}", value)
    writer.add_bool(f"{ARCHITECTURE}.expert_weights_norm", True)
    for key in ("swiglu_clamp_exp", "swiglu_clamp_shexp"):
        writer.add_array(f"{ARCHITECTURE}.{key}", [float(config.swiglu_limit)] * layers)
    writer.add_array(f"{ARCHITECTURE}.attention.compress_ratios", list(config.compress_ratios))


def _integers(config: ModelConfig) -> dict[str, int]:
    return {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "embedding_length_out": config.hidden_size * config.hc_mult,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": 1,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": config.qk_rope_head_dim,
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.sliding_window": config.sliding_window,
        "attention.indexer.head_count": config.index_n_heads,
        "attention.indexer.key_length": config.index_head_dim,
        "attention.indexer.top_k": config.index_topk,
        "attention.output_group_count": config.o_groups,
        "attention.output_lora_rank": config.o_lora_rank,
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_gating_func": SQRT_SOFTPLUS_GATE,
        "hyper_connection.count": config.hc_mult,
        "hyper_connection.sinkhorn_iterations": config.hc_sinkhorn_iters,
        "hash_layer_count": sum(config.hash_layers),
    }


def _tensors(checkpoint: Checkpoint, config: ModelConfig) -> Iterator[tuple[str, Array]]:
    for native, name in _WHOLE.items():
        yield name, checkpoint.load(native)
    for layer in range(config.num_hidden_layers):
        for native, name in _OF_LAYER.items():
            full = f"layers.{layer}.{native}"
            if full in checkpoint:
                array = checkpoint.load(full)
                yield f"blk.{layer}.{name}", array.astype(np.float32) if native in _WIDENED else array
        for part, name in _STACKED.items():
            experts = range(config.n_routed_experts)
            names = [f"layers.{layer}.ffn.experts.{e}.{part}.weight" for e in experts]
            yield f"blk.{layer}.{name}", np.stack([checkpoint.load(n) for n in names])


def _add(writer: Any, gguf: Any, name: str, array: Array) -> None:
    if array.dtype.kind == "i":
        writer.add_tensor(name, array.astype(np.int32))
    elif array.dtype.name == "bfloat16":
        writer.add_tensor(
            name, np.ascontiguousarray(array).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16
        )
    else:
        writer.add_tensor(name, np.ascontiguousarray(array))
