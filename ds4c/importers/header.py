"""Bounded reader of safetensors headers; trusts nothing the file says about itself.

Only the header is read here. Which tensors a model needs is not known here either.

Source: the safetensors format description: 8 bytes little-endian header length, a JSON object of
`{name: {dtype, shape, data_offsets}}` with an optional `__metadata__`, then all data without gaps.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ds4c.errors import MalformedInputError

MAX_HEADER_BYTES = 100_000_000
"""Longest header that is read; the limit of the format's own library."""

ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
}
"""Bytes of one element of each type whose size can be checked; F4 types pack two into a byte."""

_HALF_BYTE = ("F4", "F4_E2M1")


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as the header describes it; `start` and `end` are byte offsets in the file, half open."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Read and check the header of one safetensors file.

    Raises:
        MalformedInputError: The file is too short, the header is not what the format says, or offsets
            leave gaps, overlap, or do not end with the file.
    """
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            header_bytes = int.from_bytes(prefix, "little")
            limit = min(file_bytes - 8, MAX_HEADER_BYTES)
            if len(prefix) < 8 or header_bytes > limit:
                raise _fail(
                    path, f"header length: expected at most {max(limit, 0)} bytes, got {header_bytes}"
                )
            text = file.read(header_bytes)
    except OSError as error:
        raise _fail(
            path, f"not read: expected a readable file, got {error.strerror}; check the path"
        ) from error
    entries = _parse(path, text)
    entries.pop("__metadata__", None)
    data_start = 8 + header_bytes
    tensors = {name: _tensor(path, name, entry, data_start) for name, entry in entries.items()}
    _check_layout(path, tensors, data_start, file_bytes)
    return tensors


def load_json_object(path: Path, text: bytes, what: str) -> dict[str, object]:
    """Parse a JSON object and refuse duplicate keys, which `json` would drop in silence.

    Raises:
        MalformedInputError: Not UTF-8, not JSON, not an object, or a key appears twice.
    """

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result: dict[str, object] = {}
        for key, value in pairs:
            if key in result:
                raise _fail(path, f"{what}: expected every name once, got {key!r} twice")
            result[key] = value
        return result

    try:
        data: object = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise _fail(path, f"{what}: expected JSON, got {error}") from error
    if not isinstance(data, dict):
        raise _fail(path, f"{what}: expected a JSON object, got {type(data).__name__}")
    return cast(dict[str, object], data)


def _parse(path: Path, text: bytes) -> dict[str, object]:
    if not text.startswith(b"{"):
        raise _fail(path, f"header: expected a JSON object, got bytes {text[:8]!r}")
    return load_json_object(path, text, "header")


def _tensor(path: Path, name: str, entry: object, data_start: int) -> StoredTensor:
    """Check the description of one tensor and turn its offsets into file offsets."""
    if not isinstance(entry, dict):
        raise _fail(path, f"header: tensor {name!r}: expected an object, got {entry!r}")
    fields = cast(dict[str, object], entry)
    dtype = fields.get("dtype")
    if not isinstance(dtype, str):
        raise _fail(path, f"header: tensor {name!r}: dtype: expected a type name, got {dtype!r}")
    shape = _naturals(path, name, "shape", fields.get("shape"))
    offsets = _naturals(path, name, "data_offsets", fields.get("data_offsets"))
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _fail(
            path, f"header: tensor {name!r}: data_offsets: expected [start, end], got {list(offsets)}"
        )
    expected = _num_bytes(dtype, shape)
    if expected is not None and offsets[1] - offsets[0] != expected:
        got = offsets[1] - offsets[0]
        raise _fail(
            path, f"header: tensor {name!r}: {dtype} {list(shape)}: expected {expected} bytes, got {got}"
        )
    return StoredTensor(dtype, shape, data_start + offsets[0], data_start + offsets[1])


def _naturals(path: Path, name: str, key: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise _fail(path, f"header: tensor {name!r}: {key}: expected a list, got {value!r}")
    numbers = cast(list[object], value)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise _fail(path, f"header: tensor {name!r}: {key}: expected whole numbers from 0, got {numbers}")
    return tuple(cast(list[int], numbers))


def _num_bytes(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Count the bytes of a tensor; None for a type this reader does not know (refused later by name)."""
    elements = 1
    for extent in shape:
        elements *= extent
    if dtype in _HALF_BYTE:
        return elements // 2
    return elements * ITEM_BYTES[dtype] if dtype in ITEM_BYTES else None


def _check_layout(path: Path, tensors: dict[str, StoredTensor], data_start: int, file_bytes: int) -> None:
    """Check that the tensors cover the data exactly once, from the header to the end of the file."""
    end, previous = data_start, "the header"
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if tensor.end > file_bytes:
            raise _fail(
                path,
                f"tensor {name!r}: expected to end within {file_bytes} bytes of the file, got {tensor.end}",
            )
        if tensor.start != end:
            kind = "an overlap" if tensor.start < end else "a gap"
            raise _fail(path, f"tensor {name!r}: expected to start at {end} after {previous}, got {kind}")
        end, previous = tensor.end, repr(name)
    if end != file_bytes:
        raise _fail(path, f"expected {end} bytes as the header says, got {file_bytes}; the file is damaged")


def _fail(path: Path, text: str) -> MalformedInputError:
    return MalformedInputError(f"{path}: {text}")
