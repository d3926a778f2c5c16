"""The rows of one step: which positions of which sessions a block holds.

A step runs over the ragged rows of `B` sessions. `Block` says which row belongs to which
segment (session) and where it stands; `Block.windows` derives the rows that compressor
windows close inside the block. How a kernel receives these numbers is `ds4c.ir.kernel.BlockLayout`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Block:
    """Ragged rows of one step.

    Attributes:
        positions: `[T]` int32, absolute position of each row; contiguous inside a segment.
        segment_starts: `[B + 1]` int32, segment `b` is rows `[segment_starts[b], segment_starts[b + 1])`.
        slots: `[B]` int32, state slot of each segment.
    """

    positions: Ints
    segment_starts: Ints
    slots: Ints

    @staticmethod
    def of(*segments: tuple[int, int, int]) -> Block:
        """Build from `(slot, first position, rows)` per segment."""
        positions = [np.arange(p, p + q, dtype=np.int32) for _, p, q in segments]
        starts = np.cumsum([0, *(q for _, _, q in segments)], dtype=np.int32)
        slots = np.array([s for s, _, _ in segments], dtype=np.int32)
        return Block(np.concatenate(positions) if positions else np.zeros(0, np.int32), starts, slots)

    @property
    def num_rows(self) -> int:
        """Rows in all segments."""
        return int(self.segment_starts[-1])

    @property
    def row_segment(self) -> Ints:
        """`[T]` int32, segment of each row."""
        counts = np.diff(self.segment_starts)
        return np.repeat(np.arange(len(counts), dtype=np.int32), counts)

    def first(self, segment: int) -> int:
        """Position of the first row of a segment that has rows."""
        return int(self.positions[self.segment_starts[segment]])

    def length(self, segment: int) -> int:
        """Rows of a segment."""
        return int(self.segment_starts[segment + 1] - self.segment_starts[segment])

    def windows(self, every: int) -> Block:
        """Windows of `every` tokens that close inside the block.

        Row `j` of a segment stands for window `j` in `[first // every, (first + rows) // every)`;
        its position is that of the window's first token, `every * j` (`architecture.md` 3.5).
        """
        ranges: list[tuple[int, int, int]] = []
        for b, slot in enumerate(self.slots):
            if self.length(b) == 0:
                ranges.append((int(slot), 0, 0))
                continue
            p, q = self.first(b), self.length(b)
            ranges.append((int(slot), p // every, (p + q) // every - p // every))
        rows = Block.of(*ranges)
        return Block((rows.positions * every).astype(np.int32), rows.segment_starts, rows.slots)
