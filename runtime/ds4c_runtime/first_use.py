"""The trial of a state that was read from a file: from the first step on it to the end of that turn."""

from __future__ import annotations

from collections.abc import Callable


class FirstUse:
    """Shared by the session that was read and by forks of it, whose state is from the same file.

    Attributes:
        is_over: the trial has ended.
        has_failed: the device failed in it.
    """

    def __init__(self, on_begin: Callable[[], None], on_end: Callable[[bool], None]) -> None:
        """`on_begin` is called before the first step, `on_end` with whether the device failed."""
        self.is_over = False
        self.has_failed = False
        self._has_begun = False
        self._on_begin = on_begin
        self._on_end = on_end

    def begin(self) -> None:
        """A step is about to run."""
        if not self._has_begun:
            self._has_begun = True
            self._on_begin()

    def fail(self) -> None:
        """The device failed in a step or while it put rows back."""
        if not self.is_over:
            self.has_failed = True

    def settle(self) -> None:
        """A turn has ended; without a step it says nothing."""
        if not self.is_over and (self._has_begun or self.has_failed):
            self.is_over = True
            self._on_end(self.has_failed)
