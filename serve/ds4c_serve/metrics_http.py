"""The HTTP endpoint `/metrics`, on threads of its own; the exposition is prometheus_client's.

Whoever may call the server may read it: the same tokens, the same certificates, the same rules for addresses.
"""

import socket
import ssl
import sys
import threading
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import urlsplit

from prometheus_client.exposition import MetricsHandler
from prometheus_client.registry import CollectorRegistry

from ds4c_runtime.errors import InvalidRequestError
from ds4c_serve.auth import Authenticator
from ds4c_serve.errors import UnauthenticatedError
from ds4c_serve.listen import Address, ListenError
from ds4c_serve.log import LOGGER

PATH = "/metrics"
CLIENT_SECONDS = 10.0
"""How long a client may take to send its request or to read the answer."""
_POLL_SECONDS = 0.1


class MetricsServer:
    """One listening address; `attach` gives it something to say. Closing it twice is allowed."""

    def __init__(self, address: Address, authenticator: Authenticator, tls: ssl.SSLContext | None = None):
        """Bind.

        Raises:
            InvalidRequestError: a path of a Unix socket, which no scraper can read.
            ListenError: the address is in use or not allowed.
        """
        if address.path:
            raise InvalidRequestError(
                "address refused: expected HOST:PORT or [IPV6]:PORT for --metrics-listen, got "
                f"{address.target()}; choose a port",
                field="metrics_listen",
            )
        try:
            self._http = _HttpServer(address, authenticator, tls)
        except OSError as error:
            raise ListenError(
                f"cannot listen: expected {address.target()} to be free and allowed for metrics, got "
                f"{(error.strerror or str(error)).lower()}; choose another address"
            ) from error
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://{address.target(self._http.server_address[1])}{PATH}"
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Answer; until `attach` with 503."""
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(_POLL_SECONDS,), name="ds4c-metrics", daemon=True
        )
        self._thread.start()

    def attach(self, registry: CollectorRegistry) -> None:
        """Say from now on what the registry collects."""
        self._http.registry = registry

    def close(self) -> None:
        """Stop to answer and give the address back."""
        if self._thread is not None:
            self._http.shutdown()
            self._thread.join()
            self._thread = None
        self._http.server_close()


class _HttpServer(ThreadingHTTPServer):
    """Binds as gRPC does: a taken port is an error. Threads of open connections do not hold up the end."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: Address, authenticator: Authenticator, tls: ssl.SSLContext | None):
        self.authenticator = authenticator
        self.registry: CollectorRegistry | None = None
        self.address_family, _, _, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        super().__init__(cast(Any, where), _Handler)
        if tls is not None:
            # The handshake belongs to the thread of the connection, not to the one that accepts.
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def server_bind(self) -> None:
        """Bind without asking a name server who we are, which the base class does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what is our fault; clients come and go as they like."""
        if not isinstance(sys.exception(), OSError):
            LOGGER.error("metrics not collected", exc_info=True)


class _Handler(MetricsHandler):
    """Answers GET /metrics to those who may ask."""

    timeout = CLIENT_SECONDS

    def do_GET(self) -> None:
        """Answer with the metrics, or with one line that says why not."""
        server = cast(_HttpServer, self.server)
        if urlsplit(self.path).path != PATH:
            self._refuse(HTTPStatus.NOT_FOUND, f"expected {PATH}")
            return
        try:
            if server.authenticator.needs_token:
                server.authenticator.check(self.headers.get("Authorization", ""))
        except UnauthenticatedError:
            hint = "expected Authorization: Bearer TOKEN"
            self._refuse(HTTPStatus.UNAUTHORIZED, hint, "WWW-Authenticate", "Bearer")
            return
        if server.registry is None:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "the artifact is loading", "Retry-After", "2")
            return
        self.registry = server.registry
        super().do_GET()

    def _refuse(self, status: HTTPStatus, line: str, *header: str) -> None:
        body = f"{line}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if header:
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(body)
