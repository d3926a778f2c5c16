"""Functions of a kernel text as the scheduler takes them."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ds4c_runtime.device.emulator.calls import core, kernel_address
from ds4c_runtime.device.emulator.compiler import CompileError, compile_sources
from ds4c_runtime.device.emulator.mode import Mode
from ds4c_runtime.device.emulator.sources import FILES, Kind, Section, make_source, split_text
from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.launches import Function


@dataclass(frozen=True)
class Kernels:
    """Compiled functions.

    Attributes:
        functions: what launches say of them, by name.
        addresses: of their `Kernel` structures, by name.
        lines: of the whole text on which each begins, by name.
        libraries: what keeps the addresses alive.
    """

    functions: Mapping[str, Function]
    addresses: Mapping[str, int]
    lines: Mapping[str, int]
    libraries: tuple[ctypes.CDLL, ...]


def compile_kernels(
    text: str, kind: Kind, functions: Sequence[Function], mode: Mode, *, quick: bool = False
) -> Kernels:
    """Compile the functions in child processes, or take them from the cache; `quick` as for `compile_text`.

    Raises:
        ArtifactError: a function is missing in the text or does not compile; one line.
        DeviceError: no compiler.
    """
    common, sections = split_text(text, kind)
    for function in functions:
        if function.name not in sections:
            raise ArtifactError(
                f"{FILES[kind]} rejected: expected a function {function.name}, got none of that name; "
                "build again"
            )
    checked = mode.name == "checked"
    sources = [make_source(common, sections[f.name], f, kind, checked=checked) for f in functions]
    try:
        paths = compile_sources(sources, checked=checked, quick=quick)
    except CompileError as error:
        reason = _place_in_text(str(error), kind, sections)
        raise ArtifactError(f"kernel text does not compile: {reason}") from error
    libraries = tuple(core().load(path) for path in paths)
    return Kernels(
        {f.name: f for f in functions},
        {f.name: kernel_address(library, f.name) for f, library in zip(functions, libraries, strict=True)},
        {f.name: sections[f.name].line for f in functions},
        libraries,
    )


def _place_in_text(reason: str, kind: Kind, sections: Mapping[str, Section]) -> str:
    """A reason of the compiler with the line of the whole text instead of that of a function."""
    match = re.match(r"(\w+) line (\d+): (.*)", reason)
    if match is None or match[1] not in sections:
        return reason
    return f"{FILES[kind]} line {sections[match[1]].line + int(match[2]) - 1}, {match[1]}: {match[3]}"
