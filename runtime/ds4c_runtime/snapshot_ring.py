"""Which snapshots a session retains: those on its own branch by position, and those it has left.

Spacing (decisions 7 of the design): every interval over the last `DENSE_TOKENS`, geometric before, so that a
rewind by `distance` replays at most `max(interval - 1, distance / 8)` tokens as long as the bytes suffice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ds4c_runtime.history import History
from ds4c_runtime.snapshot import Snapshot, SnapshotInfo, SnapshotOrigin

DENSE_TOKENS = 8192
SHARE = 8
"""Before the dense part, gaps may be this fraction of the distance."""
TURN_ENDS = 8
"""Ends of prompts and turns that are kept whatever their spacing."""
LEFT_BEHIND = 8
"""Unpinned snapshots of branches that were left."""
_TURNS = (SnapshotOrigin.PROMPT_END, SnapshotOrigin.TURN_END, SnapshotOrigin.TOOL_BOUNDARY)


@dataclass(eq=False)
class Entry:
    """A snapshot as one session retains it."""

    snapshot: Snapshot
    is_pinned: bool = False
    label: str = ""
    position: int = field(init=False)
    """Of the snapshot; held here because every rewind asks the last entry for it."""

    def __post_init__(self) -> None:
        self.position = self.snapshot.position

    def info(self) -> SnapshotInfo:
        """For others to see."""
        s = self.snapshot
        return SnapshotInfo(
            s.snapshot_id, s.position, s.digest, s.bytes, self.is_pinned, self.label, True, s.on_device,
            s.origin, s.create_time,
        )  # fmt: skip


class SnapshotRing:
    """The entries of one session. Decides; that bytes and pages are given back is the pool's work."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.branch: list[Entry] = []
        """On the current branch, by position."""
        self.left: list[Entry] = []
        """Of branches that were left, oldest first."""
        self.was_evicted = False

    def __len__(self) -> int:
        return len(self.branch) + len(self.left)

    @property
    def entries(self) -> list[Entry]:
        """All, by position, then in the order in which they were taken."""
        return sorted([*self.branch, *self.left], key=lambda e: (e.position, e.snapshot.create_time))

    @property
    def bytes(self) -> int:
        """Bytes of all snapshots, shared ones in full."""
        return sum(e.snapshot.bytes for e in (*self.branch, *self.left))

    @property
    def has_pinned(self) -> bool:
        """Whether a snapshot is pinned."""
        return any(e.is_pinned for e in (*self.branch, *self.left))

    def find(self, snapshot_id: str) -> Entry | None:
        """Entry by id."""
        return next((e for e in (*self.branch, *self.left) if e.snapshot.snapshot_id == snapshot_id), None)

    def at(self, position: int) -> Entry | None:
        """Entry of the branch at exactly a position."""
        entry = self.base(position)
        return entry if entry is not None and entry.position == position else None

    def base(self, to: int) -> Entry | None:
        """Highest entry of the branch at or below a position."""
        return next((e for e in reversed(self.branch) if e.position <= to), None)

    def add(self, entry: Entry) -> None:
        """Take in a snapshot of the current branch."""
        index = len(self.branch)
        while index and self.branch[index - 1].position > entry.position:
            index -= 1
        self.branch.insert(index, entry)

    def remove(self, entry: Entry) -> None:
        """Forget an entry."""
        (self.branch if entry in self.branch else self.left).remove(entry)

    def leave(self, position: int) -> None:
        """The branch was cut at a position."""
        keep = len(self.branch)
        while keep and self.branch[keep - 1].position > position:
            keep -= 1
        self.left.extend(self.branch[keep:])  # ascending: the end of a branch is worth more than its middle
        del self.branch[keep:]

    def sort_by(self, history: History) -> None:
        """The history was replaced: see which entries are on its branch."""
        every = self.entries
        self.branch = [e for e in every if history.starts_with(e.snapshot.history)]
        self.left = [e for e in every if e not in self.branch]

    def surplus(self, position: int) -> list[Entry]:
        """Entries that the rule of spacing does not keep, for a session at a position.

        The highest stays: until the next one is taken, it is what the positions above it are reached from.
        """
        found = [e for e in self.left if not e.is_pinned][:-LEFT_BEHIND]
        turns = [e for e in self.branch if e.snapshot.origin in _TURNS][-TURN_ENDS:]
        # The draft is still being verified: its end may be an interval, which must not push out its start.
        turns += [e for e in self.branch if e.snapshot.origin is SnapshotOrigin.BEFORE_DRAFT][-1:]
        kept_above = self.branch[-1].position if self.branch else 0
        for index in range(len(self.branch) - 2, -1, -1):
            entry = self.branch[index]
            lower = self.branch[index - 1].position if index else 0
            is_free = not entry.is_pinned and entry not in turns
            if is_free and self._fits(lower, kept_above, position):
                found.append(entry)
            else:
                kept_above = entry.position
        return found

    def _fits(self, lower: int, upper: int, position: int) -> bool:
        """Whether no snapshot is needed strictly between two others."""
        distance = position - (upper - 1)
        allowed = self.interval - 1 if distance <= DENSE_TOKENS else max(self.interval - 1, distance // SHARE)
        return upper - 1 - lower <= allowed

    def cheapest(self, position: int, may_go: Callable[[Entry], bool] = lambda _: True) -> Entry | None:
        """Entry to give up first when bytes are short, of those that may go; never a pinned one."""
        left = next((e for e in self.left if not e.is_pinned and may_go(e)), None)
        if left is not None:
            return left
        best: tuple[float, Entry] | None = None
        for index, entry in enumerate(self.branch):
            if entry.is_pinned or not may_go(entry):
                continue
            lower = self.branch[index - 1].position if index else 0
            upper = self.branch[index + 1].position if index + 1 < len(self.branch) else position + 1
            cost = (upper - lower) / max(self.interval, (position - entry.position) / SHARE)
            if best is None or cost < best[0]:
                best = (cost, entry)
        return None if best is None else best[1]
