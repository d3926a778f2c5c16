"""Checkpoint folders in safetensors: opened by header, mapped into memory, read by native name.

Accepts one `model.safetensors` or shards with `model.safetensors.index.json`. Draft layers
(`mtp.*`, `mtp.safetensors`, `dspark.safetensors`) are left alone. Whether all tensors are there and
sane is `Checkpoint.check`, implemented in `check.py`.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ds4c.errors import MalformedInputError, UsageError
from ds4c.importers.header import StoredTensor, load_json_object, read_header
from ds4c.models.architecture import Architecture, Config, architecture_of, load_config
from ds4c.models.names import FusedExperts, is_draft_name

Progress = Callable[[str, int], None]
"""Called after each tensor with its native name and its bytes."""

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SUPPORTED_DTYPES = ("F32", "F16", "BF16", "I64", "I32")
MAX_INDEX_BYTES = 100_000_000
MAX_LISTED = 20
"""Names listed in one message before the rest is only counted."""


@dataclass(frozen=True)
class TensorInfo:
    """Where and how one tensor is stored.

    Attributes:
        name: Native name.
        stored_name: Name in the file, shared by the matrices of a fused expert tensor.
        dtype: Type name of the safetensors format, such as `BF16`.
        shape: Shape of this tensor, after fused experts are taken apart.
        start: Byte offset in `file`.
    """

    name: str
    stored_name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return int(np.prod(self.shape, dtype=object)) * _numpy_dtype(self.dtype).itemsize


@dataclass
class Checkpoint:
    """An opened checkpoint: configuration, and tensors of the main model by native name.

    Attributes:
        extra_names: Stored names that belong to no known tensor of this configuration.
        files: Weight files that hold tensors of the main model.
    """

    folder: Path
    config: Config
    tokenizer_path: Path | None
    files: tuple[Path, ...]
    extra_names: tuple[str, ...]
    _tensors: dict[str, TensorInfo] = field(repr=False)
    _maps: dict[Path, NDArray[np.uint8]] = field(default_factory=dict[Path, NDArray[np.uint8]], repr=False)

    @property
    def architecture(self) -> Architecture:
        """What the configuration belongs to."""
        return architecture_of(self.config)

    def names(self) -> tuple[str, ...]:
        """List the native names of all known tensors present, in the order of computation."""
        return tuple(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def info(self, name: str) -> TensorInfo:
        """Describe one tensor.

        Raises:
            MalformedInputError: The checkpoint does not hold `name`.
        """
        try:
            return self._tensors[name]
        except KeyError:
            raise MalformedInputError(f"{self.folder}: missing tensor: {name}") from None

    def load(self, name: str) -> NDArray[Any]:
        """Give one tensor as stored: float32, float16, `ml_dtypes.bfloat16`, int64 or int32.

        Returns:
            A read-only view of the mapped file; a copy only where the file is not aligned.

        Raises:
            MalformedInputError: The checkpoint does not hold `name`.
        """
        info = self.info(name)
        mapped = self._mapped(info.file)
        values = mapped[info.start : info.start + info.num_bytes].view(_numpy_dtype(info.dtype))
        values = values.reshape(info.shape)
        if values.flags.aligned:
            return values
        copy = values.copy()
        copy.flags.writeable = False
        return copy

    @property
    def total_bytes(self) -> int:
        """Bytes of all known tensors."""
        return sum(info.num_bytes for info in self._tensors.values())

    def source_sha256(self) -> str:
        """Digest of `config.json` and the weight files by name and content; computed once."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        total = hashlib.sha256()
        for path in (self.folder / "config.json", *self.files):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{digest}  {path.name}\n".encode())
        return total.hexdigest()

    def check(self, progress: Progress | None = None) -> None:
        """Check every tensor: present, none unknown, shape, type, finite values, expert ids in range.

        Reads all data once.

        Raises:
            MalformedInputError: All problems in one message, by name; after 20 the rest is counted.
        """
        from ds4c.importers.check import check_checkpoint

        check_checkpoint(self, progress)

    def _mapped(self, file: Path) -> NDArray[np.uint8]:
        if file not in self._maps:
            self._maps[file] = np.memmap(file, dtype=np.uint8, mode="r").view(np.ndarray)
        return self._maps[file]


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint folder: read its configuration and the headers of its weight files.

    Raises:
        UsageError: `path` is no folder, or holds no safetensors weights.
        MalformedInputError: The configuration, the index or a header is damaged or contradictory, a
            shard is missing, or a tensor has an unsupported type.
    """
    if not path.is_dir():
        kind = "a file" if path.exists() else "nothing"
        raise UsageError(f"{path}: expected a Hugging Face checkpoint folder, got {kind}; give the folder")
    config = load_config(path / "config.json")
    stored = _stored_tensors(path)
    _check_dtypes(path, stored)
    architecture = architecture_of(config)
    found = _native_tensors(path, stored, architecture)
    expected = architecture.tensors(config)
    known = {name: found[name] for name in expected if name in found}
    tokenizer = path / "tokenizer.json"
    if not tokenizer.is_file() and (tokenizer.exists() or tokenizer.is_symlink()):
        raise MalformedInputError(f"{tokenizer}: expected a file or none, got something else; remove it")
    return Checkpoint(
        folder=path,
        config=config,
        tokenizer_path=tokenizer if tokenizer.is_file() else None,
        files=tuple(sorted({file for file, _ in stored.values()})),
        extra_names=tuple(sorted({info.stored_name for name, info in found.items() if name not in expected})),
        _tensors=known,
    )


def some(names: list[str]) -> str:
    """Join names for a message; after `MAX_LISTED` the rest is only counted."""
    rest = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _stored_tensors(folder: Path) -> dict[str, tuple[Path, StoredTensor]]:
    """Read the headers of all files that hold tensors of the main model; by stored name."""
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.exists() and index.exists():
        raise MalformedInputError(
            f"{folder}: expected {SINGLE_FILE} or {INDEX_FILE}, got both; remove the stale one"
        )
    if index.exists():
        return _sharded_tensors(folder, index)
    if not single.exists():
        raise UsageError(
            f"{folder}: expected {SINGLE_FILE} or {INDEX_FILE}, got neither{_other_formats(folder)}"
        )
    return {name: (single, tensor) for name, tensor in read_header(single).items() if not is_draft_name(name)}


def _other_formats(folder: Path) -> str:
    if any(folder.glob("model*-mp*.safetensors")):
        return "; these are shards of the reference inference code, give the Hugging Face folder"
    if any(folder.glob("*.gguf")):
        return "; GGUF is not supported yet"
    return "; download the weights next to config.json"


def _sharded_tensors(folder: Path, index: Path) -> dict[str, tuple[Path, StoredTensor]]:
    weight_map = _weight_map(index)
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise MalformedInputError(
            f"{index}: missing shards: expected every shard that it lists, got none of {some(missing)}; "
            "download them next to the index"
        )
    stored: dict[str, tuple[Path, StoredTensor]] = {}
    unlisted: list[str] = []
    for shard in shards:
        for name, tensor in read_header(folder / shard).items():
            if weight_map.get(name) == shard:
                stored[name] = (folder / shard, tensor)
            elif not is_draft_name(name):
                unlisted.append(f"{name} ({shard})")
    absent = [f"{name} ({shard})" for name, shard in weight_map.items() if name not in stored]
    problems = [("listed but not in their shard", absent), ("in a shard but not listed for it", unlisted)]
    texts = [f"tensors {what}: {some(names)}" for what, names in problems if names]
    if texts:
        raise MalformedInputError(f"{index}: {'; '.join(texts)}")
    return stored


def _weight_map(index: Path) -> dict[str, str]:
    """Read the shard of each main tensor; a shard must be a plain file name beside the index."""
    try:
        size = index.stat().st_size
        content = index.read_bytes() if size <= MAX_INDEX_BYTES else b""
    except OSError as error:
        raise MalformedInputError(f"{index}: expected a readable file, got {error.strerror}") from error
    if size > MAX_INDEX_BYTES:
        raise MalformedInputError(f"{index}: expected at most {MAX_INDEX_BYTES} bytes, got {size}")
    weight_map = load_json_object(index, content, "index").get("weight_map")
    if not isinstance(weight_map, dict):
        raise MalformedInputError(f"{index}: weight_map: expected an object, got {weight_map!r}")
    result: dict[str, str] = {}
    for name, shard in cast(dict[str, object], weight_map).items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise MalformedInputError(
                f"{index}: weight_map: expected a shard's file name for {name!r}, got {shard!r}"
            )
        if not is_draft_name(name):
            result[name] = shard
    return result


def _check_dtypes(folder: Path, stored: dict[str, tuple[Path, StoredTensor]]) -> None:
    bad = [
        f"{name} ({tensor.dtype})"
        for name, (_, tensor) in stored.items()
        if tensor.dtype not in SUPPORTED_DTYPES
    ]
    if bad:
        supported = ", ".join(SUPPORTED_DTYPES)
        raise MalformedInputError(
            f"{folder}: expected {supported}, got {some(bad)}; quantised formats are not supported yet"
        )


def _native_tensors(
    folder: Path, stored: dict[str, tuple[Path, StoredTensor]], architecture: Architecture
) -> dict[str, TensorInfo]:
    """Map stored tensors to native names, taking fused experts apart."""
    found: dict[str, TensorInfo] = {}
    for stored_name, (file, tensor) in stored.items():
        native = architecture.native_name(stored_name)
        if isinstance(native, FusedExperts):
            infos = _split(folder, native, stored_name, file, tensor)
        else:
            infos = [TensorInfo(native, stored_name, tensor.dtype, tensor.shape, file, tensor.start)]
        for info in infos:
            if info.name in found:
                other = found[info.name].stored_name
                raise MalformedInputError(
                    f"{folder}: tensor {info.name}: expected once, got it as {other!r} and as {stored_name!r}"
                )
            found[info.name] = info
    return found


def _split(
    folder: Path, fused: FusedExperts, stored_name: str, file: Path, tensor: StoredTensor
) -> list[TensorInfo]:
    """Describe the matrices inside a fused expert tensor; each is a contiguous run of its rows."""
    parts = len(fused.parts)
    if len(tensor.shape) != 3 or tensor.shape[1] % parts:
        form = "[experts, rows, columns]" + (" with an even number of rows" if parts == 2 else "")
        raise MalformedInputError(
            f"{folder}: tensor {stored_name}: expected {form}, got {list(tensor.shape)}"
        )
    experts, rows, columns = tensor.shape[0], tensor.shape[1] // parts, tensor.shape[2]
    step = rows * columns * _numpy_dtype(tensor.dtype).itemsize
    return [
        TensorInfo(
            name=fused.native_name(expert, part),
            stored_name=stored_name,
            dtype=tensor.dtype,
            shape=(rows, columns),
            file=file,
            start=tensor.start + (expert * parts + part) * step,
        )
        for expert in range(experts)
        for part in range(parts)
    ]


def _numpy_dtype(dtype: str) -> np.dtype[Any]:
    if dtype == "BF16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    plain: dict[str, DTypeLike] = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}
    return np.dtype(plain[dtype])
