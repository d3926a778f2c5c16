"""Builds the bundled model and runs `ds4c serve` on it as a child process on a free loopback port."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from demo_view import View

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT = ROOT / "demo" / "model"
ARTIFACT = ROOT / "out" / "demo"
KEY_FILE = ROOT / "out" / "demo.key"
BUILD_INPUTS = ("demo/model", "ds4c", "targets", "runtime/ds4c_runtime", "pyproject.toml")
START_SECONDS = 60.0
STOP_SECONDS = 10.0


class DemoError(Exception):
    """The demo cannot go on; the message is one line."""


def ds4c_command(*arguments: str) -> list[str]:
    """The command line tool of this environment."""
    return [sys.executable, "-m", "ds4c.cli.main", *arguments]


def environment() -> dict[str, str]:
    """The child's environment: the source folders on its path, so that the demo also runs uninstalled."""
    folders = [str(ROOT / name) for name in (".", "runtime", "serve", "targets")]
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, *([inherited] if inherited else [])])}


def build_key() -> str:
    """A digest of everything the artifact depends on: checkpoint, compiler, processor features."""
    digest = hashlib.sha256()
    for name in BUILD_INPUTS:
        path = ROOT / name
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for file in files:
            if "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        flags = [line for line in cpuinfo.read_bytes().splitlines() if line.startswith(b"flags")]
        digest.update(b"".join(flags[:1]))
    return digest.hexdigest()


def build(view: View) -> None:
    """Build the artifact unless the one in out/ was built from the same files for the same processor.

    Raises:
        DemoError: the build failed; its messages stand above.
    """
    key = build_key()
    if (ARTIFACT / "manifest.json").is_file() and KEY_FILE.is_file() and KEY_FILE.read_text() == key:
        view.say(f"{ARTIFACT.relative_to(ROOT)} is current: nothing to build (make clean removes it)")
        return
    checkpoint, artifact = str(CHECKPOINT.relative_to(ROOT)), str(ARTIFACT.relative_to(ROOT))
    arguments = ["build", checkpoint, "-o", artifact, "--target", "cpu"]
    view.say("$ ds4c " + " ".join(arguments))
    KEY_FILE.parent.mkdir(exist_ok=True)
    KEY_FILE.unlink(missing_ok=True)
    start = time.perf_counter()
    done = subprocess.run(ds4c_command(*arguments), cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise DemoError(f"build failed: expected exit status 0, got {done.returncode}")
    pending = KEY_FILE.with_suffix(".tmp")
    pending.write_text(key)
    pending.rename(KEY_FILE)
    view.say(f"built in {time.perf_counter() - start:.1f} s")


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_serving(process: subprocess.Popen[bytes], address: str) -> None:
    """Ask the health service until it says SERVING.

    Raises:
        DemoError: the server ended, or was not ready within `START_SECONDS`.
    """
    deadline = time.monotonic() + START_SECONDS
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise DemoError(f"server failed: expected it to serve, got exit status {process.returncode}")
            try:
                answer = health.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.RpcError:
                pass  # not listening yet
            time.sleep(0.05)
    raise DemoError(f"server failed: expected it to serve within {START_SECONDS:.0f} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to drain, and end it if it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def serving(view: View) -> Iterator[str]:
    """Serve the artifact as long as the block runs; gives the address. It never outlives the block."""
    address = f"127.0.0.1:{free_port()}"
    arguments = ["serve", str(ARTIFACT.relative_to(ROOT)), "--grpc-listen", address]
    view.say("$ ds4c " + " ".join(arguments))
    log_path = ROOT / "out" / "demo-server.log"
    with log_path.open("wb") as log:
        # A session of its own: Ctrl-C reaches the demo alone, which then stops the server in order.
        process = subprocess.Popen(
            ds4c_command(*arguments),
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            try:
                wait_until_serving(process, address)
            except DemoError as error:
                lines = log_path.read_text(errors="replace").strip().splitlines() or ["it printed nothing"]
                raise DemoError(f"{error}; the last line it printed: {lines[-1]}") from error
            yield address
        finally:
            stop(process)
