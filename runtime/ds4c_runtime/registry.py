"""Which sessions an engine has: ids, owners and who is changing them. Thread-safe, knows no state rules."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ds4c_runtime.errors import (
    InvalidRequestError,
    SessionBusyError,
    SessionExistsError,
    SessionLimitError,
    UnknownSessionError,
)
from ds4c_runtime.reports import RewindReport
from ds4c_runtime.requests import SessionInfo
from ds4c_runtime.session import Session
from ds4c_runtime.store.history_log import HistoryLog

_ID_PATTERN = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")


@dataclass(frozen=True)
class Parked:
    """What is in memory of a session that has no state there: its history, uint32 `[position]`."""

    tokens: NDArray[np.uint32]
    capacity: int
    epoch: int


@dataclass
class Entry:
    """One session of one owner; `session` is set by the worker thread once it has a slot.

    `deferred` is the last rewind if it left a rebuild to the next use, which has not come yet.

    A session that is `parked` has none until it is used. `log` is its history on disk, if it is kept there.
    `idle_seconds` is how long it is to last unused; who closes it then is not decided here.
    """

    session_id: str
    owner: str
    is_temporary: bool
    parent_session_id: str = ""
    forked_at: int = 0
    is_busy: bool = True
    session: Session | None = None
    info: SessionInfo | None = None
    deferred: RewindReport | None = None
    parked: Parked | None = None
    log: HistoryLog | None = None
    idle_seconds: float | None = None
    create_time: float = field(default_factory=time.time)

    def publish(self) -> None:
        """Take a picture for readers on other threads; called by the thread that owns the session."""
        session = self.session
        assert session is not None
        self.info = SessionInfo(
            session_id=self.session_id,
            position=session.position,
            capacity=session.capacity,
            digest=session.digest,
            parent_session_id=self.parent_session_id,
            forked_at=self.forked_at,
            state_bytes=session.state_bytes,
            state_valid=session.state_valid,
            is_busy=self.is_busy,
            epoch=session.epoch,
            high_water=session.high_water,
            floor=session.floor,
            horizon=session.horizon,
            create_time=self.create_time,
            last_used_time=time.time(),
        )

    @property
    def opened(self) -> Session:
        """The session, which is there."""
        assert self.session is not None
        return self.session


class Registry:
    """All sessions of an engine. Sessions of one owner cannot be seen by another."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._entries: dict[tuple[str, str], Entry] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def reserve(
        self, session_id: str | None, owner: str, *, is_temporary: bool = False, parent: str = "", at: int = 0
    ) -> Entry:
        """Make a busy entry without a session; `session_id` `None` chooses a random one of 128 bits.

        Raises:
            InvalidRequestError: an id of other characters than letters, digits and `_ . : -`.
            SessionExistsError: the owner has a session of that id.
            SessionLimitError: all slots are taken or reserved.
        """
        if session_id is not None and not _ID_PATTERN.fullmatch(session_id):
            raise InvalidRequestError(
                "session not opened: expected an id of 1 to 128 letters, digits or _ . : -, got "
                f"{session_id[:40]!r}",
                field="session_id",
            )
        entry = Entry(session_id or secrets.token_hex(16), owner, is_temporary, parent, at)
        with self._lock:
            key = (owner, entry.session_id)
            if key in self._entries:
                raise SessionExistsError(entry.session_id)
            if len(self._entries) >= self._max_sessions:
                raise SessionLimitError(
                    f"session not opened: expected at most {self._max_sessions} sessions, got one more; "
                    "close one"
                )
            self._entries[key] = entry
        return entry

    def find(self, session_id: str, owner: str) -> Entry:
        """An opened session of the owner.

        Raises:
            UnknownSessionError: there is none, or it belongs to somebody else.
        """
        with self._lock:
            return self._find(session_id, owner)

    def acquire(self, session_id: str, owner: str) -> Entry:
        """Find a session and mark it as being changed.

        Raises:
            UnknownSessionError: as `find`.
            SessionBusyError: it is being changed.
        """
        with self._lock:
            entry = self._find(session_id, owner)
            if entry.is_busy:
                raise SessionBusyError(session_id)
            entry.is_busy = True
            return entry

    def restore(self, entry: Entry) -> None:
        """Take in a session of an earlier run; the limit is for new ones."""
        with self._lock:
            self._entries[entry.owner, entry.session_id] = entry

    @property
    def parked(self) -> int:
        """Sessions whose state is not in memory."""
        with self._lock:
            return sum(entry.parked is not None for entry in self._entries.values())

    def entries(self) -> list[Entry]:
        """All sessions."""
        with self._lock:
            return list(self._entries.values())

    def idle(self) -> list[Entry]:
        """Opened sessions that nobody is changing."""
        with self._lock:
            return [e for e in self._entries.values() if not e.is_busy and e.info is not None]

    def release(self, entry: Entry) -> None:
        """The change has ended."""
        with self._lock:
            entry.is_busy = False

    def remove(self, entry: Entry) -> None:
        """Forget a session."""
        with self._lock:
            self._entries.pop((entry.owner, entry.session_id), None)

    @contextmanager
    def held_on_error(self, entry: Entry) -> Generator[None]:
        """Release an acquired entry if the block raises."""
        try:
            yield
        except BaseException:
            self.release(entry)
            raise

    def visible(self, owner: str) -> list[Entry]:
        """Opened, lasting sessions of an owner, oldest first."""
        with self._lock:
            mine = [e for e in self._entries.values() if e.owner == owner and not e.is_temporary]
        return sorted((e for e in mine if e.info is not None), key=lambda e: (e.create_time, e.session_id))

    def states(self) -> tuple[int, int]:
        """How many opened sessions have a valid state, and how many one that is to be rebuilt."""
        with self._lock:
            infos = [entry.info for entry in self._entries.values() if entry.info is not None]
        valid = sum(info.state_valid for info in infos)
        return valid, len(infos) - valid

    def _find(self, session_id: str, owner: str) -> Entry:
        entry = self._entries.get((owner, session_id))
        if entry is None or entry.info is None:
            raise UnknownSessionError(session_id)
        return entry
