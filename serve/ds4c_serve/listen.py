"""Addresses: what they mean, which may be listened on, and binding them so that a taken one is an error."""

import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import grpc

from ds4c_runtime.errors import InvalidRequestError

UNIX_PREFIX = "unix:"
MAX_SOCKET_PATH = 107
"""Bytes that the system's address of a Unix socket holds."""


class ListenError(Exception):
    """An address cannot be bound; the message says which and why."""


@dataclass(frozen=True)
class Address:
    """Where to listen: a host and port, or a path of a Unix socket (then `host` is empty and `port` 0)."""

    host: str
    port: int
    path: str = ""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it. A name other than localhost counts as not local."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def target(self, port: int | None = None) -> str:
        """The address as gRPC spells it, with another port if one is given."""
        if self.path:
            return f"{UNIX_PREFIX}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port if port is None else port}"


def parse_address(text: str, field: str = "grpc_listen") -> Address:
    """Read `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`. Port 0 lets the system choose; errors name `field`.

    Raises:
        InvalidRequestError: it is none of these.
    """
    if text.startswith(UNIX_PREFIX):
        path = text[len(UNIX_PREFIX) :]
        if path:
            return Address("", 0, path)
    host, separator, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    bracketed = bare != host
    is_port = port.isascii() and port.isdigit() and int(port) <= 65535
    if not separator or not bare or not is_port or (":" in bare) != bracketed:
        raise InvalidRequestError(
            f"address refused: expected HOST:PORT, [IPV6]:PORT or unix:PATH, got {text!r}",
            field=field,
        )
    return Address(bare, int(port))


def check_exposure(
    address: Address, *, has_tokens: bool, has_client_ca: bool, field: str = "grpc_listen"
) -> None:
    """Refuse to let strangers in; the error names `field`.

    Raises:
        InvalidRequestError: the address is reachable from other machines and nothing checks who calls.
    """
    if address.is_local or has_tokens or has_client_ca:
        return
    raise InvalidRequestError(
        f"address {address.target()} refused: expected a loopback address, or --auth-token-file or "
        "--tls-client-ca, got an open one; add one of the two or listen on 127.0.0.1",
        field=field,
    )


def bind(server: grpc.aio.Server, address: Address, credentials: grpc.ServerCredentials | None) -> str:
    """Bind an address and give back its target with the real port.

    A Unix socket gets mode 0600. A socket file that nobody listens on is replaced.

    Raises:
        ListenError: it is in use, or not allowed.
    """
    if address.path:
        _free_socket_file(Path(address.path))
    mask = os.umask(0o177) if address.path else None
    try:
        if credentials is None:
            port = server.add_insecure_port(address.target())
        else:
            port = server.add_secure_port(address.target(), credentials)
    except RuntimeError as error:
        files = "" if credentials is None else ", and its TLS files to be a certificate and its key"
        raise ListenError(
            f"cannot listen: expected {address.target()} to be free and allowed{files}, got a failed bind; "
            f"choose another address{' or check the files' if files else ''}"
        ) from error
    finally:
        if mask is not None:
            os.umask(mask)
    return address.target(port)


def _free_socket_file(path: Path) -> None:
    """Remove a left-over socket file.

    Raises:
        ListenError: something listens on it, it is a file of another kind, or the path is too long.
    """
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH:
        raise ListenError(
            f"cannot listen: expected a socket path of at most {MAX_SOCKET_PATH} bytes, got {size}; "
            "choose another"
        )
    if not path.exists():
        return
    if not path.is_socket():
        raise ListenError(
            f"cannot listen: expected {path} to be a socket or absent, got another file; choose another path"
        )
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(str(path))
    except OSError:
        path.unlink()
        return
    finally:
        probe.close()
    raise ListenError(f"cannot listen: expected {path} to be free, got a server that answers on it")
