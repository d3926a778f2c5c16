"""Compiles C++ with the system's compiler to libraries, cached by content.

A library's name is a digest of everything it depends on, and a file appears under it only when it is
complete, so processes share a cache folder without further ado.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ds4c_runtime.errors import DeviceError

SHIM = Path(__file__).parent / "shim"
CORE_SOURCE = SHIM / "core.cpp"
_COMMON = (
    "-std=c++17",
    "-w",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-stack-protector",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
)
_TEXT = ("-g1", "-fno-math-errno", "-fno-trapping-math", "-ftrivial-auto-var-init=pattern")
_CHECKED = (
    "-DDS4_CHECKED",
    "-fsanitize=thread,alignment,bounds,shift-exponent",
    "--param=tsan-instrument-func-entry-exit=0",
    # The hooks are called per access: nothing may merge accesses or make calls of memset from loops.
    "-fno-tree-vectorize",
    "-fno-tree-loop-distribute-patterns",
)
_LIBRARIES = ("-nodefaultlibs", "-lm", "-lgcc", "-lc")
"""Named, so that the sanitizers' own runtimes are not among them."""
_X86_FEATURES = {"fma": "-mfma", "f16c": "-mf16c", "avx2": "-mavx2", "bmi2": "-mbmi2"}
_TIMEOUT_SECONDS = 600
_MOST_TOGETHER = 8
"""Sources of one run of the compiler. Headers, start and linking are a third of the time of a small kernel
alone, four fifths in the checked mode; sixteen together save no more than eight."""


class CompileError(Exception):
    """A source does not compile; one line."""


def cache_folder() -> Path:
    """Where compiled libraries are kept: `ds4c/emulator` in `$XDG_CACHE_HOME` or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "ds4c" / "emulator"


def compile_core() -> Path:
    """The library of the scheduler and the checker.

    Raises:
        DeviceError: no compiler, or one that cannot compile it.
    """
    try:
        return _compile([CORE_SOURCE.read_text()], ("-O2", *_machine_flags()))[0]
    except CompileError as error:
        raise DeviceError(
            f"emulator not usable: expected a compiler that takes its own source, got {error}"
        ) from error


def compile_sources(sources: Sequence[str], *, checked: bool, quick: bool = False) -> list[Path]:
    """Libraries of C++ sources, in order, compiled by child processes unless they are in the cache.

    Sources that lack a library are compiled several to a run, so a library may hold more than its own source.

    Args:
        sources: of one text, so that no two define the same.
        checked: whether they are for the checked mode.
        quick: optimise less, which takes two thirds of the time.

    Raises:
        CompileError: a source does not compile.
        DeviceError: no compiler.
    """
    flags = (
        "-O1" if quick else "-O2",
        *_TEXT,
        *(_CHECKED if checked else ()),
        *_machine_flags(wide=not checked),
    )
    return _compile(sources, flags)


def _compile(sources: Sequence[str], flags: Sequence[str]) -> list[Path]:
    folder = cache_folder()
    compiler = find_compiler()
    command = [compiler, *_COMMON, *flags, f"-I{SHIM}"]
    common = hashlib.sha256(
        repr((_identity(compiler), _COMMON, tuple(flags), _LIBRARIES, _shim_digest())).encode()
    )
    paths: list[Path] = []
    for source in sources:
        digest = common.copy()
        digest.update(source.encode())
        paths.append(folder / f"{digest.hexdigest()[:32]}.so")
    missing = {path: source for path, source in zip(paths, sources, strict=True) if not path.exists()}
    _run_all(command, missing)
    return paths


def _run_all(command: Sequence[str], missing: Mapping[Path, str]) -> None:
    """Compile sources by the library of each: as many runs at once as there are processors, of equal size."""
    limit = os.cpu_count() or 1
    together = min(_MOST_TOGETHER, -(-len(missing) // limit))
    waiting = list(missing.items())
    running: list[_Child] = []
    try:
        while waiting:
            if len(running) >= limit:
                running.pop(0).finish()
            running.append(_Child(command, dict(waiting[:together])))
            del waiting[:together]
        while running:
            running.pop(0).finish()
    finally:
        for child in running:
            child.stop()


class _Child:
    """One run of the compiler, in a folder of its own beside the libraries that it makes."""

    def __init__(self, command: Sequence[str], sources: Mapping[Path, str]) -> None:
        parent = next(iter(sources)).parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            self._folder = tempfile.TemporaryDirectory(prefix="compile-", dir=parent)
        except OSError as error:
            raise DeviceError(
                f"emulator not usable: expected to write to {parent}, got {error}; set XDG_CACHE_HOME"
            ) from error
        self._paths = tuple(sources)
        self._made = Path(self._folder.name) / "made.so"
        source_path = Path(self._folder.name) / "source.cpp"
        source_path.write_text("".join(sources.values()))
        self._process = subprocess.Popen(
            [*command, str(source_path), "-o", str(self._made), *_LIBRARIES],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "LC_ALL": "C"},
        )

    def finish(self) -> None:
        """Wait, then give the library the name of each of its sources."""
        try:
            _, errors = self._process.communicate(timeout=_TIMEOUT_SECONDS)
            if self._process.returncode:
                raise CompileError(_first_error(errors))
            for path in self._paths:
                self._publish(path)
        finally:
            self.stop()

    def _publish(self, path: Path) -> None:
        """One more name for the library: a link, of which the loader knows that it is the same."""
        name = Path(self._folder.name) / path.name
        try:
            os.link(self._made, name)
        except OSError:  # a file system without links
            shutil.copyfile(self._made, name)
        name.replace(path)

    def stop(self) -> None:
        """End the process if it still runs, and remove its folder."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        self._folder.cleanup()


def _first_error(errors: str) -> str:
    """The first error of the compiler in one line, with the file and the line that the source names."""
    match = re.search(r"^(?:([^\s:]+):(\d+):\d+: )?(?:fatal )?error: (.*)$", errors, re.MULTILINE)
    if match is None:
        lines = errors.strip().splitlines()
        return lines[-1] if lines else "the compiler gave no reason"
    place = f"{Path(match[1]).name} line {match[2]}: " if match[1] else ""
    return place + match[3]


@cache
def find_compiler() -> str:
    """Path of the C++ compiler: `$CXX`, else `g++`, else `c++`.

    Raises:
        DeviceError: there is none.
    """
    for name in (os.environ.get("CXX"), "g++", "c++"):
        if name and (found := shutil.which(name)):
            return found
    raise DeviceError("emulator not usable: expected a C++ compiler, got none; install g++ or set CXX")


@cache
def _identity(compiler: str) -> tuple[str, int, int]:
    real = Path(compiler).resolve()
    state = real.stat()
    return str(real), state.st_size, state.st_mtime_ns


@cache
def _shim_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(SHIM.iterdir()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _machine_flags(*, wide: bool = True) -> tuple[str, ...]:
    """Instructions that this machine has; without AVX2 if accesses must not be wider than 16 bytes."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    try:
        present = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split())
    except (OSError, IndexError):
        present = set[str]()
    names = [n for n in _X86_FEATURES if n in present and (wide or n != "avx2")]
    return ("-mno-red-zone", "-fcf-protection=none", *(_X86_FEATURES[n] for n in names))
