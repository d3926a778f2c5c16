"""First-fit allocation of byte ranges in an arena."""

from __future__ import annotations

import bisect

ALIGNMENT = 64


class Extents:
    """Free ranges of `[0, size)`, sorted, never touching each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free: list[tuple[int, int]] = [(0, size)] if size else []

    @property
    def free(self) -> tuple[tuple[int, int], ...]:
        """Start and end of each free range, ascending."""
        return tuple(self._free)

    @property
    def free_bytes(self) -> int:
        """Bytes of all free ranges."""
        return sum(end - start for start, end in self._free)

    def take(self, size: int) -> int | None:
        """Start of a range of `size` bytes (rounded up to 64), `None` if no free range is that long."""
        need = -(-size // ALIGNMENT) * ALIGNMENT
        for index, (start, end) in enumerate(self._free):
            if end - start >= need:
                if end - start == need:
                    del self._free[index]
                else:
                    self._free[index] = (start + need, end)
                return start
        return None

    def give_back(self, start: int, size: int) -> None:
        """Return a range that `take` gave."""
        end = start + -(-size // ALIGNMENT) * ALIGNMENT
        index = bisect.bisect(self._free, (start, end))
        if index < len(self._free) and self._free[index][0] == end:
            end = self._free.pop(index)[1]
        if index and self._free[index - 1][1] == start:
            index -= 1
            start = self._free.pop(index)[0]
        self._free.insert(index, (start, end))

    def check_integrity(self) -> None:
        """Assert that free ranges are sorted and apart."""
        ends = [e for r in self._free for e in r]
        assert ends == sorted(set(ends)), "free ranges touch or overlap"
        assert not ends or (ends[0] >= 0 and ends[-1] <= self.size), "free range outside the arena"
