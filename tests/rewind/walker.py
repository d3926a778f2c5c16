"""A seeded random walk over sessions of a compiled model, each compared with sessions that never rewound.

Histories come from a `Tree`: a trunk and branches that leave it at chosen positions, so that many walks meet
few prefixes. An `Oracle` has one session a path that is fed one token at a time and never rewound, never
forked, without snapshots; it remembers digests of logits and live rows by prefix. Histories that leave the
tree (kept garbage) are compared with a fresh session.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_executable import flood
from rewind_reference import Config, poison, poison_free_snapshots, state_bytes

from ds4c_runtime.errors import (
    MemoryBudgetError,
    PositionOutOfRangeError,
    RewindTooDearError,
    StateInvalidError,
)
from ds4c_runtime.local import LocalModel
from ds4c_runtime.reports import RewindKind
from ds4c_runtime.session import Session, step_sessions
from ds4c_runtime.snapshot import SnapshotOrigin
from ds4c_runtime.state import StateStore
from ds4c_runtime.step import Stepper
from ds4c_runtime.store.history_log import HistoryLog
from ds4c_runtime.store.session_store import SessionStore, Storage
from ds4c_runtime.transport import CopyMode

MOST = 440
"""Longest session: crosses three pages, windows of 128 and the index selection."""
SPLITS = (0, 1, 4, 21, 100, 126, 127, 128, 129, 131, 140, 255, 256, 257, 300, 384)
SLOTS = 7
SESSIONS = SLOTS - 2
"""Open at once; one more slot is for the fork of a pin below the position, one for a fresh session."""
PAGES = SLOTS * 4 + SESSIONS * 3 * 4
"""Enough for full sessions and for pins that share nothing; a chapter may have fewer."""
FRESH_EVERY = 50
HOST_MODES = (CopyMode.HOST, CopyMode.HOST_ASYNC, CopyMode.HOST_PINNED)
IN_PLACE = (RewindKind.NONE, RewindKind.IN_PLACE)


def with_store(model: LocalModel, slots: int, **options: Any) -> LocalModel:
    """The same kernels with states of their own."""
    pages = options.pop("pages", None) or slots * model.manifest.limits.pages_per_session
    store = StateStore(model.manifest, model.device, slots, pages, **options)
    return LocalModel(model.manifest, model.device, store, Stepper(model.manifest, model.device, store))


class Tree:
    """Path 0 is the trunk; path k leaves it at `SPLITS[k - 1]` and never comes back."""

    def __init__(self, vocab_size: int) -> None:
        rng = np.random.default_rng(11)
        trunk = rng.integers(0, vocab_size, MOST)
        self.paths = [tuple(trunk.tolist())]
        for split in SPLITS:
            own = rng.integers(0, vocab_size, MOST - split)
            own[0] = (trunk[split] + 1) % vocab_size
            self.paths.append((*trunk[:split].tolist(), *own.tolist()))

    def all_of(self, tokens: tuple[int, ...]) -> list[int]:
        """Paths that begin with these tokens; none if they are off the tree."""
        return [k for k, path in enumerate(self.paths) if path[: len(tokens)] == tokens]


def digest_of(model: LocalModel, config: Config, session: Session) -> bytes:
    """Digest of all live rows."""
    found = hashlib.blake2b(digest_size=16)
    for name, rows in state_bytes(model, config, session).items():
        found.update(name.encode() + rows)
    return found.digest()


class Oracle:
    """Logits and live-row digests by token prefix, from sessions that only go forward one token at a time."""

    def __init__(self, model: LocalModel, config: Config, tree: Tree) -> None:
        self.model = with_store(model, len(tree.paths), snapshot_bytes=0)
        self.config, self.tree = config, tree
        self._sessions = [self.model.session(f"path{k}") for k in range(len(tree.paths))]
        self._known: list[list[tuple[bytes, bytes]]] = [[(b"", b"")] for _ in tree.paths]

    def at(self, path: int, length: int) -> tuple[bytes, bytes]:
        """Bytes of the logits and digest of the live rows after `length` tokens of a path."""
        known, session = self._known[path], self._sessions[path]
        while len(known) <= length:
            row = session.step([self.tree.paths[path][session.position]])[0]
            known.append((row.tobytes(), digest_of(self.model, self.config, session)))
        return known[length]


@dataclass(eq=False)
class Tracked:
    """A session and what it must hold."""

    session: Session
    tokens: tuple[int, ...] = ()
    pins: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Chapter:
    """Store options for a part of a walk. `mode` `None` takes another host mode for every operation."""

    mode: CopyMode | None
    largest_snapshots: int | None
    pages: int | None


CHAPTERS = (
    Chapter(CopyMode.DEVICE, 6, None),
    Chapter(CopyMode.HOST_ASYNC, 10, None),
    Chapter(None, 12, None),
    Chapter(CopyMode.HOST, 3, 16),
    Chapter(CopyMode.HOST_PINNED, 7, None),
    Chapter(CopyMode.DEVICE, None, 15),
    Chapter(CopyMode.HOST_ASYNC, 5, 16),
    Chapter(CopyMode.DEVICE, 2, None),
)


class Walk:
    """One random walk; `run` raises AssertionError with the last operations if anything differs."""

    def __init__(self, model: LocalModel, config: Config, seed: int, folder: Path) -> None:
        self.base, self.config = model, config
        self.files = SessionStore(model.manifest, Storage(folder))
        self.tree = Tree(config.vocab_size)
        self.oracle = Oracle(model, config, self.tree)
        self.rng = np.random.default_rng(seed)
        self.done: Counter[str] = Counter()
        self.kinds: Counter[RewindKind] = Counter()
        self.refused = self.kept_pins = 0
        self.trace: deque[str] = deque(maxlen=12)
        self.open: list[Tracked] = []
        self.chapter = CHAPTERS[0]
        self.model = model
        self.changed: list[Tracked] = []
        self._names = list(OPERATIONS)
        weights = np.array([OPERATIONS[n] for n in self._names], float)
        self._weights = weights / weights.sum()

    # ------------------------------------------------------------------------------------- the walk

    def run(self, operations: int, chapter_length: int) -> None:
        for number in range(operations):
            if number % chapter_length == 0:
                self.begin_chapter(CHAPTERS[number // chapter_length % len(CHAPTERS)])
            if self.chapter.mode is None:
                self.model.store.snapshots.transport.mode = HOST_MODES[self.rng.integers(len(HOST_MODES))]
            name = self._names[self.rng.choice(len(self._names), p=self._weights)]
            self.changed = []
            self.trace.append(name)
            try:
                getattr(self, name)()
                self.done[name] += 1
                self.check(number)
            except Exception as error:
                raise AssertionError(
                    f"operation {number}, {self.chapter}: {type(error).__name__}: {error}; "
                    f"last: {list(self.trace)}"
                ) from error
        self.end_chapter()
        self.files.close()

    def begin_chapter(self, chapter: Chapter) -> None:
        """Other memory, budgets and copy mode; two sessions come along by way of their files."""
        carried = [(t, self.save(t)) for t in self.open[:2]]
        self.end_chapter()
        self.chapter = chapter
        largest = self.base.store.snapshots.layout.largest()
        number = chapter.largest_snapshots
        self.model = with_store(
            self.base,
            SLOTS,
            pages=chapter.pages or PAGES,
            snapshot_bytes=None if number is None else number * largest,
            copy_mode=chapter.mode or CopyMode.HOST,
        )
        flood(self.model)
        for tracked, log in carried:
            self.open.append(self.load(tracked, log))
        self.add(self.model.session(f"first{self.done['chapter']}"))
        self.done["chapter"] += 1

    def save(self, tracked: Tracked) -> HistoryLog:
        log = self.files.create(self.files.header(tracked.session), tracked.session)
        self.files.save(log, tracked.session, exact=bool(self.rng.integers(2)))
        return log

    def load(self, tracked: Tracked, log: HistoryLog) -> Tracked:
        """The session as another process finds it, with the snapshots that there is room for."""
        session = self.files.load(log, self.model.stepper, self.model.store)
        pins = [s.snapshot_id for s in session.snapshots() if s.is_pinned]
        assert set(pins) <= set(tracked.pins), "pinned by nobody"
        self.kept_pins += len(pins)
        self.files.remove(log)
        return Tracked(session, tracked.tokens, pins)

    def end_chapter(self) -> None:
        while self.open:
            self.open.pop().session.close()
        store = self.model.store
        store.check_integrity()
        assert (store.sessions, store.free_pages) == (0, store.page_count), "slots or pages lost"
        assert store.snapshots.bytes_used == 0, "bytes of snapshots lost"

    def add(self, session: Session, tokens: tuple[int, ...] = ()) -> Tracked:
        self.open.append(Tracked(session, tokens))
        self.changed.append(self.open[-1])
        return self.open[-1]

    def pick(self) -> Tracked:
        tracked = self.open[self.rng.integers(len(self.open))]
        self.changed.append(tracked)
        self.trace[-1] += f" {tracked.session.session_id}@{len(tracked.tokens)}"
        return tracked

    def pick_valid(self) -> Tracked | None:
        """A session with a valid state; a stale one refuses, and is rebuilt."""
        tracked = self.pick()
        if not tracked.session.state_valid:
            for read in (lambda: tracked.session.step([0]), tracked.session.logits):
                with pytest.raises(StateInvalidError):
                    read()
            with self.short_of_pages(tracked):
                tracked.session.rebuild()
        return tracked if tracked.session.state_valid else None

    def may_refuse(self) -> None:
        assert self.chapter.pages is not None, "refused though there are pages"
        self.refused += 1

    def more(self, tracked: Tracked, count: int) -> list[int]:
        """The next tokens along a path of the tree, any of those that are still open."""
        paths, at = self.tree.all_of(tracked.tokens), len(tracked.tokens)
        path = self.tree.paths[paths[self.rng.integers(len(paths))] if paths else 0]
        return list(path[at : at + count])

    @contextmanager
    def short_of_pages(self, *tracked: Tracked) -> Any:
        """An operation that a small page pool may refuse; then nothing has changed."""
        before = [(t.session.state_valid, t.session.history) for t in tracked]
        try:
            yield
        except MemoryBudgetError:
            self.may_refuse()
            self.trace[-1] += " refused"
            after = [(t.session.state_valid, t.session.history) for t in tracked]
            assert before == after, "a refusal has changed a session"

    # -------------------------------------------------------------------------------------- checks

    def check(self, number: int) -> None:
        others = [t for t in self.open if t not in self.changed]
        if others:  # one that was not touched must not have changed
            self.changed.append(others[self.rng.integers(len(others))])
        seen = [t for t in dict.fromkeys(self.changed) if t in self.open]
        for tracked in seen:
            poison(self.model, tracked.session)
        poison_free_snapshots(self.model)
        for tracked in seen:
            self.check_one(tracked, fresh=number % FRESH_EVERY == 0)
        pool = self.model.store.snapshots
        assert pool.bytes_used <= pool.budget, "budget of snapshots exceeded"
        if number % 7 == 0:  # it waits for copies, which should mostly go on
            self.model.store.check_integrity()

    def check_one(self, tracked: Tracked, *, fresh: bool) -> None:
        session = tracked.session
        assert session.history == tracked.tokens, "history differs"
        session.timeline.check_integrity()
        held = {s.snapshot_id for s in session.snapshots() if s.is_pinned}
        assert held == set(tracked.pins), "pinned snapshots differ"
        if not session.state_valid:
            with pytest.raises(StateInvalidError):
                session.logits()
            return
        if not tracked.tokens:
            assert session.logits() is None, "logits of nothing"
            return
        try:
            row = session.logits()
        except MemoryBudgetError:  # the page of the last token is shared and there is none to copy it to
            self.may_refuse()
            return
        assert row is not None, "no logits"
        got = (row.tobytes(), digest_of(self.model, self.config, session))
        paths = self.tree.all_of(tracked.tokens)
        if paths:
            self.compare(got, self.oracle.at(paths[0], len(tracked.tokens)), tracked)
        if fresh or not paths:
            self.compare_with_fresh(got, tracked)

    def compare_with_fresh(self, got: tuple[bytes, bytes], tracked: Tracked) -> None:
        fresh = self.model.session("fresh")
        try:
            fresh.prefill(tracked.tokens)
            row = fresh.logits()
            assert row is not None, "no logits"
            want = (row.tobytes(), digest_of(self.model, self.config, fresh))
        except MemoryBudgetError:
            self.may_refuse()
            return
        finally:
            fresh.close()
        self.done["compared with a fresh session"] += 1
        self.compare(got, want, tracked)

    def compare(self, got: tuple[bytes, bytes], want: tuple[bytes, bytes], tracked: Tracked) -> None:
        what = f"of {tracked.session.session_id} at position {len(tracked.tokens)}"
        assert got[0] == want[0], f"logits {what} differ"
        assert got[1] == want[1], f"live rows {what} differ"

    # ---------------------------------------------------------------------------------- operations

    def prefill(self) -> None:
        tracked = self.pick()
        tokens = self.more(tracked, int(self.rng.integers(1, 140)))
        was_valid = tracked.session.state_valid
        try:
            tracked.session.prefill(tokens, chunk=int(self.rng.integers(1, 65)))
        except MemoryBudgetError:
            self.may_refuse()
            assert tracked.session.state_valid or not was_valid, "a refusal has lost the state"
            return
        tracked.tokens += tuple(tokens)

    def step(self) -> None:
        tracked = self.pick_valid()
        tokens = [] if tracked is None else self.more(tracked, int(self.rng.integers(1, 7)))
        if tracked is None or not tokens:
            return
        with self.short_of_pages(tracked):
            rows = tracked.session.step(tokens, all_logits=True)
            tracked.tokens += tuple(tokens)
            self.compare_rows(tracked, rows, len(tokens))

    def compare_rows(self, tracked: Tracked, rows: Any, count: int) -> None:
        paths, start = self.tree.all_of(tracked.tokens), len(tracked.tokens) - count
        for index in range(count if paths else 0):
            want = self.oracle.at(paths[0], start + index + 1)[0]
            assert rows[index].tobytes() == want, f"row {index} of a block differs"

    def garbage_block(self) -> None:
        """A verify block of which a part is accepted: in place, nothing is run again."""
        tracked = self.pick_valid()
        if tracked is None:
            return
        session, start = tracked.session, len(tracked.tokens)
        count = int(self.rng.integers(1, self.model.manifest.limits.horizon + 1))
        good = self.more(tracked, int(self.rng.integers(0, count + 1)))
        bad = self.rng.integers(0, self.config.vocab_size, count - len(good)).tolist()
        if start + len(good) + len(bad) > MOST:
            return
        with self.short_of_pages(tracked):
            rows = session.step(good + bad, all_logits=True)
            report = session.rewind(start + len(good))
            assert (report.kind in IN_PLACE, report.replayed_tokens) == (True, 0), report
            tracked.tokens += tuple(good)
            self.compare_rows(tracked, rows, len(good))

    def kept_garbage(self) -> None:
        """Garbage that stays until somebody rewinds over it."""
        tracked = self.pick_valid()
        count = int(self.rng.integers(1, 30))
        if tracked is None or len(tracked.tokens) + count > MOST:
            return
        bad = self.rng.integers(0, self.config.vocab_size, count).tolist()
        with self.short_of_pages(tracked):
            tracked.session.step(bad)
            tracked.tokens += tuple(bad)

    def rewind_a_little(self) -> None:
        tracked = self.pick()
        self.rewind_to(tracked, max(0, len(tracked.tokens) - int(self.rng.integers(0, 16))))

    def rewind_anywhere(self) -> None:
        tracked = self.pick()
        self.rewind_to(tracked, int(self.rng.integers(0, len(tracked.tokens) + 1)))

    def rewinds_in_a_row(self) -> None:
        """Nothing is read between them."""
        tracked = self.pick()
        for _ in range(int(self.rng.integers(2, 5))):
            self.rewind_to(tracked, max(0, len(tracked.tokens) - int(self.rng.integers(0, 20))))

    def rewind_to(self, tracked: Tracked, to: int) -> None:
        session, before = tracked.session, len(tracked.tokens)
        plan, was_valid = session.plan_rewind(to), session.state_valid
        oldest = max(session.floor, session.high_water - session.horizon)
        is_legal = not to or (was_valid and (to == before or to >= oldest))
        assert (plan.kind in IN_PLACE) == is_legal, f"{plan} from {before}, oldest {oldest}"
        assert session.can_rewind(to) == (plan.kind is not RewindKind.REBUILD), plan
        if plan.replay_tokens > 1:
            with pytest.raises(RewindTooDearError):
                session.rewind(to, max_replay_tokens=plan.replay_tokens - 1)
        with self.short_of_pages(tracked):
            report = session.rewind(to)
            tracked.tokens = tracked.tokens[:to]
            self.kinds[report.kind] += 1
            got = (report.kind, report.base_position, report.replayed_tokens, report.snapshot_id)
            want = (plan.kind, plan.base_position, plan.replay_tokens, plan.snapshot_id)
            assert got == want, f"{report} is not what {plan} said"
            assert (report.from_position, report.to_position) == (before, to), report
            assert session.state_valid, "still stale"

    def rewind_later(self) -> None:
        """Only the history is cut; what comes next, or a part of a rebuild now, brings the state back."""
        tracked = self.pick()
        to = int(self.rng.integers(0, len(tracked.tokens) + 1))
        report = tracked.session.rewind(to, defer=True)
        self.kinds[report.kind] += 1
        tracked.tokens = tracked.tokens[:to]
        if not tracked.session.state_valid and self.rng.random() < 0.5:
            with self.short_of_pages():
                tracked.session.rebuild_chunk()

    def refused_rewind(self) -> None:
        tracked = self.pick()
        for to in (-1, len(tracked.tokens) + 1):
            with pytest.raises(PositionOutOfRangeError):
                tracked.session.rewind(to)

    def fork(self) -> None:
        tracked = self.pick()
        if len(self.open) >= SESSIONS:
            return
        at = int(self.rng.integers(0, len(tracked.tokens) + 1))
        if self.rng.random() < 0.5:
            at = max(0, len(tracked.tokens) - int(self.rng.integers(0, 14)))
        plan = tracked.session.plan_rewind(at)
        with self.short_of_pages(tracked):
            child, report = tracked.session.fork(at, session_id=f"{self.done['fork']}")
            got = (report.kind is RewindKind.IN_PLACE, report.replayed_tokens)
            assert got == (plan.kind in IN_PLACE, plan.replay_tokens), f"{report} is not what {plan} said"
            self.add(child, tracked.tokens[:at])

    def two_in_one_step(self) -> None:
        a, b = self.pick_valid(), self.pick_valid()
        if a is None or b is None or a is b or not (a.session.state_valid and b.session.state_valid):
            return
        if self.rng.random() < 0.5:
            self.go_near_an_interval(a)
            self.go_near_an_interval(b)
        work = [(t.session, self.more(t, int(self.rng.integers(3, 30))), 1) for t in (a, b)]
        if all(tokens for _, tokens, _ in work):
            with self.short_of_pages(a, b):
                step_sessions(self.model.stepper, work)
                a.tokens += tuple(work[0][1])
                b.tokens += tuple(work[1][1])

    def go_near_an_interval(self, tracked: Tracked) -> None:
        """To where a step takes a snapshot after three tokens."""
        interval = self.model.manifest.limits.page_tokens
        tokens = self.more(tracked, max(0, interval - 3 - len(tracked.tokens) % interval))
        with self.short_of_pages(tracked):
            tracked.session.prefill(tokens)
            tracked.tokens += tuple(tokens)

    def snapshot(self) -> None:
        tracked = self.pick_valid()
        if tracked is not None:
            with self.short_of_pages(tracked):
                info = tracked.session.take_snapshot(SnapshotOrigin.TURN_END)
                assert info is None or info.position == len(tracked.tokens)

    def pin(self) -> None:
        tracked = self.pick_valid()
        if tracked is None or not tracked.tokens or len(tracked.pins) > 2:
            return
        session, every = tracked.session, tracked.session.snapshots()
        try:
            if every and self.rng.random() < 0.5:
                info = session.pin(every[self.rng.integers(len(every))].snapshot_id)
            else:
                info = session.pin(position=int(self.rng.integers(1, len(tracked.tokens) + 1)))
        except MemoryBudgetError:  # no room that may be taken for one
            self.refused += 1
            return
        assert info.is_pinned
        tracked.pins = list({*tracked.pins, info.snapshot_id})

    def unpin(self) -> None:
        tracked = self.pick()
        if tracked.pins:
            snapshot_id = tracked.pins.pop(int(self.rng.integers(len(tracked.pins))))
            assert not tracked.session.unpin(snapshot_id).is_pinned

    def restore(self) -> None:
        """To any retained snapshot: backwards, forwards, to a branch that was left."""
        tracked = self.pick()
        every = tracked.session.timeline.ring.entries
        if not every:
            return
        snapshot = every[self.rng.integers(len(every))].snapshot
        with self.short_of_pages(tracked):
            report = tracked.session.rewind_to_snapshot(snapshot.snapshot_id)
            self.kinds[report.kind] += 1
            assert (report.to_position, report.replayed_tokens) == (snapshot.position, 0), report
            tracked.tokens = snapshot.history.tokens()

    def evict(self) -> None:
        """Losing a snapshot may cost time, never correctness."""
        every = self.model.store.snapshots.evictable()
        if every:
            self.model.store.snapshots.evict(every[self.rng.integers(len(every))][1].snapshot)

    def save_and_load(self) -> None:
        """By way of a file; what was in memory is given back and poisoned in between."""
        tracked = self.pick()
        log, index = self.save(tracked), self.open.index(tracked)
        tracked.session.close()
        self.model.store.poison_free()
        poison_free_snapshots(self.model)
        self.open[index] = self.load(tracked, log)
        self.changed.append(self.open[index])

    def open_one(self) -> None:
        if len(self.open) < SESSIONS:
            self.add(self.model.session(f"new{self.done['open_one']}"))

    def close_one(self) -> None:
        if len(self.open) > 1:
            tracked = self.pick()
            self.open.remove(tracked)
            tracked.session.close()


OPERATIONS: dict[str, float] = {
    "prefill": 14,
    "step": 10,
    "garbage_block": 10,
    "kept_garbage": 1,
    "rewind_a_little": 8,
    "rewind_anywhere": 10,
    "rewinds_in_a_row": 5,
    "rewind_later": 4,
    "refused_rewind": 1,
    "fork": 8,
    "two_in_one_step": 7,
    "snapshot": 6,
    "pin": 5,
    "unpin": 3,
    "restore": 9,
    "evict": 3,
    "save_and_load": 4,
    "open_one": 2,
    "close_one": 4,
}
"""Weights."""
