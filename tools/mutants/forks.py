"""Runs tests on mutants: a copy of the tree for each worker, a fork with everything of others preloaded.

The parent imports pytest and the libraries once and nothing of the project; each run is a child that imports
the project from its worker's copy. Processes that the tests start find the copy by `PYTHONPATH`.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.catalogue import Catalogue

CPU_FACTOR, CPU_SECONDS = 3, 10
"""A mutant may take this many times the processor time of the sources as they are, and these seconds more."""
WALL_FACTOR, WALL_SECONDS = 5, 30
"""The same for the clock on the wall, which other work on the machine slows down."""
MEMORY_BYTES = 8 << 30
_POLL_SECONDS = 0.02
_LEFT_OUT = {".git", ".venv", "out", "build", "dist", "__pycache__"}


@dataclass(frozen=True)
class Limits:
    """Most seconds of a run: of the processor, and on the wall."""

    cpu: float
    wall: float

    @staticmethod
    def of(cpu: float, wall: float) -> Limits:
        """For a run that takes so long without a mutant."""
        return Limits(CPU_FACTOR * cpu + CPU_SECONDS, WALL_FACTOR * wall + WALL_SECONDS)


@dataclass(frozen=True)
class Job:
    """Tests to run, with the change of at most one file."""

    key: str
    tests: Sequence[str]
    limits: Limits
    file: str = ""
    source: str = ""
    options: Sequence[str] = ()


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the exit code of pytest, `None` if it was stopped or died; seconds and output."""

    job: Job
    code: int | None
    cpu: float
    wall: float
    output: str

    @property
    def first_failure(self) -> str:
        """Id of the test that failed, empty if none did."""
        for line in self.output.splitlines():
            if line.startswith(("FAILED ", "ERROR ")):
                return line.split(" - ")[0].partition(" ")[2]
        return ""


def preload(modules: Iterable[str]) -> None:
    """Import what is installed of some modules, and load the runtime of TVM as `tests/conftest.py` does."""
    before = sys.modules.get("torch")
    sys.modules.setdefault("torch", None)  # pyright: ignore[reportArgumentType] tvm_ffi would import it
    for name in modules:
        with suppress(ImportError):
            importlib.import_module(name)
    if before is None:
        sys.modules.pop("torch", None)
    package = importlib.util.find_spec("tvm") if "tvm_ffi" in sys.modules else None
    if package is not None and package.origin is not None:
        library = Path(package.origin).parent / "lib" / "libtvm_runtime.so"
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class Tree:
    """A worker's copy of the project, in which one file at a time is another."""

    def __init__(self, folder: Path, root: Path, catalogue: Catalogue) -> None:
        """Make it: folders that are `copied` as copies, everything else as links."""
        self.root, self.scratch = folder / "tree", folder / "tmp"
        self.cache = folder.parent / "cache"  # what mutants compile stays out of the cache of others
        self.path = [str(self.root / entry) for entry in catalogue.path]
        self.source_path = [str(root / entry) for entry in catalogue.path]
        self._before: dict[str, str] = {}
        self.root.mkdir(parents=True)
        for entry in sorted(root.iterdir()):
            if entry.name in catalogue.copied:
                ignored = shutil.ignore_patterns("__pycache__", ".*")
                shutil.copytree(entry, self.root / entry.name, ignore=ignored)
            elif entry.name not in _LEFT_OUT:
                (self.root / entry.name).symlink_to(entry)

    def put(self, file: str, source: str) -> None:
        """Let a file be another; what was compiled of it goes, as its time may be the same."""
        target = self.root / file
        self._before.setdefault(file, target.read_text())
        target.write_text(source)
        for compiled in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
            compiled.unlink()

    def restore(self, file: str) -> None:
        """Let a file be what it was."""
        self.put(file, self._before[file])


@dataclass
class _Run:
    job: Job
    tree: Tree
    started: float
    output: Path


def run_jobs(jobs: Iterable[Job], trees: Sequence[Tree]) -> Iterator[Outcome]:
    """Run jobs, as many at once as there are trees; outcomes as they come."""
    waiting, free, running = iter(jobs), list(trees), dict[int, _Run]()
    has_more = True
    try:
        while has_more or running:
            while free and has_more:
                job = next(waiting, None)
                if job is None:
                    has_more = False
                    break
                pid, run = _start(job, free.pop())
                running[pid] = run
            ended = _ended(running)
            for pid, outcome in ended:
                free.append(running.pop(pid).tree)
                yield outcome
            if not ended:
                time.sleep(_POLL_SECONDS)
    finally:
        for pid in running:
            _kill(pid)


def _start(job: Job, tree: Tree) -> tuple[int, _Run]:
    if job.file:
        tree.put(job.file, job.source)
    output = tree.scratch.with_suffix(".txt")
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _child(job, tree, output)
    return pid, _Run(job, tree, time.monotonic(), output)


def _ended(running: dict[int, _Run]) -> list[tuple[int, Outcome]]:
    found: list[tuple[int, Outcome]] = []
    for pid, run in running.items():
        wall = time.monotonic() - run.started
        done, status, usage = os.wait4(pid, os.WNOHANG)
        was_stopped = not done and wall > run.job.limits.wall
        if was_stopped:
            _kill(pid)
            _, status, usage = os.wait4(pid, 0)
        if not done and not was_stopped:
            continue
        with suppress(ProcessLookupError):  # what the tests have started and left
            os.killpg(pid, signal.SIGKILL)
        if run.job.file:
            run.tree.restore(run.job.file)
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        text = run.output.read_text(errors="replace") if run.output.exists() else ""
        found.append((pid, Outcome(run.job, code, usage.ru_utime + usage.ru_stime, wall, text)))
    return found


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _child(job: Job, tree: Tree, output: Path) -> None:
    """Run pytest in this process, which ends with its exit code."""
    code = 3
    try:
        os.setsid()
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        cpu = int(job.limits.cpu) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = _pytest(job, tree)
    finally:
        os._exit(code)


def _pytest(job: Job, tree: Tree) -> int:
    import pytest

    outside = {"", *tree.source_path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    sys.path[:] = tree.path + [entry for entry in sys.path if entry not in outside]
    os.chdir(tree.root)
    os.environ.update(
        PYTHONPATH=os.pathsep.join(tree.path),
        CI="1",
        PYTEST_ADDOPTS="",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        OMP_NUM_THREADS="1",
        DS4C_TEST_CACHE=str(tree.cache),
    )
    options = [
        "-x", "-q", "--tb=no", "--no-header", "--disable-warnings", "-p", "no:cacheprovider",
        "-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin", "-c", str(tree.root / "pyproject.toml"),
        f"--rootdir={tree.root}", f"--basetemp={tree.scratch}", *job.options, *job.tests,
    ]  # fmt: skip
    return int(pytest.main(options, plugins=[_NoShrinking()]))


class _NoShrinking:
    """One failure is enough: the smallest example is not looked for."""

    def pytest_configure(self) -> None:
        """After `tests/conftest.py` has chosen its settings, before tests are imported."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings(phases=phases, report_multiple_bugs=False))
        settings.load_profile("mutants")
