"""The manifest: round trip, every kind of malformed input, files that are not what was built."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_executable import small_manifest

from ds4c.ir import kernel
from ds4c_runtime import manifest_checks
from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.manifest import FileEntry, Live, Manifest, RingState, WeightEntry
from ds4c_runtime.manifest_checks import (
    ROWS_OFFSET,
    block_layout,
    check_horizon,
    verify_file,
    verify_files,
    verify_sizes,
    verifying,
)

FILES = {
    "kernels.so": b"kernels",
    "weights.bin": bytes(4096),
    "tokenizer.json": b"{}",
    "module.mlir": b"module {}",
}


def sample() -> Manifest:
    manifest = small_manifest()
    files = tuple(FileEntry(n, hashlib.sha256(b).hexdigest(), len(b)) for n, b in FILES.items())
    weights = (
        WeightEntry("a", "float32", (8, 4), "row", 0, 128),
        WeightEntry("b", "bfloat16", (16, 4), "panel16", 128, 256),
    )
    arenas = dataclasses.replace(manifest.arenas, weights=4096)
    return dataclasses.replace(manifest, files=files, weights=weights, arenas=arenas).with_id()


def write(folder: Path, manifest: Manifest | None = None) -> Manifest:
    manifest = manifest or sample()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / "manifest.json").write_text(manifest.to_json())
    return manifest


def test_round_trip(tmp_path: Path) -> None:
    manifest = write(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    assert Manifest.parse(manifest.to_json()) == manifest
    assert Manifest.parse(json.dumps(json.loads(manifest.to_json()))) == manifest


def test_id_covers_every_value() -> None:
    manifest = sample()
    other = dataclasses.replace(manifest, versions=dataclasses.replace(manifest.versions, tvm="1"))
    assert other.compute_id() != manifest.artifact_id
    assert dataclasses.replace(manifest, artifact_id="x").compute_id() == manifest.artifact_id


Edit = Callable[[dict[str, Any]], object]


def at(path: str, value: Any) -> Edit:
    """Set the value at a dotted path; numbers index arrays."""

    def edit(raw: dict[str, Any]) -> None:
        *steps, last = [int(p) if p.isdigit() else p for p in path.split(".")]
        place: Any = raw
        for step in steps:
            place = place[step]
        place[last] = value

    return edit


def without(path: str) -> Edit:
    def edit(raw: dict[str, Any]) -> None:
        *steps, last = [int(p) if p.isdigit() else p for p in path.split(".")]
        place: Any = raw
        for step in steps:
            place = place[step]
        del place[last]

    return edit


MALFORMED: list[tuple[Edit, str]] = [
    (at("extra", 1), "unknown key 'extra'"),
    (without("limits"), "missing key 'limits'"),
    (at("format", "zip"), "got 'zip' version 2"),
    (at("version", 3), "version 3"),
    (at("version", True), "version True"),
    (at("version", "1"), "version '1'"),
    (at("target", []), r"manifest.target rejected: expected an object, got \[\]"),
    (at("target.name", 5), "manifest.target.name rejected: expected a string, got 5"),
    (at("target.features", "avx2"), "expected an array"),
    (at("target.features", [1]), r"features\[0\] rejected: expected a string"),
    (at("model.context", 1.5), "expected an integer, got 1.5"),
    (at("model.context", True), "expected an integer, got True"),
    (at("model.context", None), "expected an integer, got None"),
    (at("model.context", 10**30), "model.context rejected"),
    (at("model.context", 257), "expected pages for 257 tokens of context, got 256"),
    (at("model.vocab_size", 0), "model.vocab_size rejected"),
    (at("model.eos_token_ids", [1024]), "model token id rejected: expected 0 to 1023, got 1024"),
    (at("model.bos_token_id", -1), "model token id"),
    (at("limits.max_rows", 0), "limits.max_rows rejected"),
    (at("limits.horizon", -1), "limits.horizon rejected"),
    (at("limits.pages_per_session", 2**40), "pages_per_session"),
    (at("arenas.io", -64), "arenas.io rejected"),
    (at("arenas.io", 64), "expected its end within 64 bytes of arena io"),
    (at("arenas.page", 100), "arenas.page rejected: expected a multiple of 64, got 100"),
    (at("arenas.weights", 4032), r"expected 4096 bytes \(weights.bin\)"),
    (at("io.tokens.shape", [23]), r"io.tokens rejected: expected int32 \[24\], got int32 \[23\]"),
    (at("io.tokens.dtype", "float32"), "io.tokens rejected"),
    (at("io.tokens.dtype", "int64"), "expected one of 'int32', 'float32', got 'int64'"),
    (at("io.tokens.offset", 4), "io.tokens offset rejected: expected a multiple of 64"),
    (at("io.block.offset", 64), "io.block rejected: expected an offset of 96 or more"),
    (at("io.logits.offset", -64), "expected a multiple of 64, got -64"),
    (without("io.fork_args"), "missing key 'fork_args'"),
    (at("entry_points", []), "entry point 'step' rejected"),
    (at("entry_points.1.arenas", ["states", "io"]), "entry point 'snapshot' rejected"),
    (at("entry_points.2.arenas", ["io", "states"]), "entry point 'restore' rejected"),
    (at("entry_points.3.arenas", ["states", "io"]), "entry point 'fork' rejected"),
    (at("entry_points.0.arenas.0", "stack"), "expected one of 'io'"),
    (at("entry_points.1.name", "step"), "entry points rejected"),
    (
        at("states.0.kind", "shelf"),
        r"states\[0\].kind rejected: expected one of 'ring', 'opaque', 'append', 'host'",
    ),
    (without("states.0.kind"), r"states\[0\].kind rejected"),
    (at("states.0", 7), r"states\[0\].kind rejected"),
    (at("states.0.rows_per_page", 8), "unknown key 'rows_per_page'"),
    (at("states.0.capacity", 0), "state 'raw' capacity rejected"),
    (at("states.0.capacity", 10**6), "rejected"),
    (at("states.0.live.align", 0), "live.align"),
    (at("states.0.live.back", -1), "live.back"),
    (at("states.0.dtype", "object"), "dtype rejected"),
    (at("states.0.offset", 8), "state 'raw' offset rejected"),
    (at("states.1.name", "raw"), "states rejected: expected each name once"),
    (at("states.3.every", 2), "rows_per_page \\* every = 32 tokens, got 8 \\* 2"),
    (at("states.3.every", 5), "rows_per_page \\* every = 32 tokens, got 8 \\* 5"),
    (at("states.4.offset", 0), "rejected: expected an offset"),
    (at("weights.0.bytes", 127), "weight 'a' rejected: expected at least 128 bytes, got 127"),
    (at("weights.0.shape", [0, 4]), "dimension rejected"),
    (at("weights.0.shape", [2**39, 2**39]), "expected at least"),
    (at("weights.1.offset", 64), "weight 'b' rejected"),
    (at("weights.1.offset", 4096), "expected its end within 4096 bytes of arena weights"),
    (at("weights.1.name", "a"), "weights rejected"),
    (at("files.0.name", "../kernels.so"), "expected a plain file name"),
    (at("files.0.name", "/etc/passwd"), "expected a plain file name"),
    (at("files.0.name", "a/b"), "expected a plain file name"),
    (at("files.0.name", "a\\b"), "expected a plain file name"),
    (at("files.0.name", ".."), "expected a plain file name"),
    (at("files.0.name", ""), "expected a plain file name"),
    (at("files.0.name", "x\0"), "expected a plain file name"),
    (at("files.0.name", "manifest.json"), "expected each name once"),
    (at("files.0.name", "Weights.bin"), "expected each name once"),
    (at("files.0.name", "Manifest.JSON"), "expected each name once"),
    (at("files.1.name", "KERNELS.SO"), "expected each name once"),
    (at("files.0.sha256", "00"), "expected 64 hex digits"),
    (at("files.0.sha256", "G" * 64), "expected 64 hex digits"),
    (at("files.0.bytes", -1), "expected a size of 0 or more"),
    (at("capabilities.fork", 1), "expected true or false, got 1"),
    (at("capabilities.rewind_kinds", ["magic"]), "expected one of"),
    (at("artifact_id", "0" * 64), "expected artifact_id"),
    (at("versions.tvm", "other"), "expected artifact_id"),
]


@pytest.mark.parametrize(("edit", "message"), MALFORMED, ids=[m for _, m in MALFORMED])
def test_malformed_manifests_are_refused_by_name(edit: Edit, message: str) -> None:
    raw = copy.deepcopy(json.loads(sample().to_json()))
    edit(raw)
    with pytest.raises(ArtifactError, match=message):
        Manifest.parse(json.dumps(raw))


@pytest.mark.parametrize("arena", ["io", "state_slot", "page"])
def test_an_arena_of_one_unit_less_than_its_buffers_is_refused(arena: str) -> None:
    manifest = sample()
    size = getattr(manifest.arenas, arena) - 64
    short = dataclasses.replace(
        manifest, arenas=dataclasses.replace(manifest.arenas, **{arena: size})
    ).with_id()
    with pytest.raises(ArtifactError, match=f"expected its end within {size} bytes of arena {arena}, got"):
        Manifest.parse(short.to_json())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        '"x"',
        '{"format": "ds4c-artifact"}',
        "[" * 100_000,
        '{"a": 1, "a": 2}',
        "NaN",
    ],
)
def test_texts_that_are_no_manifest(text: str) -> None:
    with pytest.raises(ArtifactError):
        Manifest.parse(text)


def test_truncated_at_every_byte() -> None:
    text = sample().to_json().rstrip()
    for end in range(0, len(text), 7):
        with pytest.raises(ArtifactError):
            Manifest.parse(text[:end])


def test_folders_that_are_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="expected a file"):
        Manifest.read(tmp_path / "missing")
    with pytest.raises(ArtifactError, match="expected a file"):
        Manifest.read(tmp_path)
    (tmp_path / "real.json").write_text(sample().to_json())
    (tmp_path / "manifest.json").symlink_to(tmp_path / "real.json")
    with pytest.raises(ArtifactError, match="expected a file"):
        Manifest.read(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ArtifactError, match="UTF-8"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_byte_in_each_file_is_found(tmp_path: Path, name: str) -> None:
    manifest = write(tmp_path)
    verify_files(tmp_path, manifest)
    content = bytearray(FILES[name])
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
    verify_sizes(tmp_path, manifest)
    with pytest.raises(ArtifactError, match=f"for {name}, got"):
        verify_files(tmp_path, manifest)
    with pytest.raises(ArtifactError, match=f"for {name}, got"), verifying(tmp_path, manifest):
        assert name == "weights.bin", "a file that is run must be hashed before"


def test_one_flipped_byte_of_the_manifest_is_found() -> None:
    text = sample().to_json()
    changed = 0
    for index in range(0, len(text), 11):
        flipped = text[:index] + chr(ord(text[index]) ^ 1) + text[index + 1 :]
        try:
            parsed = Manifest.parse(flipped)
        except ArtifactError:
            changed += 1
        else:
            assert parsed == sample(), "a change of meaning was not found"
    assert changed > 100


def test_files_that_are_missing_short_or_links(tmp_path: Path) -> None:
    manifest = write(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(4095))
    with pytest.raises(ArtifactError, match=r"expected 4096 bytes in weights\.bin, got 4095"):
        verify_sizes(tmp_path, manifest)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ArtifactError, match=r"expected a regular file weights\.bin"):
        verify_sizes(tmp_path, manifest)
    (tmp_path / "elsewhere").write_bytes(bytes(4096))
    (tmp_path / "weights.bin").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match="regular file"):
        verify_sizes(tmp_path, manifest)


def test_weights_of_large_artifacts_are_hashed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write(tmp_path)
    monkeypatch.setattr(manifest_checks, "HASH_AT_LOAD_BYTES", 4096)
    (tmp_path / "weights.bin").write_bytes(bytes(4095) + b"x")
    with verifying(tmp_path, manifest) as later:
        assert later == ("weights.bin",)
    with pytest.raises(ArtifactError):
        verify_file(tmp_path, manifest, "weights.bin")
    (tmp_path / "kernels.so").write_bytes(b"kernelz")
    with pytest.raises(ArtifactError, match=r"kernels\.so"):
        verify_files(tmp_path, manifest)


def test_rings_must_hold_the_horizon_and_one_row_more() -> None:
    check_horizon(small_manifest())
    with pytest.raises(ArtifactError, match=r"state 'raw' rejected: expected a capacity of at least 14 rows"):
        check_horizon(small_manifest(capacity_change=-1))


def test_live_rows() -> None:
    assert [Live(4, 4).first(c) for c in (0, 3, 4, 7, 8)] == [-4, -4, 0, 0, 4]
    assert [Live(1, 127).first(c) for c in (0, 200)] == [-127, 73]
    assert (Live(4, 4).span, Live(1, 127).span, Live(128, 0).span) == (7, 127, 127)
    ring = RingState("r", "ring", "bfloat16", 8, 10, 1, 0, Live(1, 3))
    assert ring.row_bytes == 20


def test_block_layout_parts_do_not_overlap_and_are_aligned() -> None:
    at = block_layout(256, 8)
    assert (at.positions, at.row_segment, at.segment_starts, at.slots, at.size) == (16, 272, 528, 544, 560)
    assert ROWS_OFFSET == kernel.ROWS_OFFSET, "compiler and runtime fill one buffer"
    odd = block_layout(5, 17)
    assert (odd.positions, odd.row_segment, odd.segment_starts, odd.slots, odd.size) == (16, 32, 48, 80, 112)
