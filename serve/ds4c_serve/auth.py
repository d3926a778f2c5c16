"""Who is calling: bearer tokens from a file, or the name in a client certificate.

A caller's identity is the owner of the sessions it opens. Tokens are kept as digests and never logged.
"""

import hashlib
import hmac
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc
from grpc_status import rpc_status

from ds4c_runtime.errors import InvalidRequestError
from ds4c_serve.calls import CallCounters
from ds4c_serve.context import Context
from ds4c_serve.errors import UnauthenticatedError, status_of

ANONYMOUS = ""
EXEMPT_PREFIXES = ("/grpc.health.v1.Health/",)
_MIN_TOKEN_CHARACTERS = 8


class Authenticator:
    """Checks the token of a call and names its owner; without tokens every caller is let in.

    Does not distinguish in its answer or its time between a wrong token and none of that length.
    """

    def __init__(self, tokens: Iterable[str] = ()):
        """Keep the digests of the tokens.

        Raises:
            InvalidRequestError: a token has less than 8 characters or others than printable ASCII.
        """
        self._digests: list[bytes] = []
        for number, token in enumerate(tokens, start=1):
            if len(token) < _MIN_TOKEN_CHARACTERS or not all("!" <= character <= "~" for character in token):
                raise InvalidRequestError(
                    f"token {number} refused: expected at least {_MIN_TOKEN_CHARACTERS} printable ASCII "
                    f"characters without spaces, got {len(token)} characters; make a random one",
                    field="auth_token_file",
                )
            self._digests.append(_digest(token))

    @property
    def needs_token(self) -> bool:
        """Whether calls without a token are refused."""
        return bool(self._digests)

    def owner(self, context: Context) -> str:
        """Name the owner that this call acts for.

        Raises:
            UnauthenticatedError: tokens are required and the call has none or a wrong one.
        """
        if self.needs_token:
            return self.check(_header(context.invocation_metadata()))
        names = context.auth_context().get("x509_common_name", [])
        return f"x509:{names[0].decode(errors='replace')}" if names else ANONYMOUS

    def check(self, header: str) -> str:
        """Compare a header `Bearer TOKEN` with every token in constant time and name the owner.

        Raises:
            UnauthenticatedError: it matches none.
        """
        scheme, _, token = header.partition(" ")
        presented = _digest(token.strip())
        matches = [hmac.compare_digest(presented, known) for known in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            got = "no authorization metadata" if not header else "a token that is not known"
            raise UnauthenticatedError(
                f"call refused: expected metadata `authorization: Bearer TOKEN`, got {got}; use a valid token"
            )
        return f"token:{presented.hex()[:32]}"


def read_tokens(path: Path) -> list[str]:
    """Read tokens, one a line; empty lines and lines that begin with `#` do not count.

    Raises:
        InvalidRequestError: the file cannot be read, holds no token, or is open to other users.
    """
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"token file not read: expected a text file at {path}, got "
            f"{getattr(error, 'strerror', None) or 'bytes that are not UTF-8'}; check --auth-token-file",
            field="auth_token_file",
        ) from error
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO) & ~stat.S_IRGRP:
        raise InvalidRequestError(
            f"token file {path} refused: expected no access for other users, got mode "
            f"{stat.S_IMODE(mode):o}; chmod 600 it",
            field="auth_token_file",
        )
    tokens = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not tokens:
        raise InvalidRequestError(
            f"token file {path} refused: expected one token a line, got none; write one",
            field="auth_token_file",
        )
    return tokens


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a valid token before their handler runs; health checks are exempt."""

    def __init__(self, authenticator: Authenticator, calls: CallCounters):
        self._authenticator = authenticator
        self._calls = calls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Pass the call on, or give back a handler of the same kind that refuses it."""
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or not self._authenticator.needs_token or method.startswith(EXEMPT_PREFIXES):
            return handler
        try:
            self._authenticator.check(_header(handler_call_details.invocation_metadata))
        except UnauthenticatedError as error:
            self._calls.refused(method, error)
            return refusing_handler(handler, error)
        return handler


def refusing_handler(handler: Any, error: UnauthenticatedError) -> Any:
    """Make a handler that ends the call with the error; a stream must be refused by a stream."""
    status = rpc_status.to_status(status_of(error))

    async def refuse(_request: Any, context: Context) -> None:
        await context.abort_with_status(status)

    async def refuse_stream(_request: Any, context: Context) -> Any:
        await context.abort_with_status(status)
        yield None  # makes this an async generator; never reached

    makers: Mapping[tuple[bool, bool], tuple[Any, Any]] = {
        (False, False): (grpc.unary_unary_rpc_method_handler, refuse),
        (False, True): (grpc.unary_stream_rpc_method_handler, refuse_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, refuse),
        (True, True): (grpc.stream_stream_rpc_method_handler, refuse_stream),
    }
    make, behaviour = makers[(bool(handler.request_streaming), bool(handler.response_streaming))]
    return make(behaviour, handler.request_deserializer, handler.response_serializer)


def _header(metadata: Any) -> str:
    """The `authorization` value of a call's metadata; empty if it is absent or binary."""
    for key, value in metadata or ():
        if key == "authorization" and isinstance(value, str):
            return value
    return ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", errors="surrogateescape")).digest()
