"""The one thread that owns the device: runs tasks in turn, one slice each.

A slice is a prefill chunk, a decode step or a short command. Knows no sessions; tasks do.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from ds4c_runtime.errors import DrainingError

T = TypeVar("T")
Body = Generator[None, None, T]
"""Work cut into slices by `yield`; its return value is the result."""


def once(call: Callable[[], T]) -> Body[T]:
    """Body of one slice."""
    return call()
    yield


class Task(Generic[T]):
    """A body, what to do around it, and the future of its result.

    Hooks run on the worker thread. `on_end` (is it a failure?) runs first, whatever happened, so that
    whoever waits for the future finds the session free; `on_result` sees the result before the future
    has it. A paused task is not advanced; an urgent one does not wait for its turn to begin.
    """

    def __init__(
        self,
        body: Body[T],
        *,
        after_slice: Callable[[], None] = lambda: None,
        on_end: Callable[[bool], None] = lambda _: None,
        on_result: Callable[[T], None] = lambda _: None,
        is_paused: Callable[[], bool] = lambda: False,
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        self.future: Future[T] = Future()
        # Whoever waits may give up, but must not cancel what the worker is doing.
        self.future.set_running_or_notify_cancel()
        self.is_paused = is_paused
        self.is_urgent = is_urgent
        self._body = body
        self._after_slice = after_slice
        self._on_end = on_end
        self._on_result = on_result

    def advance(self) -> bool:
        """Run a slice; `False` once the task has ended."""
        try:
            next(self._body)
            self._after_slice()
        except StopIteration as stop:
            result: T = stop.value
            self._end(False, lambda: self._deliver(result))
            return False
        except BaseException as error:
            failure = error
            self._end(True, lambda: self.future.set_exception(failure))
            return False
        return True

    def abort(self, error: Exception) -> None:
        """End a task that will not be advanced any more."""
        self._body.close()
        self._end(True, lambda: self.future.set_exception(error))

    def _deliver(self, result: T) -> None:
        self._on_result(result)
        self.future.set_result(result)

    def _end(self, is_failure: bool, deliver: Callable[[], None]) -> None:
        try:
            self._on_end(is_failure)
            deliver()
        except BaseException as error:
            self.future.set_exception(error)


class Worker:
    """Runs commands at once and long tasks in turn; at most `max_running` of these, the others wait."""

    def __init__(self, max_running: int, name: str = "ds4c-worker") -> None:
        self._max_running = max_running
        self._commands: deque[Task[Any]] = deque()
        self._ring: deque[Task[Any]] = deque()
        self._waiting: deque[Task[Any]] = deque()
        self._counted: set[Task[Any]] = set()
        self._is_stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Long tasks that are served in turn."""
        return len(self._counted)

    @property
    def waiting(self) -> int:
        """Long tasks that wait for one of those to end."""
        return len(self._waiting)

    def submit(self, task: Task[T]) -> Future[T]:
        """Run a task from the next slice on; later slices take turns with the others."""
        with self._changed:
            if self._is_stopping:
                raise DrainingError("task refused: expected a running engine, got one that was shut down")
            self._commands.append(task)
            self._changed.notify_all()
        return task.future

    def queue(self, task: Task[T], max_queue: int) -> bool:
        """Run a long task in turn; `False`, and nothing done, if `max_queue` wait already."""
        with self._changed:
            if self.running >= self._max_running and self.waiting >= max_queue:
                return False
            self._waiting.append(task)
            self._admit()
            self._changed.notify_all()
        return True

    def wake(self) -> None:
        """Look again which tasks are paused or urgent."""
        with self._changed:
            self._admit()
            self._changed.notify_all()

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no long task runs or waits; `False` if the time is over first."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._counted or self._waiting:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def stop(self) -> None:
        """End the thread after the current slice; tasks that are left fail."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                while (task := self._next()) is None and not self._is_stopping:
                    self._changed.wait()
                if task is None or self._is_stopping:
                    break
            is_alive = task.advance()
            with self._changed:
                if is_alive:
                    self._ring.append(task)
                else:
                    self._counted.discard(task)
                    self._admit()
                self._changed.notify_all()
        left = [*([task] if task else []), *self._commands, *self._ring, *self._waiting]
        for task in left:
            task.abort(DrainingError("task ended: expected a running engine, got one that was shut down"))

    def _next(self) -> Task[Any] | None:
        if self._commands:
            return self._commands.popleft()
        for _ in range(len(self._ring)):
            task = self._ring.popleft()
            if not task.is_paused():
                return task
            self._ring.append(task)
        return None

    def _admit(self) -> None:
        for task in [t for t in self._waiting if t.is_urgent()]:
            self._waiting.remove(task)
            self._ring.append(task)
        while self._waiting and self.running < self._max_running:
            task = self._waiting.popleft()
            self._counted.add(task)
            self._ring.append(task)
