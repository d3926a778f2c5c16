"""Table of tensors: shapes of the shipped models and which layers have which tensors."""

from ds4c.models.presets import PRESETS
from ds4c.models.weights import TensorRole, expected_tensors, num_parameters


def test_flash_shapes() -> None:
    tensors = expected_tensors(PRESETS["flash"])
    shapes = {
        "embed.weight": (129280, 4096),
        "head.weight": (129280, 4096),
        "hc_head_fn": (4, 16384),
        "layers.0.hc_attn_fn": (24, 16384),
        "layers.0.hc_ffn_scale": (3,),
        "layers.0.attn.attn_sink": (64,),
        "layers.0.attn.wq_a.weight": (1024, 4096),
        "layers.0.attn.wq_b.weight": (32768, 1024),
        "layers.0.attn.wkv.weight": (512, 4096),
        "layers.0.attn.wo_a.weight": (8192, 4096),
        "layers.0.attn.wo_b.weight": (4096, 8192),
        "layers.2.attn.compressor.wkv.weight": (1024, 4096),
        "layers.2.attn.compressor.ape": (4, 1024),
        "layers.2.attn.compressor.norm.weight": (512,),
        "layers.3.attn.compressor.wgate.weight": (512, 4096),
        "layers.3.attn.compressor.ape": (128, 512),
        "layers.2.attn.indexer.wq_b.weight": (8192, 1024),
        "layers.2.attn.indexer.weights_proj.weight": (64, 4096),
        "layers.2.attn.indexer.compressor.wkv.weight": (256, 4096),
        "layers.2.attn.indexer.compressor.ape": (4, 256),
        "layers.2.attn.indexer.compressor.norm.weight": (128,),
        "layers.0.ffn.gate.tid2eid": (129280, 6),
        "layers.3.ffn.gate.bias": (256,),
        "layers.42.ffn.experts.255.w2.weight": (4096, 2048),
        "layers.42.ffn.shared_experts.w3.weight": (2048, 4096),
    }
    assert {name: tensors[name].shape for name in shapes} == shapes


def test_tensors_follow_the_kind_of_layer() -> None:
    tensors = expected_tensors(PRESETS["tiny-128"])
    layers = range(6)
    assert [f"layers.{i}.attn.compressor.ape" in tensors for i in layers] == [False] * 2 + [True] * 4
    assert [f"layers.{i}.attn.indexer.wq_b.weight" in tensors for i in layers] == [
        i in (2, 4) for i in layers
    ]
    assert [f"layers.{i}.ffn.gate.tid2eid" in tensors for i in layers] == [i < 3 for i in layers]
    assert [f"layers.{i}.ffn.gate.bias" in tensors for i in layers] == [i >= 3 for i in layers]
    assert not any(name.startswith("mtp.") for name in tensors)


def test_roles() -> None:
    tensors = expected_tensors(PRESETS["tiny-8"])
    assert {name for name, spec in tensors.items() if spec.role.is_integer} == {
        f"layers.{layer}.ffn.gate.tid2eid" for layer in range(3)
    }
    assert tensors["layers.2.attn.compressor.ape"].role is TensorRole.CONTROL
    assert tensors["layers.2.hc_attn_fn"].role is TensorRole.CONTROL
    assert tensors["layers.2.attn.compressor.wkv.weight"].role is TensorRole.MATRIX
    assert all(len(spec.shape) == 2 for spec in tensors.values() if spec.role is TensorRole.MATRIX)


def test_sizes_of_the_presets() -> None:
    assert num_parameters(PRESETS["tiny-128"]) == 674_297
    assert 72e6 < num_parameters(PRESETS["bench-72m"]) < 73e6
    assert 280e9 < num_parameters(PRESETS["flash"]) < 290e9
    assert 1.5e12 < num_parameters(PRESETS["pro"]) < 1.6e12
