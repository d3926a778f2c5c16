"""The bridge of one generation: events from the engine's thread become batches for the event loop.

The engine pauses a generation that has too many unacknowledged events, and events are acknowledged only when
the transport took the message made of them. So a client that does not read holds up its own generation and
nothing else, and the memory of a generation is bounded.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future

from ds4c_runtime.generation import Generation
from ds4c_runtime.requests import Event, Finished, TokenDelta

MESSAGE_SECONDS = 0.010
"""Least time between two messages with tokens: 10 ms, so that a fast model does not flood the transport."""


class EventStream:
    """Events of one generation in order. `put` and `end` are for any thread, the rest for the event loop."""

    def __init__(self, message_seconds: float = MESSAGE_SECONDS):
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._message_seconds = message_seconds
        self._next_message_time = 0.0

    def put(self, event: Event) -> None:
        """Hand over an event, from the engine's thread."""
        self._post(event)

    def end(self, _done: "Future[Finished]") -> None:
        """Say that no event follows, from the engine's thread."""
        self._post(None)

    def _post(self, event: Event | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._take, event)
        except RuntimeError:
            # The loop is closed: the process is going down and nobody waits for the event.
            return

    def _take(self, event: Event | None) -> None:
        if event is None:
            self._ended = True
        else:
            self._events.append(event)
        self._changed.set()

    async def batches(self, generation: Generation) -> AsyncIterator[list[Event]]:
        """Yield events in order, consecutive tokens together; acknowledges one when the next is asked for.

        Raises:
            RuntimeFailure: the generation failed.
        """
        while True:
            while not self._events:
                if self._ended:
                    raise_failure(generation)
                    return
                self._changed.clear()
                await self._changed.wait()
            await self._wait_for_turn()
            batch = self._next_batch()
            yield batch
            generation.acknowledge(len(batch))

    async def _wait_for_turn(self) -> None:
        """Let tokens gather until the time between messages is over; anything else goes out at once."""
        if not all(isinstance(event, TokenDelta) for event in self._events):
            return
        delay = self._next_message_time - self._loop.time()
        if delay > 0:
            await asyncio.sleep(delay)

    def _next_batch(self) -> list[Event]:
        """Take the first event, and the tokens that follow it if it is one."""
        batch = [self._events.popleft()]
        if isinstance(batch[0], TokenDelta):
            self._next_message_time = self._loop.time() + self._message_seconds
            while self._events and isinstance(self._events[0], TokenDelta):
                batch.append(self._events.popleft())
        return batch


def raise_failure(generation: Generation) -> None:
    """Raise what ended the generation, if it failed."""
    failure = generation.done.exception()
    if failure is not None:
        raise failure
