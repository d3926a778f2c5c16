"""Configuration of the gated delta net: `model_type` `qwen3_next`, every layer recurrent, every MLP dense.

The family also has layers of softmax attention and layers of experts; a configuration with one of these is
refused by name, as nothing here computes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ds4c.errors import MalformedInputError
from ds4c.models.config_keys import KeyReader

MODEL_TYPE = "qwen3_next"
RECURRENT = "linear_attention"
FULL = "full_attention"

_INTEGERS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "max_position_embeddings",
)
_FIXED: tuple[tuple[str, object], ...] = (("hidden_act", "silu"), ("tie_word_embeddings", False))


@dataclass(frozen=True)
class GatedDeltaConfig:
    """Shape and constants of one model, under the names of Hugging Face's `config.json`.

    Attributes:
        linear_num_value_heads: heads of the state; a key head serves as many consecutive value heads as there
            are more of these than of key heads.
        linear_conv_kernel_dim: tokens that the short convolution looks at, the current one among them.

    Raises:
        MalformedInputError: A value is out of range or two values do not fit each other.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        keys, values = self.linear_num_key_heads, self.linear_num_value_heads
        if values % keys:
            raise MalformedInputError(
                f"linear_num_value_heads: expected a multiple of linear_num_key_heads {keys}, got {values}"
            )
        if self.linear_conv_kernel_dim < 2:
            raise MalformedInputError(
                f"linear_conv_kernel_dim: expected at least 2, got {self.linear_conv_kernel_dim}"
            )
        if not self.eos_token_ids:
            raise MalformedInputError("eos_token_id: expected at least one token id, got none")
        begin = [] if self.bos_token_id is None else [("bos_token_id", self.bos_token_id)]
        for name, token in (*begin, *(("eos_token_id", t) for t in self.eos_token_ids)):
            if not 0 <= token < self.vocab_size:
                raise MalformedInputError(
                    f"{name}: expected a token id in [0, {self.vocab_size}), got {token}"
                )

    @property
    def key_width(self) -> int:
        """Channels of all key heads (and of all query heads)."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_width(self) -> int:
        """Channels of all value heads."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_width(self) -> int:
        """Channels of the short convolution: queries, keys, values."""
        return 2 * self.key_width + self.value_width

    @property
    def plane_width(self) -> int:
        """Elements of the recurrent state of a layer: value heads x key channels x value channels."""
        return self.linear_num_value_heads * self.linear_key_head_dim * self.linear_value_head_dim


def config_from_dict(data: Mapping[str, object], source: str = "config.json") -> GatedDeltaConfig:
    """Build a configuration from the parsed keys of a `config.json`; `source` names it in errors.

    Raises:
        MalformedInputError: Missing or unsupported keys, or values that do not fit each other.
    """
    reader = KeyReader(source, data, "the gated delta net")
    try:
        return _parse(reader)
    except MalformedInputError as error:
        text = str(error)  # what the configuration itself refuses does not know the file
        raise error if text.startswith(source) else reader.fail(text) from None


def to_hf_dict(config: GatedDeltaConfig) -> dict[str, object]:
    """Write `config` as the published files do; `config_from_dict` of the result equals `config`."""
    eos = config.eos_token_ids
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": MODEL_TYPE,
        **{name: getattr(config, name) for name in _INTEGERS},
        "rms_norm_eps": config.rms_norm_eps,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else list(eos),
        "layer_types": [RECURRENT] * config.num_hidden_layers,
        "num_experts": 0,
        "mlp_only_layers": [],
        **dict(_FIXED),
    }


def _parse(reader: KeyReader) -> GatedDeltaConfig:
    reader.require([*((name,) for name in _INTEGERS), ("rms_norm_eps",), ("eos_token_id",)])
    for key, expected in _FIXED:
        reader.expect(key, expected)
    integers = {name: reader.integer(name) for name in _INTEGERS}
    _refuse_attention(reader, integers["num_hidden_layers"])
    _refuse_experts(reader, integers["num_hidden_layers"])
    has_bos = reader.data.get("bos_token_id") is not None
    is_list = isinstance(reader.data["eos_token_id"], list)
    return GatedDeltaConfig(
        **integers,
        rms_norm_eps=reader.real("rms_norm_eps"),
        bos_token_id=reader.integer("bos_token_id", 0) if has_bos else None,
        eos_token_ids=reader.integers("eos_token_id") if is_list else (reader.integer("eos_token_id", 0),),
    )


def _refuse_attention(reader: KeyReader, layers: int) -> None:
    """Without `layer_types` every fourth layer (`full_attention_interval`) is one of softmax attention."""
    if reader.data.get("layer_types") is not None:
        kinds = reader.choices("layer_types", (RECURRENT, FULL))
        if len(kinds) != layers:
            raise reader.fail(f"layer_types: expected {layers} entries (num_hidden_layers), got {len(kinds)}")
    else:
        has_interval = reader.has("full_attention_interval")
        interval = reader.integer("full_attention_interval") if has_interval else 4
        kinds = tuple(RECURRENT if (layer + 1) % interval else FULL for layer in range(layers))
    if FULL in kinds:
        raise reader.fail(
            f"layer_types: expected {RECURRENT} in every layer, got {FULL} in layer {kinds.index(FULL)}; "
            "layers of softmax attention are not supported"
        )


def _refuse_experts(reader: KeyReader, layers: int) -> None:
    def number(key: str, default: int, minimum: int) -> int:
        return reader.integer(key, minimum) if reader.has(key) else default

    experts, step = number("num_experts", 512, 0), number("decoder_sparse_step", 1, 1)
    has_dense = reader.data.get("mlp_only_layers") is not None
    dense = reader.integers("mlp_only_layers") if has_dense else ()
    mixed = [n for n in range(layers) if experts and n not in dense and (n + 1) % step == 0]
    if mixed:
        raise reader.fail(
            f"num_experts: expected 0 or every layer in mlp_only_layers, got {experts} in layer {mixed[0]}; "
            "layers of experts are not supported"
        )
