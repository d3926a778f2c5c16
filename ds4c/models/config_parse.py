"""Parser of Hugging Face's `config.json` for DeepSeek-V4, in both spellings.

The published files give per-layer numbers (`compress_ratios`, `num_hash_layers`,
`qk_rope_head_dim`, `rope_scaling`); transformers 5 rewrites them to named kinds
(`layer_types` with `compress_rates`, `mlp_layer_types`, `partial_rotary_factor`,
`rope_parameters`). Either may be given, also both, as long as they agree.
"""

from collections.abc import Mapping

from ds4c.errors import MalformedInputError
from ds4c.models.config import PLAIN_INTEGERS, PLAIN_REALS, SPARSE_RATIO, ModelConfig, YarnScaling
from ds4c.models.config_keys import KeyReader

SLIDING = "sliding_attention"
SPARSE = "compressed_sparse_attention"
HEAVY = "heavily_compressed_attention"
LAYER_TYPES = (SLIDING, SPARSE, HEAVY)
MLP_LAYER_TYPES = ("hash_moe", "moe")

_ZERO_ALLOWED = ("bos_token_id", "num_nextn_predict_layers")
_FIXED_VALUES: tuple[tuple[str, object], ...] = (
    ("num_key_value_heads", 1),
    ("scoring_func", "sqrtsoftplus"),
    ("topk_method", "noaux_tc"),
    ("norm_topk_prob", True),
    ("hidden_act", "silu"),
    ("attention_bias", False),
    ("mlp_bias", False),
    ("tie_word_embeddings", False),
)
_ALTERNATIVES = (
    ("eos_token_id",),
    ("qk_rope_head_dim", "partial_rotary_factor"),
    ("compress_ratios", "layer_types"),
    ("num_hash_layers", "mlp_layer_types"),
    ("rope_scaling", "rope_parameters"),
    ("rope_theta", "rope_parameters"),
    ("compress_rope_theta", "rope_parameters"),
)
_YARN_KEYS = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
_ROPE_KEYS = (
    "type",
    "rope_type",
    "rope_theta",
    "partial_rotary_factor",
    "attention_factor",
    "truncate",
    *_YARN_KEYS,
)


def parse_config(data: Mapping[str, object], source: str) -> ModelConfig:
    """Build a `ModelConfig` from parsed JSON; see `config.config_from_dict`.

    Raises:
        MalformedInputError: Another architecture, or missing, contradictory or unsupported keys.
    """
    reader = KeyReader(source, data, "DeepSeek-V4")
    try:
        return _parse(reader)
    except MalformedInputError as error:
        # What `ModelConfig` itself refuses does not know the file.
        text = str(error)
        raise error if text.startswith(source) else reader.fail(text) from None


def _parse(reader: KeyReader) -> ModelConfig:
    _check_architecture(reader)
    reader.require([*((name,) for name in PLAIN_INTEGERS + PLAIN_REALS), *_ALTERNATIVES])
    for key, expected in _FIXED_VALUES:
        reader.expect(key, expected)
    integers = {name: reader.integer(name, 0 if name in _ZERO_ALLOWED else 1) for name in PLAIN_INTEGERS}
    reals = {name: reader.real(name) for name in PLAIN_REALS}
    num_layers = integers["num_hidden_layers"]
    rope_dim = _rope_dim(reader, integers["head_dim"])
    rope_theta, compress_rope_theta, yarn = _rope(reader, rope_dim / integers["head_dim"])
    return ModelConfig(
        **integers,  # pyright: ignore[reportArgumentType]
        **reals,  # pyright: ignore[reportArgumentType]
        qk_rope_head_dim=rope_dim,
        compress_ratios=_compress_ratios(reader, num_layers),
        hash_layers=_hash_layers(reader, num_layers),
        rope_theta=rope_theta,
        compress_rope_theta=compress_rope_theta,
        rope_scaling=yarn,
        eos_token_ids=_eos_token_ids(reader),
    )


def _check_architecture(reader: KeyReader) -> None:
    if not reader.has("model_type"):
        if reader.has("dim") and reader.has("n_layers"):
            raise reader.fail(
                "this is the configuration of DeepSeek's reference inference code (keys dim, n_layers): "
                "expected model_type deepseek_v4, got none; give the Hugging Face folder"
            )
        raise reader.fail(
            "missing keys: model_type: expected deepseek_v4, got none; give the Hugging Face folder"
        )
    model_type = reader.data["model_type"]
    if model_type == "deepseek_v4":
        return
    if isinstance(model_type, str) and model_type.startswith(("deepseek_v41", "deepseek41")):
        raise reader.fail(
            f"model_type: {model_type} (DeepSeek-V4.1) is not supported, its attention and "
            f"hyper-connections differ: expected deepseek_v4, got {model_type}"
        )
    raise reader.fail(
        f"model_type: expected deepseek_v4, got {model_type!r}; other architectures are not supported"
    )


def _compress_ratios(reader: KeyReader, num_layers: int) -> tuple[int, ...]:
    """Read the ratio of every layer from `compress_ratios`, from `layer_types`, or from both."""
    named = _named_ratios(reader, num_layers) if reader.has("layer_types") else None
    if not reader.has("compress_ratios"):
        assert named is not None
        return named
    listed = reader.integers("compress_ratios")
    if len(listed) < num_layers:
        raise reader.fail(f"compress_ratios: expected {num_layers} or more entries, got {len(listed)}")
    if any(listed[num_layers:]):
        tail = list(listed[num_layers:])
        raise reader.fail(
            f"compress_ratios: expected only 0 (drafts) after num_hidden_layers {num_layers}, got {tail}"
        )
    ratios = listed[:num_layers]
    for layer, (ratio, other) in enumerate(zip(ratios, named or ratios, strict=True)):
        if ratio != other:
            first = f"compress_ratios[{layer}] gives {ratio}"
            raise reader.contradiction(first, f"layer_types[{layer}] with compress_rates gives {other}")
    return ratios


def _named_ratios(reader: KeyReader, num_layers: int) -> tuple[int, ...]:
    kinds = reader.choices("layer_types", LAYER_TYPES)
    if len(kinds) != num_layers:
        raise reader.fail(f"layer_types: expected {num_layers} entries (num_hidden_layers), got {len(kinds)}")
    used = [kind for kind in (SPARSE, HEAVY) if kind in kinds]
    if used and not reader.has("compress_rates"):
        if reader.has("compress_ratios"):
            return _kinds_against_ratios(reader, kinds)
        reader.require([("compress_rates",)])
    rates = {SLIDING: 0}
    if used:
        section = reader.section("compress_rates")
        section.require([(kind,) for kind in used])
        rates.update({kind: section.integer(kind, 2) for kind in used})
    if rates.get(SPARSE, SPARSE_RATIO) != SPARSE_RATIO:
        raise reader.fail(f"compress_rates: {SPARSE}: expected {SPARSE_RATIO}, got {rates[SPARSE]}")
    if rates.get(HEAVY) == SPARSE_RATIO:
        raise reader.fail(
            f"compress_rates: {HEAVY}: expected any ratio but {SPARSE_RATIO}, got {SPARSE_RATIO}"
        )
    return tuple(rates[kind] for kind in kinds)


def _kinds_against_ratios(reader: KeyReader, kinds: tuple[str, ...]) -> tuple[int, ...]:
    """Compare kinds with `compress_ratios` where no `compress_rates` says what "heavy" is."""
    ratios = reader.integers("compress_ratios")[: len(kinds)]
    for layer, (kind, ratio) in enumerate(zip(kinds, ratios, strict=False)):
        expected = {0: SLIDING, SPARSE_RATIO: SPARSE}.get(ratio, HEAVY)
        if kind != expected:
            raise reader.contradiction(
                f"compress_ratios[{layer}] gives {ratio}", f"layer_types[{layer}] gives {kind}"
            )
    return ratios


def _hash_layers(reader: KeyReader, num_layers: int) -> tuple[bool, ...]:
    """Read which layers route by token id, from `mlp_layer_types`, `num_hash_layers`, or both."""
    counted = None
    if reader.has("num_hash_layers"):
        count = reader.integer("num_hash_layers", 0)
        if count > num_layers:
            raise reader.fail(
                f"num_hash_layers: expected at most num_hidden_layers {num_layers}, got {count}"
            )
        counted = tuple(layer < count for layer in range(num_layers))
    if not reader.has("mlp_layer_types"):
        assert counted is not None
        return counted
    kinds = reader.choices("mlp_layer_types", MLP_LAYER_TYPES)
    if len(kinds) != num_layers:
        raise reader.fail(
            f"mlp_layer_types: expected {num_layers} entries (num_hidden_layers), got {len(kinds)}"
        )
    named = tuple(kind == "hash_moe" for kind in kinds)
    if counted is not None and counted != named:
        raise reader.contradiction(
            f"num_hash_layers gives {sum(counted)} leading hash layers",
            f"mlp_layer_types gives hash layers {[layer for layer, is_hash in enumerate(named) if is_hash]}",
        )
    return named


def _rope_dim(reader: KeyReader, head_dim: int) -> int:
    """Read the rotated channels per head from `qk_rope_head_dim` or `partial_rotary_factor`."""
    from_factor = None
    if reader.data.get("partial_rotary_factor") is not None:
        factor = reader.real("partial_rotary_factor")
        from_factor = round(head_dim * factor)
        if abs(from_factor - head_dim * factor) > 1e-6:
            raise reader.fail(
                f"partial_rotary_factor: expected a whole number of the {head_dim} channels of head_dim, "
                f"got {head_dim * factor}"
            )
    if not reader.has("qk_rope_head_dim"):
        if from_factor is None:
            raise reader.fail("partial_rotary_factor: expected a number, got None")
        return from_factor
    rope_dim = reader.integer("qk_rope_head_dim", 2)
    if from_factor is not None and from_factor != rope_dim:
        raise reader.contradiction(
            f"qk_rope_head_dim gives {rope_dim}",
            f"partial_rotary_factor of head_dim {head_dim} gives {from_factor}",
        )
    return rope_dim


def _rope(reader: KeyReader, factor: float) -> tuple[float, float, YarnScaling | None]:
    """Read both rope bases and YaRN: top-level keys, `rope_scaling`, flat or nested `rope_parameters`."""
    thetas = {key: reader.real(key) for key in ("rope_theta", "compress_rope_theta") if reader.has(key)}
    scalings: list[tuple[str, YarnScaling | None]] = []
    if reader.has("rope_scaling"):
        section = reader.section("rope_scaling") if reader.data["rope_scaling"] is not None else None
        scalings.append(("rope_scaling", _yarn(section, factor)))
    if reader.data.get("rope_parameters") is not None:
        scalings.append(("rope_parameters", _rope_parameters(reader, factor, thetas)))
    elif reader.has("rope_parameters") and not scalings:
        scalings.append(("rope_parameters", None))
    reader_thetas = KeyReader(reader.source, dict(thetas), reader.family)
    reader_thetas.require([("rope_theta",), ("compress_rope_theta",)])
    if len(scalings) == 2 and scalings[0][1] != scalings[1][1]:
        raise reader.contradiction(*(f"{key} gives {yarn}" for key, yarn in scalings))
    return thetas["rope_theta"], thetas["compress_rope_theta"], scalings[0][1]


def _rope_parameters(reader: KeyReader, factor: float, thetas: dict[str, float]) -> YarnScaling | None:
    """Read `rope_parameters`; bases found there are compared with or added to `thetas`."""
    parameters = reader.section("rope_parameters")
    if not (parameters.has("main") or parameters.has("compress")):
        _merge_theta(reader, parameters, "rope_theta", thetas)
        return _yarn(parameters, factor)
    parameters.require([("main",), ("compress",)])
    main, compress = parameters.section("main"), parameters.section("compress")
    if _yarn(main, factor) is not None:
        raise main.fail("rope_type: expected default on layers without a compressor, got yarn")
    _merge_theta(reader, main, "rope_theta", thetas)
    _merge_theta(reader, compress, "compress_rope_theta", thetas)
    return _yarn(compress, factor)


def _merge_theta(reader: KeyReader, section: KeyReader, name: str, thetas: dict[str, float]) -> None:
    if not section.has("rope_theta"):
        return
    value = section.real("rope_theta")
    if thetas.setdefault(name, value) != value:
        where = section.source.removeprefix(f"{reader.source}: ")
        raise reader.contradiction(f"{name} gives {thetas[name]}", f"{where}: rope_theta gives {value}")


def _yarn(section: KeyReader | None, factor: float) -> YarnScaling | None:
    """Read one set of rope parameters; None is the plain base."""
    if section is None:
        return None
    unknown = sorted(set(section.data) - set(_ROPE_KEYS))
    if unknown:
        raise section.fail(f"expected only {', '.join(_ROPE_KEYS)}, got {', '.join(unknown)}; not supported")
    kinds = {str(section.data[key]) for key in ("rope_type", "type") if section.has(key)}
    if len(kinds) > 1:
        raise section.contradiction(
            f"rope_type gives {section.data['rope_type']}", f"type gives {section.data['type']}"
        )
    section.expect("attention_factor", 1.0)
    section.expect("truncate", True)
    if section.has("partial_rotary_factor") and section.real("partial_rotary_factor") != factor:
        got = section.data["partial_rotary_factor"]
        raise section.fail(f"partial_rotary_factor: expected {factor} as in the top level, got {got}")
    kind = kinds.pop() if kinds else "default"
    if kind not in ("default", "yarn"):
        raise section.fail(f"rope_type: expected default or yarn, got {kind}; not supported")
    if kind == "default":
        stray = [key for key in _YARN_KEYS if section.has(key)]
        if stray:
            raise section.contradiction(
                "rope_type gives default", f"{stray[0]} gives {section.data[stray[0]]}"
            )
        return None
    section.require([(key,) for key in _YARN_KEYS])
    return YarnScaling(
        factor=section.real("factor"),
        original_max_position_embeddings=section.integer("original_max_position_embeddings"),
        beta_fast=section.real("beta_fast"),
        beta_slow=section.real("beta_slow"),
    )


def _eos_token_ids(reader: KeyReader) -> tuple[int, ...]:
    if isinstance(reader.data["eos_token_id"], list):
        return reader.integers("eos_token_id")
    return (reader.integer("eos_token_id", 0),)
