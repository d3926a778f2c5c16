"""`/metrics`: what it says after known work, who may read it, and that reading it holds nothing up."""

import asyncio
import contextlib
import http.client
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import grpc
import pytest
from fake_executable import fake_engine
from manual_clock import RESTORE, STEP, ManualClock, timed
from prometheus_client.parser import text_string_to_metric_families
from unit.serve.grpc_harness import Serving, collect, failure, run
from unit.serve.test_server import make_certificates

from ds4c_runtime.counters import Counter, Now
from ds4c_runtime.errors import InvalidRequestError
from ds4c_serve.auth import Authenticator
from ds4c_serve.listen import ListenError, parse_address
from ds4c_serve.metrics_http import MetricsServer
from ds4c_serve.server import Server, ServerConfig, TlsFiles
from ds4c_serve.v1 import engine_pb2 as pb

TOKEN = "alice-token-0001"
ANYWHERE = parse_address("127.0.0.1:0")
Samples = dict[str, float]


def fetch(url: str, token: str = "", context: ssl.SSLContext | None = None) -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=5, context=context) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def samples(text: str) -> Samples:
    """Values by `name{label=value,...}` without prefix and without the labels that every sample must have."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model") == "fake"
            assert len(labels.pop("artifact")) == 12
            pairs = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
            key = sample.name.removeprefix("ds4c_") + (f"{{{pairs}}}" if pairs else "")
            assert key not in found
            assert sample.name.startswith("ds4c_")
            found[key] = sample.value
    return found


@contextlib.asynccontextmanager
async def serving(
    *, tokens: tuple[str, ...] = (), now: Now = time.monotonic, **options: Any
) -> AsyncIterator[tuple[Serving, str]]:
    """A server with metrics, and their URL; `now` is the clock of the server and of its engine."""
    server = Server(ServerConfig((ANYWHERE,), tokens=tokens, metrics=ANYWHERE), now)
    (target,) = await server.start()
    engine = await server.load(lambda: fake_engine(now=now, **options))
    try:
        async with grpc.aio.insecure_channel(target) as channel:
            yield Serving(server, engine, target, channel, tokens[0] if tokens else ""), server.metrics_url
    finally:
        await server.stop(0)
        await asyncio.to_thread(engine.shutdown, 0)


async def scrape(url: str, token: str = "") -> Samples:
    return samples(await asyncio.to_thread(fetch, url, token))


async def refusal(url: str, token: str = "") -> tuple[int, str]:
    with pytest.raises(HTTPError) as caught:
        await asyncio.to_thread(fetch, url, token)
    return caught.value.code, caught.value.read().decode()


def test_a_scrape_says_what_was_done() -> None:
    async def scenario() -> None:
        async with serving(horizon=6, max_sessions=3) as (s, url):
            first = await scrape(url)
            assert first["rewinds_total{cause=client,kind=rebuild}"] == 0, "known label values start at 0"
            assert first["sessions_limit"] == 3
            await s.open("a")
            await s.prefill("a", tuple(range(10, 50)))
            await collect(s.generate("a", (7, 8), max_tokens=5))
            await s.sessions.Rewind(pb.RewindRequest(session_id="a", drop_tokens=3))
            await s.sessions.Rewind(pb.RewindRequest(session_id="a", to_position=10))
            await s.sessions.ForkSession(pb.ForkSessionRequest(session_id="a", new_session_id="b"))
            await failure(s.sessions.Rewind(pb.RewindRequest(session_id="a", to_position=99)))
            deferred = pb.RewindRequest(session_id="b", to_position=2, defer_rebuild=True)
            await s.sessions.Rewind(deferred)
            await s.open("c")
            found = await scrape(url)
            expected = {
                "rewinds_total{cause=client,kind=in_place}": 1,
                "rewinds_total{cause=client,kind=rebuild}": 1,
                "rewinds_total{cause=client,kind=deferred}": 0,
                "rebuilds_total{reason=no_snapshot}": 1,
                "rebuild_tokens_total": 10,
                "rewind_replayed_tokens_total{cause=client,kind=rebuild}": 10,
                "discarded_tokens_total{cause=client}": 37,
                "rewind_seconds_count{kind=rebuild}": 1,
                "rewind_distance_tokens_count": 3,
                "rewind_distance_tokens_sum": 37,
                "rewind_distance_tokens_bucket{le=4.0}": 2,
                "rewind_distance_tokens_bucket{le=16.0}": 2,
                "rewind_distance_tokens_bucket{le=64.0}": 3,
                "rewind_distance_tokens_bucket{le=+Inf}": 3,
                "prefill_tokens_total{source=compute}": 42,
                "prefill_tokens_total{source=session}": 40,
                "generated_tokens_total": 5,
                "ttft_seconds_count": 1,
                "tail_seconds_count": 1,
                "requests_total{api=Generate,code=OK,reason=}": 2,
                "requests_total{api=Rewind,code=OK,reason=}": 3,
                "requests_total{api=Rewind,code=OUT_OF_RANGE,reason=POSITION_OUT_OF_RANGE}": 1,
                "request_seconds_count{api=Rewind}": 4,
                "sessions{state=valid}": 2,
                "sessions{state=stale}": 1,
                "running_requests": 0,
                "queue_requests": 0,
                "draining": 0,
            }
            assert {key: found[key] for key in expected} == expected
            branched = [key for key in found if key.startswith("rewinds_total{cause=branch")]
            assert sum(found[key] for key in branched) == 1
            load = s.engine.load_info()
            assert found["state_bytes{tier=device}"] == load.state_bytes_used > 0
            assert found["state_bytes_budget"] == load.state_bytes_budget
            assert found["snapshot_bytes{tier=device}"] == load.snapshot_bytes_used > 0
            assert found["snapshot_bytes{tier=host}"] == 0
            assert found["snapshot_bytes_budget"] == load.snapshot_bytes_budget
            snapshots = await s.sessions.ListSnapshots(pb.ListSnapshotsRequest(session_id="a"))
            assert found["snapshots{state=live}"] == len(snapshots.snapshots) > 1
            pin = pb.PinSnapshotRequest(session_id="a", snapshot_id=snapshots.snapshots[0].snapshot_id)
            await s.sessions.PinSnapshot(pin)
            found = await scrape(url)
            assert found["snapshots{state=pinned}"] == 1
            assert found["snapshots{state=live}"] == len(snapshots.snapshots) - 1

    run(scenario())


def test_a_scrape_says_how_long_things_took() -> None:
    """By a clock that the device moves: each sum to the bit, each bucket on the right side of its bound."""
    clock = ManualClock()

    async def scenario() -> None:
        async with serving(horizon=6, now=clock, device_type=timed(clock)) as (s, url):
            await s.open("a")
            await s.prefill("a", tuple(range(10, 50)))  # two steps; snapshots at 32 and 40
            await collect(s.generate("a", tuple(range(60, 90)), max_tokens=5))  # two steps, then one a token
            await s.sessions.Rewind(pb.RewindRequest(session_id="a", drop_tokens=3))
            await s.sessions.Rewind(pb.RewindRequest(session_id="a", to_position=40))
            await s.sessions.Rewind(pb.RewindRequest(session_id="a", to_position=31))
            found = await scrape(url)
            expected = {
                "ttft_seconds_sum": 2 * STEP,
                "ttft_seconds_bucket{le=1.0}": 0,
                "ttft_seconds_bucket{le=3.0}": 1,
                "tail_seconds_sum": STEP,
                "tail_seconds_bucket{le=0.3}": 0,
                "tail_seconds_bucket{le=1.0}": 1,
                "rewind_seconds_sum{kind=in_place}": 0,
                "rewind_seconds_count{kind=in_place}": 1,
                "rewind_seconds_sum{kind=snapshot}": RESTORE,
                "rewind_seconds_sum{kind=rebuild}": 2 * STEP,
                "request_seconds_sum{api=OpenSession}": 0,
                "request_seconds_sum{api=Generate}": 2 * STEP + (2 + 5) * STEP,
                "request_seconds_sum{api=Rewind}": RESTORE + 2 * STEP,
                "request_seconds_bucket{api=Rewind,le=1e-05}": 1,
                "request_seconds_bucket{api=Rewind,le=0.3}": 2,
                "request_seconds_bucket{api=Rewind,le=1.0}": 2,
                "request_seconds_bucket{api=Rewind,le=3.0}": 3,
            }
            assert {key: found.get(key) for key in expected} == expected

    run(scenario())


def test_every_family_of_the_engine_is_there_with_its_help() -> None:
    async def scenario() -> None:
        async with serving() as (s, url):
            text = await asyncio.to_thread(fetch, url)
            counts = s.engine.counters
            for one in (*counts.counters(), *counts.histograms()):
                suffix = "_total" if isinstance(one, Counter) else ""
                assert f"# HELP ds4c_{one.name}{suffix} {one.help}\n" in text
            families = list(text_string_to_metric_families(text))
            assert all(family.documentation.endswith(".") for family in families)
            assert len({family.name for family in families}) == len(families)

    run(scenario())


def test_calls_refused_before_their_handler_are_counted() -> None:
    async def scenario() -> None:
        async with serving(tokens=(TOKEN,)) as (s, url):
            s.token = ""
            assert (await failure(s.get("a"))).reason == "UNAUTHENTICATED"
            s.token = TOKEN
            path = "/ds4c.v1.SessionService/GetSession"
            broken = s.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
            assert (await failure(broken(b"\xff\xff", metadata=s.metadata))).reason == "INVALID_ARGUMENT"
            found = await scrape(url, TOKEN)
            assert found["requests_total{api=GetSession,code=UNAUTHENTICATED,reason=UNAUTHENTICATED}"] == 1
            assert found["requests_total{api=GetSession,code=INVALID_ARGUMENT,reason=INVALID_ARGUMENT}"] == 1

    run(scenario())


def test_with_tokens_a_scraper_needs_one_too() -> None:
    async def scenario() -> None:
        async with serving(tokens=(TOKEN,)) as (_, url):
            for token in ("", "wrong-token-00001"):
                code, body = await refusal(url, token)
                assert (code, "Bearer" in body) == (401, True)
            assert await scrape(url, TOKEN)

    run(scenario())


def test_other_paths_and_methods_are_refused() -> None:
    async def scenario() -> None:
        async with serving() as (_, url):
            root = url.removesuffix("/metrics")
            assert url == f"http://127.0.0.1:{root.rpartition(':')[2]}/metrics"
            for path in ("/", "/metricsx", "/metrics/x", "/../metrics", "/favicon.ico"):
                assert (await refusal(root + path))[0] == 404
            assert await scrape(url + "?x=1")
            connection = http.client.HTTPConnection(root.removeprefix("http://"), timeout=5)

            def post() -> int:
                connection.request("POST", "/metrics", body=b"x")
                return connection.getresponse().status

            assert await asyncio.to_thread(post) == 501
            connection.close()

    run(scenario())


def test_before_the_artifact_is_loaded_a_scrape_fails_and_says_why() -> None:
    async def scenario() -> None:
        server = Server(ServerConfig((ANYWHERE,), metrics=ANYWHERE))
        await server.start()
        code, body = await refusal(server.metrics_url)
        assert (code, body) == (503, "the artifact is loading\n")
        engine = await server.load(fake_engine)
        assert await scrape(server.metrics_url)
        await server.stop(0)
        await asyncio.to_thread(engine.shutdown, 0)

    run(scenario())


def test_the_address_is_given_back_and_silent_clients_hold_nothing_up() -> None:
    server = MetricsServer(ANYWHERE, Authenticator())
    server.start()
    port = int(server.url.rpartition(":")[2].removesuffix("/metrics"))
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.send(b"GET /metr")
        begun = time.monotonic()
        with pytest.raises(HTTPError, match="503"):
            fetch(server.url)
        server.close()
        server.close()
        assert time.monotonic() - begun < 2
    again = MetricsServer(parse_address(f"127.0.0.1:{port}"), Authenticator())
    again.close()


def test_a_taken_port_is_an_error_and_leaves_no_server_behind() -> None:
    async def scenario() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = parse_address(f"127.0.0.1:{taken.getsockname()[1]}")
            server = Server(ServerConfig((ANYWHERE,), metrics=address))
            with pytest.raises(ListenError, match=r"expected 127\.0\.0\.1:\d+ to be free .* for metrics"):
                await server.start()
            assert server.metrics_url == ""

    run(scenario())


def test_ipv6_is_served() -> None:
    try:
        server = MetricsServer(parse_address("[::1]:0"), Authenticator())
    except ListenError:
        pytest.skip("no IPv6 on this machine")
    server.start()
    assert server.url.startswith("http://[::1]:")
    with pytest.raises(HTTPError, match="503"):
        fetch(server.url)
    server.close()


@pytest.mark.parametrize(
    ("address", "tokens", "named"),
    [("0.0.0.0:0", (), "--auth-token-file"), ("model.example:1", (), "--auth-token-file")],
)
def test_open_addresses_are_refused_as_those_of_grpc(
    address: str, tokens: tuple[str, ...], named: str
) -> None:
    with pytest.raises(InvalidRequestError, match=named) as caught:
        Server(ServerConfig((ANYWHERE,), tokens=tokens, metrics=parse_address(address)))
    assert caught.value.field == "metrics_listen"
    Server(ServerConfig((ANYWHERE,), tokens=(TOKEN,), metrics=parse_address(address)))


def test_a_unix_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="--metrics-listen") as caught:
        MetricsServer(parse_address(f"unix:{tmp_path}/s"), Authenticator())
    assert caught.value.field == "metrics_listen"


def test_metrics_have_the_certificates_of_the_server(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    files = TlsFiles(tmp_path / "server.crt", tmp_path / "server.key", tmp_path / "ca.crt")
    server = MetricsServer(parse_address("localhost:0"), Authenticator(), files.context())
    server.start()
    client = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    with socket.create_connection(("localhost", int(server.url.split(":")[2].split("/")[0]))):
        # Somebody who never shakes hands keeps nobody else from it.
        with pytest.raises(OSError, match=r"(?i)certificate|protocol|reset|closed|EOF"):
            fetch(server.url, context=client)
        client.load_cert_chain(tmp_path / "alice.crt", tmp_path / "alice.key")
        with pytest.raises(HTTPError, match="503"):
            fetch(server.url, context=client)
    server.close()
    with pytest.raises(InvalidRequestError, match="TLS files refused"):
        TlsFiles(tmp_path / "server.crt", tmp_path / "ca.key").context()


def test_a_scrape_answers_while_a_step_runs_and_sees_the_generation() -> None:
    async def scenario() -> None:
        async with serving(context=4096, step_delay_seconds=0.5) as (s, url):
            call = s.generate("", (1, 2), max_tokens=50)
            await call.read()
            begun = time.monotonic()
            found = await scrape(url)
            assert time.monotonic() - begun < 0.4, "it waited for a step of 0.5 s"
            assert found["running_requests"] == 1
            call.cancel()

    run(scenario())


def test_a_fault_of_a_collector_is_logged_and_the_next_scrape_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with serving() as (s, url):
            states = s.engine.session_states
            failed = threading.Event()

            def broken() -> tuple[int, int]:
                failed.set()
                raise ZeroDivisionError("broken")

            s.engine.session_states = broken
            with pytest.raises((OSError, http.client.HTTPException)):
                await asyncio.to_thread(fetch, url)
            assert failed.is_set()
            s.engine.session_states = states
            assert await scrape(url)

    run(scenario())
    assert "ZeroDivisionError" in caplog.text
