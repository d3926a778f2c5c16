"""The way to transformers and back: its configuration, its model with our weights, ours from a folder."""

from pathlib import Path

import torch
from transformers.models.deepseek_v4 import DeepseekV4Config, DeepseekV4ForCausalLM

from layers import NetworkConfig
from network import Network

LAYER_TYPES = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


def hf_config(c: NetworkConfig) -> DeepseekV4Config:
    """The same shape in transformers' words."""
    return DeepseekV4Config(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        moe_intermediate_size=c.expert_width,
        num_hidden_layers=len(c.ratios),
        num_attention_heads=c.heads,
        num_key_value_heads=1,
        head_dim=c.head_dim,
        q_lora_rank=c.query_rank,
        partial_rotary_factor=c.rope_dim / c.head_dim,
        num_experts_per_tok=c.experts_per_token,
        n_routed_experts=c.experts,
        n_shared_experts=1,
        scoring_func="sqrtsoftplus",
        routed_scaling_factor=c.routed_scale,
        max_position_embeddings=c.max_positions,
        rope_theta=c.rope_theta,
        compress_rope_theta=c.compress_rope_theta,
        hc_mult=c.streams,
        hc_sinkhorn_iters=c.sinkhorn_iterations,
        hc_eps=c.eps,
        swiglu_limit=c.swiglu_limit,
        sliding_window=c.window,
        o_groups=c.output_groups,
        o_lora_rank=c.output_rank,
        index_n_heads=c.index_heads,
        index_head_dim=c.index_dim,
        index_topk=c.index_topk,
        rms_norm_eps=1e-6,
        bos_token_id=0,
        eos_token_id=1,
        rope_parameters={
            "rope_type": "yarn",
            "factor": c.yarn_factor,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": c.yarn_original,
        },
        attn_implementation="eager",
        layer_types=[LAYER_TYPES[ratio] for ratio in c.ratios],
        mlp_layer_types=["hash_moe" if i < c.hash_layers else "moe" for i in range(len(c.ratios))],
    )


def hf_model(network: Network) -> DeepseekV4ForCausalLM:
    """The model of transformers with these weights, ready to run; every name must match."""
    model = DeepseekV4ForCausalLM(hf_config(network.c)).eval()
    found = model.load_state_dict(
        {name: value.detach() for name, value in network.state_dict().items()}, strict=False
    )
    if found.missing_keys or found.unexpected_keys:
        raise RuntimeError(
            f"weights: expected equal names, missing {found.missing_keys}, extra {found.unexpected_keys}"
        )
    return model


def load_folder(folder: Path, c: NetworkConfig) -> Network:
    """Our model from a checkpoint folder that transformers can read."""
    network = Network(c)
    model = DeepseekV4ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    network.load_state_dict(model.state_dict())
    return network.eval()
