"""The folder of an engine's stored sessions: names, scan at the start, quarantine, bytes of states.

A session is a log of its history and, at times, a file of its state. A file that fails its checks is set
aside and not read again. One that passed them is on trial while tokens are first evaluated from what it held:
if the process dies meanwhile, or the device fails, it is set aside too. What a state holds is said elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ds4c_runtime.errors import StoredFileError, StoreFailedError
from ds4c_runtime.history import History
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.store import files
from ds4c_runtime.store.history_log import HistoryLog, LogHeader
from ds4c_runtime.store.state_file import (
    Bytes,
    Readable,
    StateHeader,
    layout_fingerprint,
    read_header,
    reading,
    write_state,
)

LOG, STATE, TRIAL = ".log", ".state", ".trial"
State = tuple[StateHeader, Mapping[str, Readable]]
OnError = Callable[[str, str], None]
"""Told of what went wrong: its kind (`write`, `read`, `integrity`, `foreign`) and one line."""


def ignore(_kind: str, _line: str) -> None:
    """An `OnError` for those who do not want to know."""


class SessionFolder:
    """Stored sessions of one artifact. One process at a time, and in it one thread."""

    def __init__(
        self, folder: Path, manifest: Manifest, tokenizer_sha256: str, on_error: OnError = ignore
    ) -> None:
        """Make the folder if there is none, and lock it.

        Raises:
            StoreFailedError: it cannot be made or written, or another process uses it.
        """
        self.folder = folder
        self.artifact_id = manifest.artifact_id
        self.layout = layout_fingerprint(manifest)
        self._vocab_size, self._context = manifest.model.vocab_size, manifest.model.context
        self._tokenizer_sha256 = tokenizer_sha256
        self._on_error = on_error
        self._sizes: dict[Path, int] = {}
        self._pinned: set[Path] = set()
        self._foreign: set[Path] = set()
        self._bad: dict[Path, int] = {}
        files.make_folder(folder)
        self._lock = _locked(folder)

    @property
    def bytes_used(self) -> int:
        """Bytes of all states and of what was set aside."""
        return sum([*self._sizes.values()]) + sum([*self._bad.values()])  # asked for by other threads too

    @property
    def bad_files(self) -> list[tuple[Path, int]]:
        """What was set aside and its bytes, oldest first."""
        return list(self._bad.items())

    def state_bytes(self, log: HistoryLog) -> int:
        """Bytes of a session's state, 0 if it has none."""
        return self._sizes.get(log.path, 0)

    def is_pinned(self, log: HistoryLog) -> bool:
        """Whether a session's state has a snapshot that somebody has pinned."""
        return log.path in self._pinned

    def close(self) -> None:
        """Let another process use the folder; closing twice is allowed."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def scan(self) -> list[HistoryLog]:
        """All sessions. Drops what was not finished and sets aside what is bad; says so to `on_error`."""
        found: list[HistoryLog] = []
        with files.store_errors("scan", self.folder):
            paths = sorted(self.folder.iterdir())
        logs = {path for path in paths if path.suffix == LOG}
        for path in paths:
            if path.name.endswith(files.TEMPORARY_SUFFIX):
                self._tried(lambda path=path: files.remove(path))
            elif path.suffix in (STATE, TRIAL) and path.with_suffix(LOG) not in logs:
                self._tried(lambda path=path: files.remove(path))
            elif path.suffix == TRIAL:
                self._on_error(
                    "integrity", f"{path.name} rejected: expected a state in use, got one on trial"
                )
                self._tried(lambda path=path: _rename(path, _bad(path)))
        for path in sorted(logs):
            if (log := self._open(path)) is not None:
                found.append(log)
                self._note_state(log)
        self._note_bad()
        return found

    def is_foreign(self, owner: str, session_id: str) -> bool:
        """Whether the name of a session's log is taken by one that `scan` left alone."""
        return self._path(owner, session_id) in self._foreign

    def create(self, header: LogHeader, tokens: Sequence[int] | History, epoch: int) -> HistoryLog:
        """Begin the log of a session.

        Raises:
            StoreFailedError: the disk is full or refuses; there is none.
        """
        return HistoryLog.create(self._path(header.owner, header.session_id), header, tokens, epoch)

    def write_state(
        self, log: HistoryLog, header: StateHeader, sections: Mapping[str, Sequence[Bytes]]
    ) -> None:
        """Write a session's state in place of the one before.

        Raises:
            StoreFailedError: the disk is full or refuses; the one before is as it was.
        """
        self._note(log, write_state(log.path.with_suffix(STATE), header, sections), header)
        self._tried(lambda: files.remove(log.path.with_suffix(TRIAL)))

    @contextmanager
    def reading(self, log: HistoryLog) -> Generator[State | None]:
        """Read a session's state, all of it checked; `None` if there is none.

        Raises:
            StoredFileError: it is bad, be it that the block finds this out, and was set aside.
            StoreFailedError: it cannot be read now, which says nothing about the file.
        """
        path = log.path.with_suffix(STATE)
        if not os.path.lexists(path):
            yield None
            return
        try:
            with reading(path, self.artifact_id, self.layout) as state:
                owner = state[0].session_id
                if owner != log.header.session_id:
                    raise files.rejected(path, f"session {log.header.session_id!r}", repr(owner))
                yield state
        except StoredFileError:
            self.reject_state(log)
            raise

    def begin_trial(self, log: HistoryLog) -> None:
        """Tokens are about to be evaluated from the state that was read."""
        path = log.path.with_suffix(STATE)
        if os.path.lexists(path):
            self._tried(lambda: _rename(path, log.path.with_suffix(TRIAL)))

    def accept_state(self, log: HistoryLog) -> None:
        """The state on trial was used with success."""
        trial = log.path.with_suffix(TRIAL)
        if os.path.lexists(trial):
            self._tried(lambda: _rename(trial, log.path.with_suffix(STATE)))

    def reject_state(self, log: HistoryLog) -> None:
        """The state of a session is bad: set it aside, in place of one that was set aside before."""
        self._forget(log)
        for suffix in (STATE, TRIAL):
            path = log.path.with_suffix(suffix)
            if os.path.lexists(path):
                self._tried(lambda path=path: _rename(path, _bad(path)))
        self._note_bad()

    def drop_bad(self, path: Path) -> None:
        """Delete what was set aside."""
        self._bad.pop(path, None)
        self._tried(lambda: files.remove(path))

    def drop_state(self, log: HistoryLog) -> None:
        """Delete a session's state; its history stays."""
        self._forget(log)
        for suffix in (STATE, TRIAL):
            self._tried(lambda suffix=suffix: files.remove(log.path.with_suffix(suffix)))

    def remove(self, log: HistoryLog) -> None:
        """Delete a session and what was set aside of it.

        Raises:
            StoreFailedError: its log cannot be deleted; the session is as before.
        """
        files.remove(log.path)
        self.drop_state(log)
        self._note_bad()
        for path, _ in self.bad_files:
            if path.name.split(".")[0] == log.path.stem:
                self.drop_bad(path)

    def say(self, error: StoredFileError | StoreFailedError, kind: str) -> None:
        """Tell `on_error` of an error that the caller goes on after."""
        self._on_error(kind, str(error))

    def _note_state(self, log: HistoryLog) -> None:
        """Look at the header of a state that was found."""
        path = log.path.with_suffix(STATE)
        if not os.path.lexists(path):
            return
        try:
            header, size = read_header(path)
            self._note(log, size, header)
        except StoredFileError as error:
            self.say(error, "integrity")
            self._tried(lambda: _rename(path, _bad(path)))
        except StoreFailedError as error:
            self.say(error, "read")

    def _note(self, log: HistoryLog, size: int, header: StateHeader) -> None:
        self._forget(log)
        self._sizes[log.path] = size
        if any(snapshot.is_pinned for snapshot in header.snapshots):
            self._pinned.add(log.path)

    def _note_bad(self) -> None:
        """See what was set aside, be it by an earlier process."""
        found: list[tuple[int, Path, int]] = []
        with contextlib.suppress(OSError):
            for path in self.folder.glob("*" + files.BAD_SUFFIX):
                if {LOG, STATE, TRIAL} & {*path.suffixes}:
                    status = path.lstat()
                    found.append((status.st_mtime_ns, path, status.st_size))
        self._bad = {path: size for _, path, size in sorted(found)}

    def _forget(self, log: HistoryLog) -> None:
        self._sizes.pop(log.path, None)
        self._pinned.discard(log.path)

    def _open(self, path: Path) -> HistoryLog | None:
        try:
            log, contents = HistoryLog.open(path)
        except StoredFileError as error:
            self._reject(path, str(error))
            return None
        except StoreFailedError as error:
            self._foreign.add(path)
            self.say(error, "read")
            return None
        if contents.damage:
            self._on_error("integrity", f"{contents.damage}; kept {len(contents.tokens)} tokens before it")
        header = log.header
        if path != self._path(header.owner, header.session_id):
            self._reject(path, f"{path.name} rejected: expected the log of its name, got another session's")
            return None
        ours = (self._tokenizer_sha256, self._vocab_size)
        if (header.tokenizer_sha256, header.vocab_size) != ours or header.capacity > self._context:
            self._foreign.add(path)
            self._on_error(
                "foreign",
                f"{path.name} left alone: expected a session for this tokenizer and context, got another",
            )
            return None
        return log

    def _reject(self, path: Path, line: str) -> None:
        self._on_error("integrity", line)
        self._tried(lambda: files.set_aside(path))

    def _tried(self, call: Callable[[], object]) -> None:
        """Do what nothing depends on; say it if it fails."""
        try:
            call()
        except StoreFailedError as error:
            self.say(error, "write")

    def _path(self, owner: str, session_id: str) -> Path:
        """Ids may hold any letter case and dots; a digest is a safe name on every file system."""
        digest = hashlib.sha256(f"{owner}\0{session_id}".encode()).hexdigest()
        return self.folder / (digest[:32] + LOG)


def _bad(path: Path) -> Path:
    """A state is large: only the last bad one of a session is kept."""
    return path.with_suffix(STATE + files.BAD_SUFFIX)


def _rename(source: Path, target: Path) -> None:
    with files.store_errors("rename", target):
        os.replace(source, target)
        files.sync_folder(target.parent)


def _locked(folder: Path) -> int:
    path = folder / "lock"
    with files.store_errors("lock", path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, files.FILE_MODE)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise StoreFailedError(
            f"session folder not opened: expected {folder} to be free, got one that another process uses; "
            "name another folder"
        ) from error
    return handle
