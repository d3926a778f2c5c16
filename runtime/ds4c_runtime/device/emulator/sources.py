"""Kernel text as C++: the text as it ships, with a few lines before and after each function.

What changes in the text itself are declarations of static shared arrays: they become pointers into one
structure per function, whose bytes the emulator poisons for every block and whose arrays the checked mode
knows by name. Line numbers stay those of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.launches import Function

Kind = Literal["cuda", "metal"]
FILES: dict[Kind, str] = {"cuda": "kernels.cu", "metal": "kernels.metal"}
_HEADERS: dict[Kind, str] = {"cuda": "cuda_names.h", "metal": "metal_names.h"}
_C_TYPES = {
    "float32": "float",
    "float16": "half",
    "uint8": "uchar",
    "int8": "signed char",
    "uint16": "ushort",
    "int32": "int",
    "uint32": "uint",
    "int64": "int64_t",
}
_ALIGNED = r"(?:(?:alignas|__align__)\(\d+\) )?"
_SHARED: dict[Kind, re.Pattern[str]] = {
    "cuda": re.compile(rf"__shared__ {_ALIGNED}((?:\w+ )+)(\w+)\[(\d+)\];"),
    "metal": re.compile(rf"threadgroup {_ALIGNED}((?:\w+ )+)(\w+)\[(\d+)\];"),
}
_LEFT_OVER: dict[Kind, re.Pattern[str]] = {
    "cuda": re.compile(r"__shared__"),
    "metal": re.compile(r"\bthreadgroup\b(?! (?:\w+ )*\w*\s*\*)"),
}
_CUDA_HEAD = re.compile(r'^extern "C" __global__[^;{]*?\b(\w+)\(([^)]*)\)\s*([;{])', re.MULTILINE)
_METAL_HEAD = re.compile(r"^kernel void (\w+)\s*\((.*?)\)\s*\{", re.MULTILINE | re.DOTALL)
_METAL_SECTION = re.compile(r"^// Function: (\w+)\s*$", re.MULTILINE)
_POSITIONS = {
    "threadgroup_position_in_grid": "block_index",
    "thread_position_in_threadgroup": "thread_index",
    "threads_per_threadgroup": "block_size",
    "threadgroups_per_grid": "grid_size",
}
_GAP_BYTES = 64
"""Bytes between shared arrays in the checked mode, so that the end of one is not the start of the next."""


@dataclass(frozen=True)
class Section:
    """The text of one function.

    Attributes:
        name: of the function.
        line: number of its first line in the whole text, from 1.
        text: from there to the next function.
    """

    name: str
    line: int
    text: str


def split_text(text: str, kind: Kind) -> tuple[str, dict[str, Section]]:
    """What stands before all functions, and the functions by name.

    Metal has nothing in common: every section is compiled on its own.

    Raises:
        ArtifactError: a name twice.
    """
    if kind == "metal":
        starts = [(m.start(), m[1]) for m in _METAL_SECTION.finditer(text)]
    else:
        starts = [(m.start(), m[1]) for m in _CUDA_HEAD.finditer(text) if m[3] == "{"]
    sections: dict[str, Section] = {}
    for (start, name), end in zip(starts, [*(s for s, _ in starts[1:]), len(text)], strict=True):
        if name in sections:
            raise ArtifactError(f"{FILES[kind]} rejected: expected function {name} once, got it twice")
        sections[name] = Section(name, text.count("\n", 0, start) + 1, text[start:end])
    common = "" if kind == "metal" else text[: starts[0][0]] if starts else text
    return common, sections


def make_source(common: str, section: Section, function: Function, kind: Kind, *, checked: bool) -> str:
    """C++ of one function, which exports a `ds4_kernel_NAME`; sources of one text may be compiled together.

    Lines of the function are counted from its own first one, so that a change above it does not change this
    source: `Section.line` leads back to the whole text.

    Args:
        common: text before all functions.
        section: text of the function.
        function: what the launches say of it.
        kind: language of the text.
        checked: whether it is for the checked mode.

    Raises:
        ArtifactError: a declaration or a list of parameters that is not understood.
    """
    name = section.name
    arrays = _SHARED[kind].findall(section.text)
    body = _SHARED[kind].sub(rf"\1* const \2 = ((shared_{name}*)ds4::shared_memory())->\2;", section.text)
    if left := _LEFT_OVER[kind].search(body):
        at = body.count("\n", 0, left.start())
        raise ArtifactError(
            f"{FILES[kind]} rejected: line {section.line + at}, {name}: expected shared arrays of one "
            f"constant extent, got {body.splitlines()[at].strip()!r}"
        )
    arguments = ", ".join(_arguments(section, function, kind))
    # A namespace each: what every section of Metal defines again, several of one translation unit may.
    return (
        f'#include "{_HEADERS[kind]}"\nnamespace ds4_{name} {{\n#line 1 "{FILES[kind]}"\n{common}\n'
        f'{_shared_struct(name, arrays, checked=checked)}#line 1 "{name}"\n{body}\n'
        f"DS4_UNCHECKED static void body_{name}(void** args) {{ {name}({arguments}); }}\n"
        f'extern "C" __attribute__((visibility("default"))) ds4::Kernel ds4_kernel_{name} = '
        f'{{"{name}", body_{name}, {_table(name, arrays)}}};\n}}\n'
    )


def _shared_struct(name: str, arrays: Sequence[tuple[str, str, str]], *, checked: bool) -> str:
    if not arrays:
        return ""
    gap = f" char gap_%s[{_GAP_BYTES}];" if checked else ""
    members = "".join(
        f"  __attribute__((aligned(64))) {type_}{array}[{extent}];{gap % array if gap else ''}\n"
        for type_, array, extent in arrays
    )
    shared = f"shared_{name}"
    rows = "".join(
        f'  {{"{a}", __builtin_offsetof({shared}, {a}), sizeof({shared}::{a}), sizeof({shared}::{a}[0])}},\n'
        for _, a, _ in arrays
    )
    return (
        f"struct {shared} {{\n{members}}};\nstatic const ds4::SharedArray arrays_{name}[] = {{\n{rows}}};\n"
    )


def _table(name: str, arrays: Sequence[tuple[str, str, str]]) -> str:
    return f"sizeof(shared_{name}), {len(arrays)}, arrays_{name}" if arrays else "0, 0, nullptr"


def _arguments(section: Section, function: Function, kind: Kind) -> list[str]:
    """Expressions for the parameters; a pointer of another type than the launches say does not compile."""
    pointers = [f"({_C_TYPES[p.dtype]}*)args[{i}]" for i, p in enumerate(function.params)]
    if kind == "cuda":
        return pointers
    head = _METAL_HEAD.search(section.text)
    if head is None or head[1] != section.name:
        raise ArtifactError(
            f"{FILES[kind]} rejected: line {section.line}: expected a kernel {section.name} in its section, "
            "got none"
        )
    given = iter(pointers)
    values: list[str] = []
    for parameter in head[2].split(","):
        builtin = next((p for p in _POSITIONS if f"[[{p}]]" in parameter.replace(" ", "")), None)
        if builtin is not None:
            values.append(_position(parameter, f"ds4::{_POSITIONS[builtin]}()"))
        elif (pointer := next(given, None)) is not None:
            values.append(pointer)
    return [*values, *given]


def _position(parameter: str, index: str) -> str:
    if re.search(r"\buint3\b", parameter):
        return f"uint3({index}.x, {index}.y, {index}.z)"
    if re.search(r"\buint2\b", parameter):
        return f"uint2({index}.x, {index}.y)"
    return f"{index}.x"
