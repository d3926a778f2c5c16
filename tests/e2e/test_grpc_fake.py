"""The server as a process of its own, over the fake engine: signals, ready line, command line client."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from ds4c.cli.main import main
from ds4c_serve.client import failure_of, stubs
from ds4c_serve.v1 import engine_pb2 as pb

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(str(ROOT / name) for name in (".", "runtime", "serve", "targets", "tests"))
TOKENIZER = ROOT / "demo" / "model" / "tokenizer.json"
TOKEN = "alice-token-0001"

SERVER = """
import asyncio, json, sys, threading
from fake_executable import fake_engine
from ds4c.cli.common import describe_failure, print_failure
from ds4c.cli.serve import announce
from ds4c_runtime.errors import ArtifactError
from ds4c_serve import log
from ds4c_serve.listen import parse_address
from ds4c_serve.server import ServerConfig, serve

options = json.loads(sys.argv[1])
config = ServerConfig(
    (parse_address(options.pop("address", "127.0.0.1:0")),),
    tokens=tuple(options.pop("tokens", ())),
    drain_seconds=options.pop("drain_seconds", 20.0),
)
log.configure("json")
damaged_after = options.pop("damaged_after", None)

def load(on_failure):
    if damaged_after is not None:
        failure = ArtifactError("weights.bin rejected: expected sha256 aa, got bb; copy it again")
        threading.Timer(damaged_after, on_failure, [failure]).start()
    return fake_engine(**options)

def run():
    ready = lambda targets, engine: announce(targets, engine, None)
    return asyncio.run(serve(config, load, ready))

try:
    sys.exit(run())
except ArtifactError as error:
    line, code = describe_failure(error)
    print_failure(line)
    sys.exit(code)
"""


class ServerProcess:
    """A running server; `target` is where it listens."""

    def __init__(self, **options: object):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PATHS, "GRPC_VERBOSITY": "NONE"},
        )
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()
        assert self.ready_line.startswith("ready: fake ("), self.stop()[1]
        self.target = self.ready_line.split()[-1]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> tuple[str, str]:
        """End it if it still runs; the rest of its output."""
        if self.process.poll() is None:
            self.process.kill()
        return self.process.communicate(timeout=20)

    def wait(self, seconds: float = 20) -> int:
        return self.process.wait(seconds)


@pytest.fixture
def start() -> Iterator[Callable[..., ServerProcess]]:
    """Start servers; the ones that still run at the end are ended."""
    started: list[ServerProcess] = []

    def start_one(**options: object) -> ServerProcess:
        started.append(ServerProcess(**options))
        return started[-1]

    yield start_one
    for server in started:
        server.stop()


def stream(channel: grpc.Channel, max_tokens: int) -> grpc.Call:
    request = pb.GenerateRequest(
        prompt=pb.Prompt(tokens=pb.TokenIds(ids=[1, 2, 3])),
        stop=pb.StopCondition(max_output_tokens=max_tokens),
        return_token_ids=True,
    )
    return stubs(channel).inference.Generate(request)


def finished(call: grpc.Call) -> pb.Finished:
    return list(call)[-1].finished


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_stream_finish_and_refuses_new_ones(start, number: int) -> None:
    server = start(context=4096, step_delay_seconds=0.01)
    with grpc.insecure_channel(server.target) as channel:
        call = stream(channel, 150)
        next(call)
        server.signal(number)
        time.sleep(0.3)
        with pytest.raises(grpc.RpcError) as caught:
            next(stream(channel, 1))
        what = failure_of(caught.value)
        assert (what.code, what.reason) == ("UNAVAILABLE", "DRAINING")
        end = finished(call)
        assert (end.reason, end.usage.output_tokens) == (pb.FINISH_REASON_LENGTH, 150)
    assert server.wait() == 0
    events = [json.loads(line)["event"] for line in server.stop()[1].splitlines() if line.startswith("{")]
    assert "draining" in events


def test_when_the_drain_time_is_over_streams_are_cancelled_with_what_they_have(start) -> None:
    server = start(context=4096, step_delay_seconds=0.01, drain_seconds=0.3)
    with grpc.insecure_channel(server.target) as channel:
        call = stream(channel, 4000)
        next(call)
        server.signal(signal.SIGTERM)
        end = finished(call)
        assert end.reason == pb.FINISH_REASON_CANCELLED
        assert 0 < end.usage.output_tokens < 1000
    assert server.wait() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_at_once(start, number: int, code: int) -> None:
    server = start(context=4096, step_delay_seconds=0.01)
    with grpc.insecure_channel(server.target) as channel:
        call = stream(channel, 4000)
        next(call)
        server.signal(number)
        time.sleep(0.3)
        assert server.process.poll() is None
        begun = time.monotonic()
        server.signal(number)
        assert server.wait(5) == code
        assert time.monotonic() - begun < 2
        with pytest.raises(grpc.RpcError):
            list(call)


def test_an_idle_server_ends_quickly(start) -> None:
    server = start()
    begun = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait(10) == 0
    assert time.monotonic() - begun < 5


def test_weights_found_damaged_while_serving_end_the_service_with_exit_4(start) -> None:
    server = start(context=4096, step_delay_seconds=0.01, damaged_after=0.5)
    with grpc.insecure_channel(server.target) as channel, pytest.raises(grpc.RpcError):
        list(stream(channel, 4000))
    assert server.wait(10) == 4
    assert "error: weights.bin rejected" in server.stop()[1]


def test_unix_socket_is_served_and_removed(start, tmp_path: Path) -> None:
    path = tmp_path / "ds4c.sock"
    server = start(address=f"unix:{path}")
    assert server.target == f"unix:{path}"
    with grpc.insecure_channel(server.target) as channel:
        assert finished(stream(channel, 3)).usage.output_tokens == 3
    server.signal(signal.SIGTERM)
    assert server.wait(10) == 0
    assert not path.exists()


def serve_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ds4c.cli.main", "serve", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={**os.environ, "PYTHONPATH": PATHS, **environment},
    )


@pytest.mark.more  # `unit/serve/test_listen` and `bad_input/test_options` in one process
@pytest.mark.parametrize("option", ["--grpc-listen", "--metrics-listen"])
def test_a_taken_port_is_one_line_and_exit_1(option: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        free = ("--grpc-listen", f"unix:{tmp_path}/s")
        done = serve_command(str(tmp_path), *(free if option == "--metrics-listen" else ()), option, address)

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: cannot listen")
    assert address in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_artifact_is_exit_4(tmp_path: Path) -> None:
    done = serve_command(str(tmp_path), "--grpc-listen", "127.0.0.1:0")

    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.more  # `unit/serve/test_listen` and the flags of `bad_input/test_options` in one process
def test_an_open_address_without_tokens_is_exit_2(tmp_path: Path) -> None:
    done = serve_command(str(tmp_path), "--grpc-listen", "0.0.0.0:0")
    assert (done.returncode, done.stdout) == (2, "")
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    tokens.chmod(0o600)
    done = serve_command(str(tmp_path), "--grpc-listen", "0.0.0.0:0", DS4C_SERVE_AUTH_TOKEN_FILE=str(tokens))
    assert done.returncode == 4, "the address is fine with tokens; the artifact is not"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `ds4c client`; gives exit code, stdout, stderr."""

    def run_client(server: ServerProcess, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["client", "--addr", server.target, *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run_client


def test_client_drives_a_session(start, call) -> None:
    server = start(horizon=6)
    assert call(server, "open", "s")[0] == 0
    code, out, err = call(server, "generate", "s", "--tokens", "5,6,7", "--max-tokens", "6")
    assert code == 0
    tokens = [int(word) for word in out.split()]
    assert len(tokens) == 6
    assert "session s at 9: length" in err

    code, out, _ = call(server, "plan", "s", "--to", "0", "--json")
    assert (code, json.loads(out)["to_position"]) == (0, 0)
    code, out, _ = call(server, "rewind", "s", "--drop", "6", "--expected-position", "9", "--json")
    report = json.loads(out)
    assert (code, report["rewind"]["kind"], report["session"]["position"]) == (0, "in_place", 3)

    code, out, _ = call(server, "generate", "s", "--ids", "--max-tokens", "6", "--json")
    assert code == 0
    assert json.loads(out)["token_ids"] == tokens
    code, out, _ = call(server, "fork", "s", "--at", "5", "--new-id", "t", "--json")
    assert (code, json.loads(out)["session"]["forked_at"]) == (0, 5)
    code, out, _ = call(server, "sessions", "--json")
    assert [entry["session_id"] for entry in json.loads(out)["sessions"]] == ["s", "t"]
    code, out, _ = call(server, "sessions")
    assert len(out.splitlines()) == 2
    assert call(server, "close", "t")[0] == 0
    code, out, _ = call(server, "info", "--json")
    info = json.loads(out)
    assert (info["model"]["served_model_name"], info["load"]["resident_sessions"]) == ("fake", 1)


def test_client_lists_pins_and_goes_to_snapshots(start, call) -> None:
    server = start(horizon=6, page_tokens=32)
    assert call(server, "open", "s")[0] == 0
    assert call(server, "snapshots", "s") == (0, "session s retains no snapshots\n", "")
    prompt = ",".join(str(token) for token in range(10, 110))
    first = call(server, "generate", "s", "--tokens", prompt, "--max-tokens", "6")[1]
    code, out, _ = call(server, "snapshots", "s", "--json")
    found = {one["position"]: one for one in json.loads(out)["snapshots"]}
    assert (code, list(found)) == (0, [32, 64, 96, 100, 106])
    code, out, _ = call(server, "snapshots", "s")
    assert (code, len(out.splitlines())) == (0, 5)
    assert "position 100, prompt_end, " in out

    code, out, _ = call(server, "pin", "s", found[64]["snapshot_id"], "--label", "kept", "--json")
    assert (code, json.loads(out)["snapshot"]["pinned"]) == (0, True)
    code, out, _ = call(server, "pin", "s", "--at", "50")
    assert code == 0
    assert "position 50, client pinned, " in out
    code, out, _ = call(server, "plan", "s", "--to-snapshot", found[100]["snapshot_id"], "--json")
    assert (code, json.loads(out)["snapshot_id"]) in ((0, ""), (0, found[100]["snapshot_id"]))
    code, out, _ = call(server, "rewind", "s", "--to-snapshot", found[64]["snapshot_id"])
    assert code == 0
    assert out.endswith(f"from 106 to 64, 0 tokens replayed, snapshot {found[64]['snapshot_id']}\n")
    assert call(server, "unpin", "s", found[64]["snapshot_id"])[0] == 0
    code, out, _ = call(server, "snapshots", "s", "--json")
    assert [one["position"] for one in json.loads(out)["snapshots"] if one["pinned"]] == [50]
    assert call(server, "rewind", "s", "--to-snapshot", found[100]["snapshot_id"])[0] == 0
    assert call(server, "generate", "s", "--ids", "--max-tokens", "6")[1] == first


def test_client_streams_text(start, call) -> None:
    server = start(tokenizer_path=str(TOKENIZER))
    code, out, _ = call(server, "generate", "-p", "hello", "--max-tokens", "5", "--json")
    document = json.loads(out)
    assert code == 0
    assert len(document["token_ids"]) == 5
    code, text, err = call(server, "generate", "-p", "hello", "--max-tokens", "5")
    assert (code, text) == (0, document["text"] + "\n")
    assert "5 out" in err


FAILURES = [
    (["rewind", "gone", "--to", "0"], 1, "SESSION_NOT_FOUND"),
    (["rewind", "s", "--to", "99"], 2, "POSITION_OUT_OF_RANGE"),
    (["rewind", "s", "--to-snapshot", "none"], 1, "SNAPSHOT_NOT_FOUND"),
    (["pin", "s", "none"], 1, "SNAPSHOT_NOT_FOUND"),
    (["pin", "s", "--at", "7"], 2, "position"),
    (["unpin", "s", "none"], 1, "SNAPSHOT_NOT_FOUND"),
    (["snapshots", "gone"], 1, "SESSION_NOT_FOUND"),
    (["generate", "s", "--tokens", "9999"], 2, "prompt.tokens.ids"),
    (["generate", "-p", "text"], 1, "NO_TOKENIZER"),
    (["generate", "s", "--tokens", "1", "--expected-position", "4"], 1, "CONTINUATION_STALE"),
]


def test_client_failures_are_one_line(start, call) -> None:
    """And leave the session as it was."""
    server = start()
    assert call(server, "open", "s")[0] == 0
    before = call(server, "sessions")
    for arguments, code, named in FAILURES:
        got, out, err = call(server, *arguments)
        assert (got, out) == (code, ""), arguments
        assert named in err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert call(server, "sessions") == before, arguments


def test_client_brings_its_token(start, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(tokens=[TOKEN])
    code, _, err = call(server, "info")
    assert (code, "UNAUTHENTICATED" in err) == (1, True)
    monkeypatch.setenv("DS4C_TOKEN", TOKEN)
    assert call(server, "info")[0] == 0
    monkeypatch.delenv("DS4C_TOKEN")
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    assert call(server, "--token-file", str(path), "info")[0] == 0
