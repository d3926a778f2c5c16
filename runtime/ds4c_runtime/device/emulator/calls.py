"""The scheduler's library: one per process, used by one thread at a time."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ds4c_runtime.device.emulator.compiler import compile_core
from ds4c_runtime.device.emulator.mode import Mode
from ds4c_runtime.errors import ArtifactError

_FLAGS = {"fast": 0, "shuffled": 1, "checked": 2}


class EmulatorFault(RuntimeError):
    """A kernel did what it must not: an access outside of its arrays, a race, a divergent barrier."""


class LaunchStruct(ctypes.Structure):
    """`Launch` of core.cpp."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint),
    )


class RegionStruct(ctypes.Structure):
    """`Region` of checker.h."""

    _fields_ = (
        ("start", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("cells", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("element", ctypes.c_uint),
        ("is_constant", ctypes.c_uint),
    )


class Core:
    """Runs lists of launches. Its state is that of the process, so is its lock."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(compile_core()))
        self._library.ds4_emulator_core.restype = ctypes.c_void_p
        self._library.ds4_emulator_error.restype = ctypes.c_char_p
        self._library.ds4_emulator_error_place.restype = ctypes.c_char_p
        self._library.ds4_emulator_run.argtypes = (
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_uint,
            ctypes.c_uint64,
        )
        self._address = int(self._library.ds4_emulator_core())
        self._lock = threading.Lock()

    def load(self, path: Path) -> ctypes.CDLL:
        """Load a library of kernels and bind it to the scheduler.

        Raises:
            ArtifactError: the text refers to a function that nothing defines.
        """
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            reason = str(error).rsplit("/", 1)[-1]
            raise ArtifactError(f"kernel text rejected: expected known functions, got {reason}") from error
        ctypes.c_void_p.in_dll(library, "ds4_core").value = self._address
        return library

    def run(
        self,
        launches: ctypes.Array[LaunchStruct],
        regions: ctypes.Array[RegionStruct],
        mode: Mode,
        names: Sequence[str],
        lines: Mapping[str, int],
    ) -> None:
        """Run launches in order; releases the GIL.

        Args:
            launches: what to run; everything they point to must live.
            regions: all memory that kernels may touch, for messages and checks.
            mode: how to run; must be the one that the kernels were compiled for.
            names: of the functions of the launches.
            lines: on which functions begin in their text, by name.

        Raises:
            EmulatorFault: naming function, line, block and thread.
        """
        with self._lock:
            self._library.ds4_emulator_regions(regions, len(regions))
            failed = int(
                self._library.ds4_emulator_run(launches, len(launches), _FLAGS[mode.name], mode.seed)
            )
            if failed < 0:
                return
            message = self._library.ds4_emulator_error().decode()
            offset = ctypes.c_size_t()
            place = self._library.ds4_emulator_error_place(ctypes.byref(offset))
        name = names[failed]
        line = _source_line(Path(place.decode()), offset.value - 1, name) if place else None
        relative = message if line is None else f"line {line}: {message}"
        first = lines[name]
        absolute = re.sub(r"\bline (\d+)", lambda match: f"line {first + int(match[1]) - 1}", relative)
        raise EmulatorFault(f"{name}: {absolute}")


@cache
def core() -> Core:
    """The scheduler of this process."""
    return Core()


def kernel_address(library: ctypes.CDLL, name: str) -> int:
    """Address of the `Kernel` of a function."""
    return ctypes.addressof(ctypes.c_char.in_dll(library, f"ds4_kernel_{name}"))


def _source_line(library: Path, offset: int, function: str) -> int | None:
    """The line of a function's text of an offset in its library; None if nothing can tell."""
    tool = shutil.which("addr2line")
    if tool is None:
        return None
    command: list[Any] = [tool, "-i", "-e", library, hex(offset)]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(rf"\b{function}:(\d+)", text)
    return int(match[1]) if match else None
