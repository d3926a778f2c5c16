"""A seeded random walk over sessions of a machine, each compared with the model of it and with the truth.

A walk goes through chapters: other memory, budgets of snapshots and places to copy them to. Two sessions come
along from one to the next by way of their files.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from port import (
    CopyMode,
    Holder,
    Machine,
    SnapshotOrigin,
    check,
    flood,
    largest_snapshot,
    machine_like,
    memory_of,
    set_copy_mode,
)
from rewind.truth import Truth
from rewind.twin import Pair, Twin
from session_model import Held

from ds4c_runtime.store.history_log import HistoryLog
from ds4c_runtime.store.session_store import SessionStore, Storage

SLOTS = 6
PAGES = SLOTS * 8
"""Enough for full sessions and for pins that share nothing; a chapter may have fewer."""
HOST_MODES = (CopyMode.HOST, CopyMode.HOST_ASYNC, CopyMode.HOST_PINNED)


@dataclass(frozen=True)
class Chapter:
    """Store options for a part of a walk.

    `mode` `None` takes another host mode for every operation. `snapshots` is their budget in the largest
    ones, `None` for the default.
    """

    mode: CopyMode | None
    snapshots: float | None
    pages: int = PAGES
    slots: int = SLOTS


CHAPTERS = (
    Chapter(CopyMode.DEVICE, 6),
    Chapter(CopyMode.HOST_ASYNC, 10),
    Chapter(None, 12),
    Chapter(CopyMode.HOST, 3, 7),
    Chapter(CopyMode.HOST_PINNED, 7),
    Chapter(CopyMode.DEVICE, None, 5),
    Chapter(CopyMode.HOST_ASYNC, 5, 6),
    Chapter(CopyMode.DEVICE, 2),
)


class Walk:
    """One random walk; `run` raises AssertionError with the last operations if anything differs."""

    def __init__(
        self,
        base: Holder,
        truth: Truth,
        seed: int | str,
        folder: Path,
        *,
        chapters: Sequence[Chapter] = CHAPTERS,
        memory_of_chapter: Callable[[Chapter], Machine[Any]] | None = None,
    ) -> None:
        self.base, self.truth, self.chapters = base, truth, chapters
        self.make = memory_of_chapter or self.new_memory
        self.files = SessionStore(base.manifest, Storage(folder))
        self.rng = np.random.default_rng(list(str(seed).encode()))
        self.operations = 0
        self.done: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.trace: deque[str] = deque(maxlen=12)
        self.changed: list[Pair] = []
        self.chapter = chapters[0]
        self.twin: Twin
        """Of the chapter."""
        self._names = list(OPERATIONS)
        weights = np.array([OPERATIONS[n] for n in self._names], float)
        self._weights = weights / weights.sum()

    # ------------------------------------------------------------------------------------- the walk

    def run(self, operations: int, chapter_length: int) -> None:
        for number in range(operations):
            name = self._names[self.rng.choice(len(self._names), p=self._weights)]
            self.trace.append(name)
            self.changed = []
            try:
                if number % chapter_length == 0:
                    self.begin_chapter(self.chapters[number // chapter_length % len(self.chapters)])
                if self.chapter.mode is None:
                    set_copy_mode(self.twin.machine, HOST_MODES[self.rng.integers(len(HOST_MODES))])
                self.done[name] += bool(getattr(self, name)())
                self.check(number)
            except Exception as error:
                raise AssertionError(
                    f"operation {number}, {self.chapter}: {type(error).__name__}: {error}; "
                    f"last: {list(self.trace)}"
                ) from error
            self.operations += 1
        self.end_chapter()
        self.files.close()

    def check(self, number: int) -> None:
        """Those that were touched, and one that must not have changed."""
        pairs = self.twin.pairs
        seen = [p for p in (*self.changed, self.any_pair()) if p in pairs]
        self.twin.check(*dict.fromkeys(seen), more=number % 7 == 0)
        memory = memory_of(self.twin.machine)
        assert memory.snapshot_bytes <= memory.snapshot_budget, "budget of snapshots exceeded"

    def begin_chapter(self, chapter: Chapter) -> None:
        carried: list[tuple[Pair, HistoryLog]] = []
        if self.done["chapter"]:
            carried = [self.save(pair) for pair in self.twin.pairs[:2]]
            self.end_chapter()
        self.chapter = chapter
        machine = self.make(chapter)
        flood(machine)
        self.twin = Twin(machine, self.truth, chapter.mode or CopyMode.HOST)
        for pair, log in carried:
            self.twin.load(self.files, log, pair)
        self.twin.open()
        self.done["chapter"] += 1

    def new_memory(self, chapter: Chapter) -> Machine[Any]:
        """Other memory for the kernels of the base."""
        number = chapter.snapshots
        room = None if number is None else int(number * largest_snapshot(self.base.manifest))
        mode = chapter.mode or CopyMode.HOST
        return machine_like(self.base, chapter.slots, chapter.pages, snapshot_bytes=room, copy_mode=mode)

    def end_chapter(self) -> None:
        while self.twin.pairs:
            self.twin.close(self.twin.pairs[0])
        check(self.twin.machine)  # waits for copies
        memory = memory_of(self.twin.machine)
        assert (memory.sessions, memory.free_pages) == (0, memory.pages), "slots or pages lost"
        assert memory.snapshot_bytes == 0, "bytes of snapshots lost"
        self.kinds += self.twin.kinds
        self.refused += self.twin.refused

    # ------------------------------------------------------------------------------------- choices

    def draw(self, low: int, high: int) -> int:
        """A number of `[low, high)`."""
        return int(self.rng.integers(low, high))

    def any_pair(self) -> Pair:
        return self.twin.pairs[self.draw(0, len(self.twin.pairs))]

    def pick(self) -> Pair:
        pair = self.any_pair()
        self.changed.append(pair)
        self.trace[-1] += f" {pair.session.session_id}@{pair.position}"
        return pair

    def pick_valid(self) -> Pair:
        """One with a valid state: a stale one refuses to step, and is rebuilt if there are pages."""
        pair = self.pick()
        if not pair.model.is_valid:
            assert not self.twin.step(pair, [0]), "a stale state was used"
            self.twin.rewind(pair, pair.position)
        return pair

    def more(self, pair: Pair, count: int) -> list[int]:
        return self.truth.more(pair.tokens, count, self.draw(0, 1 << 16))

    def garbage(self, pair: Pair, count: int) -> list[int]:
        return self.truth.garbage(min(count, self.truth.most - pair.position), self.draw(0, 1 << 16))

    def any_held(self, pair: Pair) -> Held | None:
        every = pair.model.held
        return every[self.draw(0, len(every))] if every else None

    def add(self, was_done: bool) -> bool:
        if was_done:
            self.changed.append(self.twin.pairs[-1])
        return was_done

    # ---------------------------------------------------------------------------------- operations

    def prefill(self) -> bool:
        pair = self.pick()
        limits = self.base.manifest.limits
        tokens = self.more(pair, self.draw(1, limits.page_tokens + 12))
        return self.twin.prefill(pair, tokens, self.draw(1, limits.max_rows + 1))

    def step(self) -> bool:
        pair = self.pick_valid()
        tokens = self.more(pair, self.draw(1, 7))
        return bool(tokens) and self.twin.step(pair, tokens)

    def garbage_block(self) -> bool:
        """A verify block of which a part is accepted: in place, nothing is run again."""
        pair = self.pick_valid()
        count = self.draw(1, self.base.manifest.limits.horizon + 1)
        good = self.more(pair, self.draw(0, count + 1))
        start, bad = pair.position, self.truth.garbage(count - len(good), self.draw(0, 1 << 16))
        if not good + bad or start + count > self.truth.most or not self.twin.step(pair, good + bad):
            return False
        assert self.twin.model.plan(pair.model, start + len(good)).is_near
        return self.twin.rewind(pair, start + len(good))

    def kept_garbage(self) -> bool:
        """Garbage that stays until somebody rewinds over it."""
        pair = self.pick_valid()
        tokens = self.garbage(pair, self.draw(1, 30))
        return bool(tokens) and self.twin.step(pair, tokens)

    def rewind_a_little(self) -> bool:
        pair = self.pick()
        return self.twin.rewind(pair, max(0, pair.position - self.draw(0, 16)))

    def rewind_anywhere(self) -> bool:
        pair = self.pick()
        to = self.draw(0, pair.position + 1)
        plan = self.twin.model.plan(pair.model, to)
        if plan.replay > 1:
            assert not self.twin.rewind(pair, to, most=plan.replay - 1), "a replay that is too dear"
        return self.twin.rewind(pair, to)

    def rewinds_in_a_row(self) -> bool:
        """Nothing is read between them."""
        pair = self.pick()
        back = [self.draw(0, 20) for _ in range(self.draw(2, 5))]
        return all([self.twin.rewind(pair, max(0, pair.position - each)) for each in back])

    def rewind_later(self) -> bool:
        """Only the history is cut; what comes next, or a part of a rebuild now, brings the state back."""
        pair = self.pick()
        self.twin.rewind(pair, self.draw(0, pair.position + 1), defer=True)
        return self.draw(0, 2) == 0 or self.twin.rebuild_chunk(pair)

    def refused_rewind(self) -> bool:
        pair = self.pick()
        return not any([self.twin.rewind(pair, to) for to in (-1, pair.position + 1)])

    def fork(self) -> bool:
        pair = self.pick()
        at = self.draw(0, pair.position + 1)
        if self.draw(0, 2):
            at = max(0, pair.position - self.draw(0, 14))
        return self.add(self.twin.fork(pair, at, defer=self.draw(0, 8) == 0))

    def two_in_one_step(self) -> bool:
        pair, other = self.pick_valid(), self.pick_valid()
        if pair is other:
            return False
        if self.draw(0, 2):
            self.to_an_interval(pair)
            self.to_an_interval(other)
        most = self.base.manifest.limits.max_rows // 2
        work = [(p, self.more(p, self.draw(3, most))) for p in (pair, other)]
        return all(tokens for _, tokens in work) and self.twin.step_together(work)

    def to_an_interval(self, pair: Pair) -> None:
        """To where a step takes a snapshot after three tokens."""
        limits = self.base.manifest.limits
        rest = limits.page_tokens - pair.position % limits.page_tokens
        if tokens := self.more(pair, max(0, rest - 3)):
            self.twin.prefill(pair, tokens, limits.max_rows)

    def snapshot(self) -> bool:
        origins = (SnapshotOrigin.TURN_END, SnapshotOrigin.CLIENT, SnapshotOrigin.BEFORE_DRAFT)
        return self.twin.snapshot(self.pick_valid(), origins[self.draw(0, 3)])

    def pin(self) -> bool:
        pair = self.pick_valid()
        pinned = [h for h in pair.model.held if h.pinned]
        if not pair.position or len(pinned) > 2:
            return False
        held = self.any_held(pair)
        if held is not None and self.draw(0, 2):
            return self.twin.pin_one(pair, held)
        return self.twin.pin(pair, self.draw(1, pair.position + 1))

    def unpin(self) -> bool:
        pair = self.pick()
        pinned = [h for h in pair.model.held if h.pinned]
        return bool(pinned) and self.twin.pin_one(pair, pinned[self.draw(0, len(pinned))], pinned=False)

    def restore(self) -> bool:
        """To any retained snapshot: backwards, forwards, to a branch that was left."""
        pair = self.pick()
        held = self.any_held(pair)
        return held is not None and self.twin.restore(pair, held)

    def evict(self) -> bool:
        held = self.any_held(self.any_pair())
        return held is not None and not held.pinned and self.twin.evict(held)

    def lose(self) -> bool:
        return self.twin.lose(self.pick())

    def save(self, pair: Pair) -> tuple[Pair, HistoryLog]:
        return pair, self.twin.save(self.files, pair, exact=self.draw(0, 2) == 0)

    def save_and_load(self) -> bool:
        """By way of a file; what was in memory is given back and poisoned in between."""
        pair = self.pick()
        _, log = self.save(pair)
        if self.twin.pairs:
            self.twin.check(self.any_pair())
        self.twin.load(self.files, log, pair)
        return self.add(True)

    def open_one(self) -> bool:
        return self.add(self.twin.open())

    def close_one(self) -> bool:
        return len(self.twin.pairs) > 1 and self.twin.close(self.pick())


OPERATIONS: dict[str, float] = {
    "prefill": 14,
    "step": 10,
    "garbage_block": 10,
    "kept_garbage": 2,
    "rewind_a_little": 8,
    "rewind_anywhere": 10,
    "rewinds_in_a_row": 5,
    "rewind_later": 4,
    "refused_rewind": 2,
    "fork": 7,
    "two_in_one_step": 7,
    "snapshot": 6,
    "pin": 5,
    "unpin": 6,
    "restore": 9,
    "evict": 3,
    "lose": 2,
    "save_and_load": 4,
    "open_one": 2,
    "close_one": 6,
}
"""Weights."""
