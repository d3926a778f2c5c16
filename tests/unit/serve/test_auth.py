"""Tokens: reading the file, comparing, owners, and refusal by a handler of the same kind."""

import asyncio
from pathlib import Path

import grpc
import pytest

from ds4c_runtime.errors import InvalidRequestError
from ds4c_serve.auth import Authenticator, AuthInterceptor, read_tokens, refusing_handler
from ds4c_serve.calls import CallCounters
from ds4c_serve.errors import UnauthenticatedError

FIRST, SECOND = "first-token-0001", "second-token-0002"


def test_owners_differ_by_token_and_never_hold_it() -> None:
    authenticator = Authenticator([FIRST, SECOND])

    owners = {authenticator.check(f"Bearer {token}") for token in (FIRST, SECOND)}

    assert len(owners) == 2
    assert not any(FIRST in owner or SECOND in owner for owner in owners)
    assert authenticator.check(f"bearer {FIRST}") in owners


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer wrong", FIRST, f"Basic {FIRST}", f"Bearer {FIRST}x"]
)
def test_anything_but_a_known_bearer_token_is_refused(header: str) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        Authenticator([FIRST]).check(header)

    assert FIRST not in str(caught.value)


@pytest.mark.parametrize("method", ["/grpc.reflection.v1.ServerReflection/Info", "/ds4c.v1.Models/List"])
def test_only_health_checks_need_no_token(method: str) -> None:
    """A handler of a refused call is another one; that of a health check is the server's own."""
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: None)

    async def found(_details: object) -> grpc.RpcMethodHandler:
        return handler

    class Details:
        invocation_metadata: tuple[tuple[str, str], ...] = (("x-token", f"Bearer {FIRST}"),)

        def __init__(self, method: str) -> None:
            self.method = method

    calls = CallCounters()
    interceptor = AuthInterceptor(Authenticator([FIRST]), calls)
    health = interceptor.intercept_service(found, Details("/grpc.health.v1.Health/Check"))  # type: ignore
    assert asyncio.run(health) is handler
    assert not calls.requests.values()
    assert asyncio.run(interceptor.intercept_service(found, Details(method))) is not handler  # type: ignore
    name = method.rpartition("/")[2]
    assert calls.requests.values() == {(name, "UNAUTHENTICATED", "UNAUTHENTICATED"): 1}
    Details.invocation_metadata = (("user-agent", "x"), ("authorization", f"Bearer {FIRST}"))
    assert asyncio.run(interceptor.intercept_service(found, Details(method))) is handler  # type: ignore


def test_the_owner_of_a_call_is_that_of_its_token() -> None:
    class Context:
        def __init__(self, token: str) -> None:
            self.token = token

        def invocation_metadata(self):
            return (("authorization", f"Bearer {self.token}"),)

        def auth_context(self):
            return {"x509_common_name": [b"alice"]}

    authenticator = Authenticator([FIRST, SECOND])
    owners = [authenticator.owner(Context(token)) for token in (FIRST, SECOND, FIRST)]  # type: ignore
    assert owners[0] == owners[2] != owners[1]
    assert all(owner.startswith("token:") for owner in owners)
    with pytest.raises(UnauthenticatedError):
        authenticator.owner(Context("wrong-token-0003"))  # type: ignore


def test_without_tokens_everybody_is_the_same_owner() -> None:
    class Context:
        def invocation_metadata(self):
            return ()

        def auth_context(self):
            return {}

    assert not Authenticator().needs_token
    assert Authenticator().owner(Context()) == ""


def test_the_name_in_a_client_certificate_is_an_owner() -> None:
    class Context:
        def invocation_metadata(self):
            return ()

        def auth_context(self):
            return {"x509_common_name": [b"alice"]}

    assert Authenticator().owner(Context()) == "x509:alice"


def test_token_file_has_one_token_a_line(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# for the gateway\n{FIRST}\n\n  {SECOND}  \n")
    path.chmod(0o600)

    assert read_tokens(path) == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("text", "mode", "named"), [("", 0o600, "got none"), ("# x\n", 0o600, "got none"), (FIRST, 0o644, "644")]
)
def test_token_file_that_is_empty_or_open_to_others_is_refused(
    tmp_path: Path, text: str, mode: int, named: str
) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(mode)

    with pytest.raises(InvalidRequestError, match=named):
        read_tokens(path)


# Reading by the group is let through, everything else that is not the owner's is not.
OPEN = [0o620, 0o610, 0o602, 0o601, 0o604, 0o644, 0o622, 0o660, 0o666, 0o640 | 0o020, 0o650, 0o700 | 0o010]


@pytest.mark.parametrize("mode", OPEN, ids=oct)
def test_a_token_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens"
    path.write_text(FIRST)
    path.chmod(mode)

    with pytest.raises(InvalidRequestError, match=f"got mode {mode:o}; chmod 600 it"):
        read_tokens(path)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o700, 0o440, 0o640], ids=oct)
def test_a_token_file_that_others_cannot_write_or_see_is_read(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens"
    path.write_text(FIRST)
    path.chmod(mode)

    assert read_tokens(path) == [FIRST]


@pytest.mark.parametrize(("length", "is_allowed"), [(0, False), (1, False), (7, False), (8, True), (9, True)])
def test_a_token_has_at_least_8_characters(length: int, is_allowed: bool) -> None:
    token = "0123456789"[:length]
    if is_allowed:
        assert Authenticator([token]).check(f"Bearer {token}")
        return
    with pytest.raises(InvalidRequestError, match=f"expected at least 8 .*, got {length} characters"):
        Authenticator([token])


@pytest.mark.parametrize("character", ["!", "~"])
def test_the_first_and_last_printable_character_are_allowed(character: str) -> None:
    assert Authenticator([character * 8]).check(f"Bearer {character * 8}")


@pytest.mark.parametrize("character", [" ", "\x7f", "\x1f", "\u00a1"])
def test_characters_beyond_printable_ascii_are_refused(character: str) -> None:
    with pytest.raises(InvalidRequestError, match="printable ASCII"):
        Authenticator([f"1234{character}5678"])


def test_absent_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="absent"):
        read_tokens(tmp_path / "absent")


@pytest.mark.parametrize("token", ["short", "with a space in it", "ümläut-token-0001"])
def test_weak_or_unprintable_tokens_are_refused(token: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Authenticator([FIRST, token])

    assert "token 2" in str(caught.value)
    assert token not in str(caught.value)


@pytest.mark.parametrize("request_streaming", [False, True])
@pytest.mark.parametrize("response_streaming", [False, True])
def test_refusal_keeps_the_kind_of_the_handler(request_streaming: bool, response_streaming: bool) -> None:
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[(request_streaming, response_streaming)]
    original = make(lambda request, context: None, bytes, bytes)

    refused = refusing_handler(original, UnauthenticatedError("no"))

    assert refused.request_streaming == request_streaming
    assert refused.response_streaming == response_streaming
    kinds = [refused.unary_unary, refused.unary_stream, refused.stream_unary, refused.stream_stream]
    assert [kind is not None for kind in kinds].count(True) == 1
