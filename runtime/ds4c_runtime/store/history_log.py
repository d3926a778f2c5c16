"""The log of one session's history: a header, then one frame for each turn, appended and synced.

A frame says how many tokens of the history before it stay and which tokens follow them, so appending,
rewinding and both at once are one kind of frame. The checksum of a frame covers the one before it: a frame
that is missing, changed or of another log is seen. A frame that ends beyond the file was being written when
the process died; it is cut. Anything else that is wrong is damage: the file is set aside and the turns
before it are kept.

A frame, in little-endian u32: bytes of the body, number of the frame, crc32 of these two; the body, which is
the epoch of the session, the number of tokens that stay and the tokens that follow; 16 bytes of blake2b over
head and body, with the checksum before as its key.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ds4c_runtime.errors import StoreFailedError
from ds4c_runtime.history import History, Prefix
from ds4c_runtime.store import files
from ds4c_runtime.store.header import FileKind
from ds4c_runtime.store.header import read as read_start
from ds4c_runtime.store.header import render as render_start

KIND = FileKind("a history log", b"DS4CHIST", 1, 1 << 16)
MAX_CAPACITY = 1 << 28
"""Tokens a log may be made for; bounds every frame."""
COMPACT_FACTOR, COMPACT_BYTES = 4, 1 << 18
"""A log this many times larger than its history, and this many bytes more, is written anew."""
_CHECKSUM_BYTES = 16
_HEAD_BYTES = 12
Tokens = NDArray[np.uint32]


@dataclass(frozen=True)
class LogHeader:
    """Whose history it is. `capacity`, `vocab_size` and `forked_at` in tokens, `create_time_us` since 1970.

    `tokenizer_sha256` is empty for a model without one; with `vocab_size` it says what the tokens mean.
    `idle_us` is how long the session lasts unused; 0: for ever.
    """

    session_id: str
    owner: str
    capacity: int
    vocab_size: int
    tokenizer_sha256: str
    artifact_id: str
    parent_session_id: str
    forked_at: int
    create_time_us: int
    idle_us: int = 0


@dataclass(frozen=True)
class LogContents:
    """What a log says.

    Attributes:
        header: of the log.
        tokens: the history, uint32 `[position]`.
        epoch: of the session.
        turns: complete frames.
        good_bytes: up to the end of the last of them.
        cut_bytes: of an unfinished frame behind it.
        damage: what is wrong behind it; empty if nothing is.
    """

    header: LogHeader
    tokens: Tokens
    epoch: int
    turns: int
    good_bytes: int
    cut_bytes: int
    damage: str
    checksum: bytes


class HistoryLog:
    """A log to append to. Used by one thread at a time; holds no open file between calls."""

    def __init__(self, path: Path, contents: LogContents) -> None:
        """For `create` and `open`."""
        self.path = path
        self.header = contents.header
        self._history = _known(contents.tokens)
        self.epoch = contents.epoch
        self._turns = contents.turns
        self._size = contents.good_bytes
        self._checksum = contents.checksum
        self._is_known = True

    @staticmethod
    def create(
        path: Path, header: LogHeader, tokens: Sequence[int] | History = (), epoch: int = 0
    ) -> HistoryLog:
        """Write a new log, durably.

        Raises:
            StoreFailedError: the name is taken, or the disk is full or refuses; there is no log.
        """
        if os.path.lexists(path):
            raise StoreFailedError(f"log not made: expected the free name {path}, got one that is taken")
        history = _history(tokens)
        content, contents = _render(header, _tokens_of(history), epoch)
        try:
            files.write_whole(path, [content])
        except StoreFailedError:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        log = HistoryLog(path, contents)
        log._history = history.prefix(len(history))  # shares the blocks
        return log

    @staticmethod
    def open(path: Path) -> tuple[HistoryLog, LogContents]:
        """Read a log and go on with it: cut what was unfinished, set a damaged file aside.

        Returns:
            The log and what was read. After damage the log is a new file with the turns before it.

        Raises:
            StoredFileError: no log, or a header that cannot be trusted; the file is as before.
            StoreFailedError: the disk is full or refuses; the file is as before.
        """
        contents = read_log(path)
        if not contents.damage:
            log = HistoryLog(path, contents)
            if contents.cut_bytes:
                with files.store_errors("repair", path):
                    log._append(b"")
            return log, contents
        content, kept = _render(contents.header, contents.tokens, contents.epoch)
        with files.store_errors("quarantine", path):
            temporary = files.write_temporary(path, [content])
            # The old file keeps its name until the new one takes it: no crash leaves a session without a log.
            files.copy_aside(path)
            files.publish(temporary, path)
        return HistoryLog(path, kept), contents

    @property
    def position(self) -> int:
        """Tokens of the history."""
        return len(self._history)

    @property
    def tokens(self) -> Tokens:
        """The history, uint32 `[position]`, a copy."""
        return np.array(self._history.tokens(), np.uint32)

    def sync(self, tokens: Sequence[int] | Tokens | History, epoch: int = 0) -> None:
        """Make the log end in exactly this history and epoch, on the disk; does nothing if it does already.

        For a `History` that goes on from the one synced before, the cost is that of the tokens that are new.

        Raises:
            StoreFailedError: the disk is full or refuses. The turns before are as they were, and the next
                `sync` writes what is lacking then.
        """
        new = _history(tokens)
        assert len(new) <= self.header.capacity, "a history beyond the capacity of its session"
        keep = new.common(self._history)
        if self._is_known and keep == self.position == len(new) and epoch == self.epoch:
            return
        added = np.array(new.slice(keep, len(new)), np.uint32)
        frame, checksum = _frame(self._turns, epoch, keep, added, self._checksum)
        with files.store_errors("append", self.path):
            if not self._is_known or self._is_wasteful(len(new)) or not self._append(frame):
                self._rewrite(new, epoch)
                return
        self._turns, self._checksum, self._size = self._turns + 1, checksum, self._size + len(frame)
        self._history, self.epoch = new.prefix(len(new)), epoch

    def _append(self, frame: bytes) -> bool:
        """Write behind the last complete frame and sync; `False` if the file is not the one that was left."""
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            if os.fstat(handle).st_size < self._size:
                return False
            self._is_known = False  # until the frame is there as a whole
            try:
                os.ftruncate(handle, self._size)
                os.lseek(handle, self._size, os.SEEK_SET)
                files.write_all(handle, frame)
                os.fsync(handle)
            except OSError:
                with contextlib.suppress(OSError):  # it would fill a disk that is full
                    os.ftruncate(handle, self._size)
                raise
            self._is_known = True
            return True
        finally:
            os.close(handle)

    def _rewrite(self, history: History, epoch: int) -> None:
        """Replace the file by one with a single frame."""
        self._is_known = False
        content, contents = _render(self.header, _tokens_of(history), epoch)
        files.publish(files.write_temporary(self.path, [content]), self.path)
        self._turns, self._checksum = contents.turns, contents.checksum
        self._size, self._history, self.epoch = contents.good_bytes, history.prefix(len(history)), epoch
        self._is_known = True

    def _is_wasteful(self, position: int) -> bool:
        """Whether rewinds have made the file much larger than the history."""
        return self._size > COMPACT_FACTOR * 4 * position + COMPACT_BYTES


def _history(tokens: Sequence[int] | Tokens | History) -> History:
    return tokens if isinstance(tokens, History) else History("", tokens)


def _known(tokens: Tokens) -> Prefix:
    return History("", tokens.tolist()).prefix(len(tokens))


def _tokens_of(history: History) -> Tokens:
    return np.array(history.slice(0, len(history)), np.uint32)


def read_log(path: Path) -> LogContents:
    """Read a log without changing it. Memory is bounded by the capacity in its header.

    Raises:
        StoredFileError: a link or no file, not a log, or a header that was changed.
    """
    with files.opened(path) as (file, size):
        header, digest = read_start(file, size, path, KIND, LogHeader)
        _check_header(header, path)
        at, checksum = file.tell(), digest[:_CHECKSUM_BYTES]
        tokens, epoch, turns = np.zeros(0, np.uint32), 0, 0
        while at < size:
            try:
                body = _read_body(file, size - at, turns, header, checksum)
                tokens = _apply(body.words, tokens, header)
            except _Unfinished:
                return LogContents(header, tokens, epoch, turns, at, size - at, "", checksum)
            except _Damaged as damage:
                said = f"{path.name} damaged after turn {turns}: {damage}"
                return LogContents(header, tokens, epoch, turns, at, 0, said, checksum)
            at, epoch, turns, checksum = at + body.bytes, int(body.words[0]), turns + 1, body.checksum
    return LogContents(header, tokens, epoch, turns, at, 0, "", checksum)


class _Unfinished(Exception):
    """The file ends inside a frame."""


class _Damaged(Exception):
    """A frame is there and is not what was written."""


@dataclass(frozen=True)
class _Body:
    words: Tokens
    bytes: int
    checksum: bytes


def _check_header(header: LogHeader, path: Path) -> None:
    if not 1 <= header.capacity <= MAX_CAPACITY or not 1 <= header.vocab_size <= 1 << 31:
        raise files.rejected(
            path, "a capacity and a vocabulary in range", f"{header.capacity} and {header.vocab_size}"
        )
    if header.idle_us < 0:
        raise files.rejected(path, "a time of 0 or more", header.idle_us)


def _read_body(file: BinaryIO, left: int, turn: int, header: LogHeader, key: bytes) -> _Body:
    head = file.read(min(_HEAD_BYTES, left))
    if len(head) < _HEAD_BYTES:
        raise _Unfinished
    length, number, crc = (int(n) for n in np.frombuffer(head, "<u4"))
    if zlib.crc32(head[:8]) != crc:
        raise _Damaged("expected the head of a frame, got other bytes")
    if number != turn or length % 4 or not 8 <= length <= 4 * (header.capacity + 2):
        raise _Damaged(f"expected frame {turn}, got frame {number} of {length} bytes")
    whole = length + _CHECKSUM_BYTES
    if whole > left - _HEAD_BYTES:
        raise _Unfinished
    content = file.read(whole)
    if len(content) < whole:
        raise _Unfinished
    body, checksum = content[:length], content[length:]
    if _checksum(head, body, key) != checksum:
        raise _Damaged(f"expected frame {turn} of its checksum, got other bytes")
    return _Body(np.frombuffer(body, "<u4").astype(np.uint32), _HEAD_BYTES + whole, checksum)


def _apply(words: Tokens, tokens: Tokens, header: LogHeader) -> Tokens:
    keep, added = int(words[1]), words[2:]
    if keep > len(tokens) or keep + len(added) > header.capacity or (added >= header.vocab_size).any():
        raise _Damaged("expected tokens of the vocabulary within the capacity, got others")
    return np.concatenate([tokens[:keep], added])


def _frame(number: int, epoch: int, keep: int, added: Tokens, key: bytes) -> tuple[bytes, bytes]:
    """A frame and its checksum."""
    body = np.concatenate([np.array([epoch, keep], "<u4"), added.astype("<u4")]).tobytes()
    start = np.array([len(body), number], "<u4").tobytes()
    head = start + np.array([zlib.crc32(start)], "<u4").tobytes()
    checksum = _checksum(head, body, key)
    return head + body + checksum, checksum


def _checksum(head: bytes, body: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(head + body, digest_size=_CHECKSUM_BYTES, key=key).digest()


def _render(header: LogHeader, tokens: Tokens, epoch: int) -> tuple[bytes, LogContents]:
    """A whole log with one frame (none for a new session), and what reading it gives."""
    content, digest = render_start(KIND, header)
    checksum = digest[:_CHECKSUM_BYTES]
    turns = int(len(tokens) > 0 or epoch > 0)
    if turns:
        frame, checksum = _frame(0, epoch, 0, tokens, checksum)
        content += frame
    return content, LogContents(header, tokens, epoch, turns, len(content), 0, "", checksum)
