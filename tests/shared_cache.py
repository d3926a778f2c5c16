"""What tests compile, kept between runs and shared by processes: artifacts, kernels, objects of the emulator.

`DS4C_TEST_CACHE` names the folder; else it is `ds4c-tests` in `$XDG_CACHE_HOME` or `~/.cache`. The name of an
entry is a digest of all that shapes it, and an entry appears under it only when it is complete. `make clean`
removes the folder. Tests that are about building never come here.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "DS4C_TEST_CACHE"
KEPT_DAYS = 14
"""Entries that no run has used for longer are removed."""

ROOT = Path(__file__).parent.parent
RUNTIME = ROOT / "runtime" / "ds4c_runtime"
PACKAGES = ("apache-tvm", "apache-tvm-ffi", "ds4c", "ml_dtypes", "numpy", "safetensors", "xdsl")
KINDS = ("artifacts", "kernels", "packages", "ds4c/emulator")
"""Folders of the cache. The emulator keeps its own, below `$XDG_CACHE_HOME`."""

_IMPORT = re.compile(r"^\s*(?:from (ds4c_runtime[\w.]*) import ([\w, ]*)|import (ds4c_runtime[\w.]*))", re.M)


def root() -> Path:
    """The folder of the cache."""
    if given := os.environ.get(VARIABLE):
        return Path(given).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ds4c-tests"


def use() -> None:
    """Point this process and its children to the cache, the emulator too; called before any is started."""
    folder = root()
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    os.environ.setdefault("PIP_CACHE_DIR", str(base / "pip"))  # what pip has loaded stays where it is
    os.environ[VARIABLE] = os.environ["XDG_CACHE_HOME"] = str(folder)


def digest(*parts: object) -> str:
    """Name of an entry: of the sources and versions of the compiler and what else shapes it, as text."""
    text = "\0".join((compiler_digest(), *map(str, parts)))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def entry(kind: str, name: str, make: Callable[[Path], object]) -> Path:
    """The file or folder of a name; `make(path)` writes it if it is not there, in one process at a time."""
    folder = root() / kind
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with locked(folder / f".{name}.lock"):
        if path.exists():
            os.utime(path)  # used today
            return path
        with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as work:
            made = Path(work) / "made"
            make(made)
            os.utime(made)
            made.rename(path)
    return path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of one thing against other processes."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def folder_digest(folder: Path) -> str:
    """Digest of the files directly in a folder, such as a checkpoint."""
    found = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        found.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


@functools.cache
def compiler_digest() -> str:
    """Digest of all that makes an artifact of a checkpoint: sources, versions, compilers of this machine."""
    found = hashlib.sha256(repr((platform.python_version(), _versions(), _tools())).encode())
    for path in compiler_sources():
        found.update(f"{path.relative_to(ROOT)}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def compiler_sources() -> list[Path]:
    """Files of the compiler, of the targets and of what they import of the runtime; not the command line."""
    own = [p for p in (ROOT / "ds4c").rglob("*") if p.suffix in (".py", ".yaml")]
    own = [p for p in own if (ROOT / "ds4c" / "cli") not in p.parents]
    own += [p for p in (ROOT / "targets").rglob("*") if p.suffix in (".py", ".yaml")]
    found, waiting = set(own), list(own)
    while waiting:
        for path in _runtime_imports(waiting.pop()) - found:
            found.add(path)
            waiting.append(path)
    return sorted(found)


def _runtime_imports(path: Path) -> set[Path]:
    """Files of the runtime that a file imports, inside functions too."""
    if path.suffix != ".py":
        return set()
    names: set[str] = set()
    for module, several, plain in _IMPORT.findall(path.read_text()):
        names.add(module or plain)
        names.update(f"{module}.{each.split()[0]}" for each in several.split(",") if module and each.split())
    stems = [RUNTIME.joinpath(*name.split(".")[1:]) for name in names]
    found = {
        f for s in stems for f in (s.with_suffix(".py"), s / "__init__.py") if s != RUNTIME and f.is_file()
    }
    return found | {
        folder / "__init__.py" for f in found for folder in f.parents if RUNTIME in (folder, *folder.parents)
    }


def _versions() -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append((name, importlib.metadata.version(name)))
    return found


def _tools() -> list[str]:
    """The compilers of other projects that a build may call."""
    from ds4c.errors import TargetError
    from ds4c_targets.cuda.compile import find_compiler
    from ds4c_targets.rocm.binaries import find_linker

    found: list[str] = []
    if path := shutil.which("g++"):
        state = Path(path).resolve().stat()
        found.append(f"g++ {state.st_size} {state.st_mtime_ns}")
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(TargetError):
        found.append(find_compiler(Path(folder)).version)
    with contextlib.suppress(TargetError):
        found.append(find_linker().version)
    return found


@dataclass(frozen=True)
class Count:
    """Entries of the cache by kind."""

    entries: dict[str, int]

    @classmethod
    def now(cls) -> Count:
        """What is there."""
        return cls({kind: sum(1 for _ in _entries(kind)) for kind in KINDS})

    def line(self, after: Count) -> str:
        """What a run found and made; `self` is what was there before it."""
        made = {kind: max(0, after.entries[kind] - n) for kind, n in self.entries.items()}
        if not any(self.entries.values()):
            state = "cold"
        else:
            state = "warm" if not any(made.values()) else "partly warm"
        parts = [f"{kind.rpartition('/')[2]} {n} found {made[kind]} made" for kind, n in self.entries.items()]
        return f"ds4c: test cache {state} ({root()}): {', '.join(parts)}"


def _entries(kind: str) -> Iterator[Path]:
    folder = root() / kind
    yield from (
        (p for p in folder.iterdir() if not p.name.startswith((".", "compile-"))) if folder.is_dir() else ()
    )


def expire(days: float = KEPT_DAYS) -> None:
    """Remove what no run has used for some days; objects of the emulator, whose use nobody notes, by age."""
    oldest = time.time() - days * 86_400
    for kind in KINDS:
        for path in list(_entries(kind)):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
