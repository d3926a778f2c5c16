"""Many clients at once on the compiled bundled model: every stream whole, every token as if alone."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping

import pytest
from more.servers import Ask, ServeProcess, at_rest, client, generated

from ds4c_serve.v1 import engine_pb2 as pb

pytestmark = pytest.mark.more

CLIENTS, SECONDS, CONTEXT = 32, 30, 512


def asks(seed: int) -> list[Ask]:
    """Prompts from one token to several chunks of a step, greedy and drawn."""
    rng = random.Random(seed)
    found: list[Ask] = []
    for number in range(24):
        prompt = tuple(rng.choices(range(16, 1024), k=rng.choice((1, 7, 63, 64, 65, 200, 400))))
        found.append(Ask(prompt, rng.choice((1, 8, 40)), number if number % 2 else None))
    return found


async def alone(target: str, every: list[Ask]) -> dict[Ask, list[int]]:
    """What each gives with nothing else on the server."""
    async with client(target) as one:
        return {ask: await generated(one, ask) for ask in every}


async def stay(target: str, name: str, expected: Mapping[Ask, list[int]], seed: int, until: float) -> int:
    """One client: sessions of its own that are asked, rewound and asked again, until the time is over.

    Returns:
        Streams that it read to their end.
    """
    rng, streams = random.Random(seed), 0
    async with client(target) as one:
        while time.monotonic() < until:
            ask = rng.choice(list(expected))
            if rng.random() < 0.3:
                assert await generated(one, ask) == expected[ask]
                streams += 1
                continue
            await one.sessions.OpenSession(pb.OpenSessionRequest(session_id=name))
            assert await generated(one, ask, name) == expected[ask]
            streams += 1
            other = rng.choice(list(expected))
            await one.sessions.Rewind(pb.RewindRequest(session_id=name, to_position=0))
            assert await generated(one, other, name) == expected[other]
            assert await generated(one, ask, name, rewind_to=0) == expected[ask]
            streams += 2
            # Back into the middle of the prompt, whose rest is given again.
            keep = len(ask.prompt) // 2
            await one.sessions.Rewind(pb.RewindRequest(session_id=name, to_position=keep))
            rest = Ask(ask.prompt[keep:], ask.count, ask.seed)
            assert await generated(one, rest, name) == expected[ask]
            streams += 1
            await one.sessions.CloseSession(pb.CloseSessionRequest(session_id=name))
    return streams


def test_32_streaming_clients_for_half_a_minute(start: Callable[..., ServeProcess], seed: int) -> None:
    server = start("--max-sessions", str(2 * CLIENTS), "--max-queue", str(2 * CLIENTS))

    async def scenario() -> None:
        expected = await alone(server.target, asks(seed))
        async with client(server.target) as one:
            before = await at_rest(one)
            until = time.monotonic() + SECONDS
            streams = await asyncio.gather(
                *(stay(server.target, f"c{n}", expected, seed + n, until) for n in range(CLIENTS))
            )
            after = await at_rest(one)
            assert min(streams) > 0, "every client was served"
            assert list((await one.sessions.ListSessions(pb.ListSessionsRequest())).sessions) == []
            assert after == before, "slots and pages are free again"
            assert await alone(server.target, list(expected)) == expected
        print(f"{sum(streams)} streams, {server.cpu_seconds():.0f} s of CPU of the server")

    asyncio.run(asyncio.wait_for(scenario(), 240))
