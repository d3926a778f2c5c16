"""Calls of an engine that read, pin and unpin the snapshots of a session."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from ds4c_runtime.engine_core import EngineCore, session_info
from ds4c_runtime.errors import (
    InvalidRequestError,
    NotInArtifactError,
    PositionOutOfRangeError,
    StateInvalidError,
)
from ds4c_runtime.generation import stale_report
from ds4c_runtime.registry import Entry
from ds4c_runtime.snapshot import SnapshotInfo
from ds4c_runtime.worker import Body, Task, once


@dataclass(frozen=True)
class SnapshotLevels:
    """Snapshots of all sessions now, each counted once: how many may go, how many not, bytes."""

    live: int
    pinned: int
    device_bytes: int
    host_bytes: int


@dataclass(frozen=True)
class SnapshotLimits:
    """Most snapshots of one session, all of the largest size, and that size in bytes; 0 without any."""

    per_session: int
    bytes: int


class SnapshotCalls(EngineCore):
    """Each call has a blocking form and one that returns a future, `submit_*`."""

    def list_snapshots(self, session_id: str, owner: str = "") -> list[SnapshotInfo]:
        """Snapshots that a session retains, by position; answers while it is busy too.

        Raises:
            UnknownSessionError: no such session of this owner.
            NotInArtifactError: the artifact was built without snapshots.
        """
        return self.submit_list_snapshots(session_id, owner).result()

    def submit_list_snapshots(self, session_id: str, owner: str = "") -> Future[list[SnapshotInfo]]:
        """As `list_snapshots`."""

        def begin() -> Task[list[SnapshotInfo]]:
            self._refuse_without_snapshots()
            entry = self._registry.find(session_id, owner)
            return Task(once(lambda: self._residency.session(entry).snapshots()))

        return self._submit(begin)

    def pin_snapshot(
        self,
        session_id: str,
        owner: str = "",
        *,
        snapshot_id: str | None = None,
        position: int | None = None,
        label: str = "",
    ) -> SnapshotInfo:
        """Keep a snapshot until it is unpinned: one by id, or one at a position, taken if none is there.

        One by id is pinned while the session is busy too. One at a position has a session whose state is
        invalid rebuilt first.

        Raises:
            UnknownSessionError, UnknownSnapshotError, SessionBusyError, PositionOutOfRangeError,
                MemoryBudgetError, NotInArtifactError, InvalidRequestError: refused,
                nothing has changed. One below the present position needs a free slot for a moment.
            BackendFailedError: the device failed; nothing is pinned.
        """
        return self.submit_pin_snapshot(
            session_id, owner, snapshot_id=snapshot_id, position=position, label=label
        ).result()

    def submit_pin_snapshot(
        self,
        session_id: str,
        owner: str = "",
        *,
        snapshot_id: str | None = None,
        position: int | None = None,
        label: str = "",
    ) -> Future[SnapshotInfo]:
        """As `pin_snapshot`."""

        def begin() -> Task[SnapshotInfo]:
            self._refuse_without_snapshots()
            if (snapshot_id is None) == (position is None):
                raise InvalidRequestError(
                    "pin refused: expected one of snapshot_id and position, got both or none", field="target"
                )
            if snapshot_id is not None:
                found = self._registry.find(session_id, owner)
                return Task(once(lambda chosen=snapshot_id: self._pin(found, chosen, label)))
            entry = self._registry.acquire(session_id, owner)
            with self._registry.held_on_error(entry):
                check_pin(position, session_info(entry).position)

            def body() -> Body[SnapshotInfo]:
                assert position is not None
                session = self._residency.session(entry)
                try:
                    info = yield from session.pin_slices(position, label)
                except StateInvalidError:
                    report = yield from self._rebuild(session, stale_report(session))
                    self._count_rewind(entry, report)
                    info = yield from session.pin_slices(position, label)
                self._save_pinned(entry)
                return info

            return self._task(entry, body())

        return self._submit(begin)

    def _pin(self, entry: Entry, snapshot_id: str, label: str) -> SnapshotInfo:
        info = self._residency.session(entry).pin(snapshot_id, label=label)
        self._save_pinned(entry)
        return info

    def _save_pinned(self, entry: Entry) -> None:
        """Write the state: what somebody has pinned outlives the process."""
        self._residency.try_save(entry, exact=False)

    def unpin_snapshot(self, session_id: str, snapshot_id: str, owner: str = "") -> SnapshotInfo:
        """Let a snapshot be given up when room is short; one that is not pinned stays as it is.

        As with pins, the state is written.

        Raises:
            UnknownSessionError, UnknownSnapshotError, NotInArtifactError: refused.
        """
        return self.submit_unpin_snapshot(session_id, snapshot_id, owner).result()

    def submit_unpin_snapshot(
        self, session_id: str, snapshot_id: str, owner: str = ""
    ) -> Future[SnapshotInfo]:
        """As `unpin_snapshot`."""

        def begin() -> Task[SnapshotInfo]:
            self._refuse_without_snapshots()
            entry = self._registry.find(session_id, owner)
            return Task(once(lambda: self._unpin(entry, snapshot_id)))

        return self._submit(begin)

    def _unpin(self, entry: Entry, snapshot_id: str) -> SnapshotInfo:
        """Unpin, and write the state, so that the snapshot is not pinned after a restart either."""
        session = self._residency.session(entry)
        was_pinned = any(s.is_pinned for s in session.snapshots() if s.snapshot_id == snapshot_id)
        info = session.unpin(snapshot_id)
        if was_pinned:
            self._residency.try_save(entry, exact=False)
        return info

    def snapshot_limits(self) -> SnapshotLimits:
        """What one session can retain."""
        if not self.manifest.capabilities.pin_snapshots:
            return SnapshotLimits(0, 0)
        pool = self._store.snapshots
        largest = pool.layout.largest()
        return SnapshotLimits(min(pool.budget, pool.session_bytes) // largest, largest)

    def snapshot_levels(self) -> SnapshotLevels:
        """How many snapshots there are; read from any thread, so not quite of one moment."""
        pool = self._store.snapshots
        live, pinned = pool.counts()
        return SnapshotLevels(live, pinned, pool.device_bytes, pool.host_bytes)

    def _refuse_without_snapshots(self) -> None:
        if not self.manifest.capabilities.pin_snapshots:
            raise NotInArtifactError(
                "snapshots refused: expected an artifact built with them, got one without; build it again"
            )


def check_pin(position: int | None, most: int) -> None:
    """Refuse a place where no snapshot can be.

    Raises:
        InvalidRequestError: position 0, where there is no state, or below.
        PositionOutOfRangeError: above the session's position `most`.
    """
    assert position is not None
    if position < 1:
        raise InvalidRequestError(
            f"pin refused: expected a position of at least 1, got {position}; an empty session needs no "
            "snapshot",
            field="position",
        )
    if position > most:
        raise PositionOutOfRangeError("pin", position, most, field="position")
