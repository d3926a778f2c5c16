"""Checkpoint folders: files, shards, spellings and types that are read, and those that are refused."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from golden_vectors import DEMO_FOLDER
from numpy.typing import NDArray

from ds4c.errors import MalformedInputError, UsageError
from ds4c.importers.check import first_not_finite
from ds4c.importers.safetensors import Checkpoint, open_checkpoint
from ds4c.models.config import to_hf_dict
from ds4c.models.generate import generate_weights, write_checkpoint
from ds4c.models.presets import PRESETS

TINY = PRESETS["tiny-8"]
Weights = dict[str, NDArray[Any]]
CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
}


def save(path: Path, tensors: Weights, **dtypes: str) -> None:
    """Write a safetensors file in the given order; `dtypes` overrides type codes by tensor name."""
    header: dict[str, Any] = {}
    offset = 0
    for name, values in tensors.items():
        end = offset + values.nbytes
        code = dtypes.get(name, CODES[values.dtype.name])
        header[name] = {"dtype": code, "shape": list(values.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(values.tobytes() for values in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def folder_of(path: Path, tensors: Weights, **dtypes: str) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(to_hf_dict(TINY)))
    save(path / "model.safetensors", tensors, **dtypes)
    return path


@pytest.fixture(scope="module")
def weights() -> Weights:
    return generate_weights(TINY, 1)


def assert_holds(checkpoint: Checkpoint, weights: Weights) -> None:
    checkpoint.check()
    assert set(checkpoint.names()) == set(weights)
    for name, values in weights.items():
        loaded = checkpoint.load(name)
        assert loaded.dtype == values.dtype, name
        assert np.array_equal(loaded, values), name


def test_bundled_model_is_complete() -> None:
    checkpoint = open_checkpoint(DEMO_FOLDER)
    seen: dict[str, int] = {}
    checkpoint.check(lambda name, num_bytes: seen.update({name: num_bytes}))
    assert list(seen) == list(checkpoint.names())
    assert sum(seen.values()) == checkpoint.total_bytes == 6_437_092
    assert checkpoint.tokenizer_path == DEMO_FOLDER / "tokenizer.json"
    assert checkpoint.extra_names == ()
    assert [path.name for path in checkpoint.files] == ["model.safetensors"]
    info = checkpoint.info("layers.2.attn.kv_norm.weight")
    assert (info.stored_name, info.dtype, info.shape) == ("model.layers.2.attn.norm.weight", "F32", (64,))
    assert checkpoint.load("embed.weight").dtype == ml_dtypes.bfloat16


def test_tensors_are_views_that_cannot_be_written(tmp_path: Path, weights: Weights) -> None:
    checkpoint = open_checkpoint(folder_of(tmp_path / "model", weights))
    values = checkpoint.load("embed.weight")
    assert not values.flags.writeable
    assert np.shares_memory(values, checkpoint.load("embed.weight"))


def test_unaligned_files_are_copied(tmp_path: Path, weights: Weights) -> None:
    odd = {"mtp.0.odd": np.zeros(1, dtype=np.uint8), **weights}
    checkpoint = open_checkpoint(folder_of(tmp_path / "model", odd))
    assert checkpoint.load("embed.weight").flags.aligned
    assert not checkpoint.load("embed.weight").flags.writeable
    assert_holds(checkpoint, weights)


def test_float16_and_int32_are_kept_as_stored(tmp_path: Path, weights: Weights) -> None:
    stored = {
        name: values.astype(np.int32 if values.dtype.kind == "i" else np.float16)
        for name, values in weights.items()
    }
    assert_holds(open_checkpoint(folder_of(tmp_path / "model", stored)), stored)


HF_LAYER = {
    "hc_attn_": "attn_hc.",
    "hc_ffn_": "ffn_hc.",
    "attn_norm.": "input_layernorm.",
    "ffn_norm.": "post_attention_layernorm.",
    "attn.indexer.compressor.wkv": "self_attn.compressor.indexer.kv_proj",
    "attn.indexer.compressor.wgate": "self_attn.compressor.indexer.gate_proj",
    "attn.indexer.compressor.ape": "self_attn.compressor.indexer.position_bias",
    "attn.indexer.compressor.norm": "self_attn.compressor.indexer.kv_norm",
    "attn.indexer.wq_b": "self_attn.compressor.indexer.q_b_proj",
    "attn.indexer.weights_proj": "self_attn.compressor.indexer.scorer.weights_proj",
    "attn.compressor.wkv": "self_attn.compressor.kv_proj",
    "attn.compressor.wgate": "self_attn.compressor.gate_proj",
    "attn.compressor.ape": "self_attn.compressor.position_bias",
    "attn.compressor.norm": "self_attn.compressor.kv_norm",
    "attn.attn_sink": "self_attn.sinks",
    "attn.wq_a": "self_attn.q_a_proj",
    "attn.wq_b": "self_attn.q_b_proj",
    "attn.q_norm": "self_attn.q_a_norm",
    "attn.wkv": "self_attn.kv_proj",
    "attn.kv_norm": "self_attn.kv_norm",
    "attn.wo_a": "self_attn.o_a_proj",
    "attn.wo_b": "self_attn.o_b_proj",
    "ffn.gate.bias": "mlp.gate.e_score_correction_bias",
    "ffn.gate.": "mlp.gate.",
    "ffn.shared_experts.w1": "mlp.shared_experts.gate_proj",
    "ffn.shared_experts.w2": "mlp.shared_experts.down_proj",
    "ffn.shared_experts.w3": "mlp.shared_experts.up_proj",
}


def module_names(weights: Weights) -> Weights:
    """Spell native weights as a loaded transformers model does, experts fused per layer."""
    top = {"embed.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight"}
    stored: Weights = {}
    for name, values in weights.items():
        if ".experts." in name:
            continue
        if not name.startswith("layers."):
            stored[top.get(name, "model." + name.replace("hc_head_", "hc_head.hc_"))] = values
            continue
        _, layer, rest = name.split(".", 2)
        start = next(start for start in HF_LAYER if rest.startswith(start))
        stored[f"model.layers.{layer}.{HF_LAYER[start]}{rest[len(start) :]}"] = values
    for layer in range(TINY.num_hidden_layers):
        experts = f"layers.{layer}.ffn.experts."
        both = [
            np.concatenate([weights[f"{experts}{e}.w1.weight"], weights[f"{experts}{e}.w3.weight"]])
            for e in range(TINY.n_routed_experts)
        ]
        down = [weights[f"{experts}{e}.w2.weight"] for e in range(TINY.n_routed_experts)]
        stored[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = np.stack(both)
        stored[f"model.layers.{layer}.mlp.experts.down_proj"] = np.stack(down)
    return stored


def test_module_names_with_fused_experts(tmp_path: Path, weights: Weights) -> None:
    stored = module_names(weights)
    assert not set(stored) & set(weights)
    checkpoint = open_checkpoint(folder_of(tmp_path / "model", stored))
    assert_holds(checkpoint, weights)
    assert checkpoint.info("layers.1.ffn.experts.2.w3.weight").stored_name.endswith("gate_up_proj")


@pytest.mark.oracle
def test_folder_written_by_transformers(tmp_path: Path) -> None:
    import oracle_hf

    write_checkpoint(PRESETS["tiny-128"], tmp_path / "native", 4)
    oracle_hf.hf_model(tmp_path / "native").save_pretrained(tmp_path / "saved")
    saved = open_checkpoint(tmp_path / "saved")
    assert saved.config.compress_ratios == PRESETS["tiny-128"].compress_ratios
    assert saved.info("layers.2.attn.kv_norm.weight").stored_name == "model.layers.2.attn.norm.weight"
    assert_holds(saved, generate_weights(PRESETS["tiny-128"], 4))


def test_digest_follows_content(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_checkpoint(TINY, tmp_path / name, seed, shards=2)
    digests = [open_checkpoint(tmp_path / name).source_sha256() for name in "abc"]
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == 64
    renamed = tmp_path / "b" / "model-00002-of-00002.safetensors"
    renamed.write_bytes(renamed.read_bytes()[:-1] + b"\1")
    assert open_checkpoint(tmp_path / "b").source_sha256() != digests[0]


def test_draft_layers_beside_and_inside_are_ignored(tmp_path: Path, weights: Weights) -> None:
    drafts: Weights = {"mtp.0.x": np.zeros(3, np.uint8), "model.mtp.1.y": np.zeros(1, np.uint8)}
    folder = folder_of(tmp_path / "model", {**weights, **drafts})
    for name in ("mtp.safetensors", "dspark.safetensors"):
        (folder / name).write_bytes(b"not read")
    assert_holds(open_checkpoint(folder), weights)


def problem(folder: Path) -> str:
    with pytest.raises(MalformedInputError) as caught:
        open_checkpoint(folder).check()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_all_problems_are_listed_by_name(tmp_path: Path, weights: Weights) -> None:
    bad = dict(weights)
    del bad["layers.0.attn.wkv.weight"], bad["norm.weight"]
    bad["vision.patch.weight"] = np.zeros((2, 2), np.float32)
    bad["layers.9.attn_norm.weight"] = np.zeros(64, np.float32)
    bad["head.weight"] = weights["head.weight"][:-1]
    bad["layers.0.ffn.gate.tid2eid"] = weights["layers.0.ffn.gate.tid2eid"].astype(np.float32)
    bad["layers.1.ffn.gate.tid2eid"] = weights["layers.1.ffn.gate.tid2eid"] + 1
    bad["layers.3.attn_norm.weight"] = weights["layers.3.attn_norm.weight"].astype(np.int32)
    poisoned = weights["layers.4.attn.wq_b.weight"].copy()
    poisoned[5, 6] = np.nan
    bad["layers.4.attn.wq_b.weight"] = poisoned
    message = problem(folder_of(tmp_path / "model", bad))
    for part in (
        "2 missing: layers.0.attn.wkv.weight, norm.weight",
        "2 unexpected: layers.9.attn_norm.weight, vision.patch.weight",
        "5 wrong: ",
        "head.weight: expected shape [160, 64], got [159, 64]",
        "layers.0.ffn.gate.tid2eid: expected an integer type, got F32",
        "layers.1.ffn.gate.tid2eid: expected ids in [0, 8), got 1 to 8",
        "layers.3.attn_norm.weight: expected a float type, got I32",
        "layers.4.attn.wq_b.weight: expected finite values, got nan at [5, 6]",
    ):
        assert part in message


def test_long_lists_are_counted_after_twenty(tmp_path: Path, weights: Weights) -> None:
    few = {name: values for name, values in weights.items() if ".experts." not in name}
    message = problem(folder_of(tmp_path / "model", few))
    assert "144 missing: layers.0.ffn.experts.0.w1.weight, " in message
    assert " and 124 more" in message
    assert message.count(".weight") == 20


def test_a_fused_tensor_of_too_few_experts_names_the_missing(tmp_path: Path, weights: Weights) -> None:
    stored = module_names(weights)
    stored["model.layers.2.mlp.experts.down_proj"] = stored["model.layers.2.mlp.experts.down_proj"][:7]
    assert "1 missing: layers.2.ffn.experts.7.w2.weight" in problem(folder_of(tmp_path / "model", stored))


@pytest.mark.parametrize("shape", [(8, 64, 32, 1), (8, 63, 64)])
def test_fused_tensors_of_another_form_are_refused(tmp_path: Path, weights: Weights, shape: Any) -> None:
    stored = module_names(weights)
    stored["model.layers.2.mlp.experts.gate_up_proj"] = np.zeros(shape, np.float32)
    with pytest.raises(
        MalformedInputError, match=r"gate_up_proj: expected \[experts, rows, columns\] with an even"
    ):
        open_checkpoint(folder_of(tmp_path / "model", stored))


def test_one_tensor_in_two_spellings_is_refused(tmp_path: Path, weights: Weights) -> None:
    twice = {**weights, "model.embed_tokens.weight": weights["embed.weight"]}
    with pytest.raises(
        MalformedInputError, match=r"embed.weight: expected once, got it as 'embed.weight' and"
    ):
        open_checkpoint(folder_of(tmp_path / "model", twice))


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E8M0", "I8", "U8", "F64", "NEW_TYPE"])
def test_other_types_are_refused_by_name(tmp_path: Path, weights: Weights, dtype: str) -> None:
    values = np.zeros((160, 64), np.float64 if dtype == "F64" else np.uint8)
    folder = folder_of(tmp_path / "model", {**weights, "head.weight": values}, **{"head.weight": dtype})
    with pytest.raises(
        MalformedInputError, match=rf"expected F32, .*got head.weight \({dtype}\); quantised formats"
    ):
        open_checkpoint(folder)


Break = Callable[[Path], object]


def _edit_index(**changes: Any) -> Break:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        index["weight_map"].update(changes)
        index["weight_map"] = {
            name: shard for name, shard in index["weight_map"].items() if shard is not None
        }
        path.write_text(json.dumps(index))

    return edit


SECOND = "model-00002-of-00003.safetensors"
BROKEN_SHARDS: list[tuple[str, Break, str]] = [
    (
        "gone",
        lambda f: (f / SECOND).unlink(),
        rf"index.json: missing shards: .*none of {SECOND};",
    ),
    ("absent", _edit_index(extra=SECOND), rf"tensors listed but not in their shard: extra \({SECOND}\)"),
    ("elsewhere", _edit_index(**{"embed.weight": SECOND}), r"listed but not in their shard: embed.weight"),
    ("unlisted", _edit_index(**{"embed.weight": None}), r"in a shard but not listed for it: embed.weight"),
    (
        "no name",
        _edit_index(**{"embed.weight": 3}),
        r"expected a shard's file name for 'embed.weight', got 3",
    ),
    ("outside", _edit_index(**{"embed.weight": "../x.safetensors"}), r"file name .*got '../x.safetensors'"),
    ("other file", _edit_index(**{"embed.weight": "config.json"}), r"file name .*got 'config.json'"),
    (
        "no map",
        lambda f: (f / "model.safetensors.index.json").write_text("{}"),
        r"weight_map: expected an object",
    ),
    ("no json", lambda f: (f / "model.safetensors.index.json").write_text("{"), r"index: expected JSON"),
    ("cut", lambda f: (f / SECOND).write_bytes((f / SECOND).read_bytes()[:-9]), r"expected to end within"),
    ("both", lambda f: shutil.copy(f / SECOND, f / "model.safetensors"), r"got both; remove the stale one"),
]


@pytest.mark.parametrize(
    ("damage", "pattern"), [c[1:] for c in BROKEN_SHARDS], ids=[c[0] for c in BROKEN_SHARDS]
)
def test_broken_shards(tmp_path: Path, damage: Break, pattern: str) -> None:
    write_checkpoint(TINY, tmp_path / "model", 1, shards=3)
    open_checkpoint(tmp_path / "model").check()
    damage(tmp_path / "model")
    with pytest.raises(MalformedInputError, match=pattern):
        open_checkpoint(tmp_path / "model")


@pytest.mark.parametrize(
    ("files", "pattern"),
    [
        ([], "expected model.safetensors or model.safetensors.index.json, got neither; download"),
        (["model0-mp1.safetensors"], "got neither; these are shards of the reference inference code"),
        (["tiny.gguf"], "got neither; GGUF is not supported yet"),
    ],
)
def test_folders_without_weights(tmp_path: Path, files: list[str], pattern: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(to_hf_dict(TINY)))
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=pattern):
        open_checkpoint(tmp_path)


def test_paths_that_are_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a Hugging Face checkpoint folder, got nothing"):
        open_checkpoint(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="expected a Hugging Face checkpoint folder, got a file"):
        open_checkpoint(tmp_path / "file")
    with pytest.raises(UsageError, match=r"config.json not read: .*got no such file"):
        open_checkpoint(tmp_path)


def test_unknown_tensor_name(tmp_path: Path, weights: Weights) -> None:
    checkpoint = open_checkpoint(folder_of(tmp_path / "model", weights))
    assert "embed.weight" in checkpoint
    assert "nothing" not in checkpoint
    with pytest.raises(MalformedInputError, match="missing tensor: nothing"):
        checkpoint.load("nothing")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_scan_finds_the_first_bad_value(dtype: Any, value: float) -> None:
    size = (1 << 20) + 17
    limit = float(ml_dtypes.finfo(dtype).max)
    values = np.full((size,), limit, dtype=dtype)
    values[::3] = -limit
    values[1::3] = 0
    assert first_not_finite(values) is None
    for position in (size - 1, 1 << 20, 5, 0):
        values[position] = value
        assert first_not_finite(values) == position
    assert first_not_finite(values[:0]) is None
