"""The watchdog of a generation: nothing may be put back twice without a token in between.

A loop that verifies a replay as if it were a draft can restore the same snapshot for ever (rewind.md 4 of
the design; ggml-org/llama.cpp#28060). Here replays decide nothing, so it cannot happen by design; this ends a
generation in which it happens all the same.
"""

from __future__ import annotations

from ds4c_runtime.errors import NoProgressError


class ProgressGuard:
    """Remembers what was put back since the last token."""

    def __init__(self) -> None:
        self._restored: set[tuple[int, str]] = set()

    def restored(self, position: int, snapshot_id: str) -> None:
        """A state is about to be made for a position from a snapshot, or from nothing (empty id).

        Raises:
            NoProgressError: the second time without a token.
        """
        key = (position, snapshot_id)
        if key in self._restored:
            raise NoProgressError(position, snapshot_id)
        self._restored.add(key)

    def token(self) -> None:
        """A new token was decided."""
        self._restored.clear()
