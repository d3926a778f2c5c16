"""Addresses: spelling, which are open to strangers, binding and taken ports."""

import asyncio
import os
import socket
import stat
from pathlib import Path

import grpc
import pytest

from ds4c_runtime.errors import InvalidRequestError
from ds4c_serve.listen import Address, ListenError, bind, check_exposure, parse_address
from ds4c_serve.server import server_options


@pytest.mark.parametrize(
    ("text", "address", "local"),
    [
        ("127.0.0.1:50051", Address("127.0.0.1", 50051), True),
        ("127.9.9.9:0", Address("127.9.9.9", 0), True),
        ("localhost:1", Address("localhost", 1), True),
        ("[::1]:50051", Address("::1", 50051), True),
        ("0.0.0.0:50051", Address("0.0.0.0", 50051), False),
        ("[::]:50051", Address("::", 50051), False),
        ("192.168.0.7:50051", Address("192.168.0.7", 50051), False),
        ("model.example:50051", Address("model.example", 50051), False),
        ("unix:/run/ds4c.sock", Address("", 0, "/run/ds4c.sock"), True),
    ],
)
def test_addresses_are_read_and_judged(text: str, address: Address, local: bool) -> None:
    parsed = parse_address(text)

    assert parsed == address
    assert parsed.is_local == local
    assert parsed.target() == text


@pytest.mark.parametrize(
    "text",
    ["", "50051", "127.0.0.1", "127.0.0.1:", ":50051", "127.0.0.1:65536", "127.0.0.1:-1", "::1:5", "unix:"],
)
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="expected HOST:PORT"):
        parse_address(text)


def test_open_addresses_need_tokens_or_client_certificates() -> None:
    address = parse_address("0.0.0.0:50051")

    with pytest.raises(InvalidRequestError, match="--auth-token-file"):
        check_exposure(address, has_tokens=False, has_client_ca=False)
    check_exposure(address, has_tokens=True, has_client_ca=False)
    check_exposure(address, has_tokens=False, has_client_ca=True)
    check_exposure(parse_address("127.0.0.1:50051"), has_tokens=False, has_client_ca=False)


def test_a_taken_port_is_an_error_even_from_the_same_user() -> None:
    async def run() -> None:
        first = grpc.aio.server(options=server_options())
        second = grpc.aio.server(options=server_options())
        target = bind(first, parse_address("127.0.0.1:0"), None)
        await first.start()
        with pytest.raises(ListenError, match=target):
            bind(second, parse_address(target), None)
        await first.stop(0)

    asyncio.run(run())


def test_unix_sockets_are_private_and_only_left_overs_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "ds4c.sock"
    left_over = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left_over.bind(str(path))
    left_over.close()

    async def run() -> None:
        server = grpc.aio.server(options=server_options())
        assert bind(server, parse_address(f"unix:{path}"), None) == f"unix:{path}"
        await server.start()
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with pytest.raises(ListenError, match="answers on it"):
            bind(grpc.aio.server(options=server_options()), parse_address(f"unix:{path}"), None)
        await server.stop(0)

    asyncio.run(run())


def test_a_file_that_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")

    async def run() -> None:
        with pytest.raises(ListenError, match="another file"):
            bind(grpc.aio.server(), parse_address(f"unix:{path}"), None)

    asyncio.run(run())

    assert path.read_text() == "data"
