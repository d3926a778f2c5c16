"""The state file: all of it is right, or none of it is handed out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_input.helpers import mounted
from fake_executable import small_manifest
from unit.runtime.store.crashes import Crash, failing, number_of_calls

from ds4c_runtime.errors import StoredFileError, StoreFailedError
from ds4c_runtime.store.header import PREFIX_BYTES
from ds4c_runtime.store.state_file import (
    KIND,
    StateHeader,
    StoredSnapshot,
    layout_fingerprint,
    read_header,
    reading,
    write_state,
)

ARTIFACT, LAYOUT = "a" * 64, "b" * 64
SNAPSHOT = StoredSnapshot("s1", 7, 2, "d" * 64, "turn_end", True, "here", 17, "snapshot 0", "", (0, 1))
HEADER = StateHeader(ARTIFACT, LAYOUT, "session", 9, "e" * 64, 2, (SNAPSHOT,), ())
ONE_LINE = r"^\S+ rejected: expected [^\n]+, got [^\n]+$"


def content(seed: int = 0) -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(seed)

    def part(size: int) -> np.ndarray:
        return rng.integers(0, 256, size, np.uint8)

    return {"pages": [part(128), part(64)], "snapshot 0": [part(37), part(1)], "empty": [], "last": [part(5)]}


def joined(parts: list[np.ndarray]) -> bytes:
    return b"".join(part.tobytes() for part in parts)


def written(folder: Path, seed: int = 0) -> Path:
    write_state(folder / "s.state", HEADER, content(seed))
    return folder / "s.state"


def read_state(path: Path, artifact_id: str, layout: str) -> tuple[StateHeader, dict[str, bytes]]:
    with reading(path, artifact_id, layout) as (header, sections):
        return header, {name: section.read().tobytes() for name, section in sections.items()}


def is_version(path: Path, seed: int) -> bool:
    """Whether the file is whole and has that content."""
    _, sections = read_state(path, ARTIFACT, LAYOUT)
    return sections == {name: joined(parts) for name, parts in content(seed).items()}


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "s.state"
    size = write_state(path, HEADER, content())
    header, _ = read_state(path, ARTIFACT, LAYOUT)
    assert dataclasses.replace(header, sections=()) == HEADER
    assert [(s.name, s.bytes) for s in header.sections] == [
        ("pages", 192),
        ("snapshot 0", 38),
        ("empty", 0),
        ("last", 5),
    ]
    assert all(s.offset % 64 == 0 for s in header.sections)
    assert is_version(path, 0)
    assert size == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_header(path) == (header, size)


def test_a_header_of_any_length(tmp_path: Path) -> None:
    """The room for the header depends on itself."""
    for length in range(130):
        header = dataclasses.replace(HEADER, session_id="x" * length)
        write_state(tmp_path / "s.state", header, content())
        assert read_header(tmp_path / "s.state")[0].session_id == header.session_id
        assert is_version(tmp_path / "s.state", 0)


def test_parts_of_a_section(tmp_path: Path) -> None:
    with reading(written(tmp_path), ARTIFACT, LAYOUT) as (_, sections):
        whole = joined(content()["pages"])
        pages = sections["pages"]
        assert pages.size == 192
        assert pages.read(64, 64).tobytes() == whole[64:128]
        assert pages.read(100).tobytes() == whole[100:]
        assert pages.read(192).size == 0
        assert sections["last"].read().tobytes() == joined(content()["last"])
        assert pages.read(0, 5).tobytes() == whole[:5]


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_any_changed_byte_is_found(tmp_path: Path, mask: int) -> None:
    path = written(tmp_path)
    good = path.read_bytes()
    for at in range(len(good)):
        changed = bytearray(good)
        changed[at] ^= mask
        path.write_bytes(changed)
        with pytest.raises(StoredFileError, match=ONE_LINE):
            read_state(path, ARTIFACT, LAYOUT)


def test_any_other_length_is_found(tmp_path: Path) -> None:
    path = written(tmp_path)
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(StoredFileError, match=ONE_LINE):
            read_state(path, ARTIFACT, LAYOUT)
    path.write_bytes(good + b"\0")
    with pytest.raises(StoredFileError, match=ONE_LINE):
        read_state(path, ARTIFACT, LAYOUT)


def test_another_artifact_and_another_layout(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(StoredFileError, match="expected artifact cccc"):
        read_state(path, "c" * 64, LAYOUT)
    with pytest.raises(StoredFileError, match="expected layout cccc"):
        read_state(path, ARTIFACT, "c" * 64)


Fields = dict[str, Any]


def in_section(number: int, **values: object) -> Callable[[Fields], object]:
    return lambda fields: fields["sections"][number].update(values)


def in_snapshot(**values: object) -> Callable[[Fields], object]:
    return lambda fields: fields["snapshots"][0].update(values)


def twice(fields: Fields) -> None:
    fields["sections"][1]["name"] = "pages"
    fields["snapshots"] = []


def huge_pair(fields: Fields) -> None:
    """Ranges whose sum overflows 64 bits to something small."""
    fields["sections"][0].update(bytes=2**64)
    fields["sections"][1].update(offset=2**64 + fields["sections"][0]["offset"])


FIELDS: dict[str, Callable[[Fields], object]] = {
    "an unknown key": lambda f: f.update(more=1),
    "a missing key": lambda f: f.pop("epoch"),
    "a number as text": lambda f: f.update(position="9"),
    "a fraction": lambda f: f.update(position=9.0),
    "a truth value": lambda f: f.update(position=True),
    "a negative position": lambda f: f.update(position=-1),
    "a negative epoch": lambda f: f.update(epoch=-1),
    "a snapshot at zero": in_snapshot(position=0),
    "a snapshot twice": lambda f: f["snapshots"].append(f["snapshots"][0]),
    "a snapshot without tokens": in_snapshot(tokens="nowhere"),
    "a snapshot without rows": in_snapshot(rows="nowhere"),
    "a snapshot of unknown keys": in_snapshot(more=1),
    "pages that are no numbers": in_snapshot(pages=["0"]),
    "a name twice": twice,
    "a negative size": in_section(0, bytes=-64),
    "a huge size": in_section(0, bytes=1 << 62),
    "a huge size and offset": huge_pair,
    "a huge last section": in_section(3, bytes=1 << 40),
    "an offset inside the header": in_section(0, offset=0),
    "a negative offset": in_section(0, offset=-64),
    "an offset not aligned": in_section(1, offset=100),
    "a hash that is no hash": in_section(0, sha256="z"),
    "the hash of another section": lambda f: in_section(0, sha256=f["sections"][1]["sha256"])(f),
    "sections that overlap": lambda f: in_section(1, offset=f["sections"][0]["offset"])(f),
    "sections in another order": lambda f: f["sections"].reverse(),
    "a section too few": lambda f: f["sections"].pop(),
    "no section": lambda f: f.update(sections=[], snapshots=[]),
    "too many sections": lambda f: f.update(sections=f["sections"] * 20000),
}


def with_header(good: bytes, text: bytes, length: int | None = None, version: int = 1) -> bytes:
    """The file with another header of the right sha256; its sections stay where they are if it fits."""
    end = PREFIX_BYTES + int(np.frombuffer(good, "<u4", 1, 12)[0])
    text = text.ljust(end - PREFIX_BYTES)
    start = KIND.magic + np.array([version, len(text) if length is None else length], "<u4").tobytes()
    return start + hashlib.sha256(start + text).digest() + text + good[end:]


def header_text(good: bytes) -> Fields:
    length = int(np.frombuffer(good, "<u4", 1, 12)[0])
    return json.loads(good[PREFIX_BYTES : PREFIX_BYTES + length])


@pytest.mark.parametrize("change", FIELDS.values(), ids=FIELDS)
def test_a_header_that_says_what_cannot_be(tmp_path: Path, change: Callable[[Fields], object]) -> None:
    path = written(tmp_path)
    fields = header_text(good := path.read_bytes())
    assert is_version(path, 0)
    change(fields)
    path.write_bytes(with_header(good, json.dumps(fields, separators=(",", ":")).encode()))
    with pytest.raises(StoredFileError, match=ONE_LINE):
        read_state(path, ARTIFACT, LAYOUT)


def test_the_table_changes_a_header_that_is_taken_unchanged(tmp_path: Path) -> None:
    path = written(tmp_path)
    good = path.read_bytes()
    path.write_bytes(with_header(good, json.dumps(header_text(good), separators=(",", ":")).encode()))
    assert is_version(path, 0)


TEXTS: dict[str, tuple[bytes, int | None, int]] = {
    "no JSON": (b"{", None, 1),
    "no UTF-8": (b"\xff", None, 1),
    "a list": (b"[]", None, 1),
    "nested without end": (b"[" * 100000, None, 1),
    "a huge number": (b'{"position": 1' + b"0" * 5000 + b"}", None, 1),
    "longer than the file": (b"{}", 1 << 20, 1),
    "the longest": (b"{}", 2**32 - 1, 1),
    "another version": (b"{}", None, 2),
}


@pytest.mark.parametrize(("text", "length", "version"), TEXTS.values(), ids=TEXTS)
def test_headers_that_are_none(tmp_path: Path, text: bytes, length: int | None, version: int) -> None:
    path = written(tmp_path)
    path.write_bytes(with_header(path.read_bytes(), text, length, version))
    with pytest.raises(StoredFileError, match=ONE_LINE):
        read_state(path, ARTIFACT, LAYOUT)


def test_a_huge_header_of_a_sparse_file(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(with_header(path.read_bytes(), b"{}", 2**32 - 1))
    os.truncate(path, 1 << 40)
    with pytest.raises(StoredFileError, match="a header inside the file"):
        read_state(path, ARTIFACT, LAYOUT)


NO_FILES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "empty": lambda path: path.touch(),
    "a link to a good file": lambda path: path.symlink_to(written(path.parent.parent)),
    "a folder": lambda path: path.mkdir(),
    "a FIFO": lambda path: os.mkfifo(path),
}


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
def test_what_is_no_state_file(tmp_path: Path, make: Callable[[Path], object]) -> None:
    (tmp_path / "in").mkdir()
    make(tmp_path / "in" / "s.state")
    with pytest.raises(StoredFileError, match=ONE_LINE):
        read_state(tmp_path / "in" / "s.state", ARTIFACT, LAYOUT)


def test_death_at_every_call_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    calls = number_of_calls(lambda: written(tmp_path, 0))
    for at in range(calls):
        path = written(tmp_path, 0)
        with failing(at, crash=True), pytest.raises(Crash):
            written(tmp_path, 1)
        assert is_version(path, 0) or is_version(path, 1)


def test_a_full_disk_at_every_call_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    calls = number_of_calls(lambda: written(tmp_path, 0))
    for at in range(calls):
        path = written(tmp_path, 0)
        with (
            failing(at),
            pytest.raises(StoreFailedError, match="got No space left on device"),
        ):
            written(tmp_path, 1)
        assert is_version(path, 0) or is_version(path, 1)
        assert [p.name for p in tmp_path.iterdir()] == ["s.state"]


def test_content_and_names_are_durable_before_the_write_is_answered(tmp_path: Path) -> None:
    """A power cut takes what was not synced: content before its name, the name before the answer."""
    with failing(1 << 30) as made:
        written(tmp_path)
    assert [name for name in made if name != "write"] == ["unlink", "open", "fsync", "rename", "fsync"]
    assert made.index("write") < made.index("fsync") < made.index("rename")


def test_a_full_disk(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk:
        if disk is None:
            pytest.skip("mount: not allowed here; needs root")
        path = written(disk)
        with pytest.raises(StoreFailedError, match="got No space left on device"):
            write_state(path, HEADER, {**content(1), "last": [np.zeros(100_000, np.uint8)]})
        assert is_version(path, 0)
        assert [p.name for p in disk.iterdir()] == ["s.state"]


def test_a_link_in_the_way_of_the_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    (tmp_path / "s.state.tmp").symlink_to(tmp_path / "precious")
    assert is_version(written(tmp_path), 0)
    assert (tmp_path / "precious").read_text() == "x"


LAYOUTS: dict[str, dict[str, int]] = {
    "horizon": {"horizon": 7},
    "pages": {"page_tokens": 16},
    "vocabulary": {"vocab_size": 1000},
    "window": {"window": 9},
    "capacity": {"capacity_change": 1},
}


@pytest.mark.parametrize("change", LAYOUTS.values(), ids=LAYOUTS)
def test_the_fingerprint_tells_layouts_apart(change: dict[str, int]) -> None:
    assert layout_fingerprint(small_manifest(**change)) != layout_fingerprint(small_manifest())


@pytest.mark.parametrize("limit", ["horizon", "page_tokens"])
def test_limits_that_say_what_rows_mean_are_in_the_fingerprint(limit: str) -> None:
    manifest = small_manifest()
    limits = dataclasses.replace(manifest.limits, **{limit: getattr(manifest.limits, limit) - 1})
    other = dataclasses.replace(manifest, limits=limits)
    assert layout_fingerprint(other) != layout_fingerprint(manifest)


def test_the_fingerprint_is_of_the_state_alone() -> None:
    other = small_manifest(max_rows=20, eos_token_ids=(2,))
    assert other.artifact_id != small_manifest().artifact_id
    assert layout_fingerprint(other) == layout_fingerprint(small_manifest())


def test_sections_of_every_state_are_in_the_fingerprint() -> None:
    manifest = small_manifest()
    for index in range(len(manifest.states)):
        fewer = dataclasses.replace(manifest, states=manifest.states[:index] + manifest.states[index + 1 :])
        assert layout_fingerprint(fewer) != layout_fingerprint(manifest)
