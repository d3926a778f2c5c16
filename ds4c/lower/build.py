"""The parent side of a compilation to a library: asks a child for it, keeps and publishes the result."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ds4c.ir.kernel import Program
from ds4c.lower.child import publish, run_child
from ds4c.lower.program_json import digest, program_to_json

_MODE = 0o755
"""Rights of a library."""


@dataclass(frozen=True)
class Toolchain:
    """How a target compiles.

    Attributes:
        emitter: module with `emit_kernel(spec, variant)`, imported in the child only.
        variant: variant name, passed to the emitter.
        llvm: TVM target description of the variant.
        sources: folders whose Python files shape the code; they are part of the cache key.
    """

    emitter: str
    variant: str
    llvm: dict[str, Any]
    sources: tuple[str, ...] = ()


def build_library(
    program: Program,
    toolchain: Toolchain,
    path: str,
    log: Callable[[str], None] | None = None,
    cache: str = "",
) -> None:
    """Compile a program to a shared library at `path`, in a child process.

    The library appears under its name only when it is complete. The same program gives the same bytes.

    Args:
        program: kernels and entry points.
        toolchain: emitter and target of the kernels.
        path: library to write.
        log: receives a line for each stage.
        cache: folder of libraries and of objects of kernels by digest; empty for none. Does not change the
            result.

    Raises:
        CompileError: the child failed or died.
        TargetError: the target has no kernel for a spec.
    """
    say = log or _silent
    text = program_to_json(program)
    kept = Path(cache) / f"{_key(text, toolchain)}.so" if cache else None
    if kept is not None and kept.exists():
        say(f"library from cache {kept.name[:12]}")
        publish(kept, Path(path), _MODE)
        return
    say(f"compiling {len(program.kernels)} kernels for {toolchain.variant}")
    with tempfile.TemporaryDirectory(prefix="ds4c-compile-", ignore_cleanup_errors=True) as folder:
        output = Path(folder) / "library.so"
        request = {
            "program": text,
            "emitter": toolchain.emitter,
            "variant": toolchain.variant,
            "llvm": toolchain.llvm,
            "output": str(output),
        }
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            request |= {"cache": str(kept.parent.absolute()), "sources": _key("", toolchain)}
        run_child("ds4c.lower.compile", request, [output])
        if kept is not None:
            publish(output, kept, _MODE)
        publish(output, Path(path), _MODE)
    say(f"library of {Path(path).stat().st_size} bytes")


def _silent(line: str) -> None:
    """The log of a caller that wants none."""


def _key(text: str, toolchain: Toolchain) -> str:
    sources = [
        file.read_text()
        for folder in (str(Path(__file__).parent), *toolchain.sources)
        for file in sorted(Path(folder).rglob("*.py"))
    ]
    names = (
        toolchain.emitter,
        toolchain.variant,
        json.dumps(toolchain.llvm, sort_keys=True),
        version("apache-tvm"),
    )
    return digest(text, *names, *sources)
