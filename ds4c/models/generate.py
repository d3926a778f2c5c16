"""Seeded random weights for any configuration, and checkpoint folders made of them.

Every parameter is random and none is neutral: a sink of zero or a norm of one would hide a missing
term. Values come from raw PCG64 words by exact arithmetic, so the same seed gives the same bytes
with every NumPy.
"""

import hashlib
import json
import math
import os
import shutil
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ds4c.errors import UsageError
from ds4c.models.architecture import Config, architecture_of
from ds4c.models.tensors import TensorRole, TensorSpec

WeightDtype = Literal["float32", "bfloat16"]
Array = NDArray[Any]

_ITEM_BYTES = {"I64": 8, "F32": 4, "BF16": 2}


def generate_weights(config: Config, seed: int, dtype: WeightDtype = "float32") -> dict[str, Array]:
    """Make all tensors of the main model by native name.

    Args:
        config: The model; large presets need as much memory as their weights.
        seed: Any whole number of at least 0.
        dtype: Type of matrices; everything else is float32, `tid2eid` int64.

    Raises:
        UsageError: `seed` is negative or `dtype` is unknown.
    """
    return {
        name: generate_tensor(config, name, spec, seed, dtype)
        for name, spec in architecture_of(config).tensors(config).items()
    }


def generate_tensor(
    config: Config, name: str, spec: TensorSpec, seed: int, dtype: WeightDtype = "float32"
) -> Array:
    """Make one tensor; its values depend on `seed`, `name` and shape only, not on the other tensors.

    Logits have rms about 1, as have the inputs of every linear layer: matrices are scaled by one over
    the root of their input width, norms are about 1, the embedding has variance 1.

    Raises:
        UsageError: `seed` is negative or `dtype` is unknown.
    """
    if seed < 0:
        raise UsageError(f"seed: expected 0 or more, got {seed}")
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"dtype: expected float32 or bfloat16, got {dtype}")
    digest = hashlib.sha256(name.encode()).digest()
    words = np.random.PCG64(np.random.SeedSequence([seed, *np.frombuffer(digest[:16], dtype="<u4").tolist()]))
    if spec.role is TensorRole.INDEX:
        return _expert_ids(words, spec)
    bell = _bell(words, spec.num_elements).reshape(spec.shape)
    values = architecture_of(config).seeded_values(name, spec, bell)
    if dtype == "bfloat16" and spec.role is TensorRole.MATRIX:
        import ml_dtypes

        return values.astype(ml_dtypes.bfloat16)
    return values


def write_checkpoint(
    config: Config,
    folder: Path,
    seed: int,
    dtype: WeightDtype = "float32",
    shards: int = 1,
) -> None:
    """Write `config.json` and safetensors, as the published checkpoints are named and laid out.

    The folder appears whole or not at all: files are written to a neighbour folder, then renamed.

    Args:
        config: The model.
        folder: Must not exist, or be empty.
        seed: As for `generate_weights`.
        dtype: Type of matrices.
        shards: With 1 a single `model.safetensors`, else that many shards and an index.

    Raises:
        UsageError: `folder` is not empty, or an argument is out of range.
    """
    specs = architecture_of(config).tensors(config)
    if not 1 <= shards <= len(specs):
        raise UsageError(f"shards: expected 1 to {len(specs)}, got {shards}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"{folder}: expected no such folder or an empty one, got one with files; choose another"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        _write_json(staging / "config.json", {**architecture_of(config).to_hf_dict(config), "dtype": dtype})
        _write_shards(config, staging, seed, dtype, shards)
        if folder.exists():
            folder.rmdir()
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _bell(words: np.random.PCG64, count: int) -> NDArray[np.float32]:
    """Make `[count]` float32 of mean 0 and variance 1, bell-shaped, within +-3.47.

    The sum of the four 16-bit parts of a 64-bit word: whole numbers only, hence the same everywhere
    (NumPy promises stable raw words but not stable `standard_normal`).
    """
    raw = np.asarray(words.random_raw(count), dtype=np.uint64)
    parts = raw.view(np.uint16).reshape(count, 4)
    total = parts.sum(axis=1, dtype=np.int64).astype(np.float64)
    mean = 2.0 * 65535.0
    deviation = math.sqrt(4.0 * (65536.0**2 - 1.0) / 12.0)
    return ((total - mean) / deviation).astype(np.float32)


def _expert_ids(words: np.random.PCG64, spec: TensorSpec) -> NDArray[np.int64]:
    """Make `[V, K]` int64: per token the first K experts of a random permutation."""
    keys = np.asarray(words.random_raw(spec.shape[0] * spec.limit), dtype=np.uint64)
    order = np.argsort(keys.reshape(spec.shape[0], spec.limit), axis=1, kind="stable")
    return np.ascontiguousarray(order[:, : spec.shape[1]]).astype(np.int64)


def _write_shards(config: Config, staging: Path, seed: int, dtype: WeightDtype, shards: int) -> None:
    specs = list(architecture_of(config).tensors(config).items())
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for shard in range(shards):
        numbered = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        path = staging / ("model.safetensors" if shards == 1 else numbered)
        part = specs[len(specs) * shard // shards : len(specs) * (shard + 1) // shards]
        plan = _plan(part, dtype)
        tensors = (generate_tensor(config, name, spec, seed, dtype) for name, spec, _ in plan)
        total_bytes += _write_tensors(path, plan, tensors)
        weight_map.update({name: path.name for name, _ in part})
    if shards > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        _write_json(staging / "model.safetensors.index.json", index)


def _plan(specs: list[tuple[str, TensorSpec]], dtype: WeightDtype) -> list[tuple[str, TensorSpec, str]]:
    """Give each tensor its stored type; widest types first, so that every tensor is aligned."""
    stored = {
        TensorRole.INDEX: "I64",
        TensorRole.CONTROL: "F32",
        TensorRole.MATRIX: "F32" if dtype == "float32" else "BF16",
    }
    plan = [(name, spec, stored[spec.role]) for name, spec in specs]
    return sorted(plan, key=lambda entry: -_ITEM_BYTES[entry[2]])


def _write_tensors(path: Path, plan: list[tuple[str, TensorSpec, str]], tensors: Iterable[Array]) -> int:
    """Write one safetensors file, a tensor at a time; returns the bytes of all tensors in it.

    Source: the safetensors format: 8 bytes little-endian header length, JSON header padded with
    spaces to a multiple of 8, then the tensors without gaps.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, spec, stored in plan:
        end = offset + spec.num_elements * _ITEM_BYTES[stored]
        header[name] = {"dtype": stored, "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors:
            file.write(values.tobytes())
        file.flush()
        os.fsync(file.fileno())
    return offset


def _write_json(path: Path, data: Mapping[str, object]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(data, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
