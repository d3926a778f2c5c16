"""Configuration: both spellings of config.json read alike, and every refusal names its key."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ds4c.errors import MalformedInputError, UsageError
from ds4c.models.config import ModelConfig, YarnScaling, config_from_dict, load_config, to_hf_dict
from ds4c.models.presets import PRESETS

TINY = PRESETS["tiny-128"]
Dict = dict[str, Any]


def published(**changes: Any) -> Dict:
    return {**to_hf_dict(TINY), **changes}


def transformers5(config: ModelConfig = TINY, **changes: Any) -> Dict:
    """What transformers 5 writes for a configuration: kinds of layers and nested rope parameters."""
    data = to_hf_dict(config)
    for key in ("compress_ratios", "num_hash_layers", "rope_scaling", "qk_rope_head_dim"):
        data.pop(key, None)
    kinds = {0: "sliding_attention", 4: "compressed_sparse_attention"}
    heavy = [ratio for ratio in config.compress_ratios if ratio not in kinds]
    factor = config.qk_rope_head_dim / config.head_dim
    yarn = config.rope_scaling
    compress: Dict = {"rope_type": "default"}
    if yarn is not None:
        compress = {"rope_type": "yarn", "attention_factor": 1.0, "beta_fast": 32, "beta_slow": 1}
        compress |= {
            "factor": 16,
            "original_max_position_embeddings": yarn.original_max_position_embeddings,
        }
    return {
        **data,
        "layer_types": [kinds.get(ratio, "heavily_compressed_attention") for ratio in config.compress_ratios],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": heavy[0]},
        "mlp_layer_types": ["hash_moe" if is_hash else "moe" for is_hash in config.hash_layers],
        "partial_rotary_factor": factor,
        "rope_parameters": {
            "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": factor},
            "compress": {**compress, "rope_theta": 160000.0, "partial_rotary_factor": factor},
        },
        **changes,
    }


def without(data: Dict, *keys: str) -> Dict:
    return {key: value for key, value in data.items() if key not in keys}


@pytest.mark.parametrize("name", PRESETS)
def test_published_spelling_round_trips(name: str) -> None:
    data = json.loads(json.dumps(to_hf_dict(PRESETS[name])))
    assert config_from_dict(data) == PRESETS[name]


@pytest.mark.parametrize("name", PRESETS)
def test_transformers_spelling_reads_the_same(name: str) -> None:
    data = json.loads(json.dumps(transformers5(PRESETS[name])))
    assert config_from_dict(data) == PRESETS[name]


def test_both_spellings_at_once_are_accepted_where_they_agree() -> None:
    assert config_from_dict({**published(), **transformers5()}) == TINY
    assert config_from_dict(without({**published(), **transformers5()}, "compress_rates")) == TINY


def test_flat_rope_parameters() -> None:
    flat = {**to_hf_dict(TINY)["rope_scaling"], "rope_theta": 10000.0}  # type: ignore[dict-item]
    assert config_from_dict(without(published(rope_parameters=flat), "rope_scaling")) == TINY


def test_two_channels_of_a_head_may_be_rotated() -> None:
    assert config_from_dict(published(qk_rope_head_dim=2)).qk_rope_head_dim == 2


def test_all_channels_of_a_head_may_be_rotated() -> None:
    config = config_from_dict(published(qk_rope_head_dim=64, index_head_dim=64))
    assert (config.qk_rope_head_dim, config.head_dim) == (64, 64)


def test_bases_only_inside_rope_parameters() -> None:
    assert config_from_dict(without(transformers5(), "rope_theta", "compress_rope_theta")) == TINY


def test_null_scaling_is_the_plain_compress_base() -> None:
    config = config_from_dict(published(rope_scaling=None))
    assert config == replace(TINY, rope_scaling=None)
    assert config.layer_rope_theta(2) == 160000.0
    assert config.layer_yarn(2) is None


def test_hash_layers_may_be_anywhere() -> None:
    config = replace(TINY, hash_layers=(False, True, False, False, True, False))
    assert "num_hash_layers" not in to_hf_dict(config)
    assert config_from_dict(to_hf_dict(config)) == config


def test_several_end_tokens() -> None:
    config = config_from_dict(published(eos_token_id=[1, 7]))
    assert config.eos_token_ids == (1, 7)
    assert config_from_dict(to_hf_dict(config)) == config


def test_ratios_of_draft_layers_are_left_out() -> None:
    assert config_from_dict(published(compress_ratios=[0, 0, 4, 128, 4, 128, 0, 0, 0])) == TINY


def test_helpers_by_layer() -> None:
    config = replace(PRESETS["tiny-8"], compress_ratios=(0, 4, 8, 128, 2, 0))
    assert [config.lanes(layer) for layer in range(6)] == [0, 2, 1, 1, 1, 0]
    assert [config.has_indexer(layer) for layer in range(6)] == [False, True, False, False, False, False]
    assert [config.ratio(layer) for layer in range(6)] == [0, 4, 8, 128, 2, 0]
    assert config.layer_rope_theta(0) == 10000.0
    assert config.layer_yarn(0) is None
    assert config.layer_yarn(4) == YarnScaling(16.0, 256, 32.0, 1.0)


def test_shipped_layer_schedules() -> None:
    flash, pro = PRESETS["flash"].compress_ratios, PRESETS["pro"].compress_ratios
    assert [flash.count(ratio) for ratio in (0, 4, 128)] == [2, 21, 20]
    assert [pro.count(ratio) for ratio in (0, 4, 128)] == [0, 30, 31]
    assert all(flash[layer] == (128 if layer % 2 else 4) for layer in range(2, 43))


@pytest.mark.parametrize(
    "key", [*(key for key in to_hf_dict(TINY) if key in ModelConfig.__dataclass_fields__)]
)
def test_each_missing_key_is_named(key: str) -> None:
    with pytest.raises(MalformedInputError, match=rf"^config.json: missing keys: .*\b{key}\b"):
        config_from_dict(without(published(), key))


def test_all_missing_keys_are_named_at_once() -> None:
    with pytest.raises(MalformedInputError) as caught:
        config_from_dict({"model_type": "deepseek_v4"})
    message = str(caught.value)
    for key in to_hf_dict(TINY).keys() & ModelConfig.__dataclass_fields__.keys():
        assert key in message
    for pair in ("compress_ratios or layer_types", "num_hash_layers or mlp_layer_types", "eos_token_id"):
        assert pair in message
    assert "\n" not in message


def _nested(section: str, **changes: Any) -> Dict:
    data = transformers5()
    data["rope_parameters"][section].update(changes)
    return data


def _scaling(**changes: Any) -> Dict:
    return published(rope_scaling={**to_hf_dict(TINY)["rope_scaling"], **changes})  # type: ignore[dict-item]


REFUSED: list[tuple[str, Callable[[], Dict], str]] = [
    ("v4.1", lambda: published(model_type="deepseek_v41"), r"model_type: deepseek_v41 .* is not supported"),
    ("v4.1 text", lambda: published(model_type="deepseek_v41_text"), r"deepseek_v41_text .* not supported"),
    ("other", lambda: published(model_type="llama"), r"expected deepseek_v4, got 'llama'"),
    ("no type", lambda: without(published(), "model_type"), r"missing keys: model_type"),
    ("reference", lambda: {"dim": 4096, "n_layers": 43}, r"reference inference code .*Hugging Face folder"),
    ("bool as number", lambda: published(vocab_size=True), r"vocab_size: expected a whole number, got True"),
    (
        "text as number",
        lambda: published(hidden_size="64"),
        r"hidden_size: expected a whole number, got '64'",
    ),
    ("real as number", lambda: published(hc_mult=4.0), r"hc_mult: expected a whole number, got 4.0"),
    ("null", lambda: published(head_dim=None), r"head_dim: expected a whole number, got None"),
    ("zero", lambda: published(q_lora_rank=0), r"q_lora_rank: expected at least 1, got 0"),
    ("negative eps", lambda: published(hc_eps=-1e-6), r"hc_eps: expected a finite number above 0"),
    ("infinite", lambda: published(swiglu_limit=float("inf")), r"swiglu_limit: expected a finite number"),
    ("text eps", lambda: published(rms_norm_eps="1e-6"), r"rms_norm_eps: expected a number, got '1e-6'"),
    ("kv heads", lambda: published(num_key_value_heads=2), r"num_key_value_heads: expected 1, got 2"),
    ("scores", lambda: published(scoring_func="sigmoid"), r"scoring_func: expected 'sqrtsoftplus', got 'sig"),
    ("top-k sum", lambda: published(norm_topk_prob=False), r"norm_topk_prob: expected True, got False"),
    ("norm as 1", lambda: published(norm_topk_prob=1), r"norm_topk_prob: expected True, got 1"),
    ("act", lambda: published(hidden_act="gelu"), r"hidden_act: expected 'silu', got 'gelu'"),
    ("bias", lambda: published(attention_bias=True), r"attention_bias: expected False, got True"),
    ("tied", lambda: published(tie_word_embeddings=True), r"tie_word_embeddings: expected False, got True"),
    ("two shared", lambda: published(n_shared_experts=2), r"n_shared_experts: expected 1, got 2"),
    (
        "groups",
        lambda: published(o_groups=3),
        r"num_attention_heads: expected a multiple of o_groups 3, got 4",
    ),
    ("odd rope", lambda: published(qk_rope_head_dim=15), r"qk_rope_head_dim: expected an even number.*15"),
    ("wide rope", lambda: published(qk_rope_head_dim=66), r"qk_rope_head_dim: expected at most head_dim 64"),
    ("index rope", lambda: published(index_head_dim=8), r"at most index_head_dim 8, got 16"),
    (
        "experts",
        lambda: published(num_experts_per_tok=9),
        r"num_experts_per_tok: expected at most .*8, got 9",
    ),
    ("bos", lambda: published(bos_token_id=160), r"bos_token_id: expected a token id in \[0, 160\), got 160"),
    ("eos", lambda: published(eos_token_id=[1, 999]), r"eos_token_id: expected a token id .* got 999"),
    ("no eos", lambda: published(eos_token_id=[]), r"eos_token_id: expected at least one token id, got none"),
    ("eos null", lambda: published(eos_token_id=None), r"eos_token_id: expected a whole number, got None"),
    (
        "short",
        lambda: published(compress_ratios=[0, 4]),
        r"compress_ratios: expected 6 or more entries, got 2",
    ),
    (
        "tail",
        lambda: published(num_hidden_layers=5),
        r"only 0 \(drafts\) after num_hidden_layers 5, got \[128",
    ),
    ("ratio 1", lambda: published(compress_ratios=[0, 0, 1, 1, 4, 4]), r"compress_ratios\[2\]: .*got 1"),
    ("ratio -4", lambda: published(compress_ratios=[-4] * 6), r"compress_ratios\[0\]: expected at least 0"),
    ("no list", lambda: published(compress_ratios=4), r"compress_ratios: expected a list, got 4"),
    (
        "ratios against kinds",
        lambda: {**transformers5(), "compress_ratios": [0, 0, 4, 128, 0, 128]},
        r"contradictory keys: compress_ratios\[4\] gives 0, layer_types\[4\] with compress_rates gives 4",
    ),
    (
        "ratios against rates",
        lambda: {**transformers5(), "compress_ratios": [0, 0, 4, 64, 4, 64]},
        r"contradictory keys: compress_ratios\[3\] gives 64, .*gives 128",
    ),
    (
        "ratios against kinds alone",
        lambda: without({**transformers5(), "compress_ratios": [0, 0, 4, 128, 4, 4]}, "compress_rates"),
        r"compress_ratios\[5\] gives 4, layer_types\[5\] gives heavily_compressed_attention",
    ),
    (
        "kind",
        lambda: transformers5(layer_types=["full_attention"] * 6),
        r"layer_types\[0\]: expected one of sliding_attention, .*got 'full_attention'",
    ),
    ("kinds", lambda: transformers5(layer_types=["sliding_attention"]), r"layer_types: expected 6 entries"),
    ("no rates", lambda: without(transformers5(), "compress_rates"), r"missing keys: compress_rates"),
    (
        "half of the rates",
        lambda: transformers5(compress_rates={"compressed_sparse_attention": 4}),
        r"compress_rates: missing keys: heavily_compressed_attention",
    ),
    (
        "sparse rate",
        lambda: transformers5(
            compress_rates={"compressed_sparse_attention": 8, "heavily_compressed_attention": 128}
        ),
        r"compressed_sparse_attention: expected 4, got 8",
    ),
    (
        "heavy rate 4",
        lambda: transformers5(
            compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 4}
        ),
        r"heavily_compressed_attention: expected any ratio but 4",
    ),
    ("mlp kind", lambda: transformers5(mlp_layer_types=["dense"] * 6), r"mlp_layer_types\[0\]: .*'dense'"),
    ("mlp kinds", lambda: transformers5(mlp_layer_types=["moe"]), r"mlp_layer_types: expected 6 entries"),
    (
        "hash count",
        lambda: published(num_hash_layers=7),
        r"num_hash_layers: expected at most num_hidden_layers 6, got 7",
    ),
    (
        "hash layers",
        lambda: transformers5(num_hash_layers=2),
        r"num_hash_layers gives 2 leading hash layers, mlp_layer_types gives hash layers \[0, 1, 2\]",
    ),
    (
        "rope dims",
        lambda: transformers5(qk_rope_head_dim=32),
        r"qk_rope_head_dim gives 32, partial_rotary_factor of head_dim 64 gives 16",
    ),
    (
        "part of a channel",
        lambda: transformers5(partial_rotary_factor=0.3),
        r"partial_rotary_factor: expected a whole number of the 64 channels",
    ),
    (
        "null factor",
        lambda: transformers5(partial_rotary_factor=None),
        r"partial_rotary_factor: expected a nu",
    ),
    ("rope type", lambda: _scaling(type="llama3"), r"rope_type: expected default or yarn, got llama3"),
    ("rope types", lambda: _scaling(rope_type="default"), r"rope_type gives default, type gives yarn"),
    ("mscale", lambda: _scaling(mscale=1.0), r"rope_scaling: expected only .*got mscale; not supported"),
    (
        "attention factor",
        lambda: _scaling(attention_factor=1.277),
        r"attention_factor: expected 1.0, got 1.2",
    ),
    (
        "betas",
        lambda: _scaling(beta_fast=1, beta_slow=32),
        r"expected beta_fast > beta_slow > 0, got 1.0 and",
    ),
    ("yarn factor", lambda: _scaling(factor=0.5), r"factor: expected at least 1, got 0.5"),
    (
        "yarn key",
        lambda: published(rope_scaling={"type": "yarn", "factor": 16}),
        r"missing keys: original_max",
    ),
    ("default with factor", lambda: _scaling(type="default"), r"rope_type gives default, factor gives 16.0"),
    ("scaling text", lambda: published(rope_scaling="yarn"), r"rope_scaling: expected an object, got 'yarn'"),
    ("main yarn", lambda: _nested("main", rope_type="yarn"), r"missing keys: factor"),
    (
        "main base",
        lambda: _nested("main", rope_theta=5e5),
        r"rope_theta gives 10000.0, .*main: rope_theta gives",
    ),
    (
        "base",
        lambda: _nested("compress", rope_theta=1e6),
        r"compress_rope_theta gives 160000.0, .*gives 1000000",
    ),
    ("part", lambda: _nested("compress", partial_rotary_factor=0.5), r"compress: partial_rotary_factor: exp"),
    (
        "half nested",
        lambda: transformers5(rope_parameters={"main": {}}),
        r"rope_parameters: missing keys: compress",
    ),
    (
        "scaling against parameters",
        lambda: transformers5(rope_scaling=None),
        r"contradictory keys: rope_scaling gives None, rope_parameters gives YarnScaling",
    ),
    (
        "no base anywhere",
        lambda: without(published(rope_parameters=None), "rope_theta", "rope_scaling"),
        r"missing keys: rope_theta",
    ),
]


@pytest.mark.parametrize(
    ("make", "pattern"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refused_by_name(make: Callable[[], Dict], pattern: str) -> None:
    with pytest.raises(MalformedInputError, match=pattern) as caught:
        config_from_dict(make(), "folder/config.json")
    message = str(caught.value)
    assert message.startswith("folder/config.json: ")
    assert "\n" not in message
    assert caught.value.exit_code == 4


def test_main_layers_never_have_yarn() -> None:
    yarn = transformers5()["rope_parameters"]["compress"]
    with pytest.raises(
        MalformedInputError, match="expected default on layers without a compressor, got yarn"
    ):
        config_from_dict(_nested("main", **{**yarn, "rope_theta": 10000.0}))


def test_load_config_reads_the_bundled_model() -> None:
    config = load_config(Path(__file__).parents[3] / "demo" / "model" / "config.json")
    assert config.compress_ratios == (0, 0, 4, 128, 4, 128)
    assert config.hash_layers == (True, True, True, False, False, False)
    assert config.rope_scaling == YarnScaling(16.0, 256, 32.0, 1.0)
    assert (config.hc_sinkhorn_iters, config.index_topk, config.qk_rope_head_dim) == (5, 64, 16)


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        (b"{", "expected JSON"),
        (b"[1]", "expected a JSON object, got list"),
        (b"\xff\xfe", "expected readable UTF-8 text"),
        (b"[" * 100_000, "expected JSON"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, pattern: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(MalformedInputError, match=pattern) as caught:
        load_config(path)
    assert str(path) in str(caught.value)


def test_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config.json not read: .*got no such file"):
        load_config(tmp_path / "config.json")


def test_lengths_are_checked_on_construction() -> None:
    with pytest.raises(MalformedInputError, match="hash_layers: expected 6 entries, got 2"):
        replace(TINY, hash_layers=(True, False))
