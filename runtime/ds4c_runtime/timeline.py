"""The state side of a session: which tokens are evaluated, which rows may be read, which logits are held.

Does what `session.py` has checked and decided; raises only what the device or the page pool raise.

`evaluated` tokens of the history are in the state (all of them when it is valid). `high_water` is one
past the highest ring row written since the slot was last filled from position 0. `floor` is the
lowest position that a fork brought along. Rows that positions from `oldest_target - 1` on may read
have not been overwritten: `high_water - horizon` tokens back and the token before, whose logits a
rewind may need, is what the ring capacities are planned for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ds4c_runtime.errors import BackendFailedError, MemoryBudgetError
from ds4c_runtime.history import History
from ds4c_runtime.reports import RebuildReason, RewindKind, RewindPlan
from ds4c_runtime.state import StateStore
from ds4c_runtime.step import Logits, Segment, Stepper


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
        self._horizon, self._page_tokens = executor.limits.horizon, executor.limits.page_tokens
        self.lease = store.open()
        self._saved_from = 0
        self._saved: Logits = np.zeros((0, executor.manifest.model.vocab_size), np.float32)

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

    def kind(self, to: int, position: int) -> RewindKind:
        """How a rewind to `to` in `[0, position]` is done: the one predicate of all rewinds and forks."""
        if self.evaluated != position:
            return RewindKind.REBUILD
        if to == position:
            return RewindKind.NONE
        in_place = to >= self.floor and to >= self.high_water - self._horizon
        return RewindKind.IN_PLACE if in_place else RewindKind.REBUILD

    def plan(self, to: int) -> RewindPlan:
        """What a rewind to `to` in `[0, position]` costs."""
        kind = self.kind(to, self.position)
        if kind is not RewindKind.REBUILD:
            return RewindPlan(kind, RebuildReason.NOT_REBUILT, to, to, 0, 0.0)
        reason = RebuildReason.NO_SNAPSHOT if self.is_valid else RebuildReason.SNAPSHOT_INVALIDATED
        return RewindPlan(kind, reason, to, 0, to, self.executor.rates.estimate(to))

    def saved_logits(self) -> Logits | None:
        """Held logits at the current position, `[V]`."""
        index = self.position - 1 - self._saved_from
        return self._saved[index] if 0 <= index < len(self._saved) else None

    def hold_logits(self, first: int, logits: Logits) -> None:
        """Keep the logits after the tokens at positions `first`, `first + 1`, ..."""
        self._saved_from, self._saved = first, logits

    def check_room(self, count: int) -> None:
        """Refuse if there are no pages for `count` more tokens; an invalid state is counted in full.

        Raises:
            MemoryBudgetError: with the number of pages needed and free.
        """
        self.store.check_room(self.lease, self.evaluated, self.position + count)

    def rebuild_chunk(self) -> None:
        """Evaluate the next chunk of the history that is not in the state yet."""
        start = self.evaluated
        part = self.history.slice(start, min(self.position, start + self.executor.limits.max_rows))
        run(self.executor, [(self, start, part, int(start + len(part) == self.position))])
        self.evaluated = start + len(part)

    def evaluate_last_again(self) -> None:
        """Evaluate the last token once more, for its logits; writes the bits that are there already."""
        start = self.position - 1
        run(self.executor, [(self, start, self.history.slice(start, start + 1), 1)])

    def shorten(self, to: int, *, keep_state: bool) -> None:
        """Drop the tokens from `to` on; with `keep_state` the state of the rest stays valid."""
        self.history.truncate(to)
        if not keep_state:
            self.forget_state()
            return
        self.evaluated = to
        if len(self.lease.pages) * self._page_tokens >= to + self._page_tokens:
            self.store.release_from(self.lease, to)
        kept = max(0, to - self._saved_from)
        if kept < len(self._saved):
            self._saved = self._saved[:kept]

    def forget_state(self) -> None:
        """Give up the state; the history is what a rebuild makes it from."""
        self.evaluated = self.high_water = self.floor = 0
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
        if at:
            self.executor.fork(parent.lease.slot, self.lease.slot, max(0, self.floor - 1), at)
        kept = max(0, at - parent._saved_from)
        self.hold_logits(parent._saved_from, parent._saved[:kept])

    def poison_dead_rows(self) -> None:
        """Overwrite every row that no legal step, rewind or fork may read (for tests)."""
        if self.is_valid:
            self.store.poison_dead_rows(self.lease, self.position, max(0, self.oldest_target - 1))

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


Work = tuple[Timeline, int, Sequence[int], int]
"""A timeline, the position of the first token, tokens, and how many last rows give logits."""


def run(executor: Stepper, work: Sequence[Work]) -> list[Logits]:
    """Evaluate tokens of several timelines in one step and hold their logits; histories do not change.

    Raises:
        InvalidRequestError: larger than the artifact allows; nothing has changed.
        MemoryBudgetError: no pages; nothing has changed.
        BackendFailedError: the device failed; the states of all timelines are given up.
    """
    executor.check(sum(len(t) for _, _, t, _ in work), len(work), sum(w for _, _, _, w in work))
    _take_pages(work)
    segments = [
        Segment(line.lease.slot, start, tokens, line.lease.pages, n) for line, start, tokens, n in work
    ]
    try:
        results = executor.run(segments)
    except BackendFailedError:
        for line, *_ in work:
            line.forget_state()
        raise
    for (line, start, tokens, wanted), logits in zip(work, results, strict=True):
        end = start + len(tokens)
        line.high_water = max(line.high_water, end)
        line.hold_logits(end - wanted, logits)
    return results


def _take_pages(work: Sequence[Work]) -> None:
    try:
        for line, start, tokens, _ in work:
            line.store.make_writable(line.lease, start, start + len(tokens))
    except MemoryBudgetError:
        for line, *_ in work:
            line.store.release_from(line.lease, line.evaluated)
        raise
