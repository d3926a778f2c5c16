"""The bridge from the engine's thread to the event loop: order, gathering, acknowledgement, failure, end."""

import asyncio
import threading
from concurrent.futures import Future

import pytest
from unit.serve.grpc_harness import run

from ds4c_runtime.errors import BackendFailedError
from ds4c_runtime.requests import Finished, FinishReason, Started, Timing, TokenDelta, Usage
from ds4c_serve.convert import ResponseWriter
from ds4c_serve.stream import EventStream

STARTED = Started("g", "s", 3, 0, None)
FINISHED = Finished(FinishReason.LENGTH, 9, "d", "", Usage(), Timing(), (), True)


def tokens(position: int, count: int = 1) -> TokenDelta:
    ids = tuple(range(position, position + count))
    return TokenDelta(position, ids, "".join(chr(97 + token) for token in ids), ())


class FakeGeneration:
    def __init__(self) -> None:
        self.done: Future[Finished] = Future()
        self.acknowledged: list[int] = []

    def acknowledge(self, events: int) -> None:
        self.acknowledged.append(events)


def test_consecutive_tokens_go_out_together_and_are_acknowledged_afterwards() -> None:
    async def scenario() -> None:
        generation, stream = FakeGeneration(), EventStream()
        events = [STARTED, *(tokens(3 + i) for i in range(5)), FINISHED]

        def work() -> None:
            for event in events:
                stream.put(event)
            generation.done.set_result(FINISHED)
            stream.end(generation.done)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        batches = []
        async for batch in stream.batches(generation):
            assert sum(generation.acknowledged) == sum(map(len, batches)), "not before the next is asked for"
            batches.append(batch)

        assert [len(batch) for batch in batches] == [1, 5, 1]
        assert [event for batch in batches for event in batch] == events
        assert generation.acknowledged == [1, 5, 1]
        response = ResponseWriter("g", "").response(batches[1])
        assert (response.delta.position, list(response.delta.token_ids)) == (3, [3, 4, 5, 6, 7])
        assert response.delta.text == "defgh"

    run(scenario())


def test_the_first_token_goes_out_at_once_and_later_ones_wait_for_company() -> None:
    async def scenario() -> None:
        generation, stream = FakeGeneration(), EventStream(message_seconds=0.2)
        loop = asyncio.get_running_loop()
        batches = stream.batches(generation)
        stream.put(tokens(0))
        begun = loop.time()
        assert await anext(batches) == [tokens(0)]
        assert loop.time() - begun < 0.1
        stream.put(tokens(1))
        loop.call_later(0.05, stream.put, tokens(2))
        assert await anext(batches) == [tokens(1), tokens(2)]
        assert loop.time() - begun >= 0.19
        stream.put(tokens(3))
        stream.put(FINISHED)
        await asyncio.sleep(0)
        begun = loop.time()
        assert await anext(batches) == [tokens(3)]
        assert await anext(batches) == [FINISHED]
        assert loop.time() - begun < 0.15, "the end waits for nobody"

    run(scenario())


def test_a_failure_comes_after_the_events_before_it() -> None:
    async def scenario() -> None:
        generation, stream = FakeGeneration(), EventStream()
        stream.put(STARTED)
        generation.done.set_exception(BackendFailedError("device lost"))
        stream.end(generation.done)
        batches = stream.batches(generation)

        assert await anext(batches) == [STARTED]
        with pytest.raises(BackendFailedError, match="device lost"):
            await anext(batches)

    run(scenario())


def test_events_after_the_loop_is_closed_are_dropped() -> None:
    made: list[EventStream] = []

    async def make() -> None:
        made.append(EventStream())

    asyncio.run(make())
    made[0].put(STARTED)
