"""Metal text to pipelines: compiled on the machine that runs it, in safe mathematics.

Every function has a section of the text of its own, so sections are compiled side by side. Where Apple's
command line tools are installed, all of them become one `.metallib` that later loads read from the cache;
elsewhere the system's own cache of compiled text is what makes them faster.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ds4c_runtime.errors import ArtifactError, DeviceError
from ds4c_runtime.launches import Function

TEXT_NAME = "kernels.metal"
LANES = 32
"""Threads of a SIMD group that kernels count on."""
_SECTION = re.compile(r"^// Function: (\w+)\s*$", re.MULTILINE)
_TIMEOUT_SECONDS = 600
_TOOL_FLAGS = ("-fno-fast-math", "-O2")


def split_sections(text: str) -> dict[str, str]:
    """Text of each function by name.

    Raises:
        ArtifactError: a name twice.
    """
    starts = list(_SECTION.finditer(text))
    ends = [*(m.start() for m in starts[1:]), len(text)]
    sections = {m[1]: text[m.start() : end] for m, end in zip(starts, ends, strict=True)}
    if len(sections) != len(starts):
        raise ArtifactError(f"{TEXT_NAME} rejected: expected each function once, got one twice; build again")
    return sections


def make_pipelines(api: Any, device: Any, text: str, functions: Sequence[Function]) -> dict[str, Any]:
    """Pipeline states by name of function.

    Args:
        api: the module `Metal`.
        device: an `MTLDevice`.
        text: of the artifact.
        functions: those of its launches.

    Raises:
        ArtifactError: a function is missing or does not compile.
        DeviceError: the device cannot run blocks of the size that a function needs.
    """
    sections = split_sections(text)
    for function in functions:
        if function.name not in sections:
            raise ArtifactError(
                f"{TEXT_NAME} rejected: expected a section of {function.name!r}, got none; build again"
            )
    whole = _cached_library(api, device, sections)

    def make(function: Function) -> Any:
        library = whole or _compile(api, device, function.name, sections[function.name])
        return _pipeline(device, library, function)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return dict(zip((f.name for f in functions), pool.map(make, functions), strict=True))


def _compile(api: Any, device: Any, name: str, section: str) -> Any:
    options = api.MTLCompileOptions.alloc().init()
    if hasattr(options, "setMathMode_"):
        options.setMathMode_(api.MTLMathModeSafe)
    else:  # before macOS 15
        options.setFastMathEnabled_(False)
    library, error = device.newLibraryWithSource_options_error_(section, options, None)
    if library is None:
        raise ArtifactError(
            f"{TEXT_NAME} rejected: {name}: expected text that Metal compiles, got {one_line(error)}"
        )
    return library


def _pipeline(device: Any, library: Any, function: Function) -> Any:
    found = library.newFunctionWithName_(function.name)
    if found is None:
        raise ArtifactError(
            f"{TEXT_NAME} rejected: expected a kernel {function.name!r} in its section, got none; build again"
        )
    state, error = device.newComputePipelineStateWithFunction_error_(found, None)
    if state is None:
        raise DeviceError(
            f"device metal refused: {function.name}: expected a pipeline, got {one_line(error)}; build for it"
        )
    most, lanes = int(state.maxTotalThreadsPerThreadgroup()), int(state.threadExecutionWidth())
    if most < function.threads or lanes != LANES:
        raise DeviceError(
            f"device metal refused: {function.name}: expected threadgroups of {function.threads} threads in "
            f"groups of {LANES}, got at most {most} in groups of {lanes}; build for this device"
        )
    return state


def one_line(error: Any) -> str:
    """The first line of an `NSError`."""
    text = str(error.localizedDescription()) if error is not None else "no reason"
    return (text.strip().splitlines() or [text])[0]


def cache_folder() -> Path:
    """Where compiled text is kept: `ds4c/metal` in `$XDG_CACHE_HOME` or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "ds4c" / "metal"


def _cached_library(api: Any, device: Any, sections: dict[str, str]) -> Any | None:
    """All functions from the cache, put there first if the tools are installed; `None` without them."""
    compiler = _tool_version()
    if compiler is None:
        return None
    content = "\0".join((compiler, *_TOOL_FLAGS, *(f"{n}\0{t}" for n, t in sorted(sections.items()))))
    path = cache_folder() / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.metallib"
    try:
        if not path.is_file():
            _compile_with_tools(sections, path)
        library, _ = device.newLibraryWithURL_error_(api.NSURL.fileURLWithPath_(str(path)), None)
    except (OSError, subprocess.SubprocessError):  # what the tools refuse, the device may explain
        return None
    return library


def _tool_version() -> str | None:
    tool = shutil.which("xcrun")
    if tool is None:
        return None
    try:
        command = [tool, "-sdk", "macosx", "metal", "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):  # xcrun without the Metal compiler
        return None
    return done.stdout


def _compile_with_tools(sections: dict[str, str], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="compile-", dir=path.parent) as folder:
        sources = [Path(folder) / f"{name}.metal" for name in sections]
        for source, text in zip(sources, sections.values(), strict=True):
            source.write_text(text, encoding="utf-8")
        made = Path(folder) / "made.metallib"
        command = ["xcrun", "-sdk", "macosx", "metal", *_TOOL_FLAGS, *map(str, sources), "-o", str(made)]
        subprocess.run(command, capture_output=True, timeout=_TIMEOUT_SECONDS, check=True)
        made.replace(path)
