"""Name map: every spelling of every tensor comes out native, and nothing else is touched."""

import pytest

from ds4c.models.names import FusedExperts, is_draft_name, native_name
from ds4c.models.presets import PRESETS
from ds4c.models.weights import expected_tensors

NATIVE = tuple(expected_tensors(PRESETS["tiny-128"]))


@pytest.mark.parametrize("prefix", ["", "model."])
def test_native_names_stay(prefix: str) -> None:
    assert [native_name(prefix + name) for name in NATIVE] == list(NATIVE)


@pytest.mark.parametrize(
    ("stored", "native"),
    [
        ("model.embed_tokens.weight", "embed.weight"),
        ("lm_head.weight", "head.weight"),
        ("head.weight", "head.weight"),
        ("model.norm.weight", "norm.weight"),
        ("model.hc_head.hc_fn", "hc_head_fn"),
        ("model.hc_head.hc_base", "hc_head_base"),
        ("model.hc_head.hc_scale", "hc_head_scale"),
        ("model.layers.3.attn.norm.weight", "layers.3.attn.kv_norm.weight"),
        ("model.layers.3.attn.compressor.norm.weight", "layers.3.attn.compressor.norm.weight"),
        ("model.layers.30.input_layernorm.weight", "layers.30.attn_norm.weight"),
        ("model.layers.0.post_attention_layernorm.weight", "layers.0.ffn_norm.weight"),
        ("model.layers.0.attn_hc.fn", "layers.0.hc_attn_fn"),
        ("model.layers.0.ffn_hc.scale", "layers.0.hc_ffn_scale"),
        ("model.layers.2.self_attn.sinks", "layers.2.attn.attn_sink"),
        ("model.layers.2.self_attn.kv_norm.weight", "layers.2.attn.kv_norm.weight"),
        ("model.layers.2.self_attn.o_a_proj.weight", "layers.2.attn.wo_a.weight"),
        ("model.layers.2.self_attn.compressor.position_bias", "layers.2.attn.compressor.ape"),
        ("model.layers.2.self_attn.compressor.kv_norm.weight", "layers.2.attn.compressor.norm.weight"),
        ("model.layers.2.self_attn.compressor.indexer.q_b_proj.weight", "layers.2.attn.indexer.wq_b.weight"),
        (
            "model.layers.2.self_attn.compressor.indexer.scorer.weights_proj.weight",
            "layers.2.attn.indexer.weights_proj.weight",
        ),
        (
            "model.layers.2.self_attn.compressor.indexer.gate_proj.weight",
            "layers.2.attn.indexer.compressor.wgate.weight",
        ),
        ("model.layers.5.mlp.gate.e_score_correction_bias", "layers.5.ffn.gate.bias"),
        ("model.layers.0.mlp.gate.tid2eid", "layers.0.ffn.gate.tid2eid"),
        ("model.layers.0.mlp.shared_experts.gate_proj.weight", "layers.0.ffn.shared_experts.w1.weight"),
        ("model.layers.0.mlp.shared_experts.down_proj.weight", "layers.0.ffn.shared_experts.w2.weight"),
        ("model.layers.0.mlp.shared_experts.up_proj.weight", "layers.0.ffn.shared_experts.w3.weight"),
    ],
)
def test_other_spellings(stored: str, native: str) -> None:
    assert native_name(stored) == native


def test_fused_experts_say_what_they_hold() -> None:
    both = native_name("model.layers.4.mlp.experts.gate_up_proj")
    assert both == FusedExperts("layers.4.ffn.experts.", ("w1", "w3"))
    assert both.native_name(7, 1) == "layers.4.ffn.experts.7.w3.weight"
    down = native_name("model.layers.4.mlp.experts.down_proj")
    assert isinstance(down, FusedExperts)
    assert down.native_name(0, 0) == "layers.4.ffn.experts.0.w2.weight"


@pytest.mark.parametrize(
    "name", ["vision.patch.weight", "layers.x.attn.wkv.weight", "layers.01.attn_norm.weight"]
)
def test_unknown_names_stay(name: str) -> None:
    assert native_name(name) == name


def test_draft_layers_are_told_apart() -> None:
    assert is_draft_name("mtp.0.e_proj.weight")
    assert is_draft_name("model.mtp.2.norm.weight")
    assert not any(is_draft_name(name) for name in NATIVE)
