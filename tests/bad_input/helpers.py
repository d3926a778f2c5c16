"""What the tests of bad input share: commands that must fail in one line, damaged copies, processes."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ds4c.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(str(ROOT / name) for name in (".", "runtime", "serve", "targets", "tests"))
ONE_LINE = re.compile(r"error: .+: expected .+, got .+|error: .+; see ds4c( \w+)* --help")
"""`what failed: expected X, got Y; what to do`, or an error of the command line with its pointer."""

DS4C = (sys.executable, "-m", "ds4c.cli.main")

Change = Callable[[Path], object]


def fails(arguments: Sequence[str | Path], code: int, *parts: str) -> str:
    """Run a command in this process; it must fail with `code`, an empty stdout and one good line on stderr.

    Returns:
        The line, which holds every one of `parts`.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        got = main([str(a) for a in arguments])
    assert out.getvalue() == ""
    lines = [line for line in err.getvalue().splitlines() if not is_progress(line)]
    assert (got, len(lines)) == (code, 1), err.getvalue()
    check_line(lines[0], *parts)
    return lines[0]


def check_line(line: str, *parts: str) -> None:
    """The line has the form of our errors and names what it must."""
    assert ONE_LINE.fullmatch(line), line
    assert "Traceback" not in line
    assert "shared/" not in line
    for part in parts:
        assert part in line, line


def is_progress(line: str) -> bool:
    """Whether a line of stderr tells of a stage of a build that went well."""
    return line.split(" ")[0] in ("open", "check", "passes", "kernels", "weights", "manifest")


def linked_copy(source: Path, folder: Path, *changed: str) -> Path:
    """A copy of a folder; files are hard links but for `changed`, which may be written to."""
    folder.mkdir()
    for file in source.iterdir():
        target = folder / file.name
        if file.name in changed:
            target.write_bytes(file.read_bytes())
        else:
            try:
                os.link(file, target)
            except OSError:  # another file system
                target.write_bytes(file.read_bytes())
    return folder


def rewrite(path: Path, content: bytes | str) -> None:
    """Give a file of a linked copy new content without touching the original."""
    path.unlink(missing_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def flip(path: Path, at: int) -> None:
    """Flip all bits of one byte; `at` counts from the end if it is negative."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    rewrite(path, bytes(content))


def entries(folder: Path) -> list[str]:
    """Every file and folder below, hidden ones too."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def command_line(pid: int) -> bytes:
    """Arguments of a process, empty if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


class Process:
    """A `ds4c` command in a process and process group of its own, with its own folder for temporary files."""

    def __init__(
        self, *arguments: str | Path, temporary: Path, program: Sequence[str] = DS4C, **environment: str
    ) -> None:
        self.temporary = temporary
        temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [*program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": PATHS, "TMPDIR": str(temporary), **environment},
        )

    def children(self) -> list[int]:
        """Every living process that it or its children started, known by their folder of temporary files."""
        mark = f"TMPDIR={self.temporary}".encode()
        found: list[int] = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                variables = (folder / "environ").read_bytes().split(b"\0")
                if any(each == mark or each.startswith(mark + b"/") for each in variables):
                    found.append(int(folder.name))
        return [pid for pid in found if pid != self.process.pid]

    def compilers(self) -> list[int]:
        """Those of them that compile kernels."""
        return [pid for pid in self.children() if b"ds4c.lower.compile" in command_line(pid)]

    def wait_for(self, condition: Callable[[], object], seconds: float = 90) -> None:
        """Wait until a condition holds while the process lives."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.finish()
            assert time.monotonic() < end, "the condition did not come true"
            time.sleep(0.03)

    def signal(self, number: signal.Signals) -> None:
        """Signal the process alone; its children hear nothing of it."""
        self.process.send_signal(number)

    def finish(self, seconds: float = 60) -> tuple[int, str, str]:
        """Wait for its end: code, stdout, stderr."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return self.process.returncode, out, err

    def kill(self) -> None:
        """End it and its group, if they still run."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@contextlib.contextmanager
def started(
    *arguments: str | Path, temporary: Path, program: Sequence[str] = DS4C, **environment: str
) -> Iterator[Process]:
    """A process that does not outlive the test."""
    process = Process(*arguments, temporary=temporary, program=program, **environment)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.kill()


@contextlib.contextmanager
def mounted(folder: Path, options: str, kind: str = "tmpfs") -> Iterator[Path | None]:
    """A small file system at `folder`; None where this user may not mount."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", kind, "-o", options, "none", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        yield None
        return
    if done.returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
