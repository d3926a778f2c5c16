"""Generator: the same bytes for the same seed, nothing neutral, folders written whole or not at all."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_vectors import weights_sha256

from ds4c.errors import UsageError
from ds4c.importers.safetensors import open_checkpoint
from ds4c.models import generate
from ds4c.models.config import config_from_dict
from ds4c.models.generate import generate_weights, write_checkpoint
from ds4c.models.presets import PRESETS
from ds4c.models.weights import TensorRole, expected_tensors

TINY = PRESETS["tiny-8"]


def test_bytes_of_a_seed_never_change() -> None:
    digests = {
        ("tiny-8", 1, "float32"): "962b2ef9799d8ed5c1c8c9b94c3deb5481236d5ad6f71940fc4be09107c5d14b",
        ("tiny-8", 1, "bfloat16"): "ce37ba9dbf1ab34fdaba0eaa5918125a921b5d1441320c9883f256a879a2e01e",
        ("tiny-128", 0, "float32"): "0463464fc5a18941e6fba55a29bdffd1794e9e19173c3d5f5189bdbce88f681b",
    }
    for (preset, seed, dtype), digest in digests.items():
        weights = generate_weights(PRESETS[preset], seed, dtype)  # type: ignore[arg-type]
        assert weights_sha256(weights) == digest, preset


def test_seeds_and_tensors_are_independent() -> None:
    first, second = generate_weights(TINY, 1), generate_weights(TINY, 2)
    assert not any(np.array_equal(first[name], second[name]) for name in first)
    same_shape = [first[f"layers.{layer}.attn.wkv.weight"] for layer in range(6)]
    assert len({values.tobytes() for values in same_shape}) == 6


def test_every_tensor_has_its_shape_type_and_is_not_neutral() -> None:
    weights = generate_weights(TINY, 1, "bfloat16")
    expected = expected_tensors(TINY)
    assert list(weights) == list(expected)
    types = {TensorRole.MATRIX: "bfloat16", TensorRole.CONTROL: "float32", TensorRole.INDEX: "int64"}
    for name, values in weights.items():
        assert values.shape == expected[name].shape, name
        assert values.dtype.name == types[expected[name].role], name
        assert values.size == 1 or np.unique(values.astype(np.float64)).size > 1, name


def test_values_are_scaled_to_their_use() -> None:
    weights = generate_weights(PRESETS["tiny-128"], 0)

    def spread(name: str) -> float:
        return float(weights[name].std())

    assert spread("embed.weight") == pytest.approx(1.0, abs=0.03)
    assert spread("head.weight") == pytest.approx(64**-0.5, rel=0.03)
    assert spread("layers.3.attn.wo_b.weight") == pytest.approx(32**-0.5, rel=0.05)
    assert spread("layers.3.attn.compressor.ape") == pytest.approx(1.0, rel=0.03)
    assert weights["layers.0.hc_attn_scale"].mean() == pytest.approx(1.0, abs=0.4)
    assert weights["layers.0.attn_norm.weight"].mean() == pytest.approx(1.0, abs=0.1)
    assert float(np.abs(weights["embed.weight"]).max()) < 3.47


def test_expert_ids_are_different_experts_of_all() -> None:
    ids = generate_weights(TINY, 1)["layers.0.ffn.gate.tid2eid"]
    assert ids.shape == (160, 2)
    assert (ids[:, 0] != ids[:, 1]).all()
    assert set(np.unique(ids)) == set(range(8))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sharded_checkpoint_holds_the_same_as_a_single_one(tmp_path: Path, dtype: Any) -> None:
    weights = generate_weights(TINY, 3, dtype)
    for shards in (1, 4):
        folder = tmp_path / f"{shards}"
        write_checkpoint(TINY, folder, 3, dtype, shards)
        checkpoint = open_checkpoint(folder)
        checkpoint.check()
        assert checkpoint.config == TINY
        assert len(checkpoint.files) == shards
        assert checkpoint.names() == tuple(weights)
        for name, values in weights.items():
            loaded = checkpoint.load(name)
            assert loaded.dtype == values.dtype
            assert loaded.tobytes() == values.tobytes(), name
            assert loaded.flags.aligned


def test_files_are_what_the_safetensors_library_reads(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    write_checkpoint(TINY, tmp_path / "model", 3)
    loaded = library.load_file(tmp_path / "model" / "model.safetensors")
    weights = generate_weights(TINY, 3)
    assert loaded.keys() == weights.keys()
    assert all(np.array_equal(loaded[name], weights[name]) for name in weights)


def test_index_lists_every_tensor_and_the_total(tmp_path: Path) -> None:
    write_checkpoint(TINY, tmp_path / "model", 3, shards=3)
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == expected_tensors(TINY).keys()
    assert index["metadata"]["total_size"] == open_checkpoint(tmp_path / "model").total_bytes
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["dtype"] == "float32"
    assert config_from_dict(config) == TINY


def test_same_arguments_give_the_same_files(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_checkpoint(TINY, tmp_path / folder, 3, "bfloat16", 2)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(UsageError, match="expected no such folder or an empty one, got one with files"):
        write_checkpoint(TINY, tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(generate, "generate_tensor", fail)
    with pytest.raises(OSError, match="disk full"):
        write_checkpoint(TINY, tmp_path / "model", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"seed": -1}, "seed: expected 0 or more, got -1"),
        ({"seed": 0, "shards": 0}, "shards: expected 1 to 304, got 0"),
        ({"seed": 0, "dtype": "float16"}, "dtype: expected float32 or bfloat16, got float16"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, arguments: dict[str, Any], pattern: str) -> None:
    with pytest.raises(UsageError, match=pattern):
        write_checkpoint(TINY, tmp_path / "model", **arguments)
    assert list(tmp_path.iterdir()) == []
