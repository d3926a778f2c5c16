"""What all calls of an engine share: parts, worker, and how a call becomes a task. Not used alone."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from ds4c_runtime.counters import Counters, Now
from ds4c_runtime.device.base import Device
from ds4c_runtime.errors import (
    DrainingError,
    InvalidRequestError,
    PositionOutOfRangeError,
    RuntimeFailure,
    StaleContinuationError,
)
from ds4c_runtime.generation import Generation, rebuild_slices, rebuilt
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.memory_plan import MemoryPlan, plan_memory
from ds4c_runtime.registry import Entry, Registry
from ds4c_runtime.reports import RebuildReason, RewindKind, RewindReport
from ds4c_runtime.requests import SessionInfo
from ds4c_runtime.residency import Residency
from ds4c_runtime.session import Session
from ds4c_runtime.state import StateStore
from ds4c_runtime.step import Stepper
from ds4c_runtime.store.session_store import SessionStore, Storage
from ds4c_runtime.tokenizer import Tokenizer
from ds4c_runtime.transport import CopyMode
from ds4c_runtime.worker import Body, Task, Worker

T = TypeVar("T")
DIGEST_DIGITS = 64
"""Of a digest of a history, which is a sha256 in hex."""


@dataclass(frozen=True)
class EngineLimits:
    """What an engine was loaded with."""

    max_sessions: int
    max_resident: int
    max_running: int
    max_queue: int
    memory: MemoryPlan


class EngineCore:
    """Parts of an engine and the helpers of its calls."""

    def __init__(
        self,
        manifest: Manifest,
        device: Device,
        tokenizer: Tokenizer | None,
        *,
        max_sessions: int = 8,
        max_queue: int = 64,
        max_running: int | None = None,
        memory_budget: int | None = None,
        snapshot_budget: int | None = None,
        copy_mode: CopyMode = CopyMode.DEVICE,
        max_resident: int | None = None,
        storage: Storage | None = None,
        now: Now = time.perf_counter,
    ) -> None:
        """Allocate state and start the worker.

        Args:
            manifest: the artifact.
            device: has loaded it.
            tokenizer: of the artifact, if it has one.
            max_sessions: sessions that may exist.
            max_queue: generations that may wait.
            max_running: generations served in turn, by default as many as slots.
            memory_budget: bytes for everything; `None` takes what `max_resident` full sessions need.
            snapshot_budget: bytes for snapshots, a part of the former; `None` chooses.
            copy_mode: where snapshots are kept.
            max_resident: slots, that is sessions whose state is in memory at once; by default `max_sessions`.
            storage: where sessions are kept beyond the life of the engine; `None`: nowhere.
            now: what times of steps, rewinds and generations are taken by.

        Raises:
            StoreFailedError: the folder of `storage` cannot be used.
            MemoryBudgetError: the budget is too small, with the numbers.
            InvalidRequestError: a limit below 1 (`max_queue` below 0).
        """
        slots = check_resident(max_sessions, max_resident)
        memory = plan_memory(manifest, slots, memory_budget, snapshot_budget)
        running = slots if max_running is None else max_running
        if running < 1 or max_queue < 0:
            raise InvalidRequestError(
                "engine not loaded: expected at least 1 running and 0 waiting generations, "
                f"got {running} and {max_queue}",
                field="max_running",
            )
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.limits = EngineLimits(max_sessions, slots, running, max_queue, memory)
        self.counters = Counters()
        self.failure: RuntimeFailure | None = None
        self._now = now
        self._store = StateStore(
            manifest,
            device,
            slots,
            memory.page_count,
            snapshot_bytes=memory.snapshots,
            copy_mode=copy_mode,
            counters=self.counters,
        )
        self._stepper = Stepper(manifest, device, self._store, now)
        self._registry = Registry(max_sessions)
        sha256 = "" if tokenizer is None else tokenizer.sha256
        self._stored = None if storage is None else SessionStore(manifest, self._counting(storage), sha256)
        on_parked = self.counters.session_evictions.add
        self._residency = Residency(
            self._registry, self._stepper, self._store, sha256, self._stored, on_parked
        )
        self._worker = Worker(running)
        self._generations: dict[tuple[str, str], Generation] = {}
        self._is_draining = False

    def _submit(self, begin: Callable[[], Task[T]]) -> Future[T]:
        """Run a task; what `begin` raises is in the future too."""
        try:
            self._refuse_failed()
            return self._worker.submit(begin())
        except RuntimeFailure as error:
            refused: Future[T] = Future()
            refused.set_exception(error)
            return refused

    def _task(
        self, entry: Entry, body: Body[T], *, is_new: bool = False, also: Callable[[], None] = lambda: None
    ) -> Task[T]:
        """Task that changes a session; a new session disappears if it fails."""

        def on_end(is_failure: bool) -> None:
            try:
                if is_failure and is_new:
                    self._close(entry)
                else:
                    self._hand_back(entry)
            finally:
                also()

        return Task(body, after_slice=lambda: self._publish(entry), on_end=on_end)

    def _counting(self, storage: Storage) -> Storage:
        """The same storage, with its errors counted too."""

        def on_error(kind: str, line: str) -> None:
            self.counters.store_errors.add(kind)
            storage.on_error(kind, line)

        return dataclasses.replace(storage, on_error=on_error)

    def _close(self, entry: Entry) -> None:
        self._residency.forget(entry)
        if entry.deferred is not None:
            self.counters.rewinds.record(entry.deferred)
        self._registry.remove(entry)

    def _publish(self, entry: Entry) -> None:
        if entry.session is not None:
            entry.publish()

    def _hand_back(self, entry: Entry) -> None:
        """End of a turn: its history is on disk before anybody hears that it has ended."""
        try:
            self._residency.persist(entry)
            self._publish(entry)
        finally:
            self._registry.release(entry)

    def _rebuild(self, session: Session, report: RewindReport) -> Body[RewindReport]:
        started = self._now()
        yield from rebuild_slices(session)
        return rebuilt(report, session, report.restore_seconds + self._now() - started)

    def _count_rewind(self, entry: Entry, report: RewindReport) -> None:
        """Count a rewind or fork once: a deferred one when it is rebuilt, or replaced, or its session closed.

        The report of a rebuild without a move (from and to are the same) is that of the rewind before it.
        """
        waiting, entry.deferred = entry.deferred, None
        if waiting is not None:
            if report.from_position == report.to_position == waiting.to_position:
                report = made_good(waiting, report)
            else:
                self.counters.rewinds.record(waiting)
        if report.kind is RewindKind.DEFERRED:
            entry.deferred = report
        else:
            self.counters.rewinds.record(report)

    def _result_info(self, entry: Entry) -> SessionInfo:
        """State of a session at the end of a task, when it is about to be handed back."""
        entry.publish()
        return dataclasses.replace(session_info(entry), is_busy=False)

    def _refuse_failed(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _refuse_draining(self) -> None:
        if self._is_draining:
            raise DrainingError("request refused: expected a serving engine, got one that is draining")


def made_good(deferred: RewindReport, rebuild: RewindReport) -> RewindReport:
    """The report of a deferred rewind as what the rebuild after it made of it."""
    known = deferred.rebuild_reason
    is_rebuild = rebuild.kind is RewindKind.REBUILD and known is not RebuildReason.NOT_REBUILT
    return rebuild._replace(
        cause=deferred.cause,
        from_position=deferred.from_position,
        rebuild_reason=known if is_rebuild else rebuild.rebuild_reason,
    )


def check_resident(max_sessions: int, max_resident: int | None) -> int:
    """Number of slots.

    Raises:
        InvalidRequestError: not in `[1, max_sessions]`.
    """
    if max_resident is not None and not 1 <= max_resident <= max_sessions:
        raise InvalidRequestError(
            f"engine not loaded: expected 1 to {max_sessions} sessions in memory, got {max_resident}",
            field="max_resident",
        )
    return max_sessions if max_resident is None else max_resident


def session_info(entry: Entry) -> SessionInfo:
    """Last published picture of a session."""
    assert entry.info is not None
    return dataclasses.replace(entry.info, is_busy=entry.is_busy)


def check_expected(info: SessionInfo, position: int | None, digest: str) -> None:
    """Refuse if the session is not where the caller believes it to be.

    Raises:
        StaleContinuationError: with the position and digest it is at.
    """
    for what, expected, got in (
        ("position", position, info.position),
        ("digest", digest or None, info.digest),
    ):
        if expected is not None and expected != got:
            raise StaleContinuationError(
                f"session {info.session_id!r} has moved: expected {what} {_shown(expected)}, got {got}; "
                "read it again, then rewind or fork",
                position=info.position,
                digest=info.digest,
            )


def _shown(value: int | str) -> str:
    """A position, or whatever a caller has sent as a digest: in one line, and not longer than a digest."""
    if isinstance(value, int):
        return str(value)
    return repr(value) if len(value) <= DIGEST_DIGITS else f"{value[:DIGEST_DIGITS]!r}..."


def check_one_target(to: int | None, drop: int | None, to_snapshot: str | None) -> None:
    """Refuse unless exactly one target of a rewind is given.

    Raises:
        InvalidRequestError: none or several.
    """
    given = sum(target is not None for target in (to, drop, to_snapshot))
    if given != 1:
        raise InvalidRequestError(
            f"rewind refused: expected one of to, drop and to_snapshot, got {given}; give one", field="target"
        )


def refuse_deferred(defer: bool) -> None:
    """Refuse to put off what runs no token: a snapshot is put back at once.

    Raises:
        InvalidRequestError: it is to be put off.
    """
    if defer:
        raise InvalidRequestError(
            "rewind refused: expected no defer_rebuild with a snapshot as target, which needs no rebuild, "
            "got it; leave it out",
            field="defer_rebuild",
        )


def rewind_target(info: SessionInfo, to: int | None, drop: int | None) -> int:
    """Position that the one of `to` and `drop` which is given means.

    Raises:
        PositionOutOfRangeError: outside `[0, position]`.
    """
    if drop is not None:
        if not 0 <= drop <= info.position:
            what, got = f"rewind by {drop} tokens", info.position - drop
            raise PositionOutOfRangeError(what, got, info.position, field="drop_tokens")
        return info.position - drop
    assert to is not None
    if not 0 <= to <= info.position:
        raise PositionOutOfRangeError("rewind", to, info.position)
    return to
