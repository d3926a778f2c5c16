"""What every command shares: exit codes, one-line failures, JSON results, progress on stderr.

Imports only the standard library and typer, so that every command works from the base install.
"""

import json
import signal
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer

from ds4c.errors import Ds4cError

if TYPE_CHECKING:
    from rich.console import Console


class ExitCode(IntEnum):
    """Exit codes of every command; stable."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CHECK_FAILED = 3
    MALFORMED = 4
    UNUSABLE = 5
    MEMORY = 6
    UNREACHABLE = 7
    INTERRUPTED = 130
    TERMINATED = 143


class CommandFailure(Exception):
    """A command failed for a reason of its own; the message is the line that is printed."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED):
        super().__init__(message)
        self.exit_code = exit_code


JsonOption = Annotated[
    bool, typer.Option("--json", envvar="DS4C_JSON", help="Print one JSON document on stdout.")
]
ArtifactArgument = Annotated[
    Path, typer.Argument(help="Artifact folder made by `ds4c build`.", metavar="DIR", show_default=False)
]
ThreadsOption = Annotated[
    int, typer.Option(min=1, help="Threads of the kernels on cpu; other devices ignore it.")
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Device that runs the artifact: cpu, cuda, rocm, metal, or emulator for kernels of cuda and "
        "metal; default: the artifact's target.",
        show_default=False,
    ),
]

# Top-level modules that come with an extra and not with the base install.
_EXTRA_OF_MODULE: Mapping[str, str] = {
    "tvm": "build",
    "xdsl": "build",
    "safetensors": "build",
    "ml_dtypes": "build",
    "ds4c_targets": "build",
    "torch": "oracle",
    "transformers": "oracle",
}


def describe_failure(error: BaseException) -> tuple[str, int] | None:
    """Give the line to print and the exit code for an expected failure.

    Returns:
        `(line, exit code)`, or None for an error that is a defect and deserves its traceback.
    """
    if isinstance(error, (Ds4cError, CommandFailure)):
        return str(error), int(error.exit_code)
    if isinstance(error, ModuleNotFoundError):
        return _describe_missing_module(error)
    if isinstance(error, OSError):
        return describe_os_error(error), int(ExitCode.FAILED)
    # The runtime's tree, which is not imported for this: no error of it can be here if it is not loaded.
    runtime_errors = sys.modules.get("ds4c_runtime.errors")
    if runtime_errors is not None and isinstance(error, runtime_errors.RuntimeFailure):
        return str(error), int(cast(Any, error).exit_code)
    if isinstance(error, MemoryError):
        line = (
            f"out of memory: expected room for the work, got {error or 'none'}; ask for less or free memory"
        )
        return line, int(ExitCode.MEMORY)
    return None


def describe_os_error(error: OSError) -> str:
    """The line for a file or a connection that failed without a better explanation."""
    where = f"{error.filename}" if error.filename else "file or connection"
    return (
        f"{where} not usable: expected access to it, got {error.strerror or error}; "
        "check the path, its permissions and the free space"
    )


def _describe_missing_module(error: ModuleNotFoundError) -> tuple[str, int] | None:
    root = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF_MODULE.get(root)
    if extra is None:
        return None
    return (
        f"command needs the extra `{extra}`: expected module {root}, got none; pip install 'ds4c[{extra}]'",
        int(ExitCode.UNUSABLE),
    )


def usage_error(message: str) -> NoReturn:
    """End the command with exit code 2 and one line.

    Raises:
        CommandFailure: always.
    """
    raise CommandFailure(message, ExitCode.USAGE)


def read_text(path: Path, what: str) -> str:
    """Text of a file that the user named; `-` reads stdin.

    Args:
        path: the file.
        what: what it should be, such as "a file of IR text", for messages.

    Raises:
        CommandFailure: it is absent (exit code 2), cannot be read or is not UTF-8 (exit code 4).
    """
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return content.decode("utf-8")
    except FileNotFoundError:
        raise CommandFailure(
            f"{path} not read: expected {what}, got no such file; check the path", ExitCode.USAGE
        ) from None
    except OSError as error:
        raise CommandFailure(
            f"{path} not read: expected {what}, got {error.strerror}; check the path", ExitCode.MALFORMED
        ) from error
    except UnicodeDecodeError as error:
        name = "stdin" if str(path) == "-" else path
        raise CommandFailure(
            f"{name} not read: expected {what} in UTF-8, got byte 0x{error.object[error.start]:02x} at "
            f"offset {error.start}; convert it",
            ExitCode.MALFORMED,
        ) from None


def one_line(text: str) -> str:
    """Fold a message into one line; line breaks become `; `."""
    return "; ".join(part.strip() for part in text.splitlines() if part.strip())


def print_failure(line: str) -> None:
    """Print one failure line on stderr."""
    print(f"error: {one_line(line)}", file=sys.stderr, flush=True)


def print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print the result of a reading command: one JSON document on stdout, keys in the order given."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_result(text: str) -> None:
    """Print a line of the result on stdout; everything else goes to stderr."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns on stdout; never cut to the width of a terminal, so that it can be piped."""
    texts = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(columns))]
    for row in texts:
        print_result("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_note(text: str) -> None:
    """Print a line that is no part of the result on stderr."""
    print(text, file=sys.stderr, flush=True)


def error_console() -> "Console":
    """Console for progress and tables that are no part of the result; plain where stderr is no terminal."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def result_console() -> "Console":
    """Console for tables that are the result; plain where stdout is no terminal."""
    from rich.console import Console

    return Console(highlight=False)


def parse_bytes(text: str, option: str) -> int:
    """Read a size: a number of bytes, or a number with KiB, MiB, GiB or TiB.

    Raises:
        CommandFailure: it is neither, or not above 0 (exit code 2).
    """
    factors = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    digits = text.rstrip("BKMGTi ")
    unit = text[len(digits) :].strip()
    if not digits.isascii() or not digits.isdigit() or int(digits) == 0 or unit not in factors:
        usage_error(f"{option} refused: expected a size such as 1073741824 or 1GiB, got {text!r}")
    return int(digits) * factors[unit]


def package_version(name: str = "ds4c") -> str:
    """Version of an installed distribution; `0+source` for one that is imported from a source tree only."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "0+source"


def format_bytes(count: int) -> str:
    """Write a number of bytes with a binary unit, for people."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


class Interrupted(KeyboardInterrupt):
    """SIGINT arrived.

    A class of its own because CPython remembers a plain `KeyboardInterrupt` that leaves an `exec` of a
    string (dataclasses and named tuples are made so, also while modules are imported): even if it is caught
    later, `python -m` then ends itself by SIGINT instead of with our exit code.
    """


@contextmanager
def signals_as_exceptions() -> Generator[None]:
    """Turn SIGTERM into exit code 143 and SIGINT into `Interrupted`, so that `finally` blocks clean up.

    The old handlers are put back. Outside the main thread signals cannot be handled, so there it does
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(int(ExitCode.TERMINATED))

    def interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise Interrupted

    previous = signal.signal(signal.SIGTERM, leave), signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous[0])
        signal.signal(signal.SIGINT, previous[1])
