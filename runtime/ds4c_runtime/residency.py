"""Which sessions of an engine have their state in memory, on disk, or only their history.

A session that is idle and has no pinned snapshot may be parked when a slot or pages are short: its state goes
to the session folder, if there is one and its budget allows, and is given up. It comes back when it is used.
The cheapest to rebuild is parked first. All methods but the constructor's run on the engine's worker thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from ds4c_runtime.errors import SessionExistsError, StoreFailedError
from ds4c_runtime.history import History
from ds4c_runtime.registry import Entry, Parked, Registry
from ds4c_runtime.requests import SessionInfo
from ds4c_runtime.session import Session
from ds4c_runtime.state import StateStore
from ds4c_runtime.step import Stepper
from ds4c_runtime.store.history_log import HistoryLog, LogHeader
from ds4c_runtime.store.session_store import SessionStore

TO_DISK, TO_HISTORY = "disk", "history"
"""Where the state of a session that was parked can come from."""


class Residency:
    """Opens, parks, brings back and stores the sessions of an engine."""

    def __init__(
        self,
        registry: Registry,
        stepper: Stepper,
        states: StateStore,
        tokenizer_sha256: str,
        stored: SessionStore | None,
        on_parked: Callable[[str], None],
    ) -> None:
        """Take over the store of states, and the sessions that are in the folder.

        Args:
            registry: of the engine.
            stepper: runs steps.
            states: asks this object for room from now on.
            tokenizer_sha256: hex, or empty.
            stored: the session folder, if there is one.
            on_parked: told where the state of a parked session went, `disk` or `history`.
        """
        self._registry = registry
        self._stepper = stepper
        self._states = states
        self._tokenizer_sha256 = tokenizer_sha256
        self._stored = stored
        self._on_parked = on_parked
        self._is_parking = False
        states.on_shortage = self.park_one
        states.idle = lambda: [entry.opened.timeline.lease for entry in self._parkable()]
        if stored is not None:
            states.snapshots.make_ids_lasting()
            for log in stored.scan():
                registry.restore(self._found(log))

    def refuse_taken(self, session_id: str | None, owner: str) -> None:
        """Refuse an id whose file in the folder is of another model; may be called from any thread.

        Raises:
            SessionExistsError: it is.
        """
        if session_id is not None and self._stored is not None:
            if self._stored.folder.is_foreign(owner, session_id):
                raise SessionExistsError(session_id)

    def open(self, entry: Entry, capacity: int | None) -> Session:
        """Give a new entry its session.

        Raises:
            MemoryBudgetError: no slot is free and no session may be parked.
        """
        entry.session = self._new(entry.session_id, capacity)
        return entry.session

    def session(self, entry: Entry) -> Session:
        """The session of an entry, brought back if it was parked, which `Entry.info` says then.

        Raises:
            MemoryBudgetError: no slot is free and no session may be parked.
        """
        if entry.session is None:
            entry.session = self._brought_back(entry)
            entry.parked = None
            entry.publish()
        return entry.session

    def persist(self, entry: Entry) -> None:
        """Make the history of a session durable, at the end of a turn; what fails is said and tried again.

        The cost is that of the tokens that are new. A state that was read from a file and used in the turn is
        judged.
        """
        stored, session, parked = self._stored, entry.session, entry.parked
        if stored is None or entry.is_temporary:
            return
        try:
            if session is not None:
                self._log(entry, session).sync(session.timeline.history, session.epoch)
            elif parked is not None and entry.log is not None:
                entry.log.sync(parked.tokens, parked.epoch)
        except StoreFailedError as error:
            stored.folder.say(error, "write")
        if session is not None:
            stored.settle(session)

    def save(self, entry: Entry, *, exact: bool = True) -> bool:
        """Write history and state of a session that is in memory; whether the state was written.

        `exact` is that of `SessionStore.save`.

        Raises:
            StoreFailedError: the disk is full or refuses.
        """
        stored, session = self._stored, entry.session
        if stored is None or session is None or entry.is_temporary:
            return False
        return stored.save(self._log(entry, session), session, exact=exact)

    def try_save(self, entry: Entry, *, exact: bool = True) -> bool:
        """As `save`; what fails is said."""
        try:
            return self.save(entry, exact=exact)
        except StoreFailedError as error:
            assert self._stored is not None
            self._stored.folder.say(error, "write")
            return False

    def save_all(self) -> None:
        """Write the state of every session in memory, the dearest first, as far as the budget goes."""
        resident = [e for e in self._registry.entries() if e.session is not None and not e.is_temporary]
        for entry in sorted(resident, key=lambda e: e.opened.position, reverse=True):
            self.try_save(entry)
            if self._stored is not None:
                self._stored.settle(entry.opened)

    def forget(self, entry: Entry) -> None:
        """Close a session and delete what is stored of it.

        Raises:
            StoreFailedError: it cannot be deleted; the session is as before.
        """
        if entry.log is not None and self._stored is not None:
            self._stored.remove(entry.log)
            entry.log = None
        if entry.session is not None:
            entry.session.close()
        entry.parked = None

    def close(self) -> None:
        """Let another process use the session folder."""
        if self._stored is not None:
            self._stored.close()

    def park_one(self) -> bool:
        """Park the idle session that is cheapest to rebuild; `False` if none may be parked."""
        free = self._parkable()
        if not free:
            return False
        entry = min(free, key=lambda e: (e.opened.position, e.info.last_used_time if e.info else 0))
        self._is_parking = True
        try:
            self.park(entry)
        finally:
            self._is_parking = False
        return True

    def _parkable(self) -> list[Entry]:
        """Sessions that may be parked now; none while one is."""
        idle = [] if self._is_parking else self._registry.idle()
        found = [entry for entry in idle if entry.session is not None]
        return [entry for entry in found if not entry.opened.timeline.ring.has_pinned]

    def park(self, entry: Entry) -> None:
        """Take a session out of memory; its state goes to disk if it may.

        It is written as a whole, and nothing else runs meanwhile: whoever is short of room waits for it.
        """
        session = entry.opened
        self.persist(entry)
        is_on_disk = self.try_save(entry, exact=False)  # no step: there may be no page for one
        is_valid = is_on_disk and session.timeline.ring.at(session.position) is not None
        if entry.info is not None:
            entry.info = dataclasses.replace(
                entry.info, state_bytes=0, state_valid=is_valid, is_resident=False
            )
        tokens = np.array(session.history, np.uint32)
        entry.parked = Parked(tokens, session.capacity, session.epoch)
        entry.session = None
        session.close()
        self._on_parked(TO_DISK if is_on_disk else TO_HISTORY)

    def _brought_back(self, entry: Entry) -> Session:
        parked = entry.parked
        assert parked is not None
        session = self._new(entry.session_id, parked.capacity)
        line = session.timeline
        line.history.extend(parked.tokens.tolist())
        line.epoch = parked.epoch
        line.ring.was_evicted = True
        try:
            if self._stored is not None and entry.log is not None:
                self._stored.restore(entry.log, session)
        except BaseException:
            session.close()
            raise
        return session

    def _new(self, session_id: str, capacity: int | None) -> Session:
        return Session(self._stepper, self._states, session_id, capacity, self._tokenizer_sha256)

    def _found(self, log: HistoryLog) -> Entry:
        """The entry of a session of the folder."""
        header, created = log.header, log.header.create_time_us / 1e6
        entry = Entry(header.session_id, header.owner, False, header.parent_session_id, header.forked_at)
        entry.is_busy, entry.create_time, entry.log = False, created, log
        entry.idle_seconds = header.idle_us / 1e6 or None
        entry.parked = Parked(log.tokens, header.capacity, log.epoch)
        assert self._stored is not None
        entry.info = SessionInfo(
            session_id=header.session_id,
            position=log.position,
            capacity=header.capacity,
            digest=History(self._tokenizer_sha256, log.tokens.tolist()).digest(),
            parent_session_id=header.parent_session_id,
            forked_at=header.forked_at,
            state_bytes=0,
            state_valid=self._stored.folder.state_bytes(log) > 0,
            is_busy=False,
            epoch=log.epoch,
            high_water=log.position,
            floor=0,
            horizon=self._stepper.limits.horizon,
            create_time=created,
            last_used_time=log.path.stat().st_mtime,
            is_resident=False,
        )
        return entry

    def _log(self, entry: Entry, session: Session) -> HistoryLog:
        """The log of a session, begun if there is none."""
        assert self._stored is not None
        if entry.log is None:
            entry.log = self._stored.create(self._header(entry, session), session)
        return entry.log

    def _header(self, entry: Entry, session: Session) -> LogHeader:
        assert self._stored is not None
        header = self._stored.header(session, entry.owner, round(entry.create_time * 1e6))
        return dataclasses.replace(
            header,
            parent_session_id=entry.parent_session_id,
            forked_at=entry.forked_at,
            idle_us=round((entry.idle_seconds or 0) * 1e6),
        )
