"""Compilers run in child processes, since the TVM wheel can end the process: both sides of that.

A failure that the child can name goes to its standard output as one JSON line; the parent turns that, and any
other end, into one error line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ds4c import errors
from ds4c.errors import CompileError, Ds4cError


def run_child(module: str, request: Mapping[str, Any], folder: Path, outputs: Sequence[Path]) -> None:
    """Run `python -m MODULE REQUEST.json` to its end.

    Args:
        module: its `main` is `child_main` with a function of its own.
        request: JSON for it.
        folder: for the request and for temporary files.
        outputs: files that must be there afterwards.

    Raises:
        CompileError: the child failed or died.
        Ds4cError: of the class that the child named.
    """
    request_file = folder / "request.json"
    request_file.write_text(json.dumps(request))
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p), TMPDIR=str(folder))
    # A group of its own, so that a linker can be ended with its parent, whatever ended that.
    child = subprocess.Popen(
        [sys.executable, "-m", module, str(request_file)],
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
    if child.returncode == 0 and all(path.exists() for path in outputs):
        return
    raise _failure(child.returncode, stdout, stderr)


def _failure(code: int, stdout: str, stderr: str) -> Exception:
    """The child's own message if it left one, else how it ended."""
    lines = stdout.strip().splitlines()
    if code > 0 and lines and lines[-1].startswith('{"error"'):
        found = json.loads(lines[-1])
        return getattr(errors, found["error"])(found["message"])
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    last = (stderr.strip().splitlines() or ["no message"])[-1]
    return CompileError(
        f"kernel compiler: expected exit code 0, got {how} ({last[-300:]}); nothing was written, build again"
    )


def child_main(arguments: Sequence[str], run: Callable[[dict[str, Any]], None]) -> int:
    """Entry of a child process: `run` gets the request; 0 on success."""
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
