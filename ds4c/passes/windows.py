"""Ring arithmetic without an IR: the smallest capacity for a read set, and its proof by execution.

Model of a session: position `c`, high water `h = c + d` (one past the highest row ever written). A block
of `q` rows at `c` first reads, then writes rows `c .. c+q-1` (only the last `capacity` of them). The position
may then move to any `c'` with `h' - distance <= c' <= c + q`.

Lemma (read before write): rings are read before the block's rows are written and window starts never move
back, so of all queries of a block the first that fires reads the oldest rows; if it reads right rows, all do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class ReadSet:
    """Which rows a reader wants: at `p` with `(p + 1) % every == 0`, rows `window(p)` (first, last)."""

    window: Callable[[int], tuple[int, int]]
    every: int

    def first_fire(self, position: int) -> int:
        """First position at or after `position` whose query reads."""
        return position + (-(position + 1)) % self.every

    def begin(self, position: int) -> int:
        """First row wanted by the next query that fires at or after `position`."""
        return self.window(self.first_fire(position))[0]


@dataclass(frozen=True)
class CounterExample:
    """A session state in which a ring of that capacity gives a wrong row."""

    position: int
    high_water: int
    query: int
    wanted: int
    found: int

    def __str__(self) -> str:
        what = "newer token" if self.found > self.wanted else "older token"
        return (
            f"position {self.position}, high water {self.high_water}: the query at {self.query} wants the "
            f"row of position {self.wanted}, its slot holds position {self.found} ({what})"
        )


def derive_capacity(reads: ReadSet, distance: int) -> int:
    """Smallest ring capacity for rewinds of up to `distance` below the high water; enumerates every phase.

    A read set that never looks back (a window of one token) still gets `distance` rows: with fewer, a write
    after a rewind would replace a later row, and the invariant of `prove` would not hold.
    """
    base = 1 << 20
    base -= base % reads.every
    positions = range(base, base + reads.every)
    return max(1, distance + max(c - min(reads.begin(c), c) for c in positions))


def prove(reads: ReadSet, capacity: int, distance: int) -> CounterExample | None:
    """Execute every phase of a ring of `capacity` rows; None if no query ever reads a wrong row.

    Invariant J(c, d): slot row `k` holds the latest position `t < c + d` with `t = k mod capacity`. From
    every J(c, d) with `d <= distance`, the first query that fires must find its rows, and every block must
    leave J again. Starts cover the first lap of the ring and a full period after it.
    """
    starts = range(capacity + reads.every + _reach(reads) + 1)
    widths = sorted({1, reads.every, capacity - 1, capacity, capacity + 1, 2 * capacity + 3} - {0})
    latest = _latest(starts.stop + distance + widths[-1], capacity)
    rings = {c: latest[c : c + distance + 1] for c in starts}  # J(c, d) for every d: `[d, slot]`
    found = (_check_reads(reads, ring, c) for c, ring in rings.items())
    bad = next((b for b in found if b is not None), None)
    if bad is not None:
        return bad
    kept = (_check_write(latest, ring, c, q) for c, ring in rings.items() for q in widths)
    return next((b for b in kept if b is not None), None)


def _reach(reads: ReadSet) -> int:
    base = 4096 - 4096 % reads.every + reads.every
    return max(c - reads.begin(c) for c in range(base, base + reads.every))


def _latest(highest: int, capacity: int) -> Ints:
    """`[high water, slot]`: latest position below it in that slot row; negative if never written."""
    last = np.arange(highest + 1, dtype=np.int32)[:, None] - 1
    return last - (last - np.arange(capacity, dtype=np.int32)[None, :]) % capacity


def _check_write(latest: Ints, ring: Ints, c: int, q: int) -> CounterExample | None:
    """A block of `q` rows leaves the invariant: each slot the latest position below the new high water.

    Blocks of fewer rows than the ring has are as many blocks of one row, which is why few widths are tried.
    """
    capacity = ring.shape[1]
    after = ring.copy()
    positions = np.arange(c + max(0, q - capacity), c + q)
    after[:, positions % capacity] = positions
    expected = latest[np.maximum(np.arange(c, c + len(ring)), c + q)]
    wrong = after != expected
    if not wrong.any():
        return None
    d, slot = (int(i) for i in np.argwhere(wrong)[0])
    return CounterExample(c, c + d, c + q, int(expected[d, slot]), int(after[d, slot]))


def _check_reads(reads: ReadSet, ring: Ints, c: int) -> CounterExample | None:
    query = reads.first_fire(c)
    first, last = reads.window(query)
    wanted = np.arange(max(0, first), min(last, c - 1) + 1)
    wrong = ring[:, wanted % ring.shape[1]] != wanted
    if not wrong.any():
        return None
    d, k = (int(i) for i in np.argwhere(wrong)[0])
    return CounterExample(c, c + d, query, int(wanted[k]), int(ring[d, wanted[k] % ring.shape[1]]))
