"""Logits from `transformers` in float32, eager: the outside judge of parity.

DeepseekV4ForCausalLM, or Qwen3NextForCausalLM for the gated delta net. Importable as `oracle_hf` by tests and
by `tools/golden`. The model is built from our configuration and filled tensor by tensor through our name map,
because transformers refuses a `config.json` whose heavy ratio is not 128; tests compare this with
transformers' own loader where that one works.
"""

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c.importers.safetensors import Checkpoint, open_checkpoint
from ds4c.models.architecture import Config, architecture_of
from ds4c.models.config import PLAIN_INTEGERS, PLAIN_REALS, ModelConfig
from ds4c.models.names import FusedExperts


def have_oracle() -> bool:
    """Say whether torch and transformers are installed."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def hf_logits(checkpoint_folder: Path, tokens: NDArray[np.integer[Any]] | list[int]) -> NDArray[np.float32]:
    """Run all tokens in one forward call without a cache; returns `[T, V]` float32."""
    import torch

    model = hf_model(Path(checkpoint_folder))
    ids = torch.tensor([[int(token) for token in tokens]])
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits[0].float().numpy()


@lru_cache(maxsize=4)
def hf_model(checkpoint_folder: Path) -> Any:
    """Build the transformers model of a checkpoint folder of any spelling; kept for the next call."""
    import torch

    checkpoint = open_checkpoint(checkpoint_folder)
    model = _empty(checkpoint.config).eval().to(torch.float32)
    targets = model.state_dict()
    with torch.no_grad():
        for name, target in targets.items():
            values = np.ascontiguousarray(_stored(checkpoint, name))
            target.copy_(torch.from_numpy(values).reshape(target.shape))
    return model


def _empty(config: Config) -> Any:
    """The model of transformers with weights of its own."""
    if isinstance(config, ModelConfig):
        from transformers.models.deepseek_v4 import DeepseekV4ForCausalLM

        return DeepseekV4ForCausalLM(hf_config(config))
    from transformers.models.qwen3_next import Qwen3NextConfig, Qwen3NextForCausalLM

    keys = architecture_of(config).to_hf_dict(config)
    return Qwen3NextForCausalLM(Qwen3NextConfig(**keys))


def hf_config(config: ModelConfig) -> Any:
    """Say `config` in the terms of transformers 5: kinds of layers and nested rope parameters."""
    from transformers.models.deepseek_v4 import DeepseekV4Config

    heavy = {ratio for ratio in config.compress_ratios if ratio not in (0, 4)} or {128}
    if len(heavy) > 1:
        raise ValueError(f"transformers has one heavy ratio only, got {sorted(heavy)}")
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention"}
    rope: dict[str, Any] = {"rope_type": "default"}
    if config.rope_scaling is not None:
        yarn = config.rope_scaling
        rope = {
            "rope_type": "yarn",
            "factor": yarn.factor,
            "original_max_position_embeddings": yarn.original_max_position_embeddings,
            "beta_fast": yarn.beta_fast,
            "beta_slow": yarn.beta_slow,
        }
    same = (*PLAIN_INTEGERS, *PLAIN_REALS, "rope_theta", "compress_rope_theta")
    return DeepseekV4Config(
        **{name: getattr(config, name) for name in same},
        num_key_value_heads=1,
        scoring_func="sqrtsoftplus",
        eos_token_id=list(config.eos_token_ids),
        partial_rotary_factor=config.qk_rope_head_dim / config.head_dim,
        layer_types=[kinds.get(ratio, "heavily_compressed_attention") for ratio in config.compress_ratios],
        compress_rates={
            "compressed_sparse_attention": 4,
            "heavily_compressed_attention": heavy.pop(),
        },
        mlp_layer_types=["hash_moe" if is_hash else "moe" for is_hash in config.hash_layers],
        rope_parameters=rope,
        attn_implementation="eager",
    )


def _stored(checkpoint: Checkpoint, hf_name: str) -> NDArray[Any]:
    """Give the values of one tensor of the transformers model, floats as float32."""
    native = checkpoint.architecture.native_name(hf_name)
    if isinstance(native, FusedExperts):
        assert isinstance(checkpoint.config, ModelConfig)
        experts = range(checkpoint.config.n_routed_experts)
        parts = range(len(native.parts))
        return np.stack(
            [np.concatenate([_float32(checkpoint, native.native_name(e, p)) for p in parts]) for e in experts]
        )
    return _float32(checkpoint, native)


def _float32(checkpoint: Checkpoint, name: str) -> NDArray[Any]:
    values = checkpoint.load(name)
    return values.astype(np.int64 if values.dtype.kind == "i" else np.float32)
