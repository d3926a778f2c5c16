"""The snapshots of all sessions: bytes of the arena, page references, and who has to give way.

A session's ring (`snapshot_ring.py`) says what it would give up first; the pool does it. Snapshots are a
cache: when there is no room for one and nothing may go, it is not taken, and rewinds cost more.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ds4c_runtime.counters import Counters
from ds4c_runtime.device.base import Arena, Device, HostBytes
from ds4c_runtime.extents import Extents
from ds4c_runtime.history import History
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.snapshot import DEAD_BYTE, UNIT_BYTES, Parts, Snapshot, SnapshotLayout, SnapshotOrigin
from ds4c_runtime.snapshot_ring import DENSE_TOKENS, SHARE, TURN_ENDS, Entry, SnapshotRing
from ds4c_runtime.transport import CopyMode, OnDevice, OnHost, Place, Transport

SESSION_BYTES = 256 << 20
"""Most bytes of one session's snapshots by default."""
MOST_BYTES = UNIT_BYTES * (2**31 - 1)
"""Most bytes of the arena: kernels are told places as int32 in units of 64 bytes."""
STAGED = 4
"""Largest snapshots that fit into the arena when they are kept on the host."""


def default_session_bytes(manifest: Manifest) -> int:
    """Bytes for all snapshots that the rule of spacing keeps of a full session, at most `SESSION_BYTES`."""
    layout = SnapshotLayout(manifest)
    context = manifest.model.context
    dense = min(context, DENSE_TOKENS) // layout.interval + 1
    # Two gaps in a row are together longer than an eighth of the distance, else the one between would go.
    sparse = int(2 / np.log(SHARE / (SHARE - 1)) * np.log(max(1.0, context / DENSE_TOKENS))) + 2
    aligned = layout.parts(context // layout.interval * layout.interval).total
    wanted = (dense + sparse) * aligned + (TURN_ENDS + 1) * layout.largest()
    return max(layout.largest(), min(wanted, SESSION_BYTES))


@dataclass(frozen=True)
class Reserved:
    """Room in the arena for a snapshot at a position that a kernel is about to fill."""

    position: int
    parts: Parts
    range: OnDevice

    @property
    def places(self) -> NDArray[np.int64]:
        """Start of each ring's rows in the arena, in bytes."""
        return self.parts.rings + self.range.offset


class SnapshotPool:
    """Snapshots of one device."""

    def __init__(
        self,
        manifest: Manifest,
        device: Device,
        *,
        budget: int,
        session_bytes: int,
        mode: CopyMode = CopyMode.DEVICE,
        release_pages: Callable[[Sequence[int]], None],
        counters: Counters | None = None,
    ) -> None:
        """Allocate the arena.

        Args:
            manifest: the loaded artifact.
            device: where the arena is.
            budget: bytes of all snapshots, wherever they are kept.
            session_bytes: most bytes of one session.
            mode: where they are kept.
            release_pages: gives up one reference to each page.
            counters: where it is counted what had to go.
        """
        self.layout = SnapshotLayout(manifest)
        self.budget, self.session_bytes = budget, session_bytes
        # On the host the budget is shared by the buffers there and the arena that they are filled from.
        size = budget if mode is CopyMode.DEVICE else min(budget // 2, STAGED * self.layout.largest())
        size -= size % 64
        assert size <= MOST_BYTES, "places of rows would not fit into int32"
        self._host_budget = budget - size
        self._device = device
        self.arena: Arena = device.allocate(size)
        self.transport = Transport(device, self.arena, mode)
        self._counters = counters or Counters()
        self._extents = Extents(size)
        self._release_pages = release_pages
        self._rings: list[SnapshotRing] = []
        self._copying: list[OnHost] = []
        self._leaving = 0
        """Bytes of the arena that are being copied to the host."""
        self._host_bytes = 0
        self._numbers = itertools.count(1)
        self._prefix = ""

    @property
    def bytes_used(self) -> int:
        """Bytes of all snapshots, each once."""
        return self.device_bytes + self._host_bytes

    @property
    def device_bytes(self) -> int:
        """Bytes taken in the arena."""
        return len(self.arena) - self._extents.free_bytes

    @property
    def host_bytes(self) -> int:
        """Bytes of host buffers."""
        return self._host_bytes

    def open(self) -> SnapshotRing:
        """A ring for a new session."""
        ring = SnapshotRing(self.layout.interval)
        self._rings.append(ring)
        return ring

    def close(self, ring: SnapshotRing) -> None:
        """Give up a session's snapshots."""
        self.clear(ring)
        self._rings.remove(ring)

    def clear(self, ring: SnapshotRing) -> None:
        """Give up a session's snapshots, pinned ones too."""
        for entry in ring.entries:
            self.drop(ring, entry)

    def share(self, source: SnapshotRing, target: SnapshotRing, at: int) -> None:
        """Let a fork at a position hold the snapshots of its parent's branch up to there."""
        for entry in source.branch:
            if entry.position <= at:
                entry.snapshot.holders += 1
                target.add(Entry(entry.snapshot))

    def reserve(
        self, ring: SnapshotRing, position: int, current: int, *, pending: int = 0
    ) -> Reserved | None:
        """Room for a snapshot of a session at `current`; others give way, `None` if none may.

        `pending` bytes are reserved for the session already.
        A snapshot is never made room for by one that is worth more to the same session: the ring decides.
        """
        parts = self.layout.parts(position)
        size = parts.total
        if size > min(self.session_bytes, len(self.arena)):
            return None
        while ring.bytes + pending + size > self.session_bytes:
            if not self._give_up(ring, current):
                return None
        while True:
            if self._has_host_room(size):
                offset = self._extents.take(size)
                if offset is not None:
                    return Reserved(position, parts, OnDevice(offset, size))
                if self.transport.mode is not CopyMode.DEVICE:  # giving up what is on the host does not help
                    if self.poll(wait=True):
                        continue
                    return None
            if not self._give_up_any(ring, current):
                return None

    def _has_host_room(self, size: int) -> bool:
        """Whether a buffer more fits on the host, with those for what is reserved now."""
        if self.transport.mode is CopyMode.DEVICE:
            return True
        reserved = self.device_bytes - self._leaving
        return self._host_bytes + reserved + size <= self._host_budget

    def has_room(self, size: int) -> bool:
        """Whether a snapshot can be kept without any other giving way."""
        return self.device_bytes + size <= len(self.arena) and self._has_host_room(size)

    def cancel(self, reserved: Reserved) -> None:
        """The kernel failed; give back the room."""
        self._free(reserved.range)

    def keep(
        self,
        ring: SnapshotRing,
        reserved: Reserved,
        history: History,
        epoch: int,
        pages: Sequence[int],
        logits: NDArray[np.float32],
        origin: SnapshotOrigin,
    ) -> Entry:
        """Make a snapshot of filled room; `pages` are references that the caller has taken for it."""
        position, parts, staged = reserved.position, reserved.parts, reserved.range
        start = staged.offset + parts.logits
        self._device.write(self.arena, start, logits.view(np.uint8))
        place = self._placed(staged)
        snapshot = Snapshot(
            f"s{self._prefix}{next(self._numbers)}",
            position,
            epoch,
            history.digest_at(position),
            history.prefix(position),
            tuple(pages),
            place,
            origin,
            holders=1,
        )
        entry = Entry(snapshot)
        ring.add(entry)
        return entry

    def make_ids_lasting(self) -> None:
        """Give snapshots ids from now on that no other process has given: sessions keep theirs in files."""
        self._prefix = self._prefix or f"{secrets.token_hex(3)}-"

    def is_lost(self, snapshot: Snapshot) -> bool:
        """Whether the copy to the host failed; waits for it."""
        place = snapshot.place
        if isinstance(place, OnHost):
            try:
                place.copy.wait()
            except Exception:  # whatever went wrong in it
                return True
        return False

    def content(self, snapshot: Snapshot) -> HostBytes:
        """Bytes of a snapshot; of one on the host they are not a copy."""
        place = snapshot.place
        if isinstance(place, OnDevice):
            return self._device.read(self.arena, place.offset, place.size)
        place.copy.wait()
        return place.buffer

    def put_back(
        self, ring: SnapshotRing, reserved: Reserved, content: HostBytes, make: Callable[[Place], Snapshot]
    ) -> Entry:
        """Retain a snapshot whose bytes were kept elsewhere; `make` makes it of its place, held once."""
        self.make_ids_lasting()
        staged = reserved.range
        self._device.write(self.arena, staged.offset, content)
        entry = Entry(make(self._placed(staged)))
        ring.add(entry)
        return entry

    def _placed(self, staged: OnDevice) -> Place:
        self._leaving += staged.size
        try:
            place = self.transport.save(staged, self._left)
        except BaseException:
            self._leaving -= staged.size
            raise
        if isinstance(place, OnHost):
            self._host_bytes += place.size
            self._copying.append(place)
        else:
            self._leaving -= staged.size
        return place

    def _left(self, staged: OnDevice) -> None:
        self._leaving -= staged.size
        self._free(staged)

    def give(self, entry: Entry, ring: SnapshotRing) -> Entry:
        """Let another session hold a snapshot whose history begins as its own does."""
        entry.snapshot.holders += 1
        mine = Entry(entry.snapshot)
        ring.add(mine)
        return mine

    def thin(self, ring: SnapshotRing, position: int) -> None:
        """Give up what the rule of spacing does not keep."""
        for entry in ring.surplus(position):
            if entry in ring.left:
                self._counters.snapshot_invalidations.add("left")
            self.drop(ring, entry)

    def drop(self, ring: SnapshotRing, entry: Entry) -> None:
        """A session gives up an entry; the last one frees it."""
        ring.remove(entry)
        snapshot = entry.snapshot
        snapshot.holders -= 1
        if snapshot.holders:
            return
        self._release_pages(snapshot.pages)
        place = snapshot.place
        if isinstance(place, OnDevice):
            self._free(place)
        else:
            self._host_bytes -= place.size

    def staged(self, snapshot: Snapshot) -> tuple[OnDevice, bool]:
        """The rows of a snapshot in the arena, and whether `unstage` has to be called after their use.

        Raises:
            MemoryError: the arena has no room for a copy of what is kept on the host.
        """
        place = snapshot.place
        if isinstance(place, OnDevice):
            return place, False
        while (offset := self._extents.take(place.size)) is None:
            if not self.poll(wait=True):
                raise MemoryError(f"no {place.size} bytes to stage a snapshot")
        staged = OnDevice(offset, place.size)
        try:
            self.transport.fetch(place, staged)
        except BaseException:
            self._free(staged)
            raise
        return staged, True

    def unstage(self, staged: OnDevice) -> None:
        """Give back what `staged` took."""
        self._free(staged)

    def logits(self, staged: OnDevice, position: int, vocab_size: int) -> NDArray[np.float32]:
        """Logits `[V]` of staged rows, a copy."""
        start = staged.offset + self.layout.parts(position).logits
        return self._device.read(self.arena, start, 4 * vocab_size).view(np.float32)

    def poll(self, *, wait: bool = False) -> bool:
        """Take back room of copies that are done; whether there was any. A copy that failed is done too."""
        if wait and self._copying:
            with suppress(Exception):  # whoever fetches that snapshot is told
                self._copying[0].copy.wait()
        before = len(self._copying)
        self._copying = [p for p in self._copying if not p.copy.poll()]
        return len(self._copying) < before

    def evictable(self) -> list[tuple[SnapshotRing, Entry]]:
        """Entries that nobody has pinned."""
        pinned = {id(e.snapshot) for ring in self._rings for e in ring.entries if e.is_pinned}
        return [(r, e) for r in self._rings for e in r.entries if id(e.snapshot) not in pinned]

    def evictable_by_page(self) -> dict[int, list[Snapshot]]:
        """Snapshots nobody has pinned, by the pages they hold: of left branches first, then the oldest."""
        on_branch = {id(e.snapshot) for ring in self._rings for e in ring.branch}
        every = {id(e.snapshot): e.snapshot for _, e in self.evictable()}
        found: dict[int, list[Snapshot]] = {}
        for snapshot in sorted(every.values(), key=lambda s: (id(s) in on_branch, s.create_time)):
            for page in snapshot.pages:
                found.setdefault(page, []).append(snapshot)
        return found

    def evict(self, snapshot: Snapshot) -> None:
        """Take a snapshot from every session that holds it."""
        for ring in self._rings:
            entry = ring.find(snapshot.snapshot_id)
            if entry is not None and entry.snapshot is snapshot:
                ring.was_evicted = True
                self.drop(ring, entry)
        self._counters.snapshot_evictions.add()

    def poison_free(self) -> None:
        """Fill the room of the arena with NaN that nobody holds and no copy still reads (for tests)."""
        for start, end in self._extents.free:
            self._device.fill(self.arena, start, end - start, DEAD_BYTE)

    def counts(self) -> tuple[int, int]:
        """How many snapshots may be given up, and how many are pinned, each once. For any thread."""
        is_pinned: dict[int, bool] = {}
        for ring in list(self._rings):
            for entry in (*ring.branch, *ring.left):
                key = id(entry.snapshot)
                is_pinned[key] = entry.is_pinned or is_pinned.get(key, False)
        pinned = sum(is_pinned.values())
        return len(is_pinned) - pinned, pinned

    def check_integrity(self) -> None:
        """Assert that bytes and holders are counted right."""
        self._extents.check_integrity()
        held: dict[int, int] = {}
        snapshots: dict[int, Snapshot] = {}
        for ring in self._rings:
            for entry in ring.entries:
                held[id(entry.snapshot)] = held.get(id(entry.snapshot), 0) + 1
                snapshots[id(entry.snapshot)] = entry.snapshot
        assert all(snapshots[k].holders == n for k, n in held.items()), "holders counted wrong"
        on_host = sum(s.bytes for s in snapshots.values() if not s.on_device)
        assert on_host == self._host_bytes, "host bytes counted wrong"
        while self.poll(wait=True):
            pass
        on_device = sum(-(-s.bytes // 64) * 64 for s in snapshots.values() if s.on_device)
        assert on_device == self.device_bytes, "room of the arena lost"

    def page_references(self) -> dict[int, int]:
        """How many snapshots reference each page."""
        found: dict[int, int] = {}
        for snapshot in {id(e.snapshot): e.snapshot for r in self._rings for e in r.entries}.values():
            for page in snapshot.pages:
                found[page] = found.get(page, 0) + 1
        return found

    def _give_up(self, ring: SnapshotRing, current: int) -> bool:
        entry = ring.cheapest(current)
        if entry is None:
            return False
        ring.was_evicted = True
        self._counters.snapshot_evictions.add()
        self.drop(ring, entry)
        return True

    def _give_up_any(self, ring: SnapshotRing, current: int) -> bool:
        """Give up a snapshot: of branches that were left, then of the session that holds the most bytes.

        A session that is busy so takes room from idle ones until all have their share.

        All who hold it lose it, since only then it frees bytes; one that any of them has pinned stays.
        """
        pinned = {id(e.snapshot) for r in self._rings for e in r.entries if e.is_pinned}

        def may_go(entry: Entry) -> bool:
            return id(entry.snapshot) not in pinned

        left = (e for r in self._rings for e in r.left if may_go(e))
        entry = next(left, None)
        for other in sorted(self._rings, key=lambda r: (-r.bytes, r is not ring)):
            if entry is None:
                position = current if other is ring else other.branch[-1].position if other.branch else 0
                entry = other.cheapest(position, may_go)
        if entry is None:
            return False
        self.evict(entry.snapshot)
        return True

    def _free(self, place: OnDevice) -> None:
        self._extents.give_back(place.offset, place.size)
