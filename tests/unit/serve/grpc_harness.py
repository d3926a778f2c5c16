"""A real server on a loopback port over the fake engine, and a real client beside it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_executable import fake_engine

from ds4c_serve.client import Failure, authorization, failure_of, stubs
from ds4c_serve.listen import parse_address
from ds4c_serve.server import Server, ServerConfig
from ds4c_serve.v1 import engine_pb2 as pb

TOKENIZER = Path(__file__).resolve().parents[3] / "demo" / "model" / "tokenizer.json"


@dataclass
class Serving:
    """A running server and a channel to it; `token` is sent with every call made through the helpers."""

    server: Server
    engine: Any
    target: str
    channel: grpc.aio.Channel
    token: str = ""

    def __post_init__(self) -> None:
        found = stubs(self.channel)
        self.inference, self.sessions, self.models = found.inference, found.sessions, found.models

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return authorization(self.token)

    def generate(self, session_id: str = "", tokens: tuple[int, ...] = (), **fields: Any) -> Any:
        """Start a stream that returns token ids."""
        timeout = fields.pop("timeout", None)
        stop = fields.pop("stop", None) or pb.StopCondition(max_output_tokens=fields.pop("max_tokens", 8))
        request = pb.GenerateRequest(
            session_id=session_id,
            prompt=fields.pop("prompt", pb.Prompt(tokens=pb.TokenIds(ids=tokens))),
            stop=stop,
            return_token_ids=fields.pop("return_token_ids", True),
            **fields,
        )
        return self.inference.Generate(request, metadata=self.metadata, timeout=timeout)

    async def open(self, session_id: str, **fields: Any) -> pb.Session:
        request = pb.OpenSessionRequest(session_id=session_id, **fields)
        return (await self.sessions.OpenSession(request, metadata=self.metadata)).session

    async def get(self, session_id: str) -> pb.Session:
        request = pb.GetSessionRequest(session_id=session_id)
        return (await self.sessions.GetSession(request, metadata=self.metadata)).session

    async def prefill(self, session_id: str, tokens: tuple[int, ...]) -> pb.Finished:
        """Append tokens without generating any."""
        return (await collect(self.generate(session_id, tokens, max_tokens=0)))[-1].finished


async def collect(call: Any) -> list[pb.GenerateResponse]:
    """The rest of a stream."""
    responses = []
    while (response := await call.read()) is not grpc.aio.EOF:
        responses.append(response)
    return responses


def token_ids(responses: list[pb.GenerateResponse]) -> list[int]:
    return [token for response in responses for token in response.delta.token_ids]


async def failure(call: Any) -> Failure:
    """The failure of a unary call or of a stream that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (collect(call) if hasattr(call, "read") else call)
    return failure_of(caught.value)


@asynccontextmanager
async def serving(
    *, tokens: tuple[str, ...] = (), token: str = "", reflection: bool | None = None, **options: Any
) -> AsyncIterator[Serving]:
    config = ServerConfig((parse_address("127.0.0.1:0"),), tokens=tokens, reflection=reflection)
    server = Server(config)
    (target,) = await server.start()
    engine = await server.load(lambda: fake_engine(**options))
    try:
        async with grpc.aio.insecure_channel(target) as channel:
            yield Serving(server, engine, target, channel, token)
    finally:
        await server.stop(0)
        await asyncio.to_thread(engine.shutdown, 0)


def run(coroutine: Coroutine[Any, Any, None], seconds: float = 20) -> None:
    """Run a coroutine to its end on a new loop; one that hangs fails."""

    async def limited() -> None:
        await asyncio.wait_for(coroutine, seconds)

    asyncio.run(limited())


async def until(condition: Callable[[], bool], seconds: float = 5) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it does not within the time.
    """
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
