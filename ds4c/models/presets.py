"""Named configurations: three tiny ones for tests, one for speed, and the two shipped models."""

from dataclasses import replace

from ds4c.models.architecture import Config
from ds4c.models.config import ModelConfig, YarnScaling
from ds4c.models.gated_delta_config import GatedDeltaConfig


def _shipped_yarn() -> YarnScaling:
    return YarnScaling(factor=16.0, original_max_position_embeddings=65536, beta_fast=32.0, beta_slow=1.0)


def _leading(num_hash: int, num_layers: int) -> tuple[bool, ...]:
    return tuple(layer < num_hash for layer in range(num_layers))


def _tiny_128() -> ModelConfig:
    """Six layers that hold every kind of layer, with the true ratios 4 and 128; 0.66 M parameters."""
    return ModelConfig(
        vocab_size=160,
        hidden_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        head_dim=64,
        qk_rope_head_dim=16,
        q_lora_rank=32,
        o_groups=2,
        o_lora_rank=16,
        sliding_window=16,
        compress_ratios=(0, 0, 4, 128, 4, 128),
        index_n_heads=16,
        index_head_dim=32,
        index_topk=8,
        hc_mult=4,
        hc_sinkhorn_iters=20,
        hc_eps=1e-6,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=32,
        routed_scaling_factor=1.5,
        hash_layers=_leading(3, 6),
        swiglu_limit=10.0,
        rope_theta=10000.0,
        compress_rope_theta=160000.0,
        rope_scaling=YarnScaling(
            factor=16.0, original_max_position_embeddings=256, beta_fast=32.0, beta_slow=1.0
        ),
        rms_norm_eps=1e-6,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_ids=(1,),
        num_nextn_predict_layers=0,
    )


def _tiny_8() -> ModelConfig:
    """As `tiny-128` with heavy ratio 8, window 8 and top-k 4: every border within a few tokens."""
    return replace(_tiny_128(), compress_ratios=(0, 0, 4, 8, 4, 8), sliding_window=8, index_topk=4)


def _tiny_peers() -> ModelConfig:
    """As `tiny-128` with the shipped window and an indexer wide enough for llama.cpp: all peers load it."""
    return replace(_tiny_128(), sliding_window=128, index_head_dim=64, index_topk=32, rope_scaling=None)


def _bench_72m() -> ModelConfig:
    """Eight layers of 72 M parameters: large enough that memory traffic shows, small enough to generate."""
    return replace(
        _tiny_128(),
        vocab_size=8192,
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        head_dim=128,
        qk_rope_head_dim=64,
        q_lora_rank=256,
        o_groups=4,
        o_lora_rank=128,
        sliding_window=128,
        compress_ratios=(0, 0, 4, 128, 4, 128, 4, 128),
        index_n_heads=8,
        index_head_dim=128,
        index_topk=64,
        n_routed_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=256,
        hash_layers=_leading(3, 8),
        rope_scaling=None,
        max_position_embeddings=65536,
    )


def _flash() -> ModelConfig:
    """DeepSeek-V4-Flash; two leading layers without a compressor."""
    return ModelConfig(
        vocab_size=129280,
        hidden_size=4096,
        num_hidden_layers=43,
        num_attention_heads=64,
        head_dim=512,
        qk_rope_head_dim=64,
        q_lora_rank=1024,
        o_groups=8,
        o_lora_rank=1024,
        sliding_window=128,
        compress_ratios=(0, 0, *((4, 128) * 20), 4),
        index_n_heads=64,
        index_head_dim=128,
        index_topk=512,
        hc_mult=4,
        hc_sinkhorn_iters=20,
        hc_eps=1e-6,
        n_routed_experts=256,
        num_experts_per_tok=6,
        n_shared_experts=1,
        moe_intermediate_size=2048,
        routed_scaling_factor=1.5,
        hash_layers=_leading(3, 43),
        swiglu_limit=10.0,
        rope_theta=10000.0,
        compress_rope_theta=160000.0,
        rope_scaling=_shipped_yarn(),
        rms_norm_eps=1e-6,
        max_position_embeddings=1048576,
        bos_token_id=0,
        eos_token_ids=(1,),
        num_nextn_predict_layers=1,
    )


def _pro() -> ModelConfig:
    """DeepSeek-V4-Pro; two leading layers of ratio 128."""
    return replace(
        _flash(),
        hidden_size=7168,
        num_hidden_layers=61,
        num_attention_heads=128,
        q_lora_rank=1536,
        o_groups=16,
        compress_ratios=(128, 128, *((4, 128) * 29), 4),
        index_topk=1024,
        n_routed_experts=384,
        moe_intermediate_size=3072,
        routed_scaling_factor=2.5,
        hash_layers=_leading(3, 61),
    )


PRESETS: dict[str, ModelConfig] = {
    "tiny-128": _tiny_128(),
    "tiny-8": _tiny_8(),
    "tiny-peers": _tiny_peers(),
    "bench-72m": _bench_72m(),
    "flash": _flash(),
    "pro": _pro(),
}
"""DeepSeek-V4 by preset name; `generate.py` makes seeded weights for any of them."""

OTHER_PRESETS: dict[str, GatedDeltaConfig] = {
    "tiny-delta": GatedDeltaConfig(
        vocab_size=160,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_conv_kernel_dim=4,
        rms_norm_eps=1e-6,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_ids=(1,),
    ),
}
"""The second architecture, three layers of 4 KiB of state: nothing but recurrent state, 0.14 M parameters."""


def preset(name: str) -> Config:
    """Configuration of any architecture by preset name; `KeyError` if there is none."""
    return PRESETS[name] if name in PRESETS else OTHER_PRESETS[name]
