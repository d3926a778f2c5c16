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

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Give back a handler whose requests are parsed with care."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        return careful_handler(handler)


def careful_handler(handler: Any) -> Any:
    """The same handler, refusing what cannot be parsed."""

    def deserialize(data: bytes) -> Any:
        try:
            return handler.request_deserializer(data)
        except (DecodeError, ValueError) as error:
            return Malformed(error)

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
