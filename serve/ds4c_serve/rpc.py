"""What surrounds every handler: request id, translation of errors, one log line and one count a call.

Handlers are written as if nothing could fail; `unary` and `streaming` wrap them. Their services have the
`Backend` in `_backend`.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, cast

from google.rpc import code_pb2
from grpc_status import rpc_status

from ds4c_runtime.errors import InvalidRequestError
from ds4c_serve.calls import CallCounters
from ds4c_serve.context import Context, text_metadata
from ds4c_serve.errors import is_expected, rule_for, status_of
from ds4c_serve.log import LOGGER, log_event

REQUEST_ID_KEY = "x-request-id"
_MAX_REQUEST_ID = 128

UnaryHandler = TypeVar("UnaryHandler", bound=Callable[..., Awaitable[Any]])
StreamHandler = TypeVar("StreamHandler", bound=Callable[..., AsyncIterator[Any]])


def unary(handler: UnaryHandler) -> UnaryHandler:
    """Wrap a handler that answers with one message."""

    @functools.wraps(handler)
    async def call(self: Any, request: Any, context: Context) -> Any:
        record = CallRecord(handler.__name__, request, context, self._backend.calls)
        try:
            await record.begin()
            response = await handler(self, request, context)
        except asyncio.CancelledError:
            record.end("CANCELLED")
            raise
        except Exception as error:
            await record.fail(error)
            raise
        record.end("OK")
        return response

    return cast(UnaryHandler, call)


def streaming(handler: StreamHandler) -> StreamHandler:
    """Wrap a handler that answers with a stream of messages."""

    @functools.wraps(handler)
    async def call(self: Any, request: Any, context: Context) -> AsyncIterator[Any]:
        record = CallRecord(handler.__name__, request, context, self._backend.calls)
        messages: Any = handler(self, request, context)
        try:
            await record.begin()
            async for response in messages:
                yield response
        except (asyncio.CancelledError, GeneratorExit):
            # The client left or the deadline passed: which of the two arrives depends on where we waited.
            record.end("CANCELLED")
            raise
        except Exception as error:
            await record.fail(error)
            raise
        finally:
            await messages.aclose()
        record.end("OK")

    return cast(StreamHandler, call)


class CallRecord:
    """One call: its request id, its log line and its place in the counts."""

    def __init__(self, method: str, request: Any, context: Context, calls: CallCounters):
        self._method = method
        self._calls = calls
        self._context = context
        self._session_id: str = getattr(request, "session_id", "")
        self._request_id = request_id(request, context)
        self._started = calls.now()

    async def begin(self) -> None:
        """Send the request id back, ahead of the answer.

        Raises:
            InvalidRequestError: the id is too long or not printable ASCII, so it cannot be echoed.
        """
        if not self._request_id:
            return
        if len(self._request_id) > _MAX_REQUEST_ID or not self._request_id.isascii():
            raise InvalidRequestError(
                f"request id refused: expected at most {_MAX_REQUEST_ID} ASCII characters, got "
                f"{len(self._request_id)} characters",
                field="request_id",
            )
        if not self._request_id.isprintable():
            raise InvalidRequestError(
                "request id refused: expected printable characters, got control characters",
                field="request_id",
            )
        await self._context.send_initial_metadata(((REQUEST_ID_KEY, self._request_id),))

    async def fail(self, error: Exception) -> None:
        """Log the error and end the call with its status; raises."""
        rule = rule_for(error)
        if not is_expected(error):
            LOGGER.error("unexpected error in %s", self._method, exc_info=error)
        self.end(rule.code, reason=rule.reason, message=str(error) if is_expected(error) else "")
        status = status_of(error)
        assert status.code != code_pb2.OK, "an error must not become OK"
        await self._context.abort_with_status(rpc_status.to_status(status))

    def end(self, code: str, reason: str = "", **facts: object) -> None:
        """Count the call and write its log line; never the text of a prompt or an answer."""
        seconds = self._calls.now() - self._started
        self._calls.record(self._method, code, reason, seconds)
        if reason:
            facts = {"reason": reason, **facts}
        log_event(
            "call",
            method=self._method,
            code=code,
            ms=round(seconds * 1000, 1),
            request_id=self._request_id,
            session_id=self._session_id,
            **facts,
        )


def request_id(request: Any, context: Context) -> str:
    """The id of a call: of the message, else of the metadata, else empty."""
    return getattr(request, "request_id", "") or text_metadata(context, REQUEST_ID_KEY)
