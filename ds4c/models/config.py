"""Model configuration of DeepSeek-V4: a frozen description, checked on construction.

Reading and writing Hugging Face's `config.json` is here as well (parsing helpers in
`config_parse.py`); tensors are described by `weights.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ds4c.errors import MalformedInputError
from ds4c.models.config_keys import read_json_object

SPARSE_RATIO = 4
"""Compress ratio of the layers with an indexer and two lanes (tokens per compressed row)."""


@dataclass(frozen=True)
class YarnScaling:
    """YaRN interpolation of the rope frequencies on layers with a compressor.

    There is no magnitude factor: cos and sin stay unscaled.

    Source: architecture of DeepSeek-V4, `rope_scaling` of the published `config.json`.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise MalformedInputError(f"rope_scaling: factor: expected at least 1, got {self.factor}")
        if not self.beta_fast > self.beta_slow > 0:
            got = f"{self.beta_fast} and {self.beta_slow}"
            raise MalformedInputError(f"rope_scaling: expected beta_fast > beta_slow > 0, got {got}")


@dataclass(frozen=True)
class ModelConfig:
    """Shape and constants of one DeepSeek-V4 model, under the names of Hugging Face's `config.json`.

    Attributes:
        compress_ratios: Tokens per compressed row of each layer: 0 (raw window only), 4 (two lanes
            and an indexer) or any other number above 1 (one lane, no indexer; 128 in the shipped models).
        hash_layers: Per layer, whether experts come from `tid2eid[token]` rather than from scores.
        rope_scaling: YaRN of the layers with a compressor; None is the plain base `compress_rope_theta`.
        num_nextn_predict_layers: Draft layers the checkpoint announces; no part of the main model.

    Raises:
        MalformedInputError: A value is out of range or two values do not fit each other.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    compress_ratios: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    n_routed_experts: int
    num_experts_per_tok: int
    n_shared_experts: int
    moe_intermediate_size: int
    routed_scaling_factor: float
    hash_layers: tuple[bool, ...]
    swiglu_limit: float
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: YarnScaling | None
    rms_norm_eps: float
    max_position_embeddings: int
    bos_token_id: int
    eos_token_ids: tuple[int, ...]
    num_nextn_predict_layers: int

    def __post_init__(self) -> None:
        _check_layers(self)
        _check_widths(self)
        _check_tokens(self)

    def ratio(self, layer: int) -> int:
        """Tokens per compressed row of `layer`; 0 without a compressor."""
        return self.compress_ratios[layer]

    def lanes(self, layer: int) -> int:
        """Lanes of the compressor of `layer`: 2 with overlap (ratio 4), 1 for other ratios, 0 without."""
        ratio = self.compress_ratios[layer]
        if ratio == 0:
            return 0
        return 2 if ratio == SPARSE_RATIO else 1

    def has_indexer(self, layer: int) -> bool:
        """Say whether `layer` selects its compressed rows by index scores."""
        return self.compress_ratios[layer] == SPARSE_RATIO

    def is_hash(self, layer: int) -> bool:
        """Say whether `layer` routes by token id."""
        return self.hash_layers[layer]

    def layer_rope_theta(self, layer: int) -> float:
        """Rope base of everything rotated in `layer`: queries, rows, compressed rows and indexer."""
        return self.compress_rope_theta if self.compress_ratios[layer] else self.rope_theta

    def layer_yarn(self, layer: int) -> YarnScaling | None:
        """YaRN of `layer`; layers without a compressor never have it."""
        return self.rope_scaling if self.compress_ratios[layer] else None


def load_config(path: Path) -> ModelConfig:
    """Read a `config.json` of DeepSeek-V4, in the published or in the transformers 5 spelling.

    Raises:
        UsageError: `path` does not exist.
        MalformedInputError: Not a JSON object, another architecture, or missing, contradictory or
            unsupported keys; the key is named.
    """
    return config_from_dict(read_json_object(path), str(path))


def config_from_dict(data: Mapping[str, object], source: str = "config.json") -> ModelConfig:
    """Build a `ModelConfig` from the parsed keys of a `config.json`; `source` names it in errors.

    Raises:
        MalformedInputError: As `load_config`.
    """
    from ds4c.models.config_parse import parse_config

    return parse_config(data, source)


def to_hf_dict(config: ModelConfig) -> dict[str, object]:
    """Write `config` in the published spelling, without type or quantisation of the weights.

    `num_hash_layers` can only say "the first N"; a configuration with hash layers elsewhere gets
    `mlp_layer_types` instead. `config_from_dict` of the result equals `config`.
    """
    plain = {name: getattr(config, name) for name in PLAIN_INTEGERS + PLAIN_REALS}
    num_hash = sum(config.hash_layers)
    if all(config.hash_layers[:num_hash]):
        hash_keys: dict[str, object] = {"num_hash_layers": num_hash}
    else:
        hash_keys = {"mlp_layer_types": ["hash_moe" if is_hash else "moe" for is_hash in config.hash_layers]}
    eos = config.eos_token_ids
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        **plain,
        **hash_keys,
        "qk_rope_head_dim": config.qk_rope_head_dim,
        "compress_ratios": list(config.compress_ratios),
        "rope_theta": config.rope_theta,
        "compress_rope_theta": config.compress_rope_theta,
        "rope_scaling": _yarn_dict(config.rope_scaling),
        "eos_token_id": eos[0] if len(eos) == 1 else list(eos),
        "num_key_value_heads": 1,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
    }


def _yarn_dict(yarn: YarnScaling | None) -> dict[str, object] | None:
    if yarn is None:
        return None
    return {
        "type": "yarn",
        "factor": yarn.factor,
        "original_max_position_embeddings": yarn.original_max_position_embeddings,
        "beta_fast": yarn.beta_fast,
        "beta_slow": yarn.beta_slow,
    }


PLAIN_INTEGERS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "head_dim",
    "q_lora_rank",
    "o_groups",
    "o_lora_rank",
    "sliding_window",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "hc_mult",
    "hc_sinkhorn_iters",
    "n_routed_experts",
    "num_experts_per_tok",
    "n_shared_experts",
    "moe_intermediate_size",
    "max_position_embeddings",
    "bos_token_id",
    "num_nextn_predict_layers",
)
"""Fields that both spellings of `config.json` hold as a whole number under the field's name."""

PLAIN_REALS = ("hc_eps", "routed_scaling_factor", "swiglu_limit", "rms_norm_eps")
"""Fields that both spellings hold as a number above zero under the field's name."""


def _check_layers(config: ModelConfig) -> None:
    for name in ("compress_ratios", "hash_layers"):
        length = len(getattr(config, name))
        if length != config.num_hidden_layers:
            raise MalformedInputError(f"{name}: expected {config.num_hidden_layers} entries, got {length}")
    for layer, ratio in enumerate(config.compress_ratios):
        if ratio < 0 or ratio == 1:
            raise MalformedInputError(
                f"compress_ratios[{layer}]: expected 0 or at least 2, got {ratio}; ratio 1 belongs to "
                "deepseek_v41, which is not supported"
            )


def _check_widths(config: ModelConfig) -> None:
    heads, groups = config.num_attention_heads, config.o_groups
    if heads % groups:
        raise MalformedInputError(
            f"num_attention_heads: expected a multiple of o_groups {groups}, got {heads}"
        )
    rope = config.qk_rope_head_dim
    if rope % 2 or rope < 2:
        raise MalformedInputError(f"qk_rope_head_dim: expected an even number of at least 2, got {rope}")
    for name in ("head_dim", "index_head_dim"):
        width = getattr(config, name)
        if rope > width:
            raise MalformedInputError(f"qk_rope_head_dim: expected at most {name} {width}, got {rope}")
    experts, chosen = config.n_routed_experts, config.num_experts_per_tok
    if chosen > experts:
        raise MalformedInputError(
            f"num_experts_per_tok: expected at most n_routed_experts {experts}, got {chosen}"
        )
    if config.n_shared_experts != 1:
        raise MalformedInputError(f"n_shared_experts: expected 1, got {config.n_shared_experts}")


def _check_tokens(config: ModelConfig) -> None:
    if not config.eos_token_ids:
        raise MalformedInputError("eos_token_id: expected at least one token id, got none")
    for name, token in (
        ("bos_token_id", config.bos_token_id),
        *(("eos_token_id", t) for t in config.eos_token_ids),
    ):
        if not 0 <= token < config.vocab_size:
            raise MalformedInputError(f"{name}: expected a token id in [0, {config.vocab_size}), got {token}")
