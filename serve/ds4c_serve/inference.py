"""InferenceService: generate, cancel, tokenize.

The model never runs on the event loop: the engine's thread does the work and hands events over (`stream.py`).
However a call ends, its generation is cancelled in a `finally` without awaits and in the call's done
callback, since a handler that is blocked in a send sees neither a cancellation nor the deadline.
"""

import asyncio
from collections.abc import AsyncIterator

from ds4c_runtime.engine import Engine
from ds4c_runtime.generation import Generation
from ds4c_runtime.reports import RewindReport
from ds4c_runtime.requests import Event, Finished, Started
from ds4c_serve import checks, convert
from ds4c_serve.auth import Authenticator
from ds4c_serve.backend import Backend
from ds4c_serve.context import Context
from ds4c_serve.log import log_rewind
from ds4c_serve.rpc import request_id, streaming, unary
from ds4c_serve.stream import EventStream
from ds4c_serve.v1 import engine_pb2 as pb
from ds4c_serve.v1 import engine_pb2_grpc


class InferenceService(engine_pb2_grpc.InferenceServiceServicer):
    """Generations of all callers. For use on one event loop."""

    def __init__(self, backend: Backend, authenticator: Authenticator):
        self._backend = backend
        self._authenticator = authenticator
        self._running: dict[str, Generation] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @streaming
    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Run one generation and stream it."""
        owner = self._authenticator.owner(context)
        stream = EventStream()
        generation = await begin(request, owner, self._backend.engine, stream)
        self._enter(generation, context)
        asked_by = request_id(request, context)
        writer = convert.ResponseWriter(generation.id, asked_by)
        logged = 0
        try:
            async for batch in stream.batches(generation):
                for report in reports_of(batch[0])[logged:]:
                    log_rewind(report, asked_by, generation.session_id)
                    logged += 1
                yield writer.response(batch)
        finally:
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
        wanted = checks.generation_id(request)
        was_running = self._backend.engine.cancel_generation(wanted, owner)
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

    def _enter(self, generation: Generation, context: Context) -> None:
        self._running[generation.id] = generation
        self._idle.clear()
        context.add_done_callback(lambda _context: self._leave(generation))

    def _leave(self, generation: Generation) -> None:
        """Cancel what may still run and forget it. May be called twice; awaits nothing."""
        generation.cancel()
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
        for generation in self._running.values():
            generation.cancel()
        return len(self._running)


def reports_of(event: Event) -> tuple[RewindReport, ...]:
    """The rewinds of a generation up to an event that lists them; those of its end begin with its start's."""
    if isinstance(event, Finished):
        return event.rewinds
    return (event.rewind,) if isinstance(event, Started) and event.rewind is not None else ()


async def begin(request: pb.GenerateRequest, owner: str, engine: Engine, stream: EventStream) -> Generation:
    """Check a request and start its generation, off the event loop since a long prompt takes time.

    Raises:
        RuntimeFailure: it is refused.
    """

    def work() -> Generation:
        return engine.generate(checks.generation(request, engine), owner, stream.put)

    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        generation = await asyncio.shield(future)
    except asyncio.CancelledError:
        # The caller left while the thread was at it: what it starts must not run for nobody.
        future.add_done_callback(cancel_started)
        raise
    generation.done.add_done_callback(stream.end)
    return generation


def cancel_started(future: "asyncio.Future[Generation]") -> None:
    """Cancel the generation that a future brings, if it brings one."""
    if not future.cancelled() and future.exception() is None:
        future.result().cancel()
