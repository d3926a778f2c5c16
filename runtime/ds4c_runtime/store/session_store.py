"""Saves sessions to a folder and brings them back: history first, then state, within a budget of bytes.

A session is never lost for its state: whatever is wrong with that, it comes back from its history. Where
bytes are short, what was set aside goes first, then the states that are cheapest to rebuild, those with a
pinned snapshot never.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ds4c_runtime.errors import BackendFailedError, MemoryBudgetError, StoredFileError, StoreFailedError
from ds4c_runtime.first_use import FirstUse
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.session import Session
from ds4c_runtime.snapshot import SnapshotOrigin
from ds4c_runtime.state import StateStore
from ds4c_runtime.step import Stepper
from ds4c_runtime.store.history_log import HistoryLog, LogHeader
from ds4c_runtime.store.session_folder import OnError, SessionFolder, ignore
from ds4c_runtime.store.session_image import load_image, make_image


@dataclass(frozen=True)
class Storage:
    """Where sessions are kept.

    Attributes:
        folder: made if there is none.
        disk_budget: most bytes of all states and of files that were set aside; histories are small and not
            counted. `None`: any.
        on_error: told of what went wrong in the folder and was dealt with: its kind and one line.
    """

    folder: Path
    disk_budget: int | None = None
    on_error: OnError = ignore


class SessionStore:
    """The sessions of a folder; one process at a time, and in it one thread."""

    def __init__(self, manifest: Manifest, storage: Storage, tokenizer_sha256: str = "") -> None:
        """Make or open the folder.

        Args:
            manifest: whose sessions they are.
            storage: where and how much.
            tokenizer_sha256: hex, or empty.

        Raises:
            StoreFailedError: the folder cannot be made or written, or another process uses it.
        """
        self.manifest = manifest
        self.tokenizer_sha256 = tokenizer_sha256
        self.disk_budget = storage.disk_budget
        self.folder = SessionFolder(storage.folder, manifest, tokenizer_sha256, storage.on_error)
        self._logs: dict[Path, HistoryLog] = {}
        self._written: dict[Path, HistoryLog] = {}

    @property
    def bytes_used(self) -> int:
        """Bytes of all states in the folder and of what was set aside there."""
        return self.folder.bytes_used

    def close(self) -> None:
        """Let another process use the folder."""
        self.folder.close()

    def scan(self) -> list[HistoryLog]:
        """All sessions that are there, with their histories; their states are read by `restore`."""
        found = self.folder.scan()
        self._logs = {log.path: log for log in found}
        self._trim_bad()
        return found

    def create(self, header: LogHeader, session: Session) -> HistoryLog:
        """Begin to store a session: its history as it is now.

        Raises:
            StoreFailedError: the disk is full or refuses.
        """
        log = self.folder.create(header, session.timeline.history, session.epoch)
        self._logs[log.path] = log
        return log

    def header(self, session: Session, owner: str = "", created_us: int = 0) -> LogHeader:
        """The header for the log of a session that was not forked."""
        return LogHeader(
            session.session_id, owner, session.capacity, self.manifest.model.vocab_size,
            self.tokenizer_sha256, self.manifest.artifact_id, "", 0, created_us,
        )  # fmt: skip

    def save(self, log: HistoryLog, session: Session, *, exact: bool = True) -> bool:
        """Write the history of a session, then its state: its snapshots, one of them at its position.

        All of the state is written before this returns, be it hundreds of MB: what would run in between
        could give up a snapshot that is being written.

        Args:
            log: of the session.
            session: not changed but for that snapshot.
            exact: run one token if the logits of the position are not held; otherwise the last snapshot
                before the position has to do, and some tokens are replayed after the load.

        Returns:
            Whether the state was written; `False` if the budget has no room for it, or nothing to write.

        Raises:
            StoreFailedError: the disk is full or refuses; what was there before is as it was.
        """
        log.sync(session.timeline.history, session.epoch)
        if session.state_valid:
            with contextlib.suppress(BackendFailedError, MemoryBudgetError):  # the snapshots before will do
                (session.take_snapshot if exact else session.keep_snapshot)(SnapshotOrigin.SAVE)
        if not session.snapshots():
            return False
        image = make_image(session, self.manifest.artifact_id, self.folder.layout)
        if not self._make_room(log, image.bytes):
            return False
        self.folder.write_state(log, image.header, image.sections)
        self._written[log.path] = log
        return True

    def load(self, log: HistoryLog, stepper: Stepper, states: StateStore) -> Session:
        """Open a session with the history of a log, and the state that `restore` finds.

        Raises:
            SessionLimitError: all slots are taken.
        """
        session = Session(stepper, states, log.header.session_id, log.header.capacity, self.tokenizer_sha256)
        session.timeline.history.extend(log.tokens.tolist())
        session.timeline.epoch = log.epoch
        self.restore(log, session)
        return session

    def restore(self, log: HistoryLog, session: Session) -> None:
        """Give a session, which has its history and no state, what its file holds.

        Never fails: a bad file is set aside, and then, as without one, the first use rebuilds the state, for
        which the session knows the reason. The file is on trial from the first step of the session, or of a
        fork of it, until `settle`.
        """
        line = session.timeline
        line.ring.was_evicted = True  # the reason, if there is no state in the file
        try:
            with self.folder.reading(log) as state:
                if state is not None:
                    load_image(session, log.path, *state)
                    line.first_use = FirstUse(
                        partial(self.folder.begin_trial, log), partial(self._end_trial, log)
                    )
        except StoredFileError as error:
            line.integrity_failed = True
            line.store.snapshots.clear(line.ring)
            self.folder.say(error, "integrity")
        except StoreFailedError as error:
            line.store.snapshots.clear(line.ring)
            self.folder.say(error, "read")
        except BackendFailedError:
            self.folder.reject_state(log)
        self._trim_bad()
        if session.state_valid:
            line.ring.was_evicted = False

    def settle(self, session: Session) -> None:
        """A turn of a session has ended: judge the file that its state was read from, if it was used.

        If the device failed, nothing that was read is used again.
        """
        line, first_use = session.timeline, session.timeline.first_use
        if first_use is None:
            return
        first_use.settle()
        if first_use.is_over:
            line.first_use = None
            if first_use.has_failed:
                line.integrity_failed = True
                line.store.snapshots.clear(line.ring)

    def _end_trial(self, log: HistoryLog, has_failed: bool) -> None:
        (self.folder.reject_state if has_failed else self.folder.accept_state)(log)
        self._trim_bad()

    def distrust(self) -> None:
        """What was evaluated in this process is wrong: delete the states that it has written."""
        for log in self._written.values():
            self.folder.drop_state(log)

    def remove(self, log: HistoryLog) -> None:
        """Delete a session from the folder.

        Raises:
            StoreFailedError: its history cannot be deleted.
        """
        self.folder.remove(log)
        self._logs.pop(log.path, None)
        self._written.pop(log.path, None)

    def _make_room(self, log: HistoryLog, size: int) -> bool:
        """Let states that are cheaper to rebuild give way to one of `size` bytes; none goes in vain."""
        if self.disk_budget is None:
            return True
        if size <= self.disk_budget:
            self._trim_bad(size - self.folder.state_bytes(log))
        left = self.disk_budget - size - (self.bytes_used - self.folder.state_bytes(log))
        going: list[HistoryLog] = []
        for other in sorted(self._logs.values(), key=lambda each: each.position):
            if left >= 0 or other.position > log.position:
                break
            held = self.folder.state_bytes(other)
            if other is not log and held and not self.folder.is_pinned(other):
                going.append(other)
                left += held
        if left < 0:
            return False
        for other in going:
            self.folder.drop_state(other)
        return True

    def _trim_bad(self, size: int = 0) -> None:
        """Delete what was set aside, oldest first, until there is room for `size` bytes more."""
        if self.disk_budget is None:
            return
        for path, _ in self.folder.bad_files:
            if self.bytes_used + size <= self.disk_budget:
                return
            self.folder.drop_bad(path)
