"""Child processes of a build: started in a group of their own, their failures named in one line.

A compiler can end its process or hang on to others; whatever ends the parent ends them all. Both sides are
here: `run_child` for the parent, `answer` for the child (`python -m MODULE REQUEST.json`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds4c import errors
from ds4c.errors import CompileError, Ds4cError

REQUEST_NAME = "request.json"


@dataclass(frozen=True)
class Ended:
    """How a process ended: exit code (negative: a signal) and what it wrote."""

    code: int
    stdout: str
    stderr: str

    @property
    def how(self) -> str:
        """Signal or exit code, and the last line on standard error."""
        named = f"signal {signal.Signals(-self.code).name}" if self.code < 0 else f"exit code {self.code}"
        return f"{named} ({last_line(self.stderr)})"


def last_line(text: str) -> str:
    """The last line that says something, cut to 300 characters."""
    return (text.strip().splitlines() or ["no message"])[-1][-300:]


def error_line(log: str) -> str:
    """The first line of a compiler's output that names an error, else the last; at most 300 characters."""
    lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower()]
    return (named or lines[-1:] or ["no message"])[0][:300]


def run_compiler(what: str, command: Sequence[str], folder: Path) -> str:
    """Run a program of another project to its end in a folder of temporary files; gives its standard output.

    Args:
        what: the step, for messages.
        command: program and arguments.
        folder: where it runs.

    Raises:
        CompileError: it cannot be started, failed or died.
    """
    try:
        ended = run_tool(command, folder)
    except OSError as error:
        name = Path(command[0]).name
        raise CompileError(
            f"{what}: expected to start {name}, got {error.strerror}; install it again"
        ) from error
    if ended.code > 0:
        line = error_line(ended.stderr + ended.stdout)
        raise CompileError(f"{what}: expected exit code 0, got {ended.code} ({line}); build again")
    if ended.code:
        raise CompileError(f"{what}: expected exit code 0, got {ended.how}; build again")
    return ended.stdout


def run_tool(command: Sequence[str], folder: Path) -> Ended:
    """Run a program in a folder, which is its folder for temporary files too.

    Raises:
        OSError: it cannot be started.
    """
    # The entries of this process' search path, wherever it runs.
    search = os.pathsep.join(os.path.abspath(p) for p in sys.path if p)
    environment = dict(os.environ, PYTHONPATH=search, TMPDIR=str(folder))
    # A group of its own, so that its children can be ended with it, whatever ended that.
    child = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    try:
        stdout, stderr = child.communicate()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return Ended(child.returncode, stdout, stderr)


def run_child(
    module: str, request: dict[str, Any], outputs: Sequence[Path], what: str = "kernel compiler"
) -> None:
    """Run a module that answers a request (`answer`), in the folder of its outputs.

    Args:
        module: name for `python -m`.
        request: becomes JSON beside the outputs.
        outputs: files it must write, all in one folder of temporary files.
        what: name of the step, for messages.

    Raises:
        Ds4cError: what the child could name; else `CompileError` with how it ended.
    """
    folder = outputs[0].parent
    path = folder / REQUEST_NAME
    path.write_text(json.dumps(request))
    ended = run_tool([sys.executable, "-m", module, str(path)], folder)
    if ended.code or not all(output.exists() for output in outputs):
        raise _failure(ended, what)


def _failure(ended: Ended, what: str) -> Exception:
    """The child's own message if it left one, else how it ended."""
    lines = ended.stdout.strip().splitlines()
    if ended.code > 0 and lines and lines[-1].startswith('{"error"'):
        found = json.loads(lines[-1])
        return getattr(errors, found["error"])(found["message"])
    return CompileError(f"{what}: expected exit code 0, got {ended.how}; nothing was written, build again")


def answer(arguments: Sequence[str], run: Callable[[dict[str, Any]], None]) -> int:
    """Entry of a child: runs the request of a file; gives its exit code, 0 on success.

    Failures go to standard output as one line of JSON.
    """
    try:
        run(json.loads(Path(arguments[0]).read_text()))
    except Ds4cError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
        return 1
    except Exception as error:
        text = " ".join(str(error).split())[-600:]
        message = f"kernel compiler: {type(error).__name__}: {text}"
        print(json.dumps({"error": "CompileError", "message": message}))
        return 1
    return 0


def publish(source: Path, target: Path, mode: int = 0o644) -> None:
    """Copy to a temporary name beside the target, sync, rename."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as out, source.open("rb") as data:
            shutil.copyfileobj(data, out)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
