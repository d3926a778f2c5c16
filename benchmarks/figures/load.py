"""Load: a server process from its start to ready, and to the first token that a client has."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.own import Files, command, environment, tokens_of
from benchmarks.pairs import Goal, Row, Timed, clock_row

READY = re.compile(r"127\.0\.0\.1:\d+")
GOALS = {"load_ready": Goal("<=", 1.0), "load_first_token": Goal("<=", 1.5)}
PROMPT = 8


@dataclass(frozen=True)
class Served:
    """A server that is ready.

    Attributes:
        address: where it listens.
        started: `time.perf_counter` when its process was started.
        ready: from then to its ready line.
        process_id: of the server.
    """

    address: str
    started: float
    ready: Timed
    process_id: int

    def so_far(self) -> Timed:
        """Seconds since its process was started, and what it took of the processor."""
        return Timed(time.perf_counter() - self.started, processor_seconds(self.process_id))


def processor_seconds(process_id: int) -> float:
    """Processor time of all threads of a running process so far (Linux)."""
    after_name = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(files: Files, cpus: set[int], *options: str) -> Generator[Served]:
    """`ds4c serve` on a free port and on some processors, ended by SIGTERM.

    Raises:
        RuntimeError: it ended before it was ready.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        command(
            "serve", str(files.artifact), "--grpc-listen", "127.0.0.1:0", "--drain-seconds", "1", *options
        ),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    os.sched_setaffinity(process.pid, cpus)  # before it has threads, which inherit it
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        ready = Timed(time.perf_counter() - started, processor_seconds(process.pid))
        found = READY.search(line)
        if found is None:
            raise RuntimeError(f"server: expected a ready line, got {line!r}")
        yield Served(found.group(), started, ready, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def all_cpus() -> set[int]:
    """Every processor of the machine; this process itself may be pinned to one."""
    return set(range(os.cpu_count() or 1))


def forget_pages(files: Files) -> None:
    """Drop the artifact's files from the page cache, as after a boot."""
    for path in files.artifact.iterdir():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def load(bench: Bench) -> list[Row]:
    """Seconds from the start of `ds4c serve` to ready, and to the first token of a prompt of 8 tokens.

    The artifact is not in the page cache; Python and its packages may be. The server may use all processors.
    """
    importlib.import_module("ds4c_serve.client")  # its import is not part of the time
    ready: list[Timed] = []
    first: list[Timed] = []
    for _ in range(max(3, bench.pairs // 2)):
        forget_pages(bench.files)
        with server(bench.files, all_cpus()) as served:
            ready.append(served.ready)
            first.append(_first_token(bench, served))
    return [
        clock_row(name, bench.weights, times, GOALS[name], "cold page cache")
        for name, times in (("load_ready", ready), ("load_first_token", first))
    ]


def _first_token(bench: Bench, served: Served) -> Timed:
    from ds4c_serve.client import connect, stubs
    from ds4c_serve.v1 import engine_pb2 as pb

    request = pb.GenerateRequest(
        prompt=pb.Prompt(tokens=pb.TokenIds(ids=tokens_of(bench.files.config, PROMPT))),
        stop=pb.StopCondition(max_output_tokens=1, ignore_eos=True),
        return_token_ids=True,
    )
    with connect(served.address) as channel:
        for response in stubs(channel).inference.Generate(request):
            if response.WhichOneof("event") == "delta":
                return served.so_far()
    raise RuntimeError("server: expected a token, got the end of the stream")
