"""What a snapshot is: live ring rows and logits at a position, page references, and its token history.

The state of sampling needs no place of its own: a draw depends on seed and position only
(`sampler.uniform`), penalties on the counts of the history, stop strings on the text of the history.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from ds4c_runtime.history import Prefix
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.transport import OnDevice, Place

ALIGNMENT = 64
UNIT_BYTES = 64
"""Places of rows are given to kernels in this unit."""
DEAD_BYTE = 0xFF
"""Fills poisoned rows: every float type reads it as NaN."""


class SnapshotOrigin(Enum):
    """Who took a snapshot."""

    INTERVAL = "interval"
    PROMPT_END = "prompt_end"
    TURN_END = "turn_end"
    BEFORE_DRAFT = "before_draft"
    TOOL_BOUNDARY = "tool_boundary"
    CLIENT = "client"
    SAVE = "save"

    @property
    def is_turn(self) -> bool:
        """Taken at the end of a prompt or a turn, or at a tool call: where clients come back to."""
        return self in (SnapshotOrigin.PROMPT_END, SnapshotOrigin.TURN_END, SnapshotOrigin.TOOL_BOUNDARY)

    @property
    def is_automatic(self) -> bool:
        """Taken where a step or a save happened to be."""
        return self in (SnapshotOrigin.INTERVAL, SnapshotOrigin.SAVE)


@dataclass(frozen=True)
class SnapshotInfo:
    """A snapshot as others may see it. `bytes` without shared pages; time in seconds since 1970."""

    snapshot_id: str
    position: int
    digest: str
    bytes: int
    is_pinned: bool
    label: str
    has_logits: bool
    on_device: bool
    origin: SnapshotOrigin
    create_time: float


@dataclass(frozen=True)
class Parts:
    """Where the parts of a snapshot stand, in bytes from its start: rows of each ring, then the logits."""

    rings: NDArray[np.int64]
    logits: int
    total: int


class SnapshotLayout:
    """The one description of what a snapshot holds: it drives saves, restores, files and byte counts."""

    def __init__(self, manifest: Manifest) -> None:
        rings = manifest.rings
        self._align = np.array([r.live.align for r in rings], np.int64)
        self._back = np.array([r.live.back for r in rings], np.int64)
        self._row_bytes = np.array([r.row_bytes for r in rings], np.int64)
        self._logits_bytes = 4 * manifest.model.vocab_size
        self.interval = manifest.limits.page_tokens
        # From here on, positions of one phase of all rings have the same layout.
        self._span = int(np.lcm.reduce(self._align)) if len(rings) else 1
        self._settled = -(-int(self._back.max(initial=0)) // self._span) * self._span
        self._parts: dict[int, Parts] = {}

    def rows(self, position: int) -> NDArray[np.int64]:
        """Live rows of each ring at a position."""
        first = position // self._align * self._align - self._back
        return position - np.maximum(first, 0)

    def parts(self, position: int) -> Parts:
        """Layout at a position; every part starts at a multiple of 64 bytes. Made once a phase."""
        key = position
        if position > self._settled:
            key = self._settled + (position - self._settled) % self._span
        if key not in self._parts:
            self._parts[key] = self._make_parts(key)
        return self._parts[key]

    def _make_parts(self, position: int) -> Parts:
        sizes = -(-self.rows(position) * self._row_bytes // ALIGNMENT) * ALIGNMENT
        ends = np.cumsum(sizes)
        rows = int(ends[-1]) if len(ends) else 0
        total = rows + -(-self._logits_bytes // ALIGNMENT) * ALIGNMENT
        return Parts(ends - sizes, rows, total)

    def largest(self) -> int:
        """Most bytes that a snapshot can take."""
        return max(self.parts(self._settled + phase).total for phase in range(self._span))


@dataclass(eq=False)
class Snapshot:
    """A complete copy of a session's state at a position.

    Shared by the sessions that were forked after it; `holders` counts them. `pages` are referenced, not
    copied: whoever writes to one of them copies it first.
    """

    snapshot_id: str
    position: int
    epoch: int
    digest: str
    history: Prefix
    pages: tuple[int, ...]
    place: Place
    origin: SnapshotOrigin
    holders: int = 0
    create_time: float = field(default_factory=time.time)

    @property
    def bytes(self) -> int:
        """Bytes of rows and logits, pages not counted."""
        return self.place.size

    @property
    def on_device(self) -> bool:
        """Whether the rows are in the arena of snapshots."""
        return isinstance(self.place, OnDevice)
