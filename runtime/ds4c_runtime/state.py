"""The state of all sessions: ring slots, reference-counted pages and the arenas they stand in.

Knows offsets and counts from the manifest, no session rules (`session.py`) and no kernels
(`step.py`). Used by one thread at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ds4c_runtime.counters import Counters
from ds4c_runtime.device.base import Arena, Device
from ds4c_runtime.errors import BackendFailedError, MemoryBudgetError, SessionLimitError
from ds4c_runtime.manifest import AppendState, Manifest, RingState, numpy_dtype
from ds4c_runtime.snapshot import DEAD_BYTE, Snapshot
from ds4c_runtime.snapshot_pool import SnapshotPool, default_session_bytes
from ds4c_runtime.transport import CopyMode

Rows = NDArray[np.generic]


class Lease:
    """What one session holds: a slot and a page table (`pages[i]` holds tokens from `i * page_tokens`)."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.pages: list[int] = []


class StateStore:
    """Slots and pages of one device."""

    def __init__(
        self,
        manifest: Manifest,
        device: Device,
        max_sessions: int,
        page_count: int,
        *,
        snapshot_bytes: int | None = None,
        copy_mode: CopyMode = CopyMode.DEVICE,
        counters: Counters | None = None,
    ) -> None:
        """Allocate the arenas.

        Args:
            manifest: the loaded artifact.
            device: where the arenas are.
            max_sessions: number of slots.
            page_count: number of pages, shared by all sessions.
            snapshot_bytes: for the snapshots of all sessions; `None` for what the rule of spacing keeps.
            copy_mode: where snapshots are kept.
            counters: where it is counted what snapshots had to go.
        """
        self.manifest = manifest
        self.max_sessions = max_sessions
        self.page_count = page_count
        self.states: Arena = device.allocate(max_sessions * manifest.arenas.state_slot)
        self.pages: Arena = device.allocate(page_count * manifest.arenas.page)
        self.on_shortage: Callable[[], bool] | None = None
        """Asked when slots or pages are short: takes an idle session out of memory, if there is one."""
        self.idle: Callable[[], Iterable[Lease]] = list
        """Leases of the sessions that `on_shortage` may take out of memory."""
        self._device = device
        self._free_slots = list(range(max_sessions))
        # The page given back last is taken first: a rewind within a page and the next step use the same one.
        self._free_pages = list(range(page_count))[::-1]
        self._page_tokens = manifest.limits.page_tokens
        self._counts = [0] * page_count
        self._leases: list[Lease] = []
        of_session = default_session_bytes(manifest)
        self.snapshots = SnapshotPool(
            manifest,
            device,
            budget=max_sessions * of_session if snapshot_bytes is None else snapshot_bytes,
            session_bytes=of_session,
            mode=copy_mode,
            release_pages=self._release,
            counters=counters,
        )

    @property
    def free_pages(self) -> int:
        """Pages nobody holds."""
        return len(self._free_pages)

    @property
    def sessions(self) -> int:
        """Leases that are open."""
        return len(self._leases)

    @property
    def bytes_used(self) -> int:
        """Bytes of slots and pages in use; a shared page counts once. Snapshots are counted by their pool."""
        used = self.page_count - self.free_pages
        return self.sessions * self.manifest.arenas.state_slot + used * self.manifest.arenas.page

    @property
    def bytes_total(self) -> int:
        """Bytes of all slots and pages."""
        return len(self.states) + len(self.pages)

    def page_references(self, page: int) -> int:
        """How many page tables hold a page."""
        return self._counts[page]

    def open(self) -> Lease:
        """Take a slot. Its rows are those of whoever had it before; nothing reads them.

        Raises:
            SessionLimitError: all slots are taken.
            MemoryBudgetError: the same, where sessions that are idle make room for others.
        """
        while not self._free_slots and self._make_room():
            pass
        if not self._free_slots and self.on_shortage is not None:
            raise MemoryBudgetError(
                f"session not brought to memory: expected a free slot of {self.max_sessions}, got all held "
                "by busy or pinned sessions; retry later"
            )
        if not self._free_slots:
            raise SessionLimitError(
                f"session not opened: expected at most {self.max_sessions} sessions, got one more; close one"
            )
        lease = Lease(heapq.heappop(self._free_slots))
        self._leases.append(lease)
        return lease

    def close(self, lease: Lease) -> None:
        """Give back a slot and all pages."""
        self.release_from(lease, 0)
        self._leases.remove(lease)
        heapq.heappush(self._free_slots, lease.slot)

    def share(self, source: Lease, target: Lease, tokens: int) -> None:
        """Let `target`, which has no pages, hold the pages of the first `tokens` tokens of `source` too."""
        assert not target.pages
        target.pages = self.hold(source, tokens)

    def hold(self, source: Lease, tokens: int) -> list[int]:
        """One more reference to each page of the first `tokens` tokens of a session."""
        pages = source.pages[: self._pages_for(tokens)]
        for page in pages:
            self._counts[page] += 1
        return pages

    def hold_pages(self, pages: Sequence[int]) -> None:
        """One more reference to each page."""
        for page in pages:
            self._counts[page] += 1

    def release_pages(self, pages: Sequence[int]) -> None:
        """One reference less to each page."""
        self._release(pages)

    def take_pages(self, count: int) -> list[int]:
        """Free pages with one reference, which is the caller's.

        Raises:
            MemoryBudgetError: as `check_room`; nothing has changed then.
        """
        lease = Lease(-1)
        self.make_writable(lease, 0, count * self._page_tokens)
        return lease.pages

    def page_content(self, page: int, tokens: int) -> NDArray[np.uint8]:
        """Bytes of a page whose first `tokens` tokens are evaluated, a copy; what is not live is zero."""
        size = self.manifest.arenas.page
        source = self._device.read(self.pages, page * size, size)  # one transfer, whatever the states
        content = np.zeros(size, np.uint8)
        for state in self.manifest.appends:
            live = min(tokens // state.every, state.rows_per_page) * state.row_bytes
            content[state.offset : state.offset + live] = source[state.offset : state.offset + live]
        return content

    def fill_page(self, page: int, content: NDArray[np.uint8]) -> None:
        """Put the bytes of a page back."""
        self._device.write(self.pages, page * self.manifest.arenas.page, content)

    def attach(self, lease: Lease, pages: Sequence[int]) -> None:
        """Replace all pages of a session by those that a snapshot holds."""
        for page in pages:
            self._counts[page] += 1
        self.release_from(lease, 0)
        lease.pages = list(pages)

    def release_from(self, lease: Lease, tokens: int) -> None:
        """Give back the pages that hold no token below `tokens`."""
        keep, pages = -(-tokens // self._page_tokens), lease.pages
        while len(pages) > keep:
            page = pages.pop()
            self._counts[page] -= 1
            if self._counts[page] == 0:
                self._free_pages.append(page)

    def _release(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._counts[page] -= 1
            if self._counts[page] == 0:
                self._free_pages.append(page)

    def check_room(
        self, lease: Lease, start: int, end: int, *, fresh: bool = False, attached: Sequence[int] = ()
    ) -> None:
        """Refuse if tokens `[start, end)` cannot be written; does not change anything.

        Pages of snapshots that may be given up and of sessions that may be taken out of memory count as free.

        Args:
            lease: who writes.
            start: first token.
            end: one past the last token.
            fresh: the lease will give back all its pages first.
            attached: and hold these instead, the pages of a snapshot at `start`.

        Raises:
            MemoryBudgetError: there are not enough free pages.
        """
        needed, available = self._pages_available(lease, start, end, fresh, attached)
        if needed > available:
            idle = self.idle()
            needed, available = self._pages_available(lease, start, end, fresh, attached, idle)
        if needed > available:
            raise MemoryBudgetError(
                f"state not extended: expected {needed} free pages of {self.manifest.limits.page_tokens} "
                f"tokens, got {available} of {self.page_count}; close or rewind sessions or grant more memory"
            )

    def make_writable(self, lease: Lease, start: int, end: int) -> None:
        """Give the lease pages of its own for tokens `[start, end)`; shared ones are copied first.

        Raises:
            MemoryBudgetError: as `check_room`; nothing has changed then.
            BackendFailedError: a page could not be copied; no row has changed then.
        """
        self.check_room(lease, start, end)
        self._park(lease, start, end)
        self._reclaim(lease, start, end)
        for index in self._to_copy(lease, start, end):
            shared, own = lease.pages[index], self._take_page()
            self._copy_page(shared, own)
            self._counts[shared] -= 1
            lease.pages[index] = own
        while len(lease.pages) < self._pages_for(end):
            lease.pages.append(self._take_page())

    def _copy_page(self, source: int, own: int) -> None:
        size = self.manifest.arenas.page
        try:
            self._device.copy(self.pages, source * size, own * size, size)
        except BaseException as error:
            self._release([own])
            if not isinstance(error, Exception):
                raise
            raise BackendFailedError(
                f"page not copied: expected the device to finish, got {type(error).__name__}: {error}; retry"
            ) from error

    def ring_rows(self, slot: int, state: RingState, positions: Sequence[int]) -> Rows:
        """Rows of a ring at positions, `[n, width]`, a copy."""
        content = self._device.read(
            self.states, self._ring_start(slot, state), state.capacity * state.row_bytes
        )
        return _rows(content, state)[np.array(positions, np.int64) % state.capacity]

    def append_rows(self, lease: Lease, state: AppendState, count: int) -> Rows:
        """The first `count` rows of an append state of a session, `[count, width]`, a copy."""
        pages, size = lease.pages[: -(-count // state.rows_per_page)], state.rows_per_page * state.row_bytes
        starts = [page * self.manifest.arenas.page + state.offset for page in pages]
        blocks = [_rows(self._device.read(self.pages, start, size), state) for start in starts]
        rows = np.concatenate(blocks) if blocks else np.zeros((0, state.width), numpy_dtype(state.dtype))
        return rows[:count].copy()

    def poison_dead_rows(self, lease: Lease, position: int, oldest: int) -> None:
        """Fill all rows with NaN that a session at `position` may never read (for tests).

        Live are the ring rows of positions `[live(oldest), position)`, where `oldest` is the first
        position it may still step from, and the rows of windows closed before `position`. Shared
        pages are left alone.
        """
        for ring in self.manifest.rings:
            live = np.arange(max(0, ring.live.first(oldest)), position)
            dead = np.ones(ring.capacity, bool)
            dead[live % ring.capacity] = False
            start = self._ring_start(lease.slot, ring)
            content = self._device.read(self.states, start, ring.capacity * ring.row_bytes)
            content.reshape(ring.capacity, ring.row_bytes)[dead] = DEAD_BYTE
            self._device.write(self.states, start, content)
        for state in self.manifest.appends:
            for index, page in enumerate(lease.pages):
                if self._counts[page] == 1:
                    live_rows = position // state.every - index * state.rows_per_page
                    first = min(max(0, live_rows), state.rows_per_page)
                    start = page * self.manifest.arenas.page + state.offset + first * state.row_bytes
                    size = (state.rows_per_page - first) * state.row_bytes
                    self._device.fill(self.pages, start, size, DEAD_BYTE)

    def poison_free(self) -> None:
        """Fill all free slots and pages with NaN (for tests)."""
        for size, arena, free in (
            (self.manifest.arenas.state_slot, self.states, self._free_slots),
            (self.manifest.arenas.page, self.pages, self._free_pages),
        ):
            for index in free:
                self._device.fill(arena, index * size, size, DEAD_BYTE)

    def check_integrity(self) -> None:
        """Assert that slots and pages are each either free or held, and counted right."""
        slots = [lease.slot for lease in self._leases]
        assert sorted(slots + self._free_slots) == list(range(self.max_sessions)), "slots lost or held twice"
        counts = [0] * self.page_count
        for lease in self._leases:
            assert len(set(lease.pages)) == len(lease.pages), "a page twice in one table"
            for page in lease.pages:
                counts[page] += 1
        for page, count in self.snapshots.page_references().items():
            counts[page] += count
        self.snapshots.check_integrity()
        assert counts == self._counts, "page counts differ from the tables"
        assert sorted(self._free_pages) == [p for p, n in enumerate(counts) if n == 0], "free pages wrong"

    def _pages_needed(
        self,
        lease: Lease,
        start: int,
        end: int,
        fresh: bool,
        attached: Sequence[int] = (),
        without: Mapping[int, int] | None = None,
    ) -> tuple[int, int]:
        """Pages needed to write tokens `[start, end)`, and pages free.

        `without` counts references to pages that could be given up; `attached` ones are not.
        """
        given_up = without or {}
        kept = frozenset(attached)

        def count(page: int) -> int:
            return self._counts[page] - given_up.get(page, 0) + (page in kept)

        free = self.free_pages + sum(count(p) == 0 for p in given_up)
        if fresh:
            shared = start // self._page_tokens if attached else 0
            return self._pages_for(end) - shared, free + sum(count(p) == 1 for p in lease.pages)
        # Every step asks this: the pages before its own are not looked at.
        copies = sum(count(lease.pages[i]) > 1 for i in self._to_copy(lease, start, end))
        return copies + max(0, self._pages_for(end) - len(lease.pages)), free

    def _pages_available(
        self,
        lease: Lease,
        start: int,
        end: int,
        fresh: bool,
        attached: Sequence[int] = (),
        going: Iterable[Lease] = (),
    ) -> tuple[int, int]:
        """As `_pages_needed`; pages of snapshots that may be given up are free if they have to be.

        So are those of the leases that are `going`.
        """
        needed, available = self._pages_needed(lease, start, end, fresh, attached)
        if needed > available:
            without = self._evictable_holders()
            for page in (page for other in going for page in other.pages):
                without[page] = without.get(page, 0) + 1
            return self._pages_needed(lease, start, end, fresh, attached, without=without)
        return needed, available

    def _park(self, lease: Lease, start: int, end: int) -> None:
        """Take idle sessions out of memory until giving up snapshots is enough for what `check_room` allows.

        Raises:
            MemoryBudgetError: it still is not; none that was idle is any more.
        """
        while True:
            needed, available = self._pages_available(lease, start, end, fresh=False)
            if needed <= available:
                return
            if not self._make_room():
                self.check_room(lease, start, end)
                return

    def _evictable_holders(self) -> dict[int, int]:
        """How many snapshots that nobody has pinned hold each page."""
        found: dict[int, int] = {}
        for snapshot in {id(e.snapshot): e.snapshot for _, e in self.snapshots.evictable()}.values():
            for page in snapshot.pages:
                found[page] = found.get(page, 0) + 1
        return found

    def _reclaim(self, lease: Lease, start: int, end: int) -> None:
        """Give up snapshots, those of branches that were left first, until there are pages to write to."""
        holders: dict[int, list[Snapshot]] | None = None
        while True:
            needed, free = self._pages_needed(lease, start, end, False)
            if needed <= free:
                return
            if holders is None:
                holders = self.snapshots.evictable_by_page()
            wanted = [lease.pages[i] for i in self._to_copy(lease, start, end)]
            victim = self._victim(holders, wanted)
            for page in victim.pages:
                holders[page].remove(victim)
            self.snapshots.evict(victim)

    def _victim(self, holders: Mapping[int, Sequence[Snapshot]], wanted: Sequence[int]) -> Snapshot:
        """The snapshot to give up: one that holds a wanted page, else of the page that is free soonest.

        Lists of holders are in the order in which they may go.
        """
        for page in wanted:
            if holders.get(page):
                return holders[page][0]
        free = [(len(by), page) for page, by in holders.items() if by and self._counts[page] == len(by)]
        return holders[min(free)[1]][0]

    def _make_room(self) -> bool:
        return self.on_shortage is not None and self.on_shortage()

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self._page_tokens)

    def _to_copy(self, lease: Lease, start: int, end: int) -> list[int]:
        first = start // self.manifest.limits.page_tokens
        held: Iterable[int] = range(first, min(self._pages_for(end), len(lease.pages)))
        return [i for i in held if self._counts[lease.pages[i]] > 1]

    def _take_page(self) -> int:
        page = self._free_pages.pop()
        self._counts[page] = 1
        return page

    def _ring_start(self, slot: int, state: RingState) -> int:
        return slot * self.manifest.arenas.state_slot + state.offset


def _rows(content: NDArray[np.uint8], state: RingState | AppendState) -> Rows:
    return content.view(numpy_dtype(state.dtype)).reshape(-1, state.width)
