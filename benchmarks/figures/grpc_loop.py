"""Tokens a second through gRPC against the same generations without it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from benchmarks.bench import Bench
from benchmarks.figures.load import all_cpus, processor_seconds, server
from benchmarks.own import environment
from benchmarks.pairs import Goal, Row, Timed, alternate, row_of
from benchmarks.stream_worker import STREAMS, TOKENS

GOAL = Goal(">=", 0.9, by_wall=True)


def grpc_loop(bench: Bench) -> Row:
    """Speed of nine streams at once through `ds4c serve` over nine generations of an engine in its process.

    Every stream generates 64 tokens after a prompt of 8; the client also polls the health service ten times a
    second. Engine and server may use every processor, the client all but that of other figures' kernels.
    Processor time is that of the process with the engine; on a single processor the ratio is near it.
    """
    client_cpus = all_cpus() - {bench.cpu} or {bench.cpu}
    with (
        server(bench.files, all_cpus(), "--max-sessions", str(STREAMS)) as served,
        _worker(client_cpus, "grpc", served.address) as through_grpc,
        _worker(all_cpus(), "engine", str(bench.files.artifact)) as direct,
    ):
        pairs = alternate(
            lambda: _ask(through_grpc, served.process_id), lambda: _ask(direct, direct.pid), bench.pairs
        )
    note = f"{STREAMS} streams"
    total = STREAMS * TOKENS
    return row_of("grpc", "no gRPC", bench.weights, pairs, GOAL, unit="tok/s", amount=total, note=note)


@contextmanager
def _worker(cpus: set[int], *arguments: str) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.stream_worker", *arguments],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.sched_setaffinity(process.pid, cpus)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


def _ask(process: subprocess.Popen[str], works: int) -> Timed:
    """One round: seconds as the worker took them, and processor seconds of the process with the engine.

    Raises:
        RuntimeError: the worker ended.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    before = processor_seconds(works)
    process.stdin.write("go\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("stream worker: expected seconds, got the end of its output (see stderr)")
    return Timed(float(line), processor_seconds(works) - before)
