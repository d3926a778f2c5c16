"""The server's life: bind, load, serve, drain, stop. Runs on the event loop of the main thread.

The order at the end: health says NOT_SERVING, new generations are refused with DRAINING, running streams go
on until they finish or the drain time is over, then they are cancelled and end with `finished`; last the port
closes. A second signal ends the process at once.
"""

import asyncio
import gc
import os
import signal
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ds4c_runtime.counters import Now
from ds4c_runtime.engine import Engine
from ds4c_runtime.errors import InvalidRequestError, RuntimeFailure
from ds4c_serve.auth import Authenticator, AuthInterceptor
from ds4c_serve.backend import Backend
from ds4c_serve.calls import CallCounters
from ds4c_serve.decode import DecodeInterceptor
from ds4c_serve.inference import InferenceService
from ds4c_serve.listen import UNIX_PREFIX, Address, bind, check_exposure
from ds4c_serve.log import LOGGER, log_event
from ds4c_serve.models import ModelService
from ds4c_serve.sessions import SessionService
from ds4c_serve.v1 import engine_pb2, engine_pb2_grpc

if TYPE_CHECKING:
    from ds4c_serve.metrics_http import MetricsServer

MAX_REQUEST_BYTES = 16 << 20
SWEEP_SECONDS = 1.0
_CANCEL_SECONDS = 5.0
_STOP_SECONDS = 1.0
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


OnFailure = Callable[[RuntimeFailure], None]


def _pem(path: Path) -> bytes:
    """Content of a PEM file.

    Raises:
        InvalidRequestError: it cannot be read, or has no PEM block.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(
            f"TLS files not read: expected PEM files, got {error.strerror} at {error.filename}; check it",
            field="tls",
        ) from error
    if b"-----BEGIN " not in content:
        raise InvalidRequestError(
            f"TLS files not read: expected a PEM file, got none at {path}; check the paths", field="tls"
        )
    return content


@dataclass(frozen=True)
class TlsFiles:
    """PEM files; with `client_ca` every client must show a certificate of that authority."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Read the files.

        Raises:
            InvalidRequestError: one cannot be read.
        """
        pair = (_pem(self.key), _pem(self.certificate))
        root = _pem(self.client_ca) if self.client_ca is not None else None
        return grpc.ssl_server_credentials(
            [pair], root_certificates=root, require_client_auth=root is not None
        )

    def context(self) -> ssl.SSLContext:
        """The same for a server that is not gRPC's.

        Raises:
            InvalidRequestError: they are not a certificate, its key and an authority.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:
            raise InvalidRequestError(
                f"TLS files refused: expected a certificate and its key, got {error.strerror or error}; "
                "check the files",
                field="tls",
            ) from error
        return context


@dataclass(frozen=True)
class ServerConfig:
    """What the command line decides.

    Attributes:
        addresses: Where to listen; at least one.
        tokens: Bearer tokens; empty lets every caller in.
        tls: Certificates; None serves plain HTTP/2.
        drain_seconds: How long running streams may go on after the first signal.
        reflection: Whether clients can ask for the contract; None: only where all addresses are local.
        metrics: Where to answer HTTP requests for `/metrics`; None: nowhere.
    """

    addresses: tuple[Address, ...]
    tokens: tuple[str, ...] = ()
    tls: TlsFiles | None = None
    drain_seconds: float = 30.0
    reflection: bool | None = None
    metrics: Address | None = None


def server_options() -> list[tuple[str, int]]:
    """Channel arguments: exclusive port, 16 MiB requests, client pings each 10 s, own pings each 60 s."""
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]


class Server:
    """One gRPC server over one engine; `start`, `load`, then `drain`. For use on one event loop."""

    def __init__(self, config: ServerConfig, now: Now = time.monotonic):
        """Check the configuration; opens nothing. `now` is what the times of calls are taken by.

        Raises:
            InvalidRequestError: an address is open to other machines and nothing checks who calls, or a
                token is refused.
        """
        has_client_ca = config.tls is not None and config.tls.client_ca is not None
        for address in config.addresses:
            check_exposure(address, has_tokens=bool(config.tokens), has_client_ca=has_client_ca)
        if config.metrics is not None:
            has_tokens = bool(config.tokens)
            check_exposure(
                config.metrics, has_tokens=has_tokens, has_client_ca=has_client_ca, field="metrics_listen"
            )
        self._config = config
        self._backend = Backend(CallCounters(now))
        authenticator = Authenticator(config.tokens)
        self._inference = InferenceService(self._backend, authenticator)
        self._sessions = SessionService(self._backend, authenticator)
        self._models = ModelService(self._backend, max_request_bytes=MAX_REQUEST_BYTES)
        self._health = cast(Any, health).aio.HealthServicer()
        self._authenticator = authenticator
        self._grpc: grpc.aio.Server | None = None
        self._metrics: MetricsServer | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> list[str]:
        """Bind and answer; health says NOT_SERVING and every call LOADING until `load` is done.

        Returns:
            The targets, with real ports.

        Raises:
            ListenError: an address cannot be bound.
        """
        calls = self._backend.calls
        interceptors = [AuthInterceptor(self._authenticator, calls), DecodeInterceptor(calls)]
        server = grpc.aio.server(interceptors=interceptors, options=server_options())
        names = self._register(server)
        for name in ["", *names]:
            await self._health.set(name, _NOT_SERVING)
        self._start_metrics()
        credentials = self._config.tls.credentials() if self._config.tls is not None else None
        targets = [bind(server, address, credentials) for address in self._config.addresses]
        await server.start()
        self._grpc = server
        return targets

    def _start_metrics(self) -> None:
        """Bind the address of the metrics, if there is one, and answer."""
        if self._config.metrics is None:
            return
        from ds4c_serve.metrics_http import MetricsServer  # a server without metrics starts without it

        tls = self._config.tls.context() if self._config.tls is not None else None
        self._metrics = MetricsServer(self._config.metrics, self._authenticator, tls)
        self._metrics.start()
        log_event("metrics", url=self._metrics.url)

    @property
    def metrics_url(self) -> str:
        """Where `/metrics` is, with the real port; empty if it is nowhere."""
        return self._metrics.url if self._metrics is not None else ""

    def _register(self, server: grpc.aio.Server) -> list[str]:
        """Add the services; gives the names of ours."""
        engine_pb2_grpc.add_InferenceServiceServicer_to_server(self._inference, server)
        engine_pb2_grpc.add_SessionServiceServicer_to_server(self._sessions, server)
        engine_pb2_grpc.add_ModelServiceServicer_to_server(self._models, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = [service.full_name for service in engine_pb2.DESCRIPTOR.services_by_name.values()]
        everywhere_local = all(address.is_local for address in self._config.addresses)
        if self._config.reflection if self._config.reflection is not None else everywhere_local:
            reflected = [*names, health.SERVICE_NAME, reflection.SERVICE_NAME]
            reflection.enable_server_reflection(reflected, server)
        return names

    async def load(self, load_engine: Callable[[], Engine]) -> Engine:
        """Load the engine off the event loop and start to serve with it."""
        engine = await asyncio.to_thread(load_engine)
        self._backend.attach(engine)
        if self._metrics is not None:
            from ds4c_serve.metrics import registry_of

            self._metrics.attach(registry_of(engine, self._backend.calls))
        self._sweeper = asyncio.create_task(self._sessions.sweep_forever(SWEEP_SECONDS))
        names = [service.full_name for service in engine_pb2.DESCRIPTOR.services_by_name.values()]
        for name in ["", *names, f"model/{engine.manifest.model.name}"]:
            await self._health.set(name, _SERVING)
        return engine

    async def drain(self, engine: Engine) -> None:
        """Refuse new generations, let the running ones finish or cancel them, close port and engine."""
        await self._health.enter_graceful_shutdown()
        engine.drain()
        if not await self._inference.wait_idle(self._config.drain_seconds):
            cancelled = self._inference.cancel_all()
            log_event("drain_over", cancelled=cancelled, drain_seconds=self._config.drain_seconds)
            await self._inference.wait_idle(_CANCEL_SECONDS)
        await self.stop(_STOP_SECONDS)
        await asyncio.to_thread(engine.shutdown, _CANCEL_SECONDS)

    async def stop(self, grace_seconds: float) -> None:
        """Close the port; calls that still run get `grace_seconds`."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._grpc is not None:
            await self._grpc.stop(grace_seconds)
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.close)
            self._metrics = None


async def serve(
    config: ServerConfig,
    load_engine: Callable[[OnFailure], Engine],
    on_ready: Callable[[Sequence[str], Engine], Any],
) -> int:
    """Serve until a signal, then drain. The whole life of `ds4c serve`.

    Args:
        config: What to serve how.
        load_engine: Called off the event loop; hands the function it gets to the engine, which calls it when
            weights that are checked in the background turn out damaged.
        on_ready: Called with the targets and the engine once calls are answered.

    Returns:
        0 after a drain. On a second signal the process exits with 143 (SIGTERM) or 130 (SIGINT).

    Raises:
        InvalidRequestError: the configuration is refused.
        ListenError: an address cannot be bound.
        RuntimeFailure: the engine cannot be loaded, or its weights turned out damaged.
    """
    server = Server(config)
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[signal.Signals] = loop.create_future()
    targets: list[str] = []

    def on_failure(failure: RuntimeFailure) -> None:
        loop.call_soon_threadsafe(_fail, stopping, failure)

    try:
        targets += await server.start()
        _install_signals(stopping, targets)
        loading = asyncio.create_task(server.load(lambda: load_engine(on_failure)))
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            # A load cannot be interrupted and holds nothing that must be saved.
            _exit_now(stopping.result(), targets)
        engine = loading.result()
        # What is loaded by now stays until the end: collections need not look at it again and again.
        gc.freeze()
        on_ready(targets, engine)
        number = await stopping
        log_event("draining", signal=number.name, seconds=config.drain_seconds)
        await server.drain(engine)
    finally:
        await server.stop(0)
        _remove_sockets(targets)
    return 0


def _fail(stopping: "asyncio.Future[signal.Signals]", failure: RuntimeFailure) -> None:
    """End the service with a failure, unless it is ending already."""
    if not stopping.done():
        stopping.set_exception(failure)


def _install_signals(stopping: "asyncio.Future[signal.Signals]", targets: Sequence[str]) -> None:
    """First SIGTERM or SIGINT: drain. Second: exit at once."""

    def on_signal(number: signal.Signals) -> None:
        if stopping.done():
            _exit_now(number, targets)
        stopping.set_result(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def _exit_now(number: signal.Signals, targets: Sequence[str]) -> None:
    """End the process without waiting for threads that may be inside a long step."""
    LOGGER.warning("stopped at once by %s", number.name)
    _remove_sockets(targets)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(128 + number)


def _remove_sockets(targets: Sequence[str]) -> None:
    for target in targets:
        if target.startswith(UNIX_PREFIX):
            Path(target[len(UNIX_PREFIX) :]).unlink(missing_ok=True)
