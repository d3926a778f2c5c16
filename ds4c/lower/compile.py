"""The compiling child: `python -m ds4c.lower.compile REQUEST.json`.

It runs apart from the caller since the wheel can end the process.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from ds4c.errors import CompileError
from ds4c.ir.kernel import Program
from ds4c.lower.child import answer
from ds4c.lower.program_json import program_from_json

_EXPORTS = "{ global: __tvm_ffi_*; __TVM*; _TVM*; local: *; };\n"


def _objects(program: Program, emitter: str, variant: str, llvm: dict[str, Any], folder: Path) -> list[Path]:
    """Compile kernels and host functions to two object files."""
    from ds4c.lower.codegen import compile_functions
    from ds4c.lower.host import host_function

    emit = importlib.import_module(emitter).emit_kernel
    used = sorted({call.kernel for entry in program.entry_points for call in entry.calls})
    hosts = [host_function(entry, program.kernels) for entry in program.entry_points]
    parts = {"kernels": [emit(program.kernels[symbol], variant) for symbol in used], "host": hosts}
    found: list[Path] = []
    for part, functions in parts.items():
        if not functions:
            continue
        path = folder / f"{part}.o"
        compile_functions(functions, llvm).write_to_file(str(path))
        found.append(path)
    return found


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
    """Compile the program of a request to `request["output"]`."""
    output = Path(request["output"])
    program = program_from_json(request["program"])
    objects = _objects(program, request["emitter"], request["variant"], request["llvm"], output.parent)
    _link(objects, output)


if __name__ == "__main__":
    sys.exit(answer(sys.argv[1:], run))
