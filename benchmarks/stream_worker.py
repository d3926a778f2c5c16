"""Runs nine generations at once per line on stdin, prints the seconds: `grpc ADDRESS` or `engine DIR`.

Own processes, so that neither the client nor the other side shares an interpreter with what is measured.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

STREAMS = 9
"""The measured one and eight others."""
TOKENS = 64
PROMPT = tuple(range(10, 18))
HEALTH_SECONDS = 0.1


def main(arguments: list[str]) -> int:
    """Entry; 2 for wrong arguments."""
    if len(arguments) != 2 or arguments[0] not in ("grpc", "engine"):
        print("stream_worker: expected `grpc ADDRESS` or `engine DIR`", file=sys.stderr)
        return 2
    run = grpc_runner(arguments[1]) if arguments[0] == "grpc" else engine_runner(Path(arguments[1]))
    for _ in sys.stdin:
        start = time.perf_counter()
        count = run()
        seconds = time.perf_counter() - start
        if count != STREAMS * TOKENS:
            print(f"stream_worker: expected {STREAMS * TOKENS} tokens, got {count}", file=sys.stderr)
            return 1
        print(seconds, flush=True)
    return 0


def grpc_runner(address: str) -> Callable[[], int]:
    """A function that runs the streams through a server and counts their tokens."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from ds4c_serve.client import connect, stubs
    from ds4c_serve.v1 import engine_pb2 as pb

    channel = connect(address)
    inference = stubs(channel).inference
    request = pb.GenerateRequest(
        prompt=pb.Prompt(tokens=pb.TokenIds(ids=PROMPT)),
        stop=pb.StopCondition(max_output_tokens=TOKENS, ignore_eos=True),
        return_token_ids=True,
    )

    def poll(stop: threading.Event) -> None:
        health: Any = health_pb2_grpc.HealthStub(grpc.insecure_channel(address))
        while not stop.wait(HEALTH_SECONDS):
            health.Check(health_pb2.HealthCheckRequest(service=""))

    def one(_: int) -> int:
        return sum(len(response.delta.token_ids) for response in inference.Generate(request))

    pool = ThreadPoolExecutor(STREAMS)
    threading.Thread(target=poll, args=(threading.Event(),), daemon=True).start()
    return lambda: sum(pool.map(one, range(STREAMS)))


def engine_runner(artifact: Path) -> Callable[[], int]:
    """A function that runs the same generations on an engine of this process."""
    from ds4c_runtime.engine import Engine
    from ds4c_runtime.requests import Event, GenerationRequest, StopParams, TokenDelta
    from ds4c_runtime.sampler import SamplingParams

    engine = Engine.load(artifact, max_sessions=STREAMS)
    request = GenerationRequest(
        tokens=PROMPT,
        sampling=SamplingParams(temperature=0.0),
        stop=StopParams(max_output_tokens=TOKENS, ignore_eos=True),
        return_text=False,
    )

    def run() -> int:
        counts: list[int] = []

        def count(event: Event) -> None:
            if isinstance(event, TokenDelta):
                counts.append(len(event.token_ids))

        handles = [engine.generate(request, on_event=count, bounded=False) for _ in range(STREAMS)]
        for handle in handles:
            handle.done.result()
        return sum(counts)

    return run


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
