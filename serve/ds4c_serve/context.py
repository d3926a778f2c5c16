"""Types at the border to grpc.aio, which ships none that cover what the server uses."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

Metadata = Sequence[tuple[str, str | bytes]]


class Context(Protocol):
    """The part of `grpc.aio.ServicerContext` that handlers use."""

    def invocation_metadata(self) -> Metadata | None:
        """Metadata that the client sent; keys in lower case."""
        ...

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """Properties of the peer's certificate; empty without TLS client authentication."""
        ...

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Have a function called on the event loop when the call has ended in any way."""
        ...

    async def send_initial_metadata(self, initial_metadata: Metadata) -> None:
        """Send metadata ahead of the first message."""
        ...

    async def abort_with_status(self, status: Any) -> None:
        """End the call with a rich status; raises, never returns."""
        ...


def text_metadata(context: Context, key: str) -> str:
    """The first text value of a metadata key; empty if it is absent or binary."""
    for name, value in context.invocation_metadata() or ():
        if name == key and isinstance(value, str):
            return value
    return ""
