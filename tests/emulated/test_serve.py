"""`ds4c serve` on emulated kernels: a rewind over gRPC does what its plan said and leaves a fresh session.

One rewind that restores and replays; the other kinds and a fork, which `e2e` shows on the CPU, in
`make test-more`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from artifacts import Build
from e2e.test_grpc_demo import ServerProcess, connected, continued, filled, tokens
from emulated.models import CUDA, EMULATOR, METAL
from sizes import more
from unit.serve.grpc_harness import run

from ds4c_serve.v1 import engine_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HORIZON, LENGTH = 12, 280
REPLAY = LENGTH - HORIZON - 1
KINDS = {
    LENGTH: (pb.REWIND_KIND_NONE, 0),
    LENGTH - HORIZON: (pb.REWIND_KIND_IN_PLACE, 0),
    REPLAY: (pb.REWIND_KIND_SNAPSHOT_REPLAY, REPLAY - 256),
    256: (pb.REWIND_KIND_SNAPSHOT, 0),
    70: (pb.REWIND_KIND_REBUILD, 70),
}


@pytest.fixture(scope="module", params=[METAL, more(CUDA)])
def server(
    request: pytest.FixtureRequest, built: Build, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    artifact = built("demo", target=request.param).artifact
    started = ServerProcess(artifact, tmp_path_factory.mktemp("serve") / "log", "--device", EMULATOR)
    yield started
    assert started.end() == 0, started.log.read_text()
    assert "Traceback" not in started.log.read_text()


@pytest.mark.parametrize("to", [to if to == REPLAY else more(to) for to in KINDS])
def test_a_rewind_is_what_was_planned(server: ServerProcess, to: int) -> None:
    prompt, turn = tokens(LENGTH), tokens(7, seed=1)

    async def scenario() -> None:
        async with connected(server) as client:
            await filled(client, "s", prompt)
            plan = await client.sessions.PlanRewind(pb.PlanRewindRequest(session_id="s", to_position=to))
            assert (plan.kind, plan.replay_tokens) == KINDS[to]
            done = await client.sessions.Rewind(pb.RewindRequest(session_id="s", to_position=to))
            report = done.rewind
            assert (report.kind, report.replayed_tokens) == (plan.kind, plan.replay_tokens)
            assert (report.from_position, report.to_position) == (LENGTH, to)
            assert (report.base_position, report.snapshot_id) == (plan.base_position, plan.snapshot_id)
            assert (done.session.position, done.session.state_valid) == (to, True)

            fresh = await filled(client, "fresh", prompt[:to])
            assert done.session.prefix_digest == fresh.prefix_digest
            assert await continued(client, "s", turn) == await continued(client, "fresh", turn)
            assert (await client.get("s")).prefix_digest == (await client.get("fresh")).prefix_digest

    run(scenario(), 60)


@pytest.mark.more
def test_a_fork_leaves_the_first_as_it_was(server: ServerProcess) -> None:
    prompt, turn = tokens(150, seed=2), tokens(9, seed=3)

    async def scenario() -> None:
        async with connected(server) as client:
            await filled(client, "s", prompt)
            request = pb.ForkSessionRequest(session_id="s", new_session_id="t", at_position=145)
            fork = await client.sessions.ForkSession(request)
            assert fork.rewind.kind == pb.REWIND_KIND_IN_PLACE
            assert await continued(client, "t", turn) == await continued(client, "", prompt[:145] + turn)
            assert await continued(client, "s") == await continued(client, "", prompt)

    run(scenario(), 60)
