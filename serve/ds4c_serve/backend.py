"""The engine as the services see it: absent while the artifact loads, awaitable once it is there."""

import asyncio
from concurrent.futures import Future
from typing import TypeVar

from ds4c_runtime.engine import Engine
from ds4c_serve.calls import CallCounters
from ds4c_serve.errors import LoadingError

T = TypeVar("T")


class Backend:
    """Holds the engine that all services share, and counts their calls."""

    def __init__(self, calls: CallCounters) -> None:
        self._engine: Engine | None = None
        self.calls = calls

    def attach(self, engine: Engine) -> None:
        """Start to serve with a loaded engine; called once."""
        assert self._engine is None, "an engine is attached already"
        self._engine = engine

    @property
    def engine(self) -> Engine:
        """The loaded engine.

        Raises:
            LoadingError: it is not there yet.
        """
        if self._engine is None:
            raise LoadingError(
                "call refused: expected a loaded artifact, got one that is loading; retry soon"
            )
        return self._engine


async def result_of(future: "Future[T]") -> T:
    """Wait for work on the engine's thread without blocking the event loop.

    If the caller is cancelled the work goes on: it may have begun, and a session is never left half changed.
    """
    waiting = asyncio.wrap_future(future)
    # Reads the error of work whose caller has left, which asyncio would report as never retrieved.
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(waiting)
