"""The state side of a session: which tokens are evaluated, which rows may be read, which logits are held.

Does what `session.py` has checked and decided; raises only what the device or the page pool raise.

`evaluated` tokens of the history are in the state (all of them when it is valid). `high_water` is one
past the highest ring row written since the slot was last filled from position 0 or a snapshot. `floor` is
the lowest position that a fork or a snapshot brought along. Rows that positions from `oldest_target - 1` on
may read have not been overwritten: `high_water - horizon` tokens back and the token before, whose logits a
rewind may need, is what the ring capacities are planned for. At the floor itself the row before may be
missing; the logits there came with the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ds4c_runtime.errors import BackendFailedError, MemoryBudgetError
from ds4c_runtime.first_use import FirstUse
from ds4c_runtime.history import History
from ds4c_runtime.progress import ProgressGuard
from ds4c_runtime.reports import RebuildReason, RewindKind, RewindPlan
from ds4c_runtime.snapshot import Snapshot, SnapshotOrigin
from ds4c_runtime.snapshot_pool import Reserved
from ds4c_runtime.snapshot_ring import Entry
from ds4c_runtime.state import StateStore
from ds4c_runtime.step import Logits, Segment, Stepper


@dataclass(frozen=True)
class Recovery:
    """How an invalid state is being made valid again: from which base, and the time to put that back.

    `reason` is why that is no snapshot, if it is none.
    """

    base_position: int
    snapshot_id: str
    restore_seconds: float
    reason: RebuildReason = RebuildReason.NOT_REBUILT


class Timeline:
    """History and state of one session."""

    def __init__(self, executor: Stepper, store: StateStore, tokenizer_sha256: str = "") -> None:
        """Take a slot; `SessionLimitError` if there is none."""
        self.executor = executor
        self.store = store
        self.tokenizer_sha256 = tokenizer_sha256
        self.history = History(tokenizer_sha256)
        self.evaluated = 0
        self.high_water = 0
        self.floor = 0
        self.epoch = 0
        self.recovery: Recovery | None = None
        self.guard: ProgressGuard | None = None
        self.takes_marks = True
        """Steps leave snapshots at the interval; nothing could use those of a session of one call."""
        self.first_use: FirstUse | None = None
        self.integrity_failed = False
        """A snapshot was not that of its history and has been given up, and no rebuild has begun since."""
        self._horizon, self._page_tokens = executor.limits.horizon, executor.limits.page_tokens
        self.lease = store.open()
        self.ring = store.snapshots.open()
        self._saved_from = 0
        self._saved: Logits = np.zeros((0, executor.manifest.model.vocab_size), np.float32)
        self._rows: dict[int, Logits] = {}
        """Logits at the floor and at the beginning of the last block, by position, where they are known."""
        self._marked: list[tuple[Reserved, Logits]] = []

    @property
    def position(self) -> int:
        """Number of tokens in the history."""
        return len(self.history)

    @property
    def is_valid(self) -> bool:
        """Whether the state is that of the whole history."""
        return self.evaluated == self.position

    @property
    def oldest_target(self) -> int:
        """Lowest position a rewind reaches in place, if the state is valid."""
        return max(self.floor, self.high_water - self._horizon)

    @property
    def oldest_step(self) -> int:
        """Lowest position from which a step may still run: one below, for logits that are not held."""
        oldest = self.oldest_target
        return oldest if oldest == self.floor and oldest in self._rows else max(0, oldest - 1)

    def near(self, to: int, position: int) -> RewindKind | None:
        """How a rewind to `to` in `[0, position]` is done without a copy; `None` if it is not."""
        if not to:  # the empty state is the beginning of every session, whatever became of this one's
            return RewindKind.IN_PLACE if position else RewindKind.NONE
        if self.evaluated != position:
            return None
        if to == position:
            return RewindKind.NONE
        return RewindKind.IN_PLACE if to >= self.floor and to >= self.high_water - self._horizon else None

    def plan(self, to: int) -> RewindPlan:
        """What a rewind to `to` in `[0, position]` costs: the one predicate of all rewinds and forks."""
        kind = self.near(to, self.position)
        if kind is not None:
            return RewindPlan(kind, RebuildReason.NOT_REBUILT, to, to, 0, 0.0)
        return self.plan_from(self.ring.base(to), to)

    def plan_from(self, entry: Entry | None, to: int) -> RewindPlan:
        """What it costs to get to `to` from a snapshot at or below it, or from nothing."""
        rates = self.executor.rates
        if entry is None:
            return RewindPlan(RewindKind.REBUILD, self.rebuild_reason(), to, 0, to, rates.estimate(to))
        base, replayed = entry.position, to - entry.position
        kind = RewindKind.SNAPSHOT_REPLAY if replayed else RewindKind.SNAPSHOT
        seconds = rates.estimate_restore(entry.snapshot.bytes) + rates.estimate(replayed)
        snapshot_id = entry.snapshot.snapshot_id
        return RewindPlan(kind, RebuildReason.NOT_REBUILT, to, base, replayed, seconds, snapshot_id)

    def rebuild_reason(self) -> RebuildReason:
        """Why there is no snapshot to begin from, or was none where a rebuild under way has begun."""
        if self.recovery is not None and not self.recovery.snapshot_id and not self.is_valid:
            return self.recovery.reason
        if self.integrity_failed:
            return RebuildReason.INTEGRITY_FAILED
        if self.ring.was_evicted:
            return RebuildReason.EVICTED
        return RebuildReason.NO_SNAPSHOT if self.is_valid else RebuildReason.SNAPSHOT_INVALIDATED

    def saved_logits(self) -> Logits | None:
        """Held logits at the current position, `[V]`."""
        return self._logits_at(self.position)

    def _logits_at(self, position: int) -> Logits | None:
        index = position - 1 - self._saved_from
        if 0 <= index < len(self._saved):
            return self._saved[index]
        return self._rows.get(position)

    def hold_logits(self, start: int, first: int, logits: Logits) -> None:
        """Keep the logits after the tokens at positions `first`, `first + 1`, ... of a block from `start` on.

        Those at `start` stay too, so that a rewind that rejects the whole block has its logits.
        """
        before = self._logits_at(start)
        rows = {p: row for p, row in self._rows.items() if p == self.floor}
        self._rows = rows if before is None else {**rows, start: before}
        self._saved_from, self._saved = first, logits

    def check_room(self, count: int) -> None:
        """Refuse if there are no pages for `count` more tokens; an invalid state is counted from its base.

        Raises:
            MemoryBudgetError: with the number of pages needed and free.
        """
        if self.is_valid or self.recovery is not None:
            self.store.check_room(self.lease, self.evaluated, self.position + count)
        else:
            self.check_recovery_room(self.ring.base(self.position), self.position + count)

    def check_recovery_room(self, base: Entry | None, end: int) -> None:
        """Refuse if there are no pages to get from a snapshot, or from nothing, to a position.

        Raises:
            MemoryBudgetError: with the number of pages needed and free.
        """
        start, pages = (0, ()) if base is None else (base.position, base.snapshot.pages)
        self.store.check_room(self.lease, start, end, fresh=True, attached=pages)

    def rebuild_chunk(self) -> None:
        """Evaluate the next chunk of known tokens that are not in the state yet.

        This is the one path of replays and rebuilds: it draws nothing and proposes nothing. It begins from
        the highest snapshot at or below the position, if there is one.
        """
        if self.recovery is None:
            self.begin_recovery()
        if self.is_valid:
            return
        start = self.evaluated
        part = self.history.slice(start, min(self.position, start + self.executor.limits.max_rows))
        run(self.executor, [(self, start, part, int(start + len(part) == self.position))])
        self.evaluated = start + len(part)
        self.keep_marked()

    def begin_recovery(self) -> None:
        """Put back the best base of an invalid state; it may be valid after that.

        A snapshot whose history differs or whose rows are lost is given up, and the next one below is tried.

        Raises:
            NoProgressError: the guard of a generation has seen this before.
            BackendFailedError: the device failed; the state is invalid.
        """
        while (entry := self.ring.base(self.position)) is not None and entry.position > self.evaluated:
            if not self._is_true(entry.snapshot):
                self.integrity_failed = True
                self.store.snapshots.drop(self.ring, entry)
                continue
            self._note_recovery(entry.snapshot.snapshot_id)
            if self.restore(entry.snapshot):
                self.integrity_failed = False
                return
        self._note_recovery("" if entry is None else entry.snapshot.snapshot_id)
        reason = self.rebuild_reason()
        # The snapshots of a whole history are taken anew: what is lost from now on says so again.
        self.integrity_failed = False
        self.ring.was_evicted = self.ring.was_evicted and self.evaluated > 0
        self.recovery = Recovery(self.evaluated, "", 0.0, reason)

    def _note_recovery(self, snapshot_id: str) -> None:
        if self.guard is not None:
            self.guard.restored(self.position, snapshot_id)

    def _is_true(self, snapshot: Snapshot) -> bool:
        return self.history.digest_at(snapshot.position) == snapshot.digest

    def restore(self, snapshot: Snapshot) -> bool:
        """Make the state that of a snapshot, whose history is the beginning of this one's.

        Returns:
            `False` if its copy to the host had failed: the snapshot is given up, the state is invalid.

        Raises:
            BackendFailedError: the device failed; the state is invalid.
        """
        started = self.executor.now()
        pool, position = self.store.snapshots, snapshot.position
        self.forget_state()
        try:
            staged, is_copy = pool.staged(snapshot)
        except Exception as error:
            if pool.is_lost(snapshot):
                self.integrity_failed = True
                pool.evict(snapshot)
                return False
            raise BackendFailedError(
                f"restore failed: expected the rows of snapshot {snapshot.snapshot_id}, got "
                f"{type(error).__name__}: {error}; the session is rebuilt from its history on next use"
            ) from error
        try:
            self.executor.restore(self.lease.slot, Reserved(position, pool.layout.parts(position), staged))
            logits = pool.logits(staged, position, self._saved.shape[1])
        except BackendFailedError:
            if self.first_use is not None:
                self.first_use.fail()
            raise
        finally:
            if is_copy:
                pool.unstage(staged)
        self.store.attach(self.lease, snapshot.pages)
        self.evaluated = self.high_water = self.floor = position
        self._rows[position] = logits
        seconds = self.executor.now() - started
        self.executor.rates.record_restore(snapshot.bytes, seconds)
        self.recovery = Recovery(position, snapshot.snapshot_id, seconds)
        return True

    def take_snapshot(self, origin: SnapshotOrigin) -> Entry | None:
        """Snapshot of the valid state at a position above 0 whose logits are held.

        The one that is there already, if there is; `None` if there is no room.

        Raises:
            BackendFailedError: the device failed; the state is as before.
        """
        position, pool = self.position, self.store.snapshots
        there = self.ring.at(position)
        if there is not None and there.snapshot.origin is SnapshotOrigin.INTERVAL:
            there.snapshot.origin = origin  # the end of a turn is kept as one, also where a step took it
        logits = self.saved_logits()
        if there is not None or logits is None:
            return there
        reserved = pool.reserve(self.ring, position, position)
        if reserved is None:
            return None
        try:
            self.executor.snapshot(self.lease.slot, reserved)
        except BackendFailedError:
            pool.cancel(reserved)
            raise
        return self._keep(reserved, logits, origin)

    def _keep(self, reserved: Reserved, logits: Logits, origin: SnapshotOrigin) -> Entry | None:
        pool = self.store.snapshots
        pages = self.store.hold(self.lease, reserved.position)
        try:
            entry = pool.keep(self.ring, reserved, self.history, self.epoch, pages, logits, origin)
        except MemoryError:  # no buffer of the host; a snapshot is a cache
            pool.cancel(reserved)
            self.store.release_pages(pages)
            return None
        pool.thin(self.ring, self.position)
        return entry

    def reserve_marks(self, start: int, end: int, room: int) -> list[Reserved]:
        """Room for snapshots inside a step over positions `[start, end)`, at most `room` of them.

        One at each multiple of the interval in `(start, end]` where there is none yet.
        """
        if not self.takes_marks:
            return []
        interval = self.ring.interval
        found: list[Reserved] = []
        for position in range((start // interval + 1) * interval, end + 1, interval):
            if len(found) < room and self.ring.at(position) is None:
                pending = sum(mark.range.size for mark in found)
                reserved = self.store.snapshots.reserve(
                    self.ring, position, max(end, self.position), pending=pending
                )
                if reserved is not None:
                    found.append(reserved)
        return found

    def hold_marked(self, marked: Sequence[tuple[Reserved, Logits]]) -> None:
        """Snapshots that a step has filled; `keep_marked` follows once the history has the step's tokens."""
        self._marked = list(marked)

    def keep_marked(self) -> None:
        """Retain what the last step has filled."""
        marked, self._marked = self._marked, []
        for reserved, logits in marked:
            self._keep(reserved, logits, SnapshotOrigin.INTERVAL)

    def evaluate_last_again(self) -> None:
        """Evaluate the last token once more, for its logits; writes the bits that are there already."""
        start = self.position - 1
        run(self.executor, [(self, start, self.history.slice(start, start + 1), 1)])
        self.keep_marked()

    def shorten(self, to: int, *, keep_state: bool) -> None:
        """Drop the tokens from `to` on; with `keep_state` the state of the rest stays valid."""
        self.history.truncate(to)
        branch = self.ring.branch
        if branch and branch[-1].position > to:
            self.ring.leave(to)
        if not keep_state or not to:
            self.forget_state()
            return
        self.evaluated = to
        if len(self.lease.pages) * self._page_tokens >= to + self._page_tokens:
            self.store.release_from(self.lease, to)
        kept = max(0, to - self._saved_from)
        if kept < len(self._saved):
            self._saved = self._saved[:kept]
        if self._rows and max(self._rows) > to:
            self._rows = {p: row for p, row in self._rows.items() if p <= to}

    def replace_history(self, snapshot: Snapshot) -> None:
        """Become the tokens of a snapshot, which may be of another branch; the state is given up."""
        self.history.replace(snapshot.history)
        self.ring.sort_by(self.history)
        self.forget_state()

    def forget_state(self) -> None:
        """Give up the state; the history is what a rebuild makes it from."""
        self.evaluated = self.high_water = self.floor = 0
        self.recovery = None
        self._rows = {}
        self.store.release_from(self.lease, 0)
        self._saved = self._saved[:0]

    def adopt(self, parent: Timeline, at: int) -> None:
        """Become the first `at` tokens of `parent`: pages shared, ring rows copied, held logits too.

        Raises:
            BackendFailedError: the copy failed; this timeline is to be thrown away.
        """
        self.floor = min(at, parent.oldest_target)
        self.high_water = self.evaluated = at
        self.store.share(parent.lease, self.lease, at)
        self._rows = {p: row for p in (self.floor, at) if (row := parent._logits_at(p)) is not None}
        if at:
            self.executor.fork(parent.lease.slot, self.lease.slot, self.oldest_step, at)
        kept = max(0, at - parent._saved_from)
        self._saved_from, self._saved = parent._saved_from, parent._saved[:kept]

    def close(self) -> None:
        """Give back slot, pages and snapshots."""
        self.store.snapshots.close(self.ring)
        self.store.close(self.lease)

    def poison_dead_rows(self) -> None:
        """Overwrite every row that no legal step, rewind or fork may read (for tests)."""
        if self.is_valid:
            self.store.poison_dead_rows(self.lease, self.position, self.oldest_step)

    def check_integrity(self) -> None:
        """Assert what must hold between calls."""
        assert 0 <= self.evaluated <= self.position, "more evaluated than there are tokens"
        assert self.floor <= self.evaluated <= self.high_water, "position outside [floor, high_water]"
        pages = -(-self.evaluated // self.executor.limits.page_tokens)
        assert len(self.lease.pages) == pages, "page table does not fit the position"
        if self.is_valid:
            assert self.oldest_target <= self.position, "below what the rings hold"
        assert not len(self._saved) or self._saved_from + len(self._saved) <= self.evaluated, (
            "logits of dropped tokens"
        )
        assert all(p <= self.evaluated for p in self._rows), "logits of dropped tokens"
        assert not self._marked, "snapshots that a step has filled were forgotten"
        for entry in self.ring.branch:
            assert self.history.starts_with(entry.snapshot.history), "a snapshot of another branch"


Work = tuple[Timeline, int, Sequence[int], int]
"""A timeline, the position of the first token, tokens, and how many last rows give logits."""


def run(executor: Stepper, work: Sequence[Work]) -> list[Logits]:
    """Evaluate tokens of several timelines in one step and hold their logits; histories do not change.

    Snapshots inside the step are taken where they are due and there is room; `keep_marked` retains them.

    Raises:
        InvalidRequestError: larger than the artifact allows; nothing has changed.
        MemoryBudgetError: no pages; nothing has changed.
        BackendFailedError: the device failed, or something else on the way; unless no page could be copied,
            the states of all timelines are given up.
    """
    executor.check(sum(len(t) for _, _, t, _ in work), len(work), sum(w for _, _, _, w in work))
    _take_pages(work)
    segments: list[Segment] = []
    for line, *_ in work:
        if line.first_use is not None:
            line.first_use.begin()
    try:
        segments.extend(_segments(executor, work))
        results = executor.run(segments)
    except BaseException as error:
        # Whatever went wrong, rows may have been written: a state that calls itself valid would be a lie.
        _give_up_states(work, segments)
        if isinstance(error, BackendFailedError) or not isinstance(error, Exception):
            raise
        raise BackendFailedError(
            f"step failed: expected its logits, got {type(error).__name__}: {error}; "
            "the session is rebuilt from its history on next use"
        ) from error
    held: list[Logits] = []
    for (line, start, tokens, wanted), segment, logits in zip(work, segments, results, strict=True):
        end = start + len(tokens)
        line.high_water = max(line.high_water, end)
        if segment.marks:
            rows = segment.logit_rows()
            line.hold_marked([(m, logits[rows.index(m.position - 1 - start)]) for m in segment.marks])
            logits = logits[len(rows) - wanted :]
        line.hold_logits(start, end - wanted, logits)
        held.append(logits)
    return held


def _give_up_states(work: Sequence[Work], segments: Sequence[Segment]) -> None:
    for (line, *_), segment in zip(work, segments, strict=False):
        for reserved in segment.marks:
            line.store.snapshots.cancel(reserved)
    for line, *_ in work:
        line.forget_state()
        if line.first_use is not None:
            line.first_use.fail()


def _segments(executor: Stepper, work: Sequence[Work]) -> Iterator[Segment]:
    """Segments with their marks; marks take what is left of the rows with logits."""
    limits = executor.limits
    marks_left = limits.max_marks
    rows_left = limits.max_logit_rows - sum(wanted for _, _, _, wanted in work)
    for line, start, tokens, wanted in work:
        marks = line.reserve_marks(start, start + len(tokens), marks_left)
        segment = Segment(line.lease.slot, start, tokens, line.lease.pages, wanted, marks)
        while marks and len(segment.logit_rows()) - wanted > rows_left:
            line.store.snapshots.cancel(marks.pop())
        rows_left -= len(segment.logit_rows()) - wanted if marks else 0
        marks_left -= len(marks)
        yield segment


def _take_pages(work: Sequence[Work]) -> None:
    try:
        for line, start, tokens, _ in work:
            line.store.make_writable(line.lease, start, start + len(tokens))
    except (MemoryBudgetError, BackendFailedError):
        for line, *_ in work:
            line.store.release_from(line.lease, line.evaluated)
        raise
