"""Runs a command and prints what it cost: CPU-seconds of its whole process tree, and wall time.

    python tools/measured.py NAME [--budget SECONDS] [--minutes MINUTES] -- COMMAND...

A child whose parent ended without waiting for it comes to this process (on Linux) and is counted when it
ends; what still runs when the command has ended is named, ended and counted. The budget is only printed:
machines differ. `--minutes` tells the tests by `DS4C_TEST_UNTIL` when to begin no other; an earlier time that
is set already stays.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

UNTIL = "DS4C_TEST_UNTIL"
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_GRACE_SECONDS = 5.0
"""What a process that was left over gets to end by itself."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit code, 128 and the signal if it was killed."""
    parser = argparse.ArgumentParser(description="Run a command and print its CPU-seconds.")
    parser.add_argument("name")
    parser.add_argument("--budget", type=float, default=0.0, help="CPU-seconds that it should keep")
    parser.add_argument("--minutes", type=float, default=0.0, help="tests begin no later than that")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    if given.minutes:
        os.environ[UNTIL] = str(until(given.minutes, os.environ.get(UNTIL, "")))
    adopt_orphans()
    start = time.monotonic()
    code, seconds = run(given.command)
    print(summary(given.name, seconds, time.monotonic() - start, given.budget), flush=True)
    return code


def until(minutes: float, earlier: str) -> float:
    """Seconds since 1970 after which no test begins."""
    return min(time.time() + minutes * 60, float(earlier or "inf"))


def summary(name: str, cpu: float, wall: float, budget: float) -> str:
    """The line at the end."""
    text = f"{name}: {cpu:.0f} CPU-seconds of all its processes, {wall:.0f} s of wall time"
    if not budget:
        return text
    return f"{text}; budget {budget:.0f} CPU-seconds: {'kept' if cpu <= budget else 'EXCEEDED'}"


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends; without Linux they go uncounted."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(command: Sequence[str]) -> tuple[int, float]:
    """Run a command; its exit code and the CPU-seconds of it and of all that it started."""
    process = subprocess.Popen(command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the command too
    signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    total, status = 0.0, 0
    while True:
        pid, ended, used = os.wait4(-1, 0)
        total += used.ru_utime + used.ru_stime
        if pid == process.pid:
            status = ended
            break
    process.returncode = code = os.waitstatus_to_exitcode(status)
    return (128 - code if code < 0 else code), total + reap_left_over()


def reap_left_over() -> float:
    """Wait a little for processes that outlived the command, then end them; their CPU-seconds."""
    total, end, names = 0.0, time.monotonic() + _GRACE_SECONDS, set[str]()
    while True:
        try:
            pid, _, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            break
        total += used.ru_utime + used.ru_stime if pid else 0.0
        if pid:
            continue
        if time.monotonic() > end:
            for child in children():
                names.add(f"{child} ({command_of(child)})")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.05)
    for name in sorted(names):
        print(f"measured: a process outlived its command and was ended: {name}", file=sys.stderr)
    return total


def children() -> list[int]:
    """Processes whose parent is this one; none are found without /proc."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(path.parent.name))
    return found


def command_of(pid: int) -> str:
    """The command line of a process, cut short."""
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")[:100]
            .strip()
        )
    return "gone"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
