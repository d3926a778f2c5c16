"""`ds4c serve --session-dir` over the fake engine: killed, ended, started again, used over gRPC."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from bad_input.helpers import Process, check_line, started

from ds4c_serve.client import stubs
from ds4c_serve.v1 import engine_pb2 as pb

pytestmark = pytest.mark.e2e

PROGRAM = """
import sys
import fake_executable
from fake_executable import fake_engine
from ds4c.cli.main import main
from ds4c_runtime.engine import Engine

def load(path, **options):
    for name in ("threads", "device", "on_failure"):
        options.pop(name)
    return fake_engine(**options)

Engine.load = staticmethod(load)
sys.exit(main(sys.argv[1:]))
"""
"""The command line on the fake engine."""


class Served:
    """A server and a client of it."""

    def __init__(self, process: Process, channel: grpc.Channel) -> None:
        self.process = process
        self.sessions = stubs(channel).sessions
        self.inference = stubs(channel).inference

    def say(self, session_id: str, tokens: list[int], count: int) -> list[int]:
        """Append tokens and generate some; their ids."""
        request = pb.GenerateRequest(
            session_id=session_id,
            prompt=pb.Prompt(tokens=pb.TokenIds(ids=tokens)) if tokens else None,
            stop=pb.StopCondition(max_output_tokens=count, ignore_eos=True),
            return_token_ids=True,
        )
        events = list(self.inference.Generate(request))
        assert events[-1].HasField("finished")
        return [token for event in events if event.HasField("delta") for token in event.delta.token_ids]

    def get(self, session_id: str) -> pb.Session:
        return self.sessions.GetSession(pb.GetSessionRequest(session_id=session_id)).session

    def plan(self, session_id: str, to: int) -> int:
        return self.sessions.PlanRewind(pb.PlanRewindRequest(session_id=session_id, to_position=to)).kind


@contextlib.contextmanager
def serving(tmp_path: Path, *options: str) -> Iterator[Served]:
    address = f"unix:{tmp_path.resolve() / 's'}"  # a socket path is short
    arguments = ("serve", "x", "--grpc-listen", address, "--session-dir", str(tmp_path / "kept"), *options)
    program = (sys.executable, "-c", PROGRAM)
    with started(*arguments, temporary=tmp_path / "tmp", program=program) as process:
        assert process.process.stdout is not None
        assert process.process.stdout.readline().startswith("ready: "), process.finish()
        with grpc.insecure_channel(address) as channel:
            yield Served(process, channel)


def test_sessions_outlive_the_server(tmp_path: Path) -> None:
    """Killed: histories are there. Ended: states too. What is said next is the same."""
    prompt = list(range(5, 105))
    with serving(tmp_path) as served:
        for name in ("stays", "goes"):
            served.sessions.OpenSession(pb.OpenSessionRequest(session_id=name))
        first = served.say("stays", prompt, 4)
        served.sessions.CloseSession(pb.CloseSessionRequest(session_id="goes"))
        before = served.get("stays")
        served.process.process.kill()
        served.process.process.wait()
    with serving(tmp_path) as served:
        after = served.get("stays")
        assert (after.position, after.prefix_digest, after.state_valid) == (104, before.prefix_digest, False)
        assert [s.session_id for s in served.sessions.ListSessions(pb.ListSessionsRequest()).sessions] == [
            "stays"
        ]
        assert not after.resident
        assert served.plan("stays", 104) == pb.REWIND_KIND_REBUILD
        assert served.get("stays").resident
        second = served.say("stays", [], 4)
        served.process.signal(signal.SIGTERM)
        code, _, error = served.process.finish()
        assert code == 0, error
        assert "sessions: 1 from before" in error
    with serving(tmp_path) as served:
        assert served.get("stays").state_valid
        assert served.plan("stays", 108) == pb.REWIND_KIND_NONE
        third = served.say("stays", [], 4)
    with serving(tmp_path / ".." / tmp_path.name, "--max-sessions", "1") as served:
        # The limit is for new sessions; a fresh one is temporary here.
        served.sessions.CloseSession(pb.CloseSessionRequest(session_id="stays"))
        assert served.say("", prompt, 12) == first + second + third
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["lock"]


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    program = (sys.executable, "-c", PROGRAM)
    (tmp_path / "file").write_text("x")
    with serving(tmp_path):
        for folder, got in ((tmp_path / "file", "got "), (tmp_path / "kept", "another process")):
            arguments = (
                "serve",
                "x",
                "--grpc-listen",
                f"unix:{tmp_path / 't'}",
                "--session-dir",
                str(folder),
            )
            with started(*arguments, temporary=tmp_path / "tmp2", program=program) as process:
                code, out, error = process.finish()
            assert (code, out) == (1, ""), error
            check_line(error.strip().splitlines()[-1], "session folder", got)
