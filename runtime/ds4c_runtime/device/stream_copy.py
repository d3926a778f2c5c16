"""A copy on a stream of its own, known to be done by an event."""

from __future__ import annotations

from collections.abc import Callable

from ds4c_runtime.device.driver import Driver, Handle


class StreamCopy:
    """One copy: waits, and calls what was asked to follow it on the thread that polls or waits."""

    def __init__(self, driver: Driver, event: Handle, memory: tuple[object, ...]) -> None:
        """`event` is done with the copy and destroyed then; `memory` is kept until then."""
        self._driver, self._event, self._memory = driver, event, memory
        self._is_done = False
        self._failure: Exception | None = None
        self._following: list[Callable[[], None]] = []

    def settle(self, *, wait: bool = False) -> bool:
        """Whether the copy is done or has failed; gives back what it held, but runs nothing that follows."""
        if not self._is_done:
            try:
                self._driver.activate()
                if wait:
                    self._driver.synchronize_event(self._event)
                elif not self._driver.is_done(self._event):
                    return False
                self._driver.destroy_event(self._event)
            except Exception as error:  # handed to whoever waits
                self._failure = error
            self._is_done = True
            self._memory = ()
        return True

    def then(self, call: Callable[[], None]) -> None:
        """Call something once the copy is done, by `poll` or `wait` on the caller's thread."""
        self._following.append(call)

    def poll(self) -> bool:
        """Run what follows if the copy is done; whether it is."""
        if not self.settle():
            return False
        following, self._following = self._following, []
        for call in following:
            call()
        return True

    def wait(self) -> None:
        """Wait for the copy; raises what went wrong in it."""
        self.settle(wait=True)
        self.poll()
        if self._failure is not None:
            raise self._failure
