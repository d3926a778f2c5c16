"""The compiling child: `python -m ds4c.lower.compile REQUEST.json`.

It runs apart from the caller since the wheel can end the process.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ds4c.errors import CompileError
from ds4c.ir.kernel import KernelSpec, Program
from ds4c.lower.child import answer, publish
from ds4c.lower.program_json import digest, program_from_json

_EXPORTS = "{ global: __tvm_ffi_*; __TVM*; _TVM*; local: *; };\n"


def _objects(program: Program, request: dict[str, Any], folder: Path) -> list[Path]:
    """Object files of a program: one of each kernel that is called, and one of the host functions.

    Apart, so that a kernel's object can be that of an earlier program: with a cache and without one the files
    are the same, and so is what becomes of them.
    """
    from ds4c.lower.host import host_function

    used = sorted({call.kernel for entry in program.entry_points for call in entry.calls})
    objects = [_kernel_object(program.kernels[symbol], request, folder / f"{symbol}.o") for symbol in used]
    hosts = [host_function(entry, program.kernels) for entry in program.entry_points]
    return [*objects, _compile(hosts, request, folder / "host.o")] if hosts else objects


def _kernel_object(spec: KernelSpec, request: dict[str, Any], path: Path) -> Path:
    """Compile a kernel to an object file at `path`, or take it from the cache of the request."""
    kept: Path | None = None
    if request.get("cache"):
        kept = Path(request["cache"]) / f"{digest(request['sources'], json.dumps(spec.to_json()))}.o"
        if kept.exists():
            shutil.copyfile(kept, path)
            return path
    emit = importlib.import_module(request["emitter"]).emit_kernel
    _compile([emit(spec, request["variant"])], request, path)
    if kept is not None:
        publish(path, kept)
    return path


def _compile(functions: list[Any], request: dict[str, Any], path: Path) -> Path:
    """Compile TIR functions to an object file."""
    from ds4c.lower.codegen import compile_functions

    compile_functions(functions, request["llvm"]).write_to_file(str(path))
    return path


def _link(objects: list[Path], output: Path) -> None:
    """Link to a shared library that exports the entry points only and names no path or time."""
    exports = output.parent / "exports.map"
    exports.write_text(_EXPORTS)
    names = [path.name for path in objects]
    command = ["g++", "-shared", "-s", "-Wl,--build-id=none", f"-Wl,--version-script={exports.name}"]
    command += ["-o", output.name, *names]
    try:
        done = subprocess.run(command, cwd=output.parent, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CompileError("link: expected g++ on the PATH, got none; install a C++ compiler") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CompileError(f"link: expected exit code 0 of g++, got {done.returncode}: {last}")


def run(request: dict[str, Any]) -> None:
    """Compile the program of a request to `request["output"]`.

    With `cache`, a folder that exists, objects of kernels are taken from there and left there; `sources` is a
    digest of all but the kernel that shapes them.
    """
    output = Path(request["output"])
    program = program_from_json(request["program"])
    _link(_objects(program, request, output.parent), output)


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1:], run))
