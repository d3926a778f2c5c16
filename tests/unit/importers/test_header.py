"""Header reader: good files read alike, every kind of damage is refused by name."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4c.errors import MalformedInputError
from ds4c.importers.header import StoredTensor, read_header

DATA = bytes(range(32))


def entry(start: int, end: int, shape: list[Any] | None = None, dtype: Any = "F32") -> dict[str, Any]:
    shape = [(end - start) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def write(path: Path, header: object, data: bytes = DATA) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_a_good_file(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "b": entry(8, 32, [2, 3]), "a": entry(0, 8)}
    path = write(tmp_path / "x.safetensors", header)
    start = path.stat().st_size - len(DATA)
    assert read_header(path) == {
        "b": StoredTensor("F32", (2, 3), start + 8, start + 32),
        "a": StoredTensor("F32", (2,), start, start + 8),
    }


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    header = {"scalar": entry(0, 4, []), "empty": entry(4, 4, [0, 5]), "rest": entry(4, 32)}
    tensors = read_header(write(tmp_path / "x.safetensors", header))
    assert tensors["scalar"].shape == ()
    assert tensors["empty"].end - tensors["empty"].start == 0


def test_half_byte_types_are_sized(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"a": entry(0, 32, [4, 16], "F4")})
    assert read_header(path)["a"].dtype == "F4"
    with pytest.raises(MalformedInputError, match=r"F4 \[5, 16\]: expected 40 bytes, got 32"):
        read_header(write(path, {"a": entry(0, 32, [5, 16], "F4")}))


@pytest.mark.parametrize(
    ("size", "dtypes"),
    [
        (8, "F64 I64 U64"),
        (4, "F32 I32 U32"),
        (2, "F16 BF16 I16 U16"),
        (1, "I8 U8 BOOL F8_E4M3 F8_E5M2 F8_E8M0"),
    ],
)
def test_types_have_the_size_of_their_name(tmp_path: Path, size: int, dtypes: str) -> None:
    for dtype in dtypes.split():
        path = write(tmp_path / "x.safetensors", {"a": entry(0, 32, [32 // size], dtype)})
        assert read_header(path)["a"].shape == (32 // size,)
        expected = rf"{dtype} \[{32 // size + 1}\]: expected {32 + size} bytes, got 32"
        with pytest.raises(MalformedInputError, match=expected):
            read_header(write(path, {"a": entry(0, 32, [32 // size + 1], dtype)}))


MALFORMED: list[tuple[str, object, bytes, str]] = [
    ("not an object", b"[1, 2]", DATA, "header: expected a JSON object, got bytes"),
    ("not json", b"{oops}", DATA, "header: expected JSON"),
    ("size of the second", {"a": entry(0, 8), "b": entry(8, 32, [5])}, DATA, r"expected 20 bytes, got 24"),
    ("not utf-8", b'{"\xff": 1}', DATA, "header: expected JSON"),
    ("too deep", b'{"a":' + b"[" * 100_000, DATA, "header: expected JSON"),
    ("huge number", b'{"a": ' + b"9" * 5000 + b"}", DATA, "header: expected JSON"),
    ("twice", b'{"a": {}, "a": {}}', DATA, "expected every name once, got 'a' twice"),
    ("key twice", b'{"a": {"dtype": "F32", "dtype": "F16"}}', DATA, "got 'dtype' twice"),
    ("no entry", {"a": 3}, DATA, "tensor 'a': expected an object, got 3"),
    (
        "no dtype",
        {"a": {"shape": [8], "data_offsets": [0, 32]}},
        DATA,
        "dtype: expected a type name, got None",
    ),
    ("no shape", {"a": {"dtype": "F32", "data_offsets": [0, 32]}}, DATA, "shape: expected a list, got None"),
    ("negative", {"a": entry(0, 32, [-8])}, DATA, r"shape: expected whole numbers from 0, got \[-8\]"),
    ("real", {"a": entry(0, 32, [8.0])}, DATA, r"shape: expected whole numbers from 0, got \[8.0\]"),
    ("bool", {"a": entry(0, 32, [True, 8])}, DATA, r"shape: expected whole numbers from 0"),
    (
        "one offset",
        {"a": {"dtype": "F32", "shape": [8], "data_offsets": [0]}},
        DATA,
        r"expected \[start, end\]",
    ),
    ("backwards", {"a": entry(8, 0, [2])}, DATA, r"data_offsets: expected \[start, end\], got \[8, 0\]"),
    ("size", {"a": entry(0, 32, [7])}, DATA, r"F32 \[7\]: expected 28 bytes, got 32"),
    ("overflow", {"a": entry(0, 32, [2**62, 4])}, DATA, r"expected 73786976294838206464 bytes, got 32"),
    ("outside", {"a": entry(0, 64)}, DATA, "expected to end within .* bytes of the file"),
    ("cut off", {"a": entry(0, 32)}, DATA[:-1], "expected to end within .* bytes of the file"),
    (
        "overlap",
        {"a": entry(0, 16), "b": entry(8, 32)},
        DATA,
        "tensor 'b': expected to start at .*got an overlap",
    ),
    (
        "gap",
        {"a": entry(0, 8), "b": entry(16, 32)},
        DATA,
        "tensor 'b': expected to start at .* 'a', got a gap",
    ),
    ("late start", {"a": entry(8, 32)}, DATA, "after the header, got a gap"),
    ("trailing", {"a": entry(0, 32)}, DATA + b"x", "expected .* bytes as the header says, got"),
]


@pytest.mark.parametrize(
    ("header", "data", "pattern"), [c[1:] for c in MALFORMED], ids=[c[0] for c in MALFORMED]
)
def test_malformed_headers(tmp_path: Path, header: object, data: bytes, pattern: str) -> None:
    path = write(tmp_path / "x.safetensors", header, data)
    with pytest.raises(MalformedInputError, match=pattern) as caught:
        read_header(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 7, struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 3) + b"{}"]
)
def test_header_length_is_bounded_by_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(MalformedInputError, match="header length: expected at most"):
        read_header(path)


@given(st.integers(0, 200), st.integers(0, 255), st.integers(0, 120))
def test_damage_never_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int, keep: int
) -> None:
    path = tmp_path_factory.mktemp("damage") / "x.safetensors"
    write(path, {"a": entry(0, 16, [2, 2]), "b": entry(16, 32)})
    content = bytearray(path.read_bytes())
    content[at % len(content)] = value
    path.write_bytes(content[: max(keep, len(content) - keep)])
    try:
        tensors = read_header(path)
    except MalformedInputError:
        return
    assert all(0 <= tensor.start <= tensor.end <= path.stat().st_size for tensor in tensors.values())
