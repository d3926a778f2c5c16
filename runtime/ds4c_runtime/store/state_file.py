"""The file of a session's state: a header that says what it belongs to, then sections of raw bytes.

Knows no layout of rows or pages: `session_store.py` says what a section holds. Everything (sizes, ranges,
hashes, artifact, layout) is checked before a byte is handed out, so that nothing of a bad file reaches live
state.

Sections lie at multiples of 64 bytes with zeros between; the last one ends the file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from ds4c_runtime.manifest import Manifest
from ds4c_runtime.store import files
from ds4c_runtime.store.header import FileKind
from ds4c_runtime.store.header import read as read_start
from ds4c_runtime.store.header import render as render_start

KIND = FileKind("a state file", b"DS4CSTAT", 1, 16 << 20)
MAX_SECTIONS = 1 << 16
ALIGNMENT = 64
CHUNK_BYTES = 1 << 20
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Section:
    """Where a run of bytes lies in the file, and its sha256 in hex."""

    name: str
    offset: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class StoredSnapshot:
    """A snapshot of the file. Position in tokens, `create_time_us` since 1970.

    `rows` names the section of its ring rows and logits. `tokens` names that of its history, uint32; it is
    empty if that is the beginning of the session's. `pages` are numbers of pages in the section of pages.
    """

    snapshot_id: str
    position: int
    epoch: int
    digest: str
    origin: str
    is_pinned: bool
    label: str
    create_time_us: int
    rows: str
    tokens: str
    pages: tuple[int, ...]


@dataclass(frozen=True)
class StateHeader:
    """What a state file belongs to and holds.

    Attributes:
        artifact_id: whose kernels and weights made the state.
        layout: `layout_fingerprint` of its manifest.
        session_id: the session.
        position: tokens of the history it was saved with.
        digest: of that history.
        epoch: as of the session.
        snapshots: retained ones.
        sections: of the file, in order.
    """

    artifact_id: str
    layout: str
    session_id: str
    position: int
    digest: str
    epoch: int
    snapshots: tuple[StoredSnapshot, ...]
    sections: tuple[Section, ...]


def layout_fingerprint(manifest: Manifest) -> str:
    """Hex sha256 of everything in a manifest that says how rows of state lie and what they mean."""
    limits = manifest.limits
    content = {
        "states": [dataclasses.asdict(state) for state in manifest.states],
        "slot": manifest.arenas.state_slot,
        "page": manifest.arenas.page,
        "page_tokens": limits.page_tokens,
        "horizon": limits.horizon,
        "vocab_size": manifest.model.vocab_size,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_state(path: Path, header: StateHeader, sections: Mapping[str, Sequence[Bytes]]) -> int:
    """Write a state file in place of the one before, durably.

    Args:
        path: of the file.
        header: its `sections` are left out and made here.
        sections: content by name, each in parts that follow each other; gone through twice.

    Returns:
        Bytes of the file.

    Raises:
        StoreFailedError: the disk is full or refuses; the file before is as it was.
    """
    measured = {name: _measured(parts) for name, parts in sections.items()}
    # Offsets stand in the header, whose length depends on their digits: room for it is taken in steps.
    room = ALIGNMENT
    while True:
        placed = _place(measured, room)
        start, _ = render_start(KIND, dataclasses.replace(header, sections=placed), room)
        if len(start) <= room:
            return files.write_whole(path, _parts(start, placed, sections))
        room = _aligned(len(start))


def read_header(path: Path) -> tuple[StateHeader, int]:
    """Read and check the header of a state file and the ranges of its sections, not their content.

    Returns:
        The header and the bytes of the file.

    Raises:
        StoredFileError: no such file, not a state file, or a header that contradicts itself or the file.
    """
    with files.opened(path) as (file, size):
        return _read_header(file, size, path), size


@contextmanager
def reading(
    path: Path, artifact_id: str, layout: str
) -> Generator[tuple[StateHeader, Mapping[str, Readable]]]:
    """Open a state file after checking all of it; sections can be read as long as the block lasts.

    Raises:
        StoredFileError: as `read_header`, or of another artifact or layout, or with a changed byte.
        StoreFailedError: the system cannot read it.
    """
    with files.opened(path) as (file, size):
        header = _read_header(file, size, path)
        for what, expected, got in (
            ("artifact", artifact_id, header.artifact_id),
            ("layout", layout, header.layout),
        ):
            if got != expected:
                raise files.rejected(path, f"{what} {expected[:16]}", got[:16])
        for section in header.sections:
            if any(files.read_exactly(file, section.offset - file.tell(), path)):
                raise files.rejected(path, "zeros between sections", "other bytes")
            _check_section(file, section, path)
        yield header, {section.name: InFile(file, path, section) for section in header.sections}


class Readable(Protocol):
    """The content of a section."""

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    def read(self, start: int = 0, count: int | None = None) -> Bytes:
        """Some or all of them, a copy."""
        ...


@dataclass(frozen=True)
class InFile:
    """A section of an open file."""

    file: BinaryIO
    path: Path
    section: Section

    @property
    def size(self) -> int:
        """Bytes."""
        return self.section.bytes

    def read(self, start: int = 0, count: int | None = None) -> Bytes:
        """Some or all of them, a copy."""
        wanted = self.size - start if count is None else count
        assert 0 <= start <= start + wanted <= self.size
        self.file.seek(self.section.offset + start)
        return np.frombuffer(files.read_exactly(self.file, wanted, self.path), np.uint8)


def _check_section(file: BinaryIO, section: Section, path: Path) -> None:
    """Hash a section; leaves the file behind it."""
    digest, left = hashlib.sha256(), section.bytes
    while left:
        part = files.read_exactly(file, min(left, CHUNK_BYTES), path)
        digest.update(part)
        left -= len(part)
    if digest.hexdigest() != section.sha256:
        raise files.rejected(path, f"section {section.name!r} of its sha256", "another")


def _read_header(file: BinaryIO, size: int, path: Path) -> StateHeader:
    header, _ = read_start(file, size, path, KIND, StateHeader)
    _check_sections(header, file.tell(), size, path)
    _check_snapshots(header, path)
    return header


def _check_sections(header: StateHeader, start: int, size: int, path: Path) -> None:
    """Sections follow each other without overlap or hole, and the last one ends the file."""
    if len(header.sections) > MAX_SECTIONS:
        raise files.rejected(path, f"at most {MAX_SECTIONS} sections", len(header.sections))
    if len({section.name for section in header.sections}) != len(header.sections):
        raise files.rejected(path, "sections of different names", "a name twice")
    end = start
    for section in header.sections:
        if section.bytes < 0 or section.offset != _aligned(end):
            raise files.rejected(path, f"section {section.name!r} at {_aligned(end)}", section.offset)
        end = section.offset + section.bytes
    if end != size:
        raise files.rejected(path, f"{end} bytes", size)


def _check_snapshots(header: StateHeader, path: Path) -> None:
    names = {section.name for section in header.sections}
    if header.position < 0 or header.epoch < 0:
        raise files.rejected(path, "a position and an epoch", f"{header.position} and {header.epoch}")
    for snapshot in header.snapshots:
        if snapshot.position < 1 or snapshot.rows not in names or snapshot.tokens not in {"", *names}:
            raise files.rejected(path, "snapshots of sections", f"{snapshot.snapshot_id!r}")
    if len({s.snapshot_id for s in header.snapshots}) != len(header.snapshots):
        raise files.rejected(path, "snapshots of different ids", "an id twice")


def _place(measured: Mapping[str, tuple[int, str]], start: int) -> tuple[Section, ...]:
    """Sections one after the other from `start`."""
    placed: list[Section] = []
    for name, (size, sha256) in measured.items():
        placed.append(Section(name, _aligned(start), size, sha256))
        start = placed[-1].offset + size
    return tuple(placed)


def _parts(
    start: bytes, placed: Sequence[Section], sections: Mapping[str, Sequence[Bytes]]
) -> Iterator[files.Part]:
    yield start
    end = len(start)
    for section in placed:
        yield bytes(section.offset - end)
        for part in sections[section.name]:
            yield np.ascontiguousarray(part).data
        end = section.offset + section.bytes


def _measured(parts: Sequence[Bytes]) -> tuple[int, str]:
    """Bytes and hex sha256 of all parts."""
    digest, size = hashlib.sha256(), 0
    for part in parts:
        digest.update(np.ascontiguousarray(part).data)
        size += part.size
    return size, digest.hexdigest()


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
