"""What the sections of a state file hold: the snapshots of a session and the pages that they reference.

The state of a session is that of its snapshot at the current position, so saves and loads go by the one
description of a snapshot (`SnapshotLayout`) and know no state by name. Only live bytes are written; what lies
between them, which may be of another session, is written as zeros. Everything a file says is checked against
manifest and history before a byte reaches live state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import overload

import numpy as np

from ds4c_runtime.errors import MemoryBudgetError
from ds4c_runtime.history import History
from ds4c_runtime.session import Session
from ds4c_runtime.snapshot import Snapshot, SnapshotOrigin
from ds4c_runtime.snapshot_ring import Entry
from ds4c_runtime.state import StateStore
from ds4c_runtime.store import files
from ds4c_runtime.store.state_file import Bytes, Readable, StateHeader, StoredSnapshot
from ds4c_runtime.timeline import Timeline
from ds4c_runtime.transport import Place

PAGES = "pages"


@dataclass(frozen=True)
class Image:
    """A session's state as it goes to a file. Its parts are copied when they are asked for, one at a time.

    `bytes` are those of the sections; the file is larger by its header.
    """

    header: StateHeader
    sections: Mapping[str, Sequence[Bytes]]
    bytes: int


class _Parts(Sequence[Bytes]):
    """Parts of a section that are made when they are asked for."""

    def __init__(self, *makers: Callable[[], Bytes]) -> None:
        self._makers = makers

    def __len__(self) -> int:
        return len(self._makers)

    @overload
    def __getitem__(self, index: int) -> Bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Bytes]: ...
    def __getitem__(self, index: int | slice) -> Bytes | Sequence[Bytes]:
        return self._makers[index]() if isinstance(index, int) else _Parts(*self._makers[index])


@dataclass(frozen=True)
class Loaded:
    """What was taken from a file: snapshots, and how many of it are of another history or had no room."""

    snapshots: int
    left_out: int


def make_image(session: Session, artifact_id: str, layout: str) -> Image:
    """The retained snapshots of a session and the pages they reference; valid until it is used again."""
    line = session.timeline
    store, layout_of = line.store, line.store.snapshots.layout
    for lost in [e.snapshot for e in line.ring.entries if store.snapshots.is_lost(e.snapshot)]:
        store.snapshots.evict(lost)
    entries = line.ring.entries
    numbers: dict[int, int] = {}
    tokens: dict[int, int] = {}
    for entry in entries:
        for index, page in enumerate(entry.snapshot.pages):
            numbers.setdefault(page, len(numbers))
            live = entry.position - index * line.executor.limits.page_tokens
            tokens[page] = max(tokens.get(page, 0), live)
    contents = [partial(store.page_content, page, tokens[page]) for page in numbers]
    sections: dict[str, Sequence[Bytes]] = {PAGES: _Parts(*contents)}
    size = len(numbers) * store.manifest.arenas.page
    stored: list[StoredSnapshot] = []
    for number, entry in enumerate(entries):
        rows, history = f"rows {number}", f"tokens {number}"
        sections[rows] = _Parts(partial(_live_bytes, store, entry.snapshot))
        size += layout_of.parts(entry.position).total
        if entry in line.ring.branch and not entry.is_pinned:  # that one outlives rewinds that follow
            history = ""
        else:
            sections[history] = _Parts(partial(_token_bytes, entry.snapshot))
            size += 4 * entry.position
        stored.append(_stored(entry, rows, history, [numbers[p] for p in entry.snapshot.pages]))
    header = StateHeader(
        artifact_id, layout, session.session_id, session.position, session.digest, session.epoch,
        tuple(stored), (),
    )  # fmt: skip
    return Image(header, sections, size)


def load_image(session: Session, path: Path, header: StateHeader, sections: Mapping[str, Readable]) -> Loaded:
    """Give a session with a history but no state the snapshots of a file, and its state if there is one.

    Snapshots are taken as far as there is room, that of the current position first, then backwards. Those
    of a history that the session has left since they were saved are not.

    Args:
        session: new, with its history.
        path: of the file, for messages.
        header: of the file.
        sections: of the file.

    Raises:
        StoredFileError: the file says what cannot be; the session is as before.
        BackendFailedError: the state could not be put back; the session has the snapshots.
    """
    line = session.timeline
    wanted = [(s, h) for s in header.snapshots if (h := _checked(line, s, sections, path)) is not None]
    wanted.sort(key=lambda each: (each[0].position == session.position, each[0].position), reverse=True)
    loader = _Loader(line, sections)
    try:
        taken = [loader.take(stored, history) for stored, history in wanted]
    finally:
        loader.close()
    line.ring.sort_by(line.history)
    if line.ring.at(session.position) is not None:
        line.begin_recovery()
    return Loaded(sum(taken), len(header.snapshots) - sum(taken))


def _stored(entry: Entry, rows: str, tokens: str, pages: Sequence[int]) -> StoredSnapshot:
    snapshot = entry.snapshot
    return StoredSnapshot(
        snapshot.snapshot_id, snapshot.position, snapshot.epoch, snapshot.digest, snapshot.origin.value,
        entry.is_pinned, entry.label, round(snapshot.create_time * 1e6), rows, tokens, tuple(pages),
    )  # fmt: skip


def _token_bytes(snapshot: Snapshot) -> Bytes:
    return np.array(snapshot.history.tokens(), "<u4").view(np.uint8)


def _live_bytes(store: StateStore, snapshot: Snapshot) -> Bytes:
    """Rows and logits of a snapshot with zeros between them."""
    pool, manifest = store.snapshots, store.manifest
    parts, source = pool.layout.parts(snapshot.position), pool.content(snapshot)
    sizes = pool.layout.rows(snapshot.position) * [ring.row_bytes for ring in manifest.rings]
    spans = [*zip(parts.rings.tolist(), sizes.tolist(), strict=True)]
    spans.append((parts.logits, 4 * manifest.model.vocab_size))
    result = np.zeros(parts.total, np.uint8)
    for start, size in spans:
        result[start : start + size] = source[start : start + size]
    return result


def _checked(
    line: Timeline, stored: StoredSnapshot, sections: Mapping[str, Readable], path: Path
) -> History | None:
    """The history of a stored snapshot; `None` if it is one that the session has left."""
    limits, manifest = line.executor.limits, line.store.manifest
    what, context = f"snapshot {stored.snapshot_id[:40]!r}", manifest.model.context
    if stored.position > context:
        raise files.rejected(path, f"{what} at most at {context}", stored.position)
    size, page = line.store.snapshots.layout.parts(stored.position).total, manifest.arenas.page
    rows, pages = sections[stored.rows].size, sections[PAGES].size if PAGES in sections else 0
    if rows != size:
        raise files.rejected(path, f"{what} of {size} bytes at {stored.position}", f"{rows} bytes")
    if len(stored.pages) != -(-stored.position // limits.page_tokens):
        raise files.rejected(path, f"the pages of {stored.position} tokens of {what}", len(stored.pages))
    if any(not 0 <= number < (pages // page if page else 1 << 31) for number in stored.pages):
        raise files.rejected(path, f"pages inside the file of {what}", "others")
    if stored.origin not in {origin.value for origin in SnapshotOrigin}:
        raise files.rejected(path, f"an origin of {what}", repr(stored.origin[:40]))
    if not stored.tokens:
        is_mine = stored.position <= len(line.history) and stored.digest == line.history.digest_at(
            stored.position
        )
        return line.history if is_mine else None
    tokens = sections[stored.tokens]
    if tokens.size != 4 * stored.position:
        raise files.rejected(path, f"{stored.position} tokens of {what}", f"{tokens.size} bytes")
    ids = tokens.read().view("<u4")
    history = History(line.tokenizer_sha256, ids.tolist())
    if (ids >= manifest.model.vocab_size).any() or history.digest() != stored.digest:
        raise files.rejected(path, f"the tokens of {what}", "others")
    return history


class _Loader:
    """Puts pages and snapshots of a file into memory; holds one reference to each page until it is closed."""

    def __init__(self, line: Timeline, sections: Mapping[str, Readable]) -> None:
        self._line = line
        self._sections = sections
        self._pages: dict[int, int] = {}

    def take(self, stored: StoredSnapshot, history: History) -> bool:
        """Retain a snapshot; `False` if there is no room for it."""
        store, ring = self._line.store, self._line.ring
        while store.snapshots.poll(wait=True):  # room that copies to the host still hold is not short
            pass
        if not (stored.is_pinned or stored.position == len(self._line.history)) and not self._is_free(stored):
            return False
        rows = self._sections[stored.rows].read()
        try:
            self._take_pages(stored.pages)
        except MemoryBudgetError:
            return False
        reserved = store.snapshots.reserve(ring, stored.position, len(self._line.history))
        if reserved is None:
            return False
        pages = [self._pages[number] for number in stored.pages]
        store.hold_pages(pages)
        try:
            entry = store.snapshots.put_back(
                ring, reserved, rows, lambda place: _snapshot(stored, history, pages, place)
            )
        except MemoryError:  # no buffer of the host
            store.snapshots.cancel(reserved)
            store.release_pages(pages)
            return False
        entry.is_pinned, entry.label = stored.is_pinned, stored.label
        return True

    def close(self) -> None:
        """Give up the loader's own references."""
        self._line.store.release_pages(list(self._pages.values()))
        self._pages.clear()

    def _is_free(self, stored: StoredSnapshot) -> bool:
        """Whether nobody has to give way for a snapshot."""
        store = self._line.store
        lacking = sum(number not in self._pages for number in stored.pages)
        return lacking <= store.free_pages and store.snapshots.has_room(self._sections[stored.rows].size)

    def _take_pages(self, numbers: Sequence[int]) -> None:
        store = self._line.store
        lacking = [number for number in numbers if number not in self._pages]
        size = store.manifest.arenas.page
        self._pages.update(zip(lacking, store.take_pages(len(lacking)), strict=True))
        for number in lacking:
            store.fill_page(self._pages[number], self._sections[PAGES].read(number * size, size))


def _snapshot(stored: StoredSnapshot, history: History, pages: Sequence[int], place: Place) -> Snapshot:
    return Snapshot(
        stored.snapshot_id,
        stored.position,
        stored.epoch,
        stored.digest,
        history.prefix(stored.position),
        tuple(pages),
        place,
        SnapshotOrigin(stored.origin),
        holders=1,
        create_time=stored.create_time_us / 1e6,
    )
