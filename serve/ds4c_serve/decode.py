"""Requests that are no messages: refused as the caller's mistake.

Left alone, grpc.aio answers bytes that it cannot parse (cut off, or text that is not UTF-8) with UNKNOWN and
a traceback in the log.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from ds4c_runtime.errors import InvalidRequestError
from ds4c_serve.calls import CallCounters
from ds4c_serve.errors import status_of


class Malformed:
    """Stands for a request that could not be parsed."""

    def __init__(self, error: Exception):
        self.error = InvalidRequestError(
            f"request refused: expected a protobuf message with text in UTF-8, got other bytes ({error}); "
            "check the client",
            field="request",
        )


class DecodeInterceptor(grpc.aio.ServerInterceptor):
    """Answers INVALID_ARGUMENT to requests that cannot be parsed, for all methods with one request."""

    def __init__(self, calls: CallCounters):
        self._calls = calls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Give back a handler whose requests are parsed with care."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        method: str = handler_call_details.method
        return careful_handler(handler, lambda error: self._calls.refused(method, error))


def careful_handler(handler: Any, on_refusal: Callable[[InvalidRequestError], None]) -> Any:
    """The same handler, refusing what cannot be parsed."""

    def deserialize(data: bytes) -> Any:
        try:
            return handler.request_deserializer(data)
        except (DecodeError, ValueError) as error:
            malformed = Malformed(error)
            on_refusal(malformed.error)
            return malformed

    if handler.response_streaming:
        inner_stream = handler.unary_stream

        async def stream(request: Any, context: Any) -> Any:
            if isinstance(request, Malformed):
                await context.abort_with_status(rpc_status.to_status(status_of(request.error)))
            async for response in inner_stream(request, context):
                yield response

        return grpc.unary_stream_rpc_method_handler(stream, deserialize, handler.response_serializer)
    inner = handler.unary_unary

    async def unary(request: Any, context: Any) -> Any:
        if isinstance(request, Malformed):
            await context.abort_with_status(rpc_status.to_status(status_of(request.error)))
        return await inner(request, context)

    return grpc.unary_unary_rpc_method_handler(unary, deserialize, handler.response_serializer)
