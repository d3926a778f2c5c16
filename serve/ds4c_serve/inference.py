"""InferenceService: generate, cancel, tokenize.

The model never runs on the event loop: the engine's thread does the work and hands events over (`stream.py`).
However a call ends, its generation is cancelled in a `finally` without awaits and in the call's done
callback, since a handler that is blocked in a send sees neither a cancellation nor the deadline.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from ds4c_runtime.engine import Generation
from ds4c_serve import checks, convert
from ds4c_serve.auth import Authenticator
from ds4c_serve.backend import Backend, result_of
from ds4c_serve.context import Context
from ds4c_serve.rpc import request_id, streaming, unary
from ds4c_serve.stream import EventStream
from ds4c_serve.v1 import engine_pb2 as pb
from ds4c_serve.v1 import engine_pb2_grpc


@dataclass(frozen=True)
class _Running:
    owner: str
    generation: Generation


class InferenceService(engine_pb2_grpc.InferenceServiceServicer):
    """Generations of all callers. For use on one event loop."""

    def __init__(self, backend: Backend, authenticator: Authenticator):
        self._backend = backend
        self._authenticator = authenticator
        self._running: dict[str, _Running] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @streaming
    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Run one generation and stream it."""
        owner = self._authenticator.owner(context)
        engine = self._backend.engine
        wanted = await asyncio.to_thread(checks.generation, request, engine)
        stream = EventStream()
        generation = await result_of(engine.submit_generate(wanted, owner, stream.put))
        writer = convert.ResponseWriter(generation.id, request_id(request, context))
        self._enter(owner, generation)
        context.add_done_callback(lambda _context: generation.cancel())
        generation.done.add_done_callback(stream.end)
        try:
            async for batch in stream.batches(generation):
                yield writer.response(batch)
        finally:
            generation.cancel()
            self._leave(generation)

    @streaming
    async def ResumeGenerate(
        self, request: pb.ResumeGenerateRequest, context: Context
    ) -> AsyncIterator[pb.ResumeGenerateResponse]:
        """Refused: this server keeps no finished streams."""
        raise checks.not_in_artifact("ResumeGenerate", "kept streams")
        yield pb.ResumeGenerateResponse()  # makes this a stream; never reached

    @unary
    async def CancelGeneration(
        self, request: pb.CancelGenerationRequest, context: Context
    ) -> pb.CancelGenerationResponse:
        """Stop a generation of the caller, if it runs."""
        owner = self._authenticator.owner(context)
        running = self._running.get(checks.generation_id(request))
        was_running = running is not None and running.owner == owner
        if running is not None and was_running:
            running.generation.cancel()
        return pb.CancelGenerationResponse(was_running=was_running)

    @unary
    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        """Turn text into token ids."""
        tokens = await asyncio.to_thread(checks.tokenize, request, self._backend.engine)
        return pb.TokenizeResponse(tokens=pb.TokenIds(ids=tokens))

    @unary
    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        """Turn token ids into text."""
        text = await asyncio.to_thread(checks.detokenize, request, self._backend.engine)
        return pb.DetokenizeResponse(text=text)

    def _enter(self, owner: str, generation: Generation) -> None:
        self._running[generation.id] = _Running(owner, generation)
        self._idle.clear()

    def _leave(self, generation: Generation) -> None:
        self._running.pop(generation.id, None)
        if not self._running:
            self._idle.set()

    async def wait_idle(self, seconds: float) -> bool:
        """Wait until no generation streams, or the time is over.

        Returns:
            Whether none streams.
        """
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def cancel_all(self) -> int:
        """Cancel every running generation; each still sends its `finished`. Gives their number."""
        for running in self._running.values():
            running.generation.cancel()
        return len(self._running)
