"""The CPU: loads compiled kernels through tvm-ffi and calls them on host memory.

Needs neither the compiler nor TVM's Python package: the artifact brings its own runtime library.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ds4c_runtime.device.base import Arena, HostBytes
from ds4c_runtime.device.host_memory import HostMemory
from ds4c_runtime.device.launcher import check_listed
from ds4c_runtime.device.memory import ALIGNMENT, aligned_zeros, load_weights
from ds4c_runtime.device.status import DeviceStatus
from ds4c_runtime.errors import ArtifactError, DeviceError
from ds4c_runtime.launches import Extent
from ds4c_runtime.manifest import Manifest

CPUINFO = Path("/proc/cpuinfo")
FILES = ("kernels.so", "libtvm_runtime.so", "weights.bin")
"""What this device loads."""
SWITCH_SECONDS = 1e-4
"""How long a thread that comes back from a step may wait for the GIL beside a busy Python thread.

Python's default of 5 ms is longer than many steps; it is a setting of the whole process.
"""
_process_threads: int | None = None
_ALIASES = {
    "pni": "sse3",
    "abm": "lzcnt",
    "bmi": "bmi1",
    "cx16": "cmpxchg16b",
    "lahflm": "lahf",
    "sahf": "lahf",
}


class CpuDevice(HostMemory):
    """Kernels on host threads."""

    name = "cpu"

    def __init__(self) -> None:
        super().__init__()
        self._entries: dict[str, Callable[..., object]] = {}
        self._from_dlpack: Callable[..., Any] | None = None
        self._tensors: dict[int, tuple[Arena, Any]] = {}
        self._weights = aligned_zeros(0)

    @property
    def weights(self) -> HostBytes:
        """The contents of `weights.bin`."""
        return self._weights

    def load(self, folder: Path, manifest: Manifest, threads: int) -> None:
        """Load `libtvm_runtime.so`, `kernels.so` and `weights.bin`.

        Raises:
            DeviceError: wrong target, missing CPU features, another tvm-ffi version.
            ArtifactError: a file is not listed, a library cannot be loaded or lacks an entry point.
        """
        if manifest.target.name != self.name:
            raise DeviceError(
                f"device cpu refused: expected an artifact for target cpu, got {manifest.target.name!r}; "
                "build it with --target cpu"
            )
        check_features(manifest.target.features, host_features())
        # The pool of a thread starts with the first parallel kernel and reads this variable then.
        _fix_threads(threads)
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECONDS))
        module = self._load_libraries(folder, manifest)
        for entry in manifest.entry_points:
            try:
                self._entries[entry.name] = module[entry.name]
            except (AttributeError, KeyError, RuntimeError) as error:
                raise ArtifactError(
                    f"kernels.so rejected: expected a function {entry.name!r}, got {error}"
                ) from error
        self._weights = load_weights(folder / "weights.bin")

    def _load_libraries(self, folder: Path, manifest: Manifest) -> Any:
        tvm_ffi = _import_tvm_ffi()
        if tvm_ffi.__version__ != manifest.versions.tvm_ffi:
            raise DeviceError(
                f"device cpu refused: expected apache-tvm-ffi {manifest.versions.tvm_ffi}, got "
                f"{tvm_ffi.__version__}; install apache-tvm-ffi=={manifest.versions.tvm_ffi} or build again"
            )
        check_listed(manifest, FILES)
        self._from_dlpack = tvm_ffi.from_dlpack
        try:
            _load_runtime(folder / "libtvm_runtime.so")
            return tvm_ffi.load_module(str((folder / "kernels.so").resolve()))
        except (OSError, RuntimeError) as error:
            raise ArtifactError(f"kernels not loaded: expected loadable libraries, got {error}") from error

    def call(self, entry: str, arenas: Sequence[Arena], extent: Extent) -> None:
        """Run an entry point on arenas; its kernels read the size of a step from the io arena."""
        self._entries[entry](*(self._tensor(a) for a in arenas))

    def _tensor(self, arena: Arena) -> Any:
        # Keyed by identity; the arena is kept beside its tensor, so its id cannot be reused.
        held = self._tensors.get(id(arena))
        if held is None:
            assert self._from_dlpack is not None, "call before load"
            held = (arena, self._from_dlpack(arena, require_alignment=ALIGNMENT))
            self._tensors[id(arena)] = held
        return held[1]


def probe() -> DeviceStatus:
    """Whether kernels can be loaded here."""
    try:
        version = importlib.metadata.version("apache-tvm-ffi")
    except importlib.metadata.PackageNotFoundError:
        return DeviceStatus(CpuDevice.name, False, "apache-tvm-ffi is missing: pip install ds4c")
    return DeviceStatus(CpuDevice.name, True, f"apache-tvm-ffi {version}")


def _fix_threads(threads: int) -> None:
    """Set the size of TVM's pool, which a process has once.

    Raises:
        DeviceError: an artifact was loaded with another number of threads before.
    """
    global _process_threads
    if _process_threads not in (None, threads):
        raise DeviceError(
            f"device cpu refused: expected {_process_threads} threads as for the artifact loaded before, "
            f"got {threads}; use another process"
        )
    _process_threads = threads
    os.environ["TVM_NUM_THREADS"] = str(threads)


def _import_tvm_ffi() -> Any:
    """Import tvm-ffi without torch, which it would import too where it is installed: seconds of a load.

    A process that has torch already keeps the bridge between the two.
    """
    if "torch" in sys.modules or "tvm_ffi" in sys.modules:
        return importlib.import_module("tvm_ffi")
    sys.modules["torch"] = None  # pyright: ignore[reportArgumentType]  # makes `import torch` fail
    try:
        return importlib.import_module("tvm_ffi")
    finally:
        del sys.modules["torch"]


def _load_runtime(path: Path) -> None:
    """Make TVM's parallel-for a global symbol of the process; without it kernels crash.

    A second copy of the library would abort the process (its functions are registered once), so it is
    loaded only if no artifact and no TVM package brought it already.
    """
    if not hasattr(ctypes.CDLL(None), "TVMBackendParallelLaunch"):
        ctypes.CDLL(str(path.resolve()), ctypes.RTLD_GLOBAL)


def host_features(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """CPU features of this machine as the kernel spells them, in the first processor's entry.

    Raises:
        DeviceError: the list cannot be read.
    """
    try:
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip().lower() in ("flags", "features"):
                return frozenset(value.split())
    except OSError as error:
        raise DeviceError(f"CPU features unknown: expected a readable {cpuinfo}, got {error}") from error
    raise DeviceError(f"CPU features unknown: expected a line 'flags' in {cpuinfo}, got none")


def check_features(needed: Iterable[str], present: Iterable[str]) -> None:
    """Refuse if a needed feature is not present; spellings of LLVM and of Linux are both understood.

    Raises:
        DeviceError: with the list of needed and of missing features.
    """
    have = {_canonical(f) for f in present}
    wanted = sorted(needed)
    missing = [f for f in wanted if _canonical(f) not in have]
    if missing:
        raise DeviceError(
            f"device cpu refused: expected the CPU features {', '.join(wanted)}, got a CPU without "
            f"{', '.join(missing)}; build for this machine or with --target cpu:generic",
            needed=",".join(wanted),
            missing=",".join(missing),
        )


def _canonical(feature: str) -> str:
    plain = feature.lower().lstrip("+")
    for separator in "-_.":
        plain = plain.replace(separator, "")
    return _ALIASES.get(plain, plain)
