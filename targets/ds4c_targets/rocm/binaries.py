"""AMDGPU objects to the code objects that the ROCm runtime loads, with LLVM's linker and nothing of ROCm.

The linker is that of the wheel `ziglang` (extra `rocm-build`) or of the system. Objects must need nothing: an
undefined symbol would otherwise be found by the loader, on the machine with the GPU.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from ds4c.errors import CompileError, TargetError
from ds4c.lower.child import run_compiler
from ds4c_targets.gpu.binaries import record_compiler

INSTALL = "pip install 'ds4c[rocm-build]'"


def code_object_name(architecture: str) -> str:
    """File name of the code object of an architecture such as `gfx1100`."""
    return f"kernels.{architecture}.co"


def object_name(architecture: str) -> str:
    """File name of the relocatable object of an architecture."""
    return f"kernels.{architecture}.o"


@dataclass(frozen=True)
class Linker:
    """A linker: its name and version, for the artifact, and how it is called."""

    version: str
    command: tuple[str, ...]


def link_code_objects(folder: Path, architectures: Sequence[str], linker: str = "any") -> str:
    """Link `kernels.gfx1100.o` of a folder to `kernels.gfx1100.co` beside it, for each architecture.

    Args:
        folder: of temporary files.
        architectures: such as `gfx1100`.
        linker: `zig`, `lld`, or `any` for the first that is there.

    Returns:
        Name and version of the linker.

    Raises:
        TargetError: there is no linker.
        CompileError: it refused an object or died.
    """
    tool = find_linker(linker)
    for each in architectures:
        what, output = f"{tool.version} for {each}", code_object_name(each)
        command = [*tool.command, "-shared", "--no-undefined", object_name(each), "-o", output]
        run_compiler(what, command, folder)
        if not (folder / output).is_file():
            raise CompileError(f"{what}: expected a file {output}, got none; build again")
    return tool.version


def finish(folder: Path, variants: Sequence[str], log: Callable[[str], None]) -> Sequence[str]:
    """Make the code objects of the objects in a folder; gives the names of the files to ship."""
    version = link_code_objects(folder, variants)
    record_compiler(folder, version)
    log(f"{version}: {' '.join(variants)}")
    return tuple(code_object_name(each) for each in variants)


def find_linker(wanted: str = "any") -> Linker:
    """The linker to use: that of the wheel before one of the system, of those the newest.

    Raises:
        TargetError: there is none.
    """
    if wanted in ("any", "zig") and find_spec("ziglang"):
        return Linker(f"LLD of ziglang {version('ziglang')}", (sys.executable, "-m", "ziglang", "ld.lld"))
    if wanted in ("any", "lld"):
        found = system_linkers()
        if found:
            return Linker(_version(found[0]), (found[0],))
    raise TargetError(f"rocm linker: expected ld.lld or the package ziglang, got neither; {INSTALL}")


def system_linkers() -> list[str]:
    """Paths of `ld.lld` and `ld.lld-NN` on the PATH, the newest first and the plain name before all."""
    plain = shutil.which("ld.lld")
    numbered: dict[int, str] = {}
    for folder in os.get_exec_path():
        for path in Path(folder).glob("ld.lld-*"):
            number = path.name.removeprefix("ld.lld-")
            if number.isdigit() and os.access(path, os.X_OK):
                numbered.setdefault(int(number), str(path))
    return [*([plain] if plain else []), *(numbered[n] for n in sorted(numbered, reverse=True))]


def _version(path: str) -> str:
    text = run_compiler("ld.lld", [path, "--version"], Path(path).parent)
    found = re.search(r"LLD \d[\w.]*", text)
    return found.group() if found else "LLD of unknown version"
