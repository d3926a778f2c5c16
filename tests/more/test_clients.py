"""Clients of others, which know the contract only, on the compiled bundled model: same tokens as ours."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from more.servers import ROOT, Ask, ServeProcess, answer

from ds4c_serve.client import stubs
from ds4c_serve.v1 import engine_pb2 as pb

pytestmark = [pytest.mark.more, pytest.mark.timeout(300)]
PROTO = ROOT / "serve" / "proto"
PROMPT = tuple(random.Random(3).choices(range(16, 1024), k=40))
NODE_PACKAGES = ("@grpc/grpc-js@1.14.0", "@grpc/proto-loader@0.8.0")
NO_REGISTRY = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "network")


def ours(target: str) -> tuple[pb.Finished, list[int], list[int]]:
    """End and tokens of the greedy generation, and drawn tokens, as the Python client sees them."""
    with grpc.insecure_channel(target) as channel:
        client = stubs(channel)
        greedy = list(client.inference.Generate(Ask(PROMPT, 24).request()))
        request = Ask(PROMPT, 24, seed=7).request()
        request.sampling.temperature = 0.9
        return greedy[-1].finished, answer(greedy, 24), answer(list(client.inference.Generate(request)), 24)


def no_session_left(target: str) -> bool:
    with grpc.insecure_channel(target) as channel:
        return not stubs(channel).sessions.ListSessions(pb.ListSessionsRequest()).sessions


@pytest.fixture(scope="module")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of gRPC for Node, outside of the checkout."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text("{}")
    done = subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", *NODE_PACKAGES],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    if any(word in done.stderr for word in NO_REGISTRY):
        pytest.skip(f"no npm registry can be reached: {done.stderr.strip().splitlines()[0]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_a_client_in_node_opens_generates_and_rewinds(
    node_folder: Path, start: Callable[..., ServeProcess]
) -> None:
    server = start()
    script = Path(__file__).with_name("client.cjs")
    done = subprocess.run(
        ["node", str(script), server.target, str(PROTO), json.dumps(PROMPT)],
        cwd=node_folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    finished, greedy, drawn = ours(server.target)
    assert json.loads(done.stdout) == {
        "model": "model",  # the folder of the checkpoint
        "first": greedy,
        "events": ["started", "finished"],
        "reason": "FINISH_REASON_LENGTH",
        "digest": finished.prefix_digest,
        "refused": "OUT_OF_RANGE",
        "kind": "REWIND_KIND_SNAPSHOT",
        "position": len(PROMPT),
        "again": greedy,
        "again_digest": finished.prefix_digest,
        "drawn": drawn,
        "forked_at": 5,
        "sessions": 2,
    }
    assert no_session_left(server.target)


def test_grpcurl_by_reflection(start: Callable[..., ServeProcess]) -> None:
    """Without the contract in hand: the server tells it."""
    program = shutil.which("grpcurl")
    if program is None:
        pytest.skip("grpcurl is not installed")
    server = start()

    def call(method: str, **request: Any) -> list[Any]:
        """The answers, one for each message."""
        command = [program, "-plaintext", "-d", json.dumps(request), server.target, f"ds4c.v1.{method}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        decoder, text, found = json.JSONDecoder(), done.stdout.strip(), []
        while text:
            message, end = decoder.raw_decode(text)
            found.append(message)
            text = text[end:].lstrip()
        return found

    def tokens(answers: list[Any]) -> list[int]:
        return [token for message in answers for token in message.get("delta", {}).get("tokenIds", [])]

    listed = subprocess.run(
        [program, "-plaintext", server.target, "list"], capture_output=True, text=True, timeout=60, check=True
    )
    assert {"ds4c.v1.InferenceService", "grpc.health.v1.Health"} <= set(listed.stdout.split())
    _, greedy, _ = ours(server.target)
    stop = {"maxOutputTokens": 24, "ignoreEos": True}
    call("SessionService/OpenSession", sessionId="s")
    prompt = {"tokens": {"ids": PROMPT}}
    ask = {"sessionId": "s", "stop": stop, "returnTokenIds": True}
    assert tokens(call("InferenceService/Generate", prompt=prompt, **ask)) == greedy
    (moved,) = call("SessionService/Rewind", sessionId="s", toPosition=len(PROMPT))
    assert moved["session"]["position"] == str(len(PROMPT))
    assert tokens(call("InferenceService/Generate", **ask)) == greedy
    call("SessionService/CloseSession", sessionId="s")
    assert no_session_left(server.target)
