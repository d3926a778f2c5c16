"""`ds4c build` of checkpoints that are absent, damaged or contradict themselves: one line, nothing left."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from bad_input.helpers import Change, entries, fails, linked_copy, rewrite
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds4c.errors import Ds4cError
from ds4c.importers.header import read_header
from ds4c.models.config import config_from_dict, load_config, to_hf_dict
from ds4c.models.presets import PRESETS

WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
NORM = "layers.4.attn_norm.weight"


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def empty(name: str) -> Change:
    return lambda folder: rewrite(folder / name, b"")


def cut(name: str, count: int) -> Change:
    return lambda folder: rewrite(folder / name, (folder / name).read_bytes()[:-count])


def write(name: str, content: bytes | str) -> Change:
    return lambda folder: rewrite(folder / name, content)


def directory(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return change


def keys(**changes: Any) -> Change:
    """Change keys of config.json; None removes one."""

    def change(folder: Path) -> None:
        config = {**json.loads((folder / CONFIG).read_text()), **changes}
        kept = {name: value for name, value in config.items() if value is not None}
        rewrite(folder / CONFIG, json.dumps(kept))

    return change


def tensor(name: str, edit: Callable[[np.ndarray], np.ndarray], code: str = "F32") -> Change:
    """Put another tensor in the place of one; the file stays well formed."""

    def change(folder: Path) -> None:
        stored = read_header(folder / WEIGHTS)
        data = (folder / WEIGHTS).read_bytes()
        header: dict[str, Any] = {}
        parts: list[bytes] = []
        for each, info in stored.items():
            part, shape, dtype = data[info.start : info.end], list(info.shape), info.dtype
            if each == name:
                values = edit(np.frombuffer(part, np.float32).reshape(info.shape))
                part, shape, dtype = values.tobytes(), list(values.shape), code
            begin = sum(map(len, parts))
            header[each] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + len(part)]}
            parts.append(part)
        text = json.dumps(header).encode()
        rewrite(folder / WEIGHTS, struct.pack("<Q", len(text)) + text + b"".join(parts))

    return change


def poisoned(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def edit(values: np.ndarray) -> np.ndarray:
        values = values.copy()
        values[7] = value
        return values

    return edit


def index_entry(name: str, shard: str) -> Change:
    def change(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        index["weight_map"][name] = shard
        rewrite(folder / INDEX, json.dumps(index))

    return change


CASES: dict[str, tuple[Change, int, tuple[str, ...]]] = {
    "folder missing": (shutil.rmtree, 2, ("checkpoint folder", "got nothing")),
    "a file": (lambda f: (shutil.rmtree(f), f.write_text("x")), 2, ("checkpoint folder", "got a file")),
    "weights missing": (remove(WEIGHTS), 2, (WEIGHTS, "got neither")),
    "weights empty": (empty(WEIGHTS), 4, (WEIGHTS, "header length")),
    "weights cut": (cut(WEIGHTS, 9), 4, (WEIGHTS, "expected to end within")),
    "weights cut in the header": (write(WEIGHTS, b"\x40" + bytes(7) + b'{"a'), 4, ("header length",)),
    "weights of other bytes": (write(WEIGHTS, b"\x80\x02}q" * 64), 4, (WEIGHTS, "header length")),
    "weights a folder": (directory(WEIGHTS), 4, (WEIGHTS,)),
    "config missing": (remove(CONFIG), 2, (CONFIG, "got no such file")),
    "config empty": (empty(CONFIG), 4, (CONFIG, "expected JSON")),
    "config cut": (cut(CONFIG, 20), 4, (CONFIG, "expected JSON")),
    "config of other bytes": (write(CONFIG, b"\xff\xfe\x00"), 4, (CONFIG, "UTF-8")),
    "config a list": (write(CONFIG, "[]"), 4, (CONFIG, "expected a JSON object")),
    "config a folder": (directory(CONFIG), 4, (CONFIG,)),
    "config with a key twice": (write(CONFIG, '{"vocab_size": 1, "vocab_size": 2}'), 4, ("'vocab_size' tw",)),
    "config with a huge number": (write(CONFIG, '{"vocab_size": ' + "9" * 5000 + "}"), 4, ("expected JSON",)),
    "unknown architecture": (keys(model_type="llama"), 4, ("model_type", "got 'llama'")),
    "next architecture": (keys(model_type="deepseek_v41"), 4, ("model_type", "deepseek_v41")),
    "no architecture": (keys(model_type=None), 4, ("missing keys: model_type",)),
    "key missing": (keys(vocab_size=None), 4, ("missing keys: vocab_size",)),
    "contradiction": (keys(mlp_layer_types=["moe"] * 6), 4, ("contradictory keys: num_hash_layers",)),
    "two spellings disagree": (keys(partial_rotary_factor=1.0), 4, ("contradictory keys: qk_rope_head_dim",)),
    "other activation": (keys(hidden_act="relu"), 4, ("hidden_act", "got 'relu'")),
    "not a number": (keys(rms_norm_eps=float("nan")), 4, ("rms_norm_eps", "got nan")),
    "vocabulary differs": (keys(vocab_size=161), 4, ("head.weight: expected shape [161, 64]",)),
    "wrong shape": (tensor(NORM, lambda v: v[:-1]), 4, (f"{NORM}: expected shape [64], got [63]",)),
    "wrong dtype": (tensor(NORM, lambda v: v.astype(np.int32), "I32"), 4, ("expected a float type",)),
    "unknown dtype": (tensor(NORM, lambda v: v.astype(np.float64), "F64"), 4, (f"{NORM} (F64)",)),
    "NaN": (tensor(NORM, poisoned(np.nan)), 4, (f"{NORM}: expected finite values, got nan at [7]",)),
    "infinity": (tensor(NORM, poisoned(-np.inf)), 4, (f"{NORM}: expected finite values, got -inf at [7]",)),
    "bfloat16 infinity": (
        tensor(NORM, lambda v: poisoned(np.inf)(v).astype(ml_dtypes.bfloat16), "BF16"),
        4,
        (f"{NORM}: expected finite values, got inf at [7]",),
    ),
    "tokenizer of other bytes": (write("tokenizer.json", b"\xff\xfe"), 4, ("tokenizer.json", "readable")),
    "tokenizer no JSON": (write("tokenizer.json", '{"model"'), 4, ("tokenizer rejected",)),
    "tokenizer of another kind": (write("tokenizer.json", "[]"), 4, ("tokenizer rejected",)),
    "tokenizer a folder": (directory("tokenizer.json"), 4, ("tokenizer.json", "got something else")),
    "tokenizer gone": (
        lambda f: (f / "tokenizer.json").symlink_to(f / "no"),
        4,
        ("tokenizer.json", "got something else"),
    ),
}  # fmt: skip

SHARDED: dict[str, tuple[Change, int, tuple[str, ...]]] = {
    "shard missing": (remove("model-00002-of-00003.safetensors"), 4, ("model-00002-of-00003.safetensors",)),
    "shard empty": (empty("model-00002-of-00003.safetensors"), 4, ("00002-of-00003", "header length")),
    "shard cut": (
        cut("model-00003-of-00003.safetensors", 1),
        4,
        ("00003-of-00003", "to end within"),
    ),
    "names a missing shard": (index_entry("norm.weight", "other.safetensors"), 4, ("other.safetensors",)),
    "leads out of the folder": (index_entry("norm.weight", "../x.safetensors"), 4, ("../x.safetensors",)),
    "index no JSON": (write(INDEX, "{"), 4, (INDEX, "expected JSON")),
    "index a folder": (directory(INDEX), 4, (INDEX, "expected a readable file")),
}


def refused(source: Path, folder: Path, code: int, parts: tuple[str, ...]) -> None:
    folder.mkdir()
    fails(["build", source, "-o", folder / "new" / "m"], code, *parts)
    assert entries(folder) == []


@pytest.mark.parametrize(("change", "code", "parts"), CASES.values(), ids=CASES)
def test_damaged_checkpoints(
    checkpoint: Path, tmp_path: Path, change: Change, code: int, parts: tuple[str, ...]
) -> None:
    source = linked_copy(checkpoint, tmp_path / "source")
    change(source)
    refused(source, tmp_path / "out", code, parts)


@pytest.mark.parametrize(("change", "code", "parts"), SHARDED.values(), ids=SHARDED)
def test_damaged_shards(
    sharded: Path, tmp_path: Path, change: Change, code: int, parts: tuple[str, ...]
) -> None:
    source = linked_copy(sharded, tmp_path / "source")
    change(source)
    refused(source, tmp_path / "out", code, parts)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_unreadable_files(
    checkpoint: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions do not bind root, so the file is a socket there, which nobody can open."""
    source = linked_copy(checkpoint, tmp_path / "source")
    (source / name).unlink()
    if os.geteuid() == 0:
        with socket.socket(socket.AF_UNIX) as listener:
            monkeypatch.chdir(source)  # the path of a socket must be short
            listener.bind(name)
    else:
        rewrite(source / name, b"x")
        (source / name).chmod(0)
    refused(source, tmp_path / "out", 4, (name,))


def test_a_tokenizer_larger_than_the_vocabulary(talking_checkpoint: Path, tmp_path: Path) -> None:
    spec = json.loads((talking_checkpoint / "tokenizer.json").read_text())
    extra = {**spec["added_tokens"][-1], "id": 1024, "content": "<｜more｜>"}
    spec["added_tokens"].append(extra)
    rewrite(talking_checkpoint / "tokenizer.json", json.dumps(spec))
    refused(talking_checkpoint, tmp_path / "out", 4, ("at most 1024 tokens", "got 1025"))


GOOD = to_hf_dict(PRESETS["tiny-8"])
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-3, 200) | st.text(max_size=3), max_size=8),
    st.dictionaries(st.sampled_from(["type", "factor", "rope_theta", "x"]), st.integers(-2, 9), max_size=4),
)


@given(
    changes=st.dictionaries(
        st.sampled_from([*GOOD, "layer_types", "rope_parameters", "x"]), VALUES, max_size=3
    ),
    gone=st.sets(st.sampled_from(list(GOOD)), max_size=2),
)
def test_any_change_of_a_configuration_is_accepted_or_one_line(
    changes: dict[str, Any], gone: set[str]
) -> None:
    data = {name: value for name, value in {**GOOD, **changes}.items() if name not in gone}
    refusal = ""
    try:
        config = config_from_dict(data)
    except Ds4cError as error:
        refusal = str(error)
    else:
        assert config_from_dict(to_hf_dict(config)) == config
    assert "\n" not in refusal
    assert not refusal or refusal.startswith("config.json: ")


@given(content=st.binary(max_size=64) | st.text(alphabet='{}[]":,0e-.\\u', max_size=32).map(str.encode))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_as_a_configuration_are_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / CONFIG
    path.write_bytes(content)
    with pytest.raises(Ds4cError) as caught:
        load_config(path)
    assert "\n" not in str(caught.value)
