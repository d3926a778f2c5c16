"""Calls of an engine that open, close, read, rewind and fork sessions."""

from __future__ import annotations

from concurrent.futures import Future

from ds4c_runtime.engine_core import (
    check_expected,
    check_one_target,
    refuse_deferred,
    rewind_target,
    session_info,
)
from ds4c_runtime.engine_snapshots import SnapshotCalls
from ds4c_runtime.errors import PositionOutOfRangeError
from ds4c_runtime.generation import stale_report
from ds4c_runtime.guards import check_capacity
from ds4c_runtime.registry import Entry
from ds4c_runtime.reports import RewindPlan, RewindReport
from ds4c_runtime.requests import SessionInfo
from ds4c_runtime.worker import Body, Task, once

Moved = tuple[SessionInfo, RewindReport]


class SessionCalls(SnapshotCalls):
    """Each call has a blocking form and one that returns a future, `submit_*`."""

    def open_session(
        self,
        session_id: str | None = None,
        owner: str = "",
        capacity: int | None = None,
        idle_seconds: float | None = None,
    ) -> SessionInfo:
        """Open an empty session.

        Args:
            session_id: chosen by the caller, or `None` for a random one.
            owner: only calls with the same owner see it.
            capacity: most tokens, by default the context of the model.
            idle_seconds: for `idle_limits`.

        Raises:
            InvalidRequestError, SessionExistsError, SessionLimitError, DrainingError: refused.
        """
        return self.submit_open_session(session_id, owner, capacity, idle_seconds).result()

    def submit_open_session(
        self,
        session_id: str | None = None,
        owner: str = "",
        capacity: int | None = None,
        idle_seconds: float | None = None,
    ) -> Future[SessionInfo]:
        """As `open_session`."""

        def begin() -> Task[SessionInfo]:
            self._refuse_draining()
            check_capacity(capacity, self.manifest.model.context)
            self._residency.refuse_taken(session_id, owner)
            entry = self._registry.reserve(session_id, owner)
            entry.idle_seconds = idle_seconds

            def open_now() -> SessionInfo:
                self._residency.open(entry, capacity)
                return self._result_info(entry)

            return self._task(entry, once(open_now), is_new=True)

        return self._submit(begin)

    def close_session(self, session_id: str, owner: str = "") -> None:
        """Close a session, free its state and delete what is stored of it.

        Raises:
            UnknownSessionError, SessionBusyError: refused.
            StoreFailedError: it cannot be deleted; the session is as before.
        """
        self.submit_close_session(session_id, owner).result()

    def submit_close_session(self, session_id: str, owner: str = "") -> Future[None]:
        """As `close_session`."""

        def begin() -> Task[None]:
            entry = self._registry.acquire(session_id, owner)

            def on_end(is_failure: bool) -> None:
                if is_failure:
                    self._registry.release(entry)

            return Task(once(lambda: self._close(entry)), on_end=on_end)

        return self._submit(begin)

    def get_session(self, session_id: str, owner: str = "") -> SessionInfo:
        """Where a session is; during a generation, where it was after the last step.

        Raises:
            UnknownSessionError: no such session of this owner.
        """
        return session_info(self._registry.find(session_id, owner))

    def idle_limits(self) -> dict[tuple[str, str], float]:
        """By owner and id, seconds that sessions are to last unused; kept with the sessions."""
        entries = self._registry.entries()
        return {(e.owner, e.session_id): e.idle_seconds for e in entries if e.idle_seconds is not None}

    def list_sessions(self, owner: str = "") -> list[SessionInfo]:
        """Sessions of an owner, oldest first; temporary ones are left out."""
        return [session_info(entry) for entry in self._registry.visible(owner)]

    def plan_rewind(
        self,
        session_id: str,
        owner: str = "",
        *,
        to: int | None = None,
        drop: int | None = None,
        to_snapshot: str | None = None,
    ) -> RewindPlan:
        """Say what a rewind would cost; changes nothing, and answers while the session is busy too.

        Raises:
            UnknownSessionError, UnknownSnapshotError, PositionOutOfRangeError, NotInArtifactError,
                InvalidRequestError: refused.
        """
        return self.submit_plan_rewind(session_id, owner, to=to, drop=drop, to_snapshot=to_snapshot).result()

    def submit_plan_rewind(
        self,
        session_id: str,
        owner: str = "",
        *,
        to: int | None = None,
        drop: int | None = None,
        to_snapshot: str | None = None,
    ) -> Future[RewindPlan]:
        """As `plan_rewind`."""

        def begin() -> Task[RewindPlan]:
            entry = self._registry.find(session_id, owner)
            check_one_target(to, drop, to_snapshot)
            if to_snapshot is not None:
                self._refuse_without_snapshots()

            def plan() -> RewindPlan:
                session = self._residency.session(entry)
                entry.publish()
                if to_snapshot is not None:
                    return session.plan_rewind_to_snapshot(to_snapshot)
                return session.plan_rewind(rewind_target(session_info(entry), to, drop))

            return Task(once(plan))

        return self._submit(begin)

    def rewind(
        self,
        session_id: str,
        owner: str = "",
        *,
        to: int | None = None,
        drop: int | None = None,
        to_snapshot: str | None = None,
        expected_position: int | None = None,
        max_replay_tokens: int | None = None,
        defer: bool = False,
    ) -> Moved:
        """Move a session back.

        Args:
            session_id: the session.
            owner: its owner.
            to: target position; one of this, `drop` and `to_snapshot`.
            drop: number of last tokens to drop.
            to_snapshot: a retained snapshot, also of a branch that was left, also forwards; runs no token.
            expected_position: refuse unless the session is there.
            max_replay_tokens: refuse if more tokens would have to be run; never, with `to_snapshot`.
            defer: leave a needed replay or rebuild to the next generation; refused with `to_snapshot`,
                which needs none.

        Raises:
            UnknownSessionError, UnknownSnapshotError, SessionBusyError, StaleContinuationError,
                PositionOutOfRangeError, RewindTooDearError, MemoryBudgetError, NotInArtifactError,
                InvalidRequestError: refused, nothing has changed.
            BackendFailedError: the history ends at the target, the state is rebuilt on next use.
        """
        return self.submit_rewind(
            session_id,
            owner,
            to=to,
            drop=drop,
            to_snapshot=to_snapshot,
            expected_position=expected_position,
            max_replay_tokens=max_replay_tokens,
            defer=defer,
        ).result()

    def submit_rewind(
        self,
        session_id: str,
        owner: str = "",
        *,
        to: int | None = None,
        drop: int | None = None,
        to_snapshot: str | None = None,
        expected_position: int | None = None,
        max_replay_tokens: int | None = None,
        defer: bool = False,
    ) -> Future[Moved]:
        """As `rewind`."""

        def begin() -> Task[Moved]:
            entry = self._registry.acquire(session_id, owner)
            with self._registry.held_on_error(entry):
                check_expected(session_info(entry), expected_position, "")
                check_one_target(to, drop, to_snapshot)
                if to_snapshot is not None:
                    refuse_deferred(defer)
                    self._refuse_without_snapshots()
                    return self._to_snapshot(entry, to_snapshot)
                target = rewind_target(session_info(entry), to, drop)

            def body() -> Body[Moved]:
                session = self._residency.session(entry)
                session.check_rewind(target, max_replay_tokens)
                report = session.rewind(target, defer=True)
                try:
                    if not defer:
                        report = yield from self._rebuild(session, report)
                finally:
                    self._count_rewind(entry, report)
                return self._result_info(entry), report

            return self._task(entry, body())

        return self._submit(begin)

    def _to_snapshot(self, entry: Entry, snapshot_id: str) -> Task[Moved]:
        def go() -> Moved:
            report = self._residency.session(entry).rewind_to_snapshot(snapshot_id)
            self._count_rewind(entry, report)
            return self._result_info(entry), report

        return self._task(entry, once(go))

    def fork(
        self, session_id: str, owner: str = "", *, at: int | None = None, new_id: str | None = None
    ) -> Moved:
        """Open a session from a position of another, by default its current one.

        Raises:
            UnknownSessionError, SessionBusyError, SessionExistsError, SessionLimitError, DrainingError,
                PositionOutOfRangeError, NotInArtifactError, MemoryBudgetError, InvalidRequestError:
                refused, nothing has changed.
            BackendFailedError: there is no new session, the other is as before.
        """
        return self.submit_fork(session_id, owner, at=at, new_id=new_id).result()

    def submit_fork(
        self, session_id: str, owner: str = "", *, at: int | None = None, new_id: str | None = None
    ) -> Future[Moved]:
        """As `fork`."""

        def begin() -> Task[Moved]:
            self._refuse_draining()
            self._residency.refuse_taken(new_id, owner)
            parent = self._registry.acquire(session_id, owner)
            with self._registry.held_on_error(parent):
                position = session_info(parent).position
                where = position if at is None else at
                if not 0 <= where <= position:
                    raise PositionOutOfRangeError("fork", where, position, field="at_position")
                child = self._registry.reserve(new_id, owner, parent=session_id, at=where)

            def body() -> Body[Moved]:
                session = self._residency.session(parent)
                child.session, report = session.fork(where, session_id=child.session_id, defer=True)
                report = yield from self._rebuild(child.session, report)
                self._count_rewind(child, report)
                return self._result_info(child), report

            return self._task(child, body(), is_new=True, also=lambda: self._hand_back(parent))

        return self._submit(begin)

    def save_session(self, session_id: str, owner: str = "") -> bool:
        """Write the state of a session to the session folder, so that it comes back without a rebuild.

        Its history is there after every turn without this; states are written when sessions give way to
        others and at shutdown.

        Returns:
            Whether it was written: `False` without a folder, or where its budget has no room for it.

        Raises:
            UnknownSessionError, SessionBusyError: refused.
            StoreFailedError: the disk is full or refuses.
        """
        return self.submit_save_session(session_id, owner).result()

    def submit_save_session(self, session_id: str, owner: str = "") -> Future[bool]:
        """As `save_session`."""

        def begin() -> Task[bool]:
            entry = self._registry.acquire(session_id, owner)

            def body() -> Body[bool]:
                session = self._residency.session(entry)
                if not session.state_valid:
                    report = yield from self._rebuild(session, stale_report(session))
                    self._count_rewind(entry, report)
                return self._residency.save(entry)

            return self._task(entry, body())

        return self._submit(begin)
