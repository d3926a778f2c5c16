"""A minute of sessions that come and go: memory and open files level off, all room comes back."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from more.servers import Ask, ServeProcess, at_rest, client, generated

from ds4c_serve.client import Stubs, failure_of
from ds4c_serve.v1 import engine_pb2 as pb

pytestmark = [
    pytest.mark.more,
    pytest.mark.skipif(sys.platform != "linux", reason="memory and files of a process are read in /proc"),
]

CLIENTS, SECONDS, SETTLED = 6, 60, 20
"""From `SETTLED` seconds on the server has done everything it does, many times."""
EACH = 4
"""Most sessions of a client: all clients together have more than there are slots."""
MORE_MEMORY = 1.05


class Visitor:
    """A client that opens, generates, rewinds, forks, pins and closes at random."""

    def __init__(self, stubs: Stubs, name: str, seed: int) -> None:
        self.stubs, self.name, self.rng = stubs, name, random.Random(seed)
        self.sessions: list[str] = []
        self.made = self.operations = self.refused = 0

    def new_name(self) -> str:
        self.made += 1
        return f"{self.name}-{self.made}"

    async def step(self) -> None:
        self.operations += 1
        if not self.sessions:
            await self.open()
            return
        session_id = self.rng.choice(self.sessions)
        choices = [self.generate, self.generate, self.rewind, self.rewind, self.pin, self.leave, self.close]
        if len(self.sessions) < EACH:
            choices += [self.fork, self.open_another]
        await self.rng.choice(choices)(session_id)

    async def open(self) -> None:
        name = self.new_name()
        await self.stubs.sessions.OpenSession(pb.OpenSessionRequest(session_id=name))
        self.sessions.append(name)
        await self.generate(name)

    async def open_another(self, _: str) -> None:
        await self.open()

    async def position(self, session_id: str) -> int:
        request = pb.GetSessionRequest(session_id=session_id)
        return (await self.stubs.sessions.GetSession(request)).session.position

    async def generate(self, session_id: str) -> None:
        position = await self.position(session_id)
        room = 500 - position
        if room < 60:
            await self.close(session_id)
            return
        prompt = tuple(self.rng.choices(range(16, 1024), k=self.rng.randrange(1, room - 50)))
        await generated(self.stubs, Ask(prompt, self.rng.randrange(1, 30)), session_id)

    async def rewind(self, session_id: str) -> None:
        to = self.rng.randint(0, await self.position(session_id))
        is_later = self.rng.random() < 0.2
        request = pb.RewindRequest(session_id=session_id, to_position=to, defer_rebuild=is_later)
        assert (await self.stubs.sessions.Rewind(request)).session.position == to

    async def fork(self, session_id: str) -> None:
        name, at = self.new_name(), self.rng.randint(0, await self.position(session_id))
        request = pb.ForkSessionRequest(session_id=session_id, new_session_id=name, at_position=at)
        assert (await self.stubs.sessions.ForkSession(request)).session.position == at
        self.sessions.append(name)

    async def pin(self, session_id: str) -> None:
        """Pin where the session is, and let go what was pinned before."""
        position = await self.position(session_id)
        listed = await self.stubs.sessions.ListSnapshots(pb.ListSnapshotsRequest(session_id=session_id))
        for snapshot in listed.snapshots:
            if snapshot.pinned:
                gone = pb.UnpinSnapshotRequest(session_id=session_id, snapshot_id=snapshot.snapshot_id)
                await self.stubs.sessions.UnpinSnapshot(gone)
        if position:
            request = pb.PinSnapshotRequest(session_id=session_id, position=self.rng.randint(1, position))
            await self.stubs.sessions.PinSnapshot(request)

    async def leave(self, session_id: str) -> None:
        """Hang up after the first message: what was run by then stays."""
        if await self.position(session_id) > 200:
            return
        call = self.stubs.inference.Generate(Ask((20,) * 200, 30).request(session_id))
        await call.read()
        call.cancel()
        while (await self.info(session_id)).is_busy:
            await asyncio.sleep(0.005)

    async def info(self, session_id: str) -> pb.Session:
        return (await self.stubs.sessions.GetSession(pb.GetSessionRequest(session_id=session_id))).session

    async def close(self, session_id: str) -> None:
        await self.stubs.sessions.CloseSession(pb.CloseSessionRequest(session_id=session_id))
        self.sessions.remove(session_id)

    async def live(self, until: float) -> int:
        """Go on until the time is over, then close all; operations that were done."""
        while time.monotonic() < until:
            try:
                await self.step()
            except grpc.aio.AioRpcError as error:
                # The only refusals: idle sessions of others may all hold something pinned just now.
                if failure_of(error).reason not in ("MEMORY_BUDGET", "SESSION_LIMIT"):
                    raise
                self.refused += 1
        for session_id in list(self.sessions):
            await self.close(session_id)
        return self.operations


async def watch(server: ServeProcess, begun: float) -> list[tuple[float, int, int]]:
    """Second, bytes of memory and open files, each second."""
    found: list[tuple[float, int, int]] = []
    while time.monotonic() < begun + SECONDS:
        await asyncio.sleep(1)
        found.append((time.monotonic() - begun, server.memory(), server.open_files()))
    return found


@pytest.mark.parametrize("is_kept", [False, True], ids=["in memory", "with a session folder"])
def test_a_minute_of_sessions_leaves_nothing_behind(
    start: Callable[..., ServeProcess], tmp_path: Path, seed: int, is_kept: bool
) -> None:
    folder = tmp_path / "kept"
    kept = ("--session-dir", str(folder)) if is_kept else ()
    server = start("--max-sessions", "32", "--max-resident", "12", *kept)

    async def scenario() -> None:
        async with client(server.target) as one:
            before = await at_rest(one)
            begun = time.monotonic()
            watching = asyncio.create_task(watch(server, begun))
            visitors = [Visitor(one, f"v{n}", seed + n) for n in range(CLIENTS)]
            done = await asyncio.gather(*(visitor.live(begun + SECONDS) for visitor in visitors))
            seen = await watching
            assert list((await one.sessions.ListSessions(pb.ListSessionsRequest())).sessions) == []
            assert await at_rest(one) == before
        early = [(memory, files) for at, memory, files in seen if at <= SETTLED]
        late = [(memory, files) for at, memory, files in seen if at > SECONDS - 10]
        refused = sum(visitor.refused for visitor in visitors)
        assert refused < sum(done) / 10
        print(f"{sum(done)} operations, {refused} refused; bytes and files {early[-1]}, then {late[-1]}")
        assert late[-1][0] <= MORE_MEMORY * early[-1][0]
        assert max(files for _, files in late) <= max(files for _, files in early)
        assert list(folder.glob("*.log")) == []
        assert list(folder.glob("*.state")) == []

    asyncio.run(asyncio.wait_for(scenario(), 4 * SECONDS))
