"""The gated delta net: its configuration and what it refuses, its tensors, and its weights for the IR."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_vectors import DELTA_NAME, load_golden, weights_sha256

from ds4c.errors import MalformedInputError
from ds4c.importers.safetensors import open_checkpoint
from ds4c.ir.state_ops import states_of
from ds4c.models.architecture import ARCHITECTURES, architecture_of, config_from_dict, load_config
from ds4c.models.gated_delta_config import GatedDeltaConfig, to_hf_dict
from ds4c.models.gated_delta_weights import expected_tensors, native_name
from ds4c.models.generate import generate_weights, write_checkpoint
from ds4c.models.ir_weights import IrWeightMap
from ds4c.models.presets import OTHER_PRESETS, PRESETS, preset

TINY = OTHER_PRESETS[DELTA_NAME]
Dict = dict[str, Any]


def keys(**changes: Any) -> Dict:
    """The keys of the tiny model; a change to None leaves the key out."""
    data = {**to_hf_dict(TINY), **changes}
    return {k: v for k, v in data.items() if k not in changes or changes[k] is not None}


# ----------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    "config",
    [TINY, replace(TINY, bos_token_id=None, eos_token_ids=(1, 5)), replace(TINY, linear_num_key_heads=4)],
)
def test_configuration_round_trips(config: GatedDeltaConfig) -> None:
    assert config_from_dict(to_hf_dict(config)) == config


def test_dense_layers_may_be_said_in_three_ways() -> None:
    for data in (
        keys(num_experts=0, mlp_only_layers=None),
        keys(num_experts=8, mlp_only_layers=[0, 1, 2]),
        keys(num_experts=8, mlp_only_layers=[], decoder_sparse_step=4),
    ):
        assert config_from_dict(data) == TINY
    assert config_from_dict(keys(layer_types=None)) == TINY  # every fourth layer would be another


REFUSED: list[tuple[str, Callable[[], Dict], str]] = [
    (
        "a layer of attention",
        lambda: keys(layer_types=["linear_attention", "full_attention", "linear_attention"]),
        "layer_types: expected linear_attention in every layer, got full_attention in layer 1; layers of",
    ),
    (
        "attention by default",
        lambda: keys(layer_types=None, num_hidden_layers=4),
        "layer_types: expected linear_attention in every layer, got full_attention in layer 3",
    ),
    (
        "attention by interval",
        lambda: keys(layer_types=None, full_attention_interval=2),
        "got full_attention in layer 1",
    ),
    ("a strange layer", lambda: keys(layer_types=["linear_attention", "mamba", "x"]), r"layer_types\[1\]"),
    ("too few layers", lambda: keys(layer_types=["linear_attention"]), "layer_types: expected 3 entries"),
    (
        "experts",
        lambda: keys(num_experts=8),
        "num_experts: expected 0 or every layer in mlp_only_layers, got 8 in layer 0; layers of experts",
    ),
    ("experts by default", lambda: keys(num_experts=None), "got 512 in layer 0"),
    (
        "experts in one layer",
        lambda: keys(num_experts=8, mlp_only_layers=[0, 2]),
        "got 8 in layer 1",
    ),
    (
        "tied",
        lambda: keys(tie_word_embeddings=True),
        "tie_word_embeddings: expected False, got True; the gated",
    ),
    ("activation", lambda: keys(hidden_act="gelu"), "hidden_act: expected 'silu', got 'gelu'"),
    (
        "heads",
        lambda: keys(linear_num_key_heads=3),
        "linear_num_value_heads: expected a multiple of .* 3, got 4",
    ),
    ("taps", lambda: keys(linear_conv_kernel_dim=1), "linear_conv_kernel_dim: expected at least 2, got 1"),
    ("no taps", lambda: keys(linear_conv_kernel_dim=None), "missing keys: linear_conv_kernel_dim"),
    (
        "end token",
        lambda: keys(eos_token_id=160),
        r"eos_token_id: expected a token id in \[0, 160\), got 160",
    ),
    ("no end token", lambda: keys(eos_token_id=[]), "eos_token_id: expected at least one token id"),
    ("begin token", lambda: keys(bos_token_id=-1), "bos_token_id: expected at least 0, got -1"),
]


@pytest.mark.parametrize(("make", "pattern"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_refused_by_name(make: Callable[[], Dict], pattern: str) -> None:
    with pytest.raises(MalformedInputError, match=pattern) as caught:
        config_from_dict(make(), "m/config.json")
    assert str(caught.value).startswith("m/config.json: ")
    assert "\n" not in str(caught.value)


def test_other_architectures_are_refused_with_the_names_of_these() -> None:
    with pytest.raises(MalformedInputError, match="expected deepseek_v4 or qwen3_next, got 'llama'"):
        config_from_dict({"model_type": "llama"})


@pytest.mark.parametrize("name", [*PRESETS, *OTHER_PRESETS])
def test_every_architecture_reads_what_it_writes(name: str) -> None:
    config = preset(name)
    architecture = architecture_of(config)
    assert config_from_dict(architecture.to_hf_dict(config)) == config
    assert ARCHITECTURES[architecture.model_type]() is architecture


# ------------------------------------------------------------------------------------- tensors and weights


def test_tensors_of_a_layer() -> None:
    tensors = expected_tensors(TINY)
    prefix = "model.layers.1."
    assert {n.removeprefix(prefix): s.shape for n, s in tensors.items() if n.startswith(prefix)} == {
        "input_layernorm.weight": (64,),
        "linear_attn.in_proj_qkvz.weight": (192, 64),
        "linear_attn.in_proj_ba.weight": (8, 64),
        "linear_attn.conv1d.weight": (128, 1, 4),
        "linear_attn.dt_bias": (4,),
        "linear_attn.A_log": (4,),
        "linear_attn.norm.weight": (16,),
        "linear_attn.out_proj.weight": (64, 64),
        "post_attention_layernorm.weight": (64,),
        "mlp.gate_proj.weight": (96, 64),
        "mlp.up_proj.weight": (96, 64),
        "mlp.down_proj.weight": (64, 96),
    }
    assert architecture_of(TINY).num_parameters(TINY) == 128_520


def test_names_without_the_prefix_are_known() -> None:
    for name in expected_tensors(TINY):
        assert native_name(name) == name
        assert native_name(name.removeprefix("model.")) == name


def test_rows_of_the_projections_are_put_in_order() -> None:
    """As `fix_query_key_value_ordering` of transformers takes them apart, in NumPy."""
    weights = generate_weights(TINY, 5)
    table = IrWeightMap.of_arrays(TINY, 64, weights)
    source = "model.layers.1.linear_attn."
    qkvz = weights[source + "in_proj_qkvz.weight"].reshape(2, 96, 64)
    q, k, v, z = (qkvz[:, lo:hi].reshape(-1, 64) for lo, hi in ((0, 16), (16, 32), (32, 64), (64, 96)))
    assert np.array_equal(table["layers.1.qkv"], np.concatenate([q, k, v]))
    assert np.array_equal(table["layers.1.z"], z)
    ba = weights[source + "in_proj_ba.weight"].reshape(2, 4, 64)
    assert np.array_equal(table["layers.1.b"], ba[:, :2].reshape(4, 64))
    assert np.array_equal(table["layers.1.a"], ba[:, 2:].reshape(4, 64))
    assert np.array_equal(table["layers.1.conv"][3], weights[source + "conv1d.weight"][:, 0, 3])
    assert np.array_equal(table["layers.1.input_norm"], 1 + weights["model.layers.1.input_layernorm.weight"])
    assert np.allclose(np.log(table["layers.1.rate"]), weights[source + "A_log"], atol=1e-6)


def test_bytes_of_a_seed_never_change() -> None:
    golden = load_golden(DELTA_NAME)
    assert golden.seed == 3
    assert weights_sha256(generate_weights(TINY, 3)) == golden.weights_sha256
    assert weights_sha256(generate_weights(TINY, 3, "bfloat16")) != golden.weights_sha256


def test_bfloat16_matrices_stay_as_stored() -> None:
    table = IrWeightMap.of_arrays(TINY, 64, generate_weights(TINY, 3, "bfloat16"))
    for name, weight in table.table.items():
        assert table[name].dtype.name == weight.dtype, name
        assert table[name].shape == weight.shape, name
    kinds = {
        n: table.table[f"layers.0.{n}"].dtype for n in ("qkv", "z", "a", "out", "conv", "rate", "net_norm")
    }
    assert kinds == {
        **dict.fromkeys(("qkv", "z", "a", "out"), "bfloat16"),
        **dict.fromkeys(("conv", "rate", "net_norm"), "float32"),
    }


@pytest.mark.parametrize("shards", [1, 3])
def test_checkpoint_on_disk(tmp_path: Path, shards: int) -> None:
    write_checkpoint(TINY, tmp_path / "m", 3, "float32", shards)
    assert load_config(tmp_path / "m" / "config.json") == TINY
    checkpoint = open_checkpoint(tmp_path / "m")
    checkpoint.check()
    weights = generate_weights(TINY, 3)
    assert checkpoint.names() == tuple(weights)
    assert all(np.array_equal(checkpoint.load(n), w) for n, w in weights.items())
    assert (checkpoint.architecture.model_type, checkpoint.tokenizer_path) == ("qwen3_next", None)


def test_states_say_how_they_are_read() -> None:
    table = IrWeightMap.of_arrays(TINY, 64, generate_weights(TINY, 3))
    module = architecture_of(TINY).build_module(TINY, table.table)
    found = {s.state_name: (str(s.state_kind), s.width, s.window(10)) for s in states_of(module) if s.reads}
    assert found == {
        f"l{i}.{n}": s
        for i in range(3)
        for n, s in (("conv", ("ring", 128, (7, 10))), ("delta", ("opaque", 1024, (9, 9))))
    }


# ------------------------------------------------------------------- live, where transformers is installed


@pytest.mark.oracle
def test_transformers_own_loader_gives_the_same_model(tmp_path: Path) -> None:
    import oracle_hf
    import torch
    from transformers.models.qwen3_next import Qwen3NextForCausalLM

    write_checkpoint(TINY, tmp_path / "m", 5)
    loaded = Qwen3NextForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32).eval()
    tokens = load_golden(DELTA_NAME).tokens[:100].tolist()
    with torch.no_grad():
        logits = loaded(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    assert np.array_equal(logits, oracle_hf.hf_logits(tmp_path / "m", tokens))


@pytest.mark.oracle
def test_vectors_are_what_transformers_gives_today(tmp_path: Path) -> None:
    import oracle_hf

    golden = load_golden(DELTA_NAME)
    write_checkpoint(TINY, tmp_path / "m", golden.seed)
    logits = oracle_hf.hf_logits(tmp_path / "m", golden.tokens)
    assert np.abs(logits[golden.positions] - golden.logits).max() <= golden.tolerance
    assert (logits.argmax(axis=1) == golden.argmax).all()
