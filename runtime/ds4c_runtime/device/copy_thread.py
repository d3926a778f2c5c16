"""Copies beside the thread that owns a device, done in the order in which they were asked for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ds4c_runtime.device.base import HostBytes


class ThreadCopy:
    """One copy: waits, and calls what was asked to follow it on the thread that polls or waits."""

    def __init__(self, source: HostBytes, target: HostBytes) -> None:
        self._source, self._target = source, target
        self._done = threading.Event()
        self._failure: BaseException | None = None
        self._following: list[Callable[[], None]] = []

    @property
    def is_done(self) -> bool:
        """Whether the bytes have arrived (or the copy failed)."""
        return self._done.is_set()

    def run(self) -> None:
        """Copy; called by the copy thread."""
        try:
            self._target[:] = self._source
        except BaseException as error:  # handed to whoever waits
            self._failure = error
        finally:
            self._done.set()

    def then(self, call: Callable[[], None]) -> None:
        """Call something once the copy is done, by `poll` or `wait` on the caller's thread."""
        self._following.append(call)

    def poll(self) -> bool:
        """Run what follows if the copy is done; whether it is."""
        if not self._done.is_set():
            return False
        following, self._following = self._following, []
        for call in following:
            call()
        return True

    def wait(self) -> None:
        """Wait for the copy; raises what went wrong in it."""
        self._done.wait()
        self.poll()
        if self._failure is not None:
            raise self._failure


class CopyThread:
    """A thread that does copies one after the other; started with the first."""

    def __init__(self) -> None:
        self._queue: deque[ThreadCopy] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(self, source: HostBytes, target: HostBytes) -> ThreadCopy:
        """Ask for a copy of all bytes of `source` to `target`, which has as many."""
        assert len(source) == len(target)
        copy = ThreadCopy(source, target)
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="ds4c-copy", daemon=True)
                self._thread.start()
            self._queue.append(copy)
            self._changed.notify()
        return copy

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                copy = self._queue.popleft()
            copy.run()
