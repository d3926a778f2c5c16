"""`ds4c serve` as a process of its own, what it uses, and clients of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from ds4c_serve.client import Stubs, stubs
from ds4c_serve.v1 import engine_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(str(ROOT / name) for name in (".", "runtime", "serve", "targets", "tests"))
COMPILED = (sys.executable, "-m", "ds4c.cli.main")
ON_FAKE_ENGINE = (
    sys.executable,
    "-c",
    """
import sys
from fake_executable import fake_engine
from ds4c.cli.main import main
from ds4c_runtime.engine import Engine

def load(path, **options):
    for name in ("threads", "device", "on_failure"):
        options.pop(name)
    return fake_engine(context=128, tokenizer_path=path, **options)

Engine.load = staticmethod(load)
sys.exit(main(sys.argv[1:]))
""",
)
"""The command line on the fake engine; its artifact is a `tokenizer.json`."""


class ServeProcess:
    """A running `ds4c serve`; its log goes to a file, since nobody reads a pipe here."""

    def __init__(self, artifact: Path, log: Path, *options: str, program: Sequence[str] = COMPILED) -> None:
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [*program, "serve", str(artifact), "--grpc-listen", "127.0.0.1:0", *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "PYTHONPATH": PATHS},
            )
        assert self.process.stdout is not None
        self.log = log
        ready = self.process.stdout.readline()
        assert ready.startswith("ready: "), log.read_text()
        self.target = ready.split()[-1]

    def end(self, seconds: float = 30) -> int:
        """Ask it to drain; exit code. It is killed if it does not end."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            self.process.communicate()

    def memory(self) -> int:
        """Bytes that are resident (Linux)."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> int:
        """Descriptors that are open (Linux)."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def cpu_seconds(self) -> float:
        """Seconds of CPU that it has used (Linux)."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Ask:
    """A generation that can be asked for again: the same prompt and seed draw the same tokens."""

    prompt: tuple[int, ...]
    count: int
    seed: int | None = None

    def request(self, session_id: str = "", **fields: Any) -> pb.GenerateRequest:
        """As a message; `seed` of None is greedy."""
        sampling = None if self.seed is None else pb.Sampling(temperature=1.0, seed=self.seed)
        return pb.GenerateRequest(
            session_id=session_id,
            prompt=pb.Prompt(tokens=pb.TokenIds(ids=self.prompt)),
            sampling=sampling,
            stop=pb.StopCondition(max_output_tokens=self.count, ignore_eos=True),
            return_token_ids=True,
            **fields,
        )


def answer(responses: Sequence[pb.GenerateResponse], count: int) -> list[int]:
    """Token ids of a whole stream, after a look at its form: complete, in order, each token once."""
    assert [r.sequence for r in responses] == list(range(1, len(responses) + 1))
    kinds = [r.WhichOneof("event") for r in responses]
    assert (kinds[0], kinds[-1]) == ("started", "finished")
    assert set(kinds[1:-1]) <= {"delta", "prefill"}
    found: list[int] = []
    finished = responses[-1].finished
    begin = finished.end_position - count
    for response in responses:
        if response.WhichOneof("event") == "delta":
            assert response.delta.position == begin + len(found)
            found += response.delta.token_ids
    assert (finished.reason, finished.usage.output_tokens) == (pb.FINISH_REASON_LENGTH, count)
    assert len(found) == count
    return found


@asynccontextmanager
async def client(target: str) -> AsyncIterator[Stubs]:
    """Stubs on a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        yield stubs(channel)


async def generated(client: Stubs, ask: Ask, session_id: str = "", **fields: Any) -> list[int]:
    """Tokens of a generation, streamed."""
    return answer([r async for r in client.inference.Generate(ask.request(session_id, **fields))], ask.count)


async def at_rest(client: Stubs, seconds: float = 10) -> pb.GetLoadResponse:
    """The load when nothing runs or waits: the end of a stream is seen before its room is given back."""
    async with asyncio.timeout(seconds):
        while True:
            load: pb.GetLoadResponse = await client.models.GetLoad(pb.GetLoadRequest())
            if not load.running_generations and not load.waiting_generations:
                return load
            await asyncio.sleep(0.01)
