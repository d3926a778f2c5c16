"""`ds4c serve` on the compiled bundled model, driven over loopback by an asynchronous client.

Steps have 16 rows, so that a long prompt is hundreds of chunks and a call can be caught in the middle of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from artifacts import Build
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families
from unit.serve.grpc_harness import Serving, collect, failure, run, token_ids

from ds4c_runtime.engine import Engine
from ds4c_runtime.requests import GenerationRequest, StopParams
from ds4c_serve.v1 import engine_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(str(ROOT / name) for name in (".", "runtime", "serve", "targets"))
SERVE = (sys.executable, "-m", "ds4c.cli.main", "serve")
CONTEXT, ROWS, HORIZON = 4096, 16, 64
TEXT = "<｜User｜>What is rewind?<｜Assistant｜></think>"
ALICE, BOB = "alice-token-0001", "bob-token-00002"


def tokens(count: int, seed: int = 0) -> tuple[int, ...]:
    """Random tokens of the bundled model; never its special ones."""
    return tuple(np.random.default_rng(seed).integers(16, 1024, count).tolist())


LONG = tokens(3900, seed=9)


class ServerProcess:
    """A running `ds4c serve`; its log goes to a file, since nobody reads a pipe here."""

    def __init__(self, artifact: Path, log: Path, *options: str) -> None:
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [*SERVE, str(artifact), "--grpc-listen", "127.0.0.1:0", *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "PYTHONPATH": PATHS},
            )
        assert self.process.stdout is not None
        self.log = log
        self.ready_line = self.process.stdout.readline()
        assert self.ready_line.startswith("ready: "), log.read_text()
        self.target = self.ready_line.split()[-1]

    def end(self, seconds: float = 30) -> int:
        """Ask it to drain; exit code. It is killed if it does not end."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            self.process.communicate()


@pytest.fixture(scope="module")
def artifact(built: Build) -> Path:
    return built("demo", context=CONTEXT, rows=ROWS, logit_rows=ROWS, horizon=HORIZON).artifact


@pytest.fixture(scope="module")
def server(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    started = ServerProcess(artifact, tmp_path_factory.mktemp("serve") / "log")
    yield started
    assert started.end() == 0, started.log.read_text()
    assert "Traceback" not in started.log.read_text()


@pytest.fixture
def start(artifact: Path, tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Start a server of its own with options."""
    servers: list[ServerProcess] = []

    def start_one(*options: str) -> ServerProcess:
        servers.append(ServerProcess(artifact, tmp_path / f"log{len(servers)}", *options))
        return servers[-1]

    yield start_one
    for each in servers:
        each.end()


@asynccontextmanager
async def connected(server: ServerProcess, token: str = "") -> AsyncIterator[Serving]:
    """A client; the sessions it leaves open are closed."""
    async with grpc.aio.insecure_channel(server.target) as channel:
        client = Serving(None, None, server.target, channel, token)  # pyright: ignore[reportArgumentType]
        try:
            yield client
        finally:
            await close_all(client)


async def close_all(client: Serving) -> None:
    listed = await client.sessions.ListSessions(pb.ListSessionsRequest(), metadata=client.metadata)
    for session in listed.sessions:
        await settled(client, session.session_id)
        request = pb.CloseSessionRequest(session_id=session.session_id)
        await client.sessions.CloseSession(request, metadata=client.metadata)


async def settled(client: Serving, session_id: str) -> pb.Session:
    """The session when no call changes it any more."""
    async with asyncio.timeout(10):
        while (session := await client.get(session_id)).is_busy:
            await asyncio.sleep(0.005)
    return session


def greedy(count: int) -> pb.StopCondition:
    return pb.StopCondition(max_output_tokens=count, ignore_eos=True)


async def continued(
    client: Serving, session_id: str, prompt: Sequence[int] = (), *, count: int = 12, **fields: Any
) -> list[int]:
    """Greedy tokens after `prompt`; an empty `session_id` is a fresh session."""
    call = client.generate(session_id, tuple(prompt), stop=greedy(count), **fields)
    found = token_ids(await collect(call))
    assert len(found) == count
    return found


async def filled(client: Serving, session_id: str, prompt: tuple[int, ...]) -> pb.Session:
    await client.open(session_id)
    finished = await client.prefill(session_id, prompt)
    assert finished.end_position == len(prompt)
    return await client.get(session_id)


async def first_progress(call: Any) -> tuple[pb.Started, pb.PrefillProgress]:
    """Read a stream up to its first message of progress."""
    started = (await call.read()).started
    progress = (await call.read()).prefill
    assert (progress.done_tokens, progress.total_tokens) == (ROWS, len(LONG))
    return started, progress


# ------------------------------------------------------------------------------------------- answers


def test_the_streamed_answer_is_the_one_of_a_call_that_waits(server: ServerProcess, artifact: Path) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            request = pb.TokenizeRequest(text=TEXT, parse_special=True)
            prompt = (await client.inference.Tokenize(request)).tokens.ids
            streamed = await collect(
                client.generate(prompt=pb.Prompt(text=TEXT, parse_special=True), return_text=True, stop=stop)
            )
            assert len([r for r in streamed if r.WhichOneof("event") == "delta"]) > 1
            text = "".join(r.delta.text for r in streamed)
            whole = engine.run(
                GenerationRequest(tuple(prompt), stop=StopParams(max_output_tokens=60, ignore_eos=True))
            )
            assert token_ids(streamed) == list(whole.tokens)
            assert text == whole.text
            assert text.strip()
            positions = [r.delta.position for r in streamed if r.delta.token_ids]
            assert positions[0] == len(prompt)
            assert streamed[-1].finished.end_position == len(prompt) + 60
            assert streamed[-1].finished.prefix_digest == whole.finished.digest

    stop = greedy(60)
    with Engine.load(artifact, max_sessions=1) as engine:
        run(scenario())


def test_streams_side_by_side_are_those_alone(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            prompts = [tokens(n, seed=n) for n in (5, 17, 400, 130)]
            together = await asyncio.gather(*(continued(client, "", p, count=40) for p in prompts))
            alone = [await continued(client, "", p, count=40) for p in prompts]
            assert together == alone
            assert len({tuple(answer) for answer in alone}) == len(prompts)

    run(scenario())


# -------------------------------------------------------------------------------------------- rewind


@pytest.mark.parametrize(
    ("to", "kind", "replayed"),
    [
        (600, pb.REWIND_KIND_NONE, 0),
        (599, pb.REWIND_KIND_IN_PLACE, 0),
        (600 - HORIZON, pb.REWIND_KIND_IN_PLACE, 0),
        (600 - HORIZON - 1, pb.REWIND_KIND_SNAPSHOT_REPLAY, 535 - 512),
        (512, pb.REWIND_KIND_SNAPSHOT, 0),
        (511, pb.REWIND_KIND_SNAPSHOT_REPLAY, 127),
        (129, pb.REWIND_KIND_SNAPSHOT_REPLAY, 1),
        (128, pb.REWIND_KIND_SNAPSHOT, 0),
        (127, pb.REWIND_KIND_REBUILD, 127),
        (1, pb.REWIND_KIND_REBUILD, 1),
    ],
)
def test_rewind_does_what_plan_said_and_leaves_a_fresh_session(
    server: ServerProcess, to: int, kind: int, replayed: int
) -> None:
    prompt, turn = tokens(600), tokens(7, seed=1)

    async def scenario() -> None:
        async with connected(server) as client:
            await filled(client, "s", prompt)
            plan = await client.sessions.PlanRewind(pb.PlanRewindRequest(session_id="s", to_position=to))
            assert (plan.kind, plan.replay_tokens, plan.to_position) == (kind, replayed, to)
            assert (await client.get("s")).position == 600, "a plan changes nothing"

            done = await client.sessions.Rewind(pb.RewindRequest(session_id="s", to_position=to))
            report = done.rewind
            assert (report.kind, report.replayed_tokens) == (plan.kind, plan.replay_tokens)
            assert (report.base_position, report.rebuild_reason) == (plan.base_position, plan.rebuild_reason)
            assert (report.from_position, report.to_position) == (600, to)
            assert report.cause == pb.REWIND_CAUSE_CLIENT
            assert report.snapshot_id == plan.snapshot_id
            uses = kind in (pb.REWIND_KIND_SNAPSHOT, pb.REWIND_KIND_SNAPSHOT_REPLAY)
            assert bool(report.snapshot_id) == uses
            is_rebuild = kind == pb.REWIND_KIND_REBUILD
            assert (report.rebuild_reason == pb.REBUILD_REASON_NO_SNAPSHOT) == is_rebuild
            assert (done.session.position, done.session.state_valid) == (to, True)

            fresh = await filled(client, "fresh", prompt[:to])
            assert done.session.prefix_digest == fresh.prefix_digest
            assert await continued(client, "s") == await continued(client, "", prompt[:to])
            after = await continued(client, "s", turn, rewind_to=to)
            assert after == await continued(client, "fresh", turn)
            assert (await client.get("s")).prefix_digest == (await client.get("fresh")).prefix_digest

    run(scenario())


@pytest.mark.parametrize(
    ("at", "kind", "replayed"),
    [
        (500, pb.REWIND_KIND_IN_PLACE, 0),
        (450, pb.REWIND_KIND_IN_PLACE, 0),
        (300, pb.REWIND_KIND_SNAPSHOT_REPLAY, 300 - 256),
        (100, pb.REWIND_KIND_REBUILD, 100),
    ],
)
def test_a_fork_is_a_fresh_session_and_leaves_the_first_as_it_was(
    server: ServerProcess, at: int, kind: int, replayed: int
) -> None:
    prompt, turn = tokens(500, seed=2), tokens(9, seed=3)

    async def scenario() -> None:
        async with connected(server) as client:
            before = await filled(client, "s", prompt)
            request = pb.ForkSessionRequest(session_id="s", new_session_id="t", at_position=at)
            fork = await client.sessions.ForkSession(request)
            assert (fork.rewind.kind, fork.rewind.replayed_tokens) == (kind, replayed)
            assert fork.rewind.cause == pb.REWIND_CAUSE_BRANCH
            assert (fork.session.parent_session_id, fork.session.forked_at) == ("s", at)
            assert fork.session.position == at

            both = await asyncio.gather(continued(client, "t", turn, count=30), continued(client, "s"))
            assert both[0] == await continued(client, "", prompt[:at] + turn, count=30)
            assert both[1] == await continued(client, "", prompt)
            assert (await client.get("s")).position == before.position + 12

    run(scenario())


def test_a_generation_reports_its_own_rewind(server: ServerProcess) -> None:
    prompt, turn = tokens(400, seed=4), tokens(3, seed=5)

    async def scenario() -> None:
        async with connected(server) as client:
            await filled(client, "s", prompt)
            for to, kind, cached in ((380, pb.REWIND_KIND_IN_PLACE, 380), (100, pb.REWIND_KIND_REBUILD, 0)):
                responses = await collect(client.generate("s", turn, rewind_to=to, stop=greedy(8)))
                started, finished = responses[0].started, responses[-1].finished
                assert (started.rewind.kind, started.start_position) == (kind, to)
                assert finished.usage.cached_input_tokens == started.cached_input_tokens == cached
                assert finished.usage.input_tokens == to + len(turn)
                assert token_ids(responses) == await continued(client, "", prompt[:to] + turn, count=8)

    run(scenario())


def test_snapshots_are_pinned_and_gone_back_to_and_forward(server: ServerProcess) -> None:
    prompt, turn = tokens(600, seed=10), tokens(9, seed=11)

    async def scenario() -> None:
        async with connected(server) as client:
            await filled(client, "s", prompt)
            answer = await continued(client, "s", turn, count=30)
            request = pb.ListSnapshotsRequest(session_id="s")
            listed = (await client.sessions.ListSnapshots(request)).snapshots
            found = {snapshot.position: snapshot for snapshot in listed}
            assert list(found) == [128, 256, 384, 512, 600, 609, 639]
            assert found[609].origin == pb.SNAPSHOT_ORIGIN_PROMPT_END
            assert found[639].origin == pb.SNAPSHOT_ORIGIN_TURN_END
            pin = pb.PinSnapshotRequest(session_id="s", position=333, label="in between")
            pinned = (await client.sessions.PinSnapshot(pin)).snapshot
            assert (pinned.position, pinned.pinned) == (333, True)
            for snapshot, seen in ((pinned, prompt[:333]), (found[639], (*prompt, *turn, *answer))):
                to = pb.RewindRequest(
                    session_id="s", to_snapshot_id=snapshot.snapshot_id, max_replay_tokens=0
                )
                done = await client.sessions.Rewind(to)
                assert (done.rewind.kind, done.rewind.snapshot_id) == (
                    pb.REWIND_KIND_SNAPSHOT,
                    snapshot.snapshot_id,
                )
                assert done.session.prefix_digest == snapshot.prefix_digest
                assert await continued(client, "s") == await continued(client, "", seen)

    run(scenario())


def test_a_rewind_dearer_than_allowed_changes_nothing(server: ServerProcess) -> None:
    prompt = tokens(300, seed=6)

    async def scenario() -> None:
        async with connected(server) as client:
            before = await filled(client, "s", prompt)
            request = pb.RewindRequest(session_id="s", to_position=100, max_replay_tokens=99)
            what = await failure(client.sessions.Rewind(request))
            assert (what.code, what.reason) == ("FAILED_PRECONDITION", "REWIND_TOO_DEAR")
            after = await client.get("s")
            assert (after.position, after.prefix_digest) == (300, before.prefix_digest)
            assert await continued(client, "s") == await continued(client, "", prompt)

    run(scenario())


# -------------------------------------------------------------------------------- cancel and deadline


async def check_finished_part(client: Serving, session_id: str) -> None:
    """The session of an interrupted prefill holds whole chunks of `LONG`, and is a fresh session of them."""
    session = await settled(client, session_id)
    done = session.position
    assert 0 < done < len(LONG)
    assert done % ROWS == 0
    assert session.state_valid
    fresh = await filled(client, "fresh", LONG[:done])
    assert session.prefix_digest == fresh.prefix_digest
    assert await continued(client, session_id) == await continued(client, "fresh")
    rest = LONG[done : done + 50]
    resumed = await continued(client, session_id, rest, rewind_to=done)
    assert resumed == await continued(client, "", LONG[:done] + rest)


@pytest.mark.parametrize("how", ["CancelGeneration", "closed stream"])
def test_cancel_in_the_middle_of_a_prefill(server: ServerProcess, how: str) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            await client.open("s")
            call = client.generate("s", LONG, prefill_progress=True, stop=greedy(8))
            started, _ = await first_progress(call)
            if how == "closed stream":
                call.cancel()
            else:
                request = pb.CancelGenerationRequest(generation_id=started.generation_id)
                assert (await client.inference.CancelGeneration(request)).was_running
                responses = await collect(call)
                finished = responses[-1].finished
                assert (finished.reason, finished.continuable) == (pb.FINISH_REASON_CANCELLED, True)
                assert token_ids(responses) == []
                assert finished.end_position == (await client.get("s")).position
                assert not (await client.inference.CancelGeneration(request)).was_running
            await check_finished_part(client, "s")

    run(scenario())


def test_a_deadline_passes_during_a_prefill(server: ServerProcess) -> None:
    async def begin(client: Serving, name: str) -> Any:
        """A call that has made progress and has about a third of the time that its prefill takes."""
        begun = time.monotonic()
        await collect(client.generate("", LONG, stop=greedy(0)))
        seconds = (time.monotonic() - begun) / 3
        await client.open(name)
        call = client.generate(name, LONG, prefill_progress=True, stop=greedy(8), timeout=seconds)
        await first_progress(call)
        return call

    async def scenario() -> None:
        async with connected(server) as client:
            for attempt in range(5):
                name = f"s{attempt}"
                try:
                    call = await begin(client, name)
                except grpc.aio.AioRpcError:  # the machine became slower meanwhile: the deadline came first
                    continue
                what = await failure(call)
                assert what.code == "DEADLINE_EXCEEDED"
                await check_finished_part(client, name)
                return
            pytest.fail("expected progress before a deadline, got none in 5 attempts")

    run(scenario())


def test_health_answers_while_a_prefill_runs(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            health = health_pb2_grpc.HealthStub(client.channel)
            call = client.generate("", LONG, prefill_progress=True, stop=greedy(4))
            await first_progress(call)
            rest = asyncio.ensure_future(collect(call))
            answers: list[int] = []
            while not rest.done():
                answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=2)
                answers.append(answer.status)
            assert len(answers) > 5
            assert set(answers) == {health_pb2.HealthCheckResponse.SERVING}
            progress = [r.prefill.done_tokens for r in await rest if r.WhichOneof("event") == "prefill"]
            assert progress == [*range(2 * ROWS, len(LONG), ROWS), len(LONG)]

    run(scenario())


# ------------------------------------------------------------------------------------------- refusals


def test_a_stale_position_is_refused_with_where_the_session_is(server: ServerProcess) -> None:
    prompt = tokens(90, seed=7)

    async def scenario() -> None:
        async with connected(server) as client:
            session = await filled(client, "s", prompt)
            rewind = pb.RewindRequest(session_id="s", to_position=10, expected_position=91)
            for begin in (  # one after the other: at once, they would be busy instead
                lambda: client.generate("s", (20,), expected_position=89),
                lambda: client.generate("s", (20,), expected_prefix_digest="0" * 64),
                lambda: client.sessions.Rewind(rewind),
            ):
                what = await failure(begin())
                assert (what.code, what.reason) == ("ABORTED", "CONTINUATION_STALE")
                assert what.metadata == {"position": "90", "digest": session.prefix_digest}
            # What the refusal said is enough to go on with.
            fields = {"expected_position": 90, "expected_prefix_digest": session.prefix_digest}
            assert await continued(client, "s", (20,), **fields) == await continued(client, "", (*prompt, 20))

    run(scenario())


def test_a_second_writer_is_refused_and_the_first_unharmed(server: ServerProcess) -> None:
    async def scenario() -> None:
        async with connected(server) as client:
            await client.open("s")
            call = client.generate("s", LONG, prefill_progress=True, stop=greedy(12))
            await first_progress(call)
            assert (await client.get("s")).is_busy
            writers = (
                client.generate("s", (5,)),
                client.sessions.Rewind(pb.RewindRequest(session_id="s", to_position=0)),
                client.sessions.CloseSession(pb.CloseSessionRequest(session_id="s")),
            )
            for writer in writers:
                what = await failure(writer)
                assert (what.code, what.reason, what.retry_seconds) == ("ABORTED", "SESSION_BUSY", 0.2)
                assert what.metadata == {"session_id": "s"}
            assert token_ids(await collect(call)) == await continued(client, "", LONG)
            assert (await settled(client, "s")).position == len(LONG) + 12

    run(scenario())


def test_sessions_belong_to_the_token_that_opened_them(
    start: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{ALICE}\n{BOB}\n")
    path.chmod(0o600)
    server = start("--auth-token-file", str(path))

    async def scenario() -> None:
        async with connected(server, ALICE) as alice, connected(server, BOB) as bob:
            for token in ("", "carol-token-0003"):
                stranger = Serving(None, None, server.target, alice.channel, token)  # pyright: ignore[reportArgumentType]
                for call in (stranger.generate("", (5,)), stranger.inference.Tokenize(pb.TokenizeRequest())):
                    what = await failure(call)
                    assert (what.code, what.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
            await filled(alice, "s", tokens(40))
            read = bob.sessions.GetSession(pb.GetSessionRequest(session_id="s"), metadata=bob.metadata)
            rewind = bob.sessions.Rewind(
                pb.RewindRequest(session_id="s", to_position=0), metadata=bob.metadata
            )
            for call in (read, rewind, bob.generate("s", (5,))):
                what = await failure(call)
                assert (what.code, what.reason) == ("NOT_FOUND", "SESSION_NOT_FOUND")
            await filled(bob, "s", tokens(30))  # the same id is another session
            assert (await alice.get("s")).position == 40
            assert await continued(alice, "s") == await continued(bob, "", tokens(40))
            health = health_pb2_grpc.HealthStub(alice.channel)
            answer = await health.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING

    run(scenario())


# -------------------------------------------------------------------------------------------- metrics


def test_a_scrape_counts_what_the_client_did(start: Callable[..., ServerProcess]) -> None:
    server = start("--metrics-listen", "127.0.0.1:0", "--log-format", "json")
    events = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    (url,) = [event["url"] for event in events if event["event"] == "metrics"]

    async def scenario() -> None:
        async with connected(server) as client:
            await filled(client, "s", tokens(200))
            await client.sessions.Rewind(pb.RewindRequest(session_id="s", drop_tokens=5))
            await client.sessions.Rewind(pb.RewindRequest(session_id="s", to_position=0))

    run(scenario())
    with urllib.request.urlopen(url, timeout=10) as answer:
        families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
    rewinds = {s.labels["kind"]: s.value for s in families["ds4c_rewinds"].samples if s.value}
    assert rewinds == {"in_place": 2}  # position 0 needs no row
    (discarded,) = [s for s in families["ds4c_discarded_tokens"].samples if s.labels["cause"] == "client"]
    assert discarded.value == 200
    assert discarded.labels["artifact"] in server.ready_line
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(15) == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=10)


# ---------------------------------------------------------------------------------------------- drain


def test_sigterm_lets_a_stream_finish_and_refuses_new_calls(start: Callable[..., ServerProcess]) -> None:
    server = start()
    prompt, count = tokens(20, seed=8), 2500

    async def scenario() -> None:
        async with grpc.aio.insecure_channel(server.target) as channel:
            client = Serving(None, None, server.target, channel)  # pyright: ignore[reportArgumentType]
            expected = await continued(client, "", prompt, count=count)
            # 64 alternatives a token fill the transport, so the stream goes on only while it is read.
            call = client.generate("", prompt, stop=greedy(count), logprobs=64)
            begun = [await call.read(), await call.read()]
            server.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                while not (await client.models.GetLoad(pb.GetLoadRequest())).draining:
                    await asyncio.sleep(0.005)
            for refused in (
                client.generate("", (5,)),
                client.sessions.OpenSession(pb.OpenSessionRequest(session_id="late")),
            ):
                what = await failure(refused)
                assert (what.code, what.reason) == ("UNAVAILABLE", "DRAINING")
            load = await client.models.GetLoad(pb.GetLoadRequest())
            assert (load.running_generations, server.process.poll()) == (1, None)
            responses = begun + await collect(call)
            assert token_ids(responses) == expected
            finished = responses[-1].finished
            assert (finished.reason, finished.usage.output_tokens) == (pb.FINISH_REASON_LENGTH, count)

    run(scenario(), 40)
    assert server.process.wait(15) == 0
    assert "Traceback" not in server.log.read_text()
