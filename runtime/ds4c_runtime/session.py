"""A session: one mutable timeline of tokens and the model state that matches it.

The rules of rewind and fork are here: what is allowed, what it costs, what is reported. How the state
gets there is `timeline.py`. Not thread-safe: the engine's worker thread, or a test, owns it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import TypeVar

from ds4c_runtime.errors import (
    BackendFailedError,
    InvalidRequestError,
    MemoryBudgetError,
    NotInArtifactError,
    PositionOutOfRangeError,
    RewindTooDearError,
    UnknownSnapshotError,
)
from ds4c_runtime.guards import check_length
from ds4c_runtime.reports import RebuildReason, RewindCause, RewindKind, RewindPlan, RewindReport
from ds4c_runtime.session_base import SessionBase, step_sessions
from ds4c_runtime.snapshot import SnapshotInfo, SnapshotOrigin
from ds4c_runtime.snapshot_ring import Entry

__all__ = ["Session", "step_sessions"]

# The way in place does not look them up in their classes.
_IN_PLACE, _NOT_REBUILT = RewindKind.IN_PLACE, RebuildReason.NOT_REBUILT

T = TypeVar("T")
Slices = Generator[None, None, T]
"""Work that yields between chunks of tokens; what it returns is its result."""


class Session(SessionBase):
    """A session with the ways back: rewind, snapshots, fork."""

    def plan_rewind(self, to: int) -> RewindPlan:
        """Say what `rewind(to)` would do; changes nothing.

        Raises:
            PositionOutOfRangeError: `to` is not in `[0, position]`.
        """
        if not 0 <= to <= self.position:
            raise PositionOutOfRangeError("rewind", to, self.position)
        return self._line.plan(to)

    def can_rewind(self, to: int) -> bool:
        """Whether `rewind(to)` would succeed without a rebuild; `False` outside `[0, position]`."""
        return 0 <= to <= self.position and self.plan_rewind(to).kind is not RewindKind.REBUILD

    def check_rewind(self, to: int, max_replay_tokens: int | None = None) -> RewindPlan:
        """Say what `rewind(to)` would do, with all its refusals; changes nothing.

        Raises:
            PositionOutOfRangeError: `to` is not in `[0, position]`.
            RewindTooDearError: more than `max_replay_tokens` tokens would have to be run.
            MemoryBudgetError: a rebuild would not find enough pages.
        """
        plan = self.plan_rewind(to)
        if max_replay_tokens is not None and plan.replay_tokens > max_replay_tokens:
            raise RewindTooDearError(plan.replay_tokens, plan.base_position, max_replay_tokens)
        if plan.replay_tokens:
            self._line.check_recovery_room(self._line.ring.base(to), to)
        return plan

    def rewind(
        self,
        to: int,
        *,
        max_replay_tokens: int | None = None,
        cause: RewindCause = RewindCause.CLIENT,
        defer: bool = False,
    ) -> RewindReport:
        """Move back to an earlier position.

        In place within the horizon, and to position 0, where no state is needed; else from the nearest
        snapshot below, replaying the tokens after it; else by a rebuild from position 0.

        Args:
            to: target, in tokens.
            max_replay_tokens: refuse if more tokens would have to be run.
            cause: for the report.
            defer: instead of replaying or rebuilding now, only shorten the history (`DEFERRED`), which is
                never refused for cost; `rebuild_chunk`, `rebuild` or `prefill` brings the state back.

        Raises:
            PositionOutOfRangeError, RewindTooDearError, MemoryBudgetError: refused, nothing has changed.
            BackendFailedError: the device failed in a rebuild; the history ends at `to`, the state is
                invalid.
        """
        started = self._executor.now()
        line = self._line
        position = len(line.history)
        kind = line.near(to, position) if 0 <= to <= position else None
        if kind is None or not self._is_open:
            return self._rewind_far(to, cause, max_replay_tokens, defer)
        # No plan is made and nothing is built twice here: this path is a hundredth of a decode step.
        if kind is _IN_PLACE:
            line.shorten(to, keep_state=True)
            line.epoch += 1
        seconds = self._executor.now() - started
        report = RewindReport(kind, cause, _NOT_REBUILT, position, to, to, 0, seconds, 0.0)
        self.last_rewind = report
        return report

    def _rewind_far(
        self, to: int, cause: RewindCause, max_replay_tokens: int | None, defer: bool
    ) -> RewindReport:
        """By a snapshot, a snapshot and a replay, or a rebuild."""
        started = self._executor.now()
        self._require_open()
        plan = self.plan_rewind(to) if defer else self.check_rewind(to, max_replay_tokens)
        source = self.position
        self._line.shorten(to, keep_state=False)
        self._line.epoch += 1
        seconds = self._executor.now() - started
        is_later = defer and plan.replay_tokens > 0
        report = RewindReport(
            RewindKind.DEFERRED if is_later else plan.kind,
            cause, plan.rebuild_reason, source, to, plan.base_position, 0, seconds, 0.0, plan.snapshot_id,
        )  # fmt: skip
        self.last_rewind = report
        if not is_later:
            self.rebuild()
            report = self.recovered(report, self._executor.now() - started)
            self.last_rewind = report
        return report

    def recovered(self, report: RewindReport, seconds: float) -> RewindReport:
        """What a rewind has become whose state is valid now; `seconds` since it began.

        A report of something else, or of a state that is still invalid, is returned as it is.
        """
        recovery = self._line.recovery
        if recovery is None or not self.state_valid:
            return report
        base, to = recovery.base_position, report.to_position
        kind, reason = (
            RewindKind.SNAPSHOT_REPLAY if to > base else RewindKind.SNAPSHOT,
            RebuildReason.NOT_REBUILT,
        )
        if not recovery.snapshot_id:
            kind, reason = RewindKind.REBUILD, report.rebuild_reason
            if reason is RebuildReason.NOT_REBUILT:  # the snapshot of the plan was not usable
                reason = recovery.reason
        restore = report.restore_seconds + recovery.restore_seconds
        return report._replace(
            kind=kind,
            rebuild_reason=reason,
            base_position=base,
            replayed_tokens=to - base,
            restore_seconds=restore,
            replay_seconds=max(0.0, seconds - restore),
            snapshot_id=recovery.snapshot_id,
        )

    def fork(
        self,
        at: int | None = None,
        *,
        session_id: str = "",
        capacity: int | None = None,
        defer: bool = False,
    ) -> tuple[Session, RewindReport]:
        """Open a session with the first `at` tokens of this one, which does not change.

        Pages are shared and ring rows copied if a rewind to `at` would be in place (at 0 there are none);
        otherwise the new session starts from a snapshot of this one, or is rebuilt from the history. It holds
        the snapshots of this one up to `at` too.

        Args:
            at: position, by default the current one.
            session_id: name of the new session.
            capacity: of the new session, by default that of this one.
            defer: leave a needed rebuild to the caller (`DEFERRED`).

        Raises:
            PositionOutOfRangeError: `at` is not in `[0, position]`.
            NotInArtifactError: the artifact has no fork.
            ContextLengthError: `capacity` is below `at`.
            InvalidRequestError: memory is for one session only, so that no fork can ever be.
            SessionLimitError, MemoryBudgetError: no room.
            BackendFailedError: the device failed; there is no new session.
        """
        self._require_open()
        at = self.position if at is None else at
        if not 0 <= at <= self.position:
            raise PositionOutOfRangeError("fork", at, self.position, field="at_position")
        if not self._executor.manifest.capabilities.fork:
            raise NotInArtifactError("fork refused: expected an entry point 'fork', got none; build it again")
        if self._line.store.max_sessions < 2:
            raise InvalidRequestError(
                f"session {self.session_id!r} refused: expected an engine with room in memory for a second "
                "session, got one with room for 1; load it with a larger max_resident",
                field="at_position",
            )
        room = self.capacity if capacity is None else capacity
        check_length(at, room)
        line = self._line
        child = Session(self._executor, line.store, session_id, room, line.tokenizer_sha256)
        try:
            report = self._fill(child, at, defer)
        except BaseException:
            child.close()
            raise
        child.last_rewind = report
        return child, report

    def _fill(self, child: Session, at: int, defer: bool) -> RewindReport:
        started = self._executor.now()
        line = child.timeline
        line.history.replace(self._line.history.prefix(at))
        line.store.snapshots.share(self._line.ring, line.ring, at)
        line.first_use = self._line.first_use
        plan = self._line.plan(at)
        is_copy = plan.kind in (RewindKind.NONE, RewindKind.IN_PLACE)
        if is_copy:
            line.adopt(self._line, at)
        else:
            line.check_recovery_room(line.ring.base(at), at)
        is_later = defer and plan.replay_tokens > 0
        kind = RewindKind.IN_PLACE if is_copy else RewindKind.DEFERRED if is_later else plan.kind
        seconds = self._executor.now() - started
        report = RewindReport(
            kind, RewindCause.BRANCH, plan.rebuild_reason, self.position, at, plan.base_position, 0, seconds,
            0.0, plan.snapshot_id,
        )  # fmt: skip
        if is_copy or is_later:
            return report
        child.rebuild()
        return child.recovered(report, self._executor.now() - started)

    def snapshots(self) -> list[SnapshotInfo]:
        """Retained snapshots, by position; also those of branches that were left."""
        return [entry.info() for entry in self._line.ring.entries]

    def take_snapshot(
        self, origin: SnapshotOrigin = SnapshotOrigin.CLIENT, label: str = ""
    ) -> SnapshotInfo | None:
        """Take a snapshot at the current position, or find the one that is there.

        `None` at position 0, or if there is no room for it.

        Raises:
            StateInvalidError: the state is invalid.
            BackendFailedError: the device failed.
        """
        self.logits()
        entry = self._line.take_snapshot(origin)
        if entry is None:
            return None
        entry.label = label or entry.label
        return entry.info()

    def keep_snapshot(self, origin: SnapshotOrigin) -> None:
        """Take a snapshot if the state is valid and its logits are held; costs no step.

        A snapshot is a cache: one that the device cannot take is not missed before it is needed. The end of a
        turn is known as such, and kept as such, also where something else took a snapshot just before.
        """
        if not self.state_valid:
            return
        with suppress(BackendFailedError):
            entry = self._line.take_snapshot(origin)
            if entry is not None and origin.is_turn and entry.snapshot.origin.is_automatic:
                entry.snapshot.origin = origin

    def pin(
        self, snapshot_id: str | None = None, *, position: int | None = None, label: str = ""
    ) -> SnapshotInfo:
        """Keep a snapshot until it is unpinned: one by id, or the one at a position of the history.

        Where none is, one is taken if that is the current position, else the session goes there and back.

        Raises:
            UnknownSnapshotError: none of that id.
            InvalidRequestError: not exactly one of `snapshot_id` and `position`, or position 0; or the place
                is below the current position and memory is for one session only.
            PositionOutOfRangeError: `position` is not in `[1, position of the session]`.
            StateInvalidError: none is there and the state is invalid.
            MemoryBudgetError: no room for one.
            BackendFailedError: the device failed.
        """
        if (snapshot_id is None) == (position is None):
            raise InvalidRequestError(
                "pin refused: expected one of snapshot_id and position, got both or none", field="target"
            )
        if snapshot_id is not None:
            return _pinned(self._entry(snapshot_id), label)
        assert position is not None
        slices = self.pin_slices(position, label)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                return end.value

    def pin_slices(self, position: int, label: str = "") -> Slices[SnapshotInfo]:
        """As `pin` of a position; yields after each chunk of tokens that has to be run."""
        if not 1 <= position <= self.position:
            raise PositionOutOfRangeError("pin", position, self.position)
        line = self._line
        entry = line.ring.at(position)
        if entry is None:
            self.require_valid()
            is_below = position < self.position
            entry = (yield from self._take_below(position)) if is_below else self._take_here()
        if entry is None:
            raise MemoryBudgetError(
                f"snapshot not pinned: expected room for {line.store.snapshots.layout.parts(position).total} "
                "bytes, got none that may be evicted; unpin snapshots or grant more memory"
            )
        return _pinned(entry, label)

    def _take_here(self) -> Entry | None:
        self.logits()
        return self._line.take_snapshot(SnapshotOrigin.CLIENT)

    def _take_below(self, position: int) -> Slices[Entry | None]:
        """Let a fork go to the position and take the snapshot there; this session does not move."""
        child, _ = self.fork(position, session_id=f"{self.session_id}.pin", defer=True)
        child.timeline.takes_marks = False
        try:
            while not child.state_valid:
                child.rebuild_chunk()
                yield
            child.logits()
            entry = child.timeline.take_snapshot(SnapshotOrigin.CLIENT)
            if entry is not None:
                return self._line.store.snapshots.give(entry, self._line.ring)
            return None
        finally:
            child.close()

    def unpin(self, snapshot_id: str) -> SnapshotInfo:
        """Let a snapshot be given up again.

        Raises:
            UnknownSnapshotError: none of that id.
        """
        entry = self._entry(snapshot_id)
        entry.is_pinned = False
        return entry.info()

    def _entry(self, snapshot_id: str) -> Entry:
        entry = self._line.ring.find(snapshot_id)
        if entry is None:
            raise UnknownSnapshotError(snapshot_id)
        return entry

    def plan_rewind_to_snapshot(self, snapshot_id: str) -> RewindPlan:
        """Say what `rewind_to_snapshot` would do; changes nothing.

        Raises:
            UnknownSnapshotError: none of that id.
        """
        entry = self._entry(snapshot_id)
        if entry in self._line.ring.branch:
            return self._line.plan(entry.position)
        return self._line.plan_from(entry, entry.position)

    def rewind_to_snapshot(
        self, snapshot_id: str, *, cause: RewindCause = RewindCause.CLIENT
    ) -> RewindReport:
        """Go to a snapshot: back on this branch, or to another one that was left, also forwards.

        Raises:
            UnknownSnapshotError: none of that id; nothing has changed.
            BackendFailedError: the device failed; the history is that of the snapshot, the state is invalid.
        """
        started = self._executor.now()
        self._require_open()
        entry, line, source = self._entry(snapshot_id), self._line, self.position
        if entry in line.ring.branch:
            return self.rewind(entry.position, cause=cause)
        line.replace_history(entry.snapshot)
        line.epoch += 1
        to = entry.position
        self.last_rewind = RewindReport(
            RewindKind.DEFERRED, cause, RebuildReason.NOT_REBUILT, source, to, to, 0, 0.0, 0.0, snapshot_id
        )
        if not line.restore(entry.snapshot):
            raise BackendFailedError(
                f"rewind failed: expected the rows of snapshot {snapshot_id}, got none, as their copy had "
                "failed; the session is rebuilt from its history on next use"
            )
        self.last_rewind = self.last_rewind._replace(
            kind=RewindKind.SNAPSHOT, restore_seconds=self._executor.now() - started
        )
        return self.last_rewind


def _pinned(entry: Entry, label: str) -> SnapshotInfo:
    entry.is_pinned, entry.label = True, label or entry.label
    return entry.info()
