"""Ctrl-C and SIGTERM at every stage: exit code 130 or 143, one line, and nothing is left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from bad_input.helpers import PATHS, Process, check_line, command_line, entries, linked_copy, rewrite, started
from one_layer import one_layer
from sizes import more

from ds4c_runtime.manifest import FileEntry, Manifest
from ds4c_serve.client import stubs
from ds4c_serve.v1 import engine_pb2 as pb

pytestmark = pytest.mark.slow

SIGNALS = [(signal.SIGINT, 130, "an interrupt"), (signal.SIGTERM, 143, "SIGTERM")]
both = pytest.mark.parametrize(("number", "code", "name"), SIGNALS, ids=["SIGINT", "SIGTERM"])

SLOW_ENGINE = """
import sys
from pathlib import Path
import fake_executable
from fake_executable import FakeDevice, fake_engine
from ds4c.cli.main import main
from ds4c_runtime.engine import Engine

mark, tokenizer = Path(sys.argv[1]), sys.argv[2]
call = FakeDevice.call

def slow_call(self, *arguments):
    call(self, *arguments)
    mark.write_text(str(self.calls))

def load(path, **options):
    for name in ("threads", "device", "on_failure"):
        options.pop(name, None)
    options.update(tokenizer_path=tokenizer, context=8192, step_delay_seconds=0.03, eos_token_ids=())
    return fake_engine(**options)

FakeDevice.call = slow_call
Engine.load = staticmethod(load)
sys.exit(main(sys.argv[3:]))
"""
"""A command on an engine of which every step takes 30 ms; each writes its number to a file."""

TOKENIZER = Path(__file__).resolve().parents[2] / "demo" / "model" / "tokenizer.json"


@contextlib.contextmanager
def slow(tmp_path: Path, *arguments: str) -> Iterator[Process]:
    """The command on the slow engine, past its first steps."""
    mark = tmp_path / "mark"
    program = [sys.executable, "-c", SLOW_ENGINE, str(mark), str(TOKENIZER)]
    with started(*arguments, temporary=tmp_path / "tmp", program=program) as process:
        yield process


def steps(tmp_path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int((tmp_path / "mark").read_text())
    return 0


def ended(process: Process, code: int, name: str) -> str:
    """It ended with the code and one line, and left no process and no temporary file; gives stdout."""
    got, out, err = process.finish(20)
    assert got == code, err
    assert "Traceback" not in err
    check_line(err.strip().splitlines()[-1], "command ended", name)
    assert process.children() == []
    assert entries(process.temporary) == []
    return out


INSIDE_EXEC = """
import sys
import typer
import ds4c.cli.main as cli

app = typer.Typer()

@app.command()
def wait() -> None:
    exec("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(10)")

cli.build_app = lambda: app
sys.exit(cli.main([]))
"""


def test_an_interrupt_inside_exec(tmp_path: Path) -> None:
    """CPython ends a `-m` by the signal, not with our code, once a plain KeyboardInterrupt left an exec."""
    (tmp_path / "interrupted.py").write_text(INSIDE_EXEC)
    program, paths = [sys.executable, "-m", "interrupted"], f"{PATHS}:{tmp_path}"
    with started(temporary=tmp_path / "tmp", program=program, PYTHONPATH=paths) as process:
        assert ended(process, 130, "an interrupt") == ""


# --- build


@pytest.mark.parametrize(
    ("number", "code", "name", "whole_group"),
    [(*SIGNALS[0], True), (*SIGNALS[1], False), more(*SIGNALS[0], False), more(*SIGNALS[1], True)],
    ids=["SIGINT-group", "SIGTERM-process", "SIGINT-process", "SIGTERM-group"],
)
def test_build_while_it_compiles(
    checkpoint: Path, tmp_path: Path, number: signal.Signals, code: int, name: str, whole_group: bool
) -> None:
    """To the process alone, as `kill` does, or to its group, as a terminal does."""
    out = tmp_path / "out"
    out.mkdir()
    with started("build", checkpoint, "-o", out / "a" / "m", temporary=tmp_path / "tmp") as process:
        process.wait_for(lambda: process.compilers() and entries(process.temporary))
        time.sleep(0.2)
        (os.killpg if whole_group else os.kill)(process.process.pid, number)
        assert ended(process, code, name) == ""
    assert entries(out) == []


@both
def test_build_before_it_compiles(
    checkpoint: Path, tmp_path: Path, number: signal.Signals, code: int, name: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "m").mkdir()
    (out / "m" / "manifest.json").write_text("as before")
    with started("build", checkpoint, "-o", out / "m", "--force", temporary=tmp_path / "tmp") as process:
        process.wait_for(lambda: len(list(out.iterdir())) > 1)
        process.signal(number)
        assert ended(process, code, name) == ""
    assert entries(out) == ["m", "m/manifest.json"]


@pytest.mark.parametrize(
    ("number", "code", "name"), [more(*SIGNALS[0]), SIGNALS[1]], ids=["SIGINT", "SIGTERM"]
)
def test_build_while_it_links(tmp_path: Path, number: signal.Signals, code: int, name: str) -> None:
    """The linker is a grandchild, here one that never ends."""
    checkpoint = one_layer(tmp_path / "checkpoint")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "g++").write_text("#!/bin/sh\nexec sleep 600\n")
    (tools / "g++").chmod(0o755)
    out = tmp_path / "out"
    options = ["--context", "64", "--rows", "4", "--segments", "1", "--logit-rows", "4"]
    path = f"{tools}:{os.environ['PATH']}"
    with started("build", checkpoint, "-o", out, *options, temporary=tmp_path / "tmp", PATH=path) as process:
        process.wait_for(lambda: any(command_line(pid).startswith(b"sleep") for pid in process.children()))
        process.signal(number)
        assert ended(process, code, name) == ""
    assert not out.exists()


# --- load


@pytest.fixture(scope="session")
def large(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact whose weights take a second to hash: zeros that take no room."""
    folder = linked_copy(artifact, tmp_path_factory.mktemp("large") / "m")
    size = 900 << 20
    rewrite(folder / "weights.bin", b"")
    os.truncate(folder / "weights.bin", size)
    manifest = Manifest.read(folder)
    files = tuple(FileEntry(f.name, f.sha256, size) if f.name == "weights.bin" else f for f in manifest.files)
    arenas = dataclasses.replace(manifest.arenas, weights=size)
    changed = dataclasses.replace(manifest, files=files, arenas=arenas).with_id()
    rewrite(folder / "manifest.json", changed.to_json())
    return folder


def has_open(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(file.resolve() == path for file in Path(f"/proc/{pid}/fd").iterdir())
    return False


@pytest.mark.parametrize(
    ("command", "number", "code", "name"),
    [
        ("run", *SIGNALS[0]),
        ("logits", *SIGNALS[1]),
        *(("serve", *each) for each in SIGNALS),
        more("run", *SIGNALS[1]),
        more("logits", *SIGNALS[0]),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else None,
)
def test_load(
    large: Path, tmp_path: Path, command: str, number: signal.Signals, code: int, name: str
) -> None:
    np.save(tmp_path / "ids.npy", np.arange(3))
    arguments = {
        "run": ["-p", "x"],
        "logits": ["--tokens", str(tmp_path / "ids.npy"), "-o", str(tmp_path / "x.npy")],
        "serve": ["--grpc-listen", f"unix:{tmp_path / 's'}"],
    }[command]
    before = entries(tmp_path)
    with started(command, large, *arguments, temporary=tmp_path / "tmp") as process:
        process.wait_for(lambda: has_open(process.process.pid, large / "weights.bin"))
        process.signal(number)
        if command == "serve":  # the server says it in its log
            got, out, err = process.finish(20)
            assert (got, out) == (code, "")
            assert number.name in err
            assert len(err.strip().splitlines()) == 1
        else:
            assert ended(process, code, name) == ""
    assert [entry for entry in entries(tmp_path) if entry != "tmp"] == before


# --- prefill and stream


@both
def test_run_during_prefill(tmp_path: Path, number: signal.Signals, code: int, name: str) -> None:
    with slow(tmp_path, "run", "x", "-p", "word " * 7000, "--raw") as process:
        process.wait_for(lambda: steps(tmp_path) >= 3)
        process.signal(number)
        out = ended(process, code, name)
    assert out.strip() == ""
    assert steps(tmp_path) < 100, "it must not go on to the end"


@both
def test_run_during_the_stream(tmp_path: Path, number: signal.Signals, code: int, name: str) -> None:
    with slow(tmp_path, "run", "x", "-p", "a", "--raw", "--max-tokens", "4000") as process:
        process.wait_for(lambda: steps(tmp_path) >= 20)
        process.signal(number)
        assert len(ended(process, code, name)) > 5, "what was generated is there"
    assert steps(tmp_path) < 1000


def test_chat_during_an_answer_goes_on(tmp_path: Path) -> None:
    """Ctrl-C ends the answer, not the conversation; at the prompt it ends the command."""
    with slow(tmp_path, "chat", "x", "--max-tokens", "4000") as process:
        assert process.process.stdin is not None
        process.process.stdin.write("hello\n")
        process.process.stdin.flush()
        process.wait_for(lambda: steps(tmp_path) >= 20)
        process.signal(signal.SIGINT)
        time.sleep(0.3)
        process.process.stdin.write("/stats\n")
        process.process.stdin.flush()
        assert process.process.stderr is not None
        while "position" not in process.process.stderr.readline():
            assert process.process.poll() is None
        process.signal(signal.SIGINT)
        ended(process, 130, "an interrupt")


@pytest.mark.more  # of a server: `unit/serve/test_server` and `e2e/test_grpc_fake`
@both
def test_serve_during_prefill(tmp_path: Path, number: signal.Signals, code: int, name: str) -> None:
    """The first signal waits for the generation, the second does not; the socket file is removed."""
    address = f"unix:{tmp_path / 's'}"
    with slow(tmp_path, "serve", "x", "--grpc-listen", address) as process:
        assert process.process.stdout is not None
        assert process.process.stdout.readline().startswith("ready: ")
        channel = grpc.insecure_channel(address)
        request = pb.GenerateRequest(
            prompt=pb.Prompt(tokens=pb.TokenIds(ids=[1] * 7000)), return_token_ids=True
        )
        call = stubs(channel).inference.Generate(request)
        process.wait_for(lambda: steps(tmp_path) >= 3)
        process.signal(number)
        assert process.process.stderr is not None
        while "draining" not in (line := process.process.stderr.readline()):
            assert line
        assert process.process.poll() is None
        process.signal(number)
        got, out, err = process.finish(20)
        assert got == code, err
        assert "Traceback" not in err
        assert out == ""
        with pytest.raises(grpc.RpcError):
            list(call)
        channel.close()
    assert not (tmp_path / "s").exists()
    assert entries(tmp_path / "tmp") == []


@both
def test_client_during_the_stream(tmp_path: Path, number: signal.Signals, code: int, name: str) -> None:
    """The client ends with its code and the server frees the session at once."""
    address = f"unix:{tmp_path / 's'}"
    with slow(tmp_path, "serve", "x", "--grpc-listen", address) as server:
        assert server.process.stdout is not None
        assert server.process.stdout.readline().startswith("ready: ")
        with grpc.insecure_channel(address) as channel:
            sessions = stubs(channel).sessions
            sessions.OpenSession(pb.OpenSessionRequest(session_id="a"))
            call = ["client", "--addr", address, "generate", "a", "-p", "a"]
            with started(*call, temporary=tmp_path / "client") as client:
                client.wait_for(lambda: steps(tmp_path) >= 10)
                client.signal(number)
                ended(client, code, name)

            def is_free() -> bool:
                return not sessions.GetSession(pb.GetSessionRequest(session_id="a")).session.is_busy

            server.wait_for(is_free, 10)
            sessions.CloseSession(pb.CloseSessionRequest(session_id="a"))
