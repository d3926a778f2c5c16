"""Builds the bundled model and runs `ds4c serve` on it as a child process on a free loopback port."""

import hashlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

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
    arguments = ["build", checkpoint, "-o", artifact, "--target", "cpu", "--force"]
    view.say("$ ds4c " + " ".join(arguments))
    KEY_FILE.parent.mkdir(exist_ok=True)
    KEY_FILE.unlink(missing_ok=True)
    start = time.perf_counter()
    done = subprocess.run(ds4c_command(*arguments), cwd=ROOT, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise DemoError(f"build failed: expected exit status 0, got {done.returncode}")
    pending = KEY_FILE.with_suffix(".tmp")
    pending.write_text(key)
    pending.rename(KEY_FILE)
    view.say(f"built in {time.perf_counter() - start:.1f} s")


def wait_until_ready(process: subprocess.Popen[bytes], ready: int) -> str:
    """Read the address that the server writes to the descriptor `ready` once it serves.

    Raises:
        DemoError: the server ended, or was not ready within `START_SECONDS`.
    """
    readable, _, _ = select.select([ready], [], [], START_SECONDS)
    if not readable:
        raise DemoError(f"server failed: expected it to serve within {START_SECONDS:.0f} s, got no answer")
    address = os.read(ready, 4096).decode().strip()
    if not address:  # the other end was closed
        raise DemoError(f"server failed: expected it to serve, got exit status {process.wait(STOP_SECONDS)}")
    return address


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to drain, and end it if it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def last_line(log_path: Path) -> str:
    """What the server said last."""
    lines = log_path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


@contextmanager
def serving(view: View) -> Generator[str]:
    """Serve the artifact as long as the block runs; gives the address. It never outlives the block.

    Raises:
        DemoError: the server did not start; the message carries its last line.
    """
    arguments = ["serve", str(ARTIFACT.relative_to(ROOT)), "--grpc-listen", "127.0.0.1:0"]
    view.say("$ ds4c " + " ".join(arguments))
    log_path = ROOT / "out" / "demo-server.log"
    ready, ready_child = os.pipe()
    with log_path.open("wb") as log:
        # A process group of its own: Ctrl-C reaches the demo alone, which then stops the server in order.
        process = subprocess.Popen(
            ds4c_command(*arguments, "--ready-fd", str(ready_child)),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[ready_child],
        )
    os.close(ready_child)
    try:
        try:
            address = wait_until_ready(process, ready)
        except DemoError as error:
            raise DemoError(f"{error}; the last line it printed: {last_line(log_path)}") from error
        yield address
    finally:
        os.close(ready)
        stop(process)
