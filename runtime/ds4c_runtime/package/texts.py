"""Heads of the functions of CUDA text: names, parameters, launch bounds."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ds4c_runtime.errors import ArtifactError

_HEAD = re.compile(
    r'\bextern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\s*\(([^)]*)\)\s*)?(\w+)\s*\(([^)]*)\)\s*\{'
)
_TYPES = {
    "float": "float32",
    "half": "float16",
    "unsigned char": "uint8",
    "uchar": "uint8",
    "uint8_t": "uint8",
    "signed char": "int8",
    "char": "int8",
    "int8_t": "int8",
    "unsigned short": "uint16",
    "ushort": "uint16",
    "uint16_t": "uint16",
    "int": "int32",
    "uint": "uint32",
    "unsigned int": "uint32",
    "uint32_t": "uint32",
    "int64_t": "int64",
    "long": "int64",
}


@dataclass(frozen=True)
class Head:
    """A function of a text: name, element types of its pointers (`?` for another type), launch bound."""

    name: str
    dtypes: tuple[str, ...]
    threads: int | None


def cuda_heads(file: str, text: str) -> tuple[Head, ...]:
    """Heads of the kernels that a CUDA text defines, in order.

    Raises:
        ArtifactError: it defines one twice.
    """
    found: dict[str, Head] = {}
    for bound, name, params in _HEAD.findall(without_comments(text)):
        if name in found:
            raise ArtifactError(
                f"{file} rejected: expected each function once, got {name} again; copy the artifact again"
            )
        threads = int(bound) if bound.strip().isdigit() else None
        found[name] = Head(name, tuple(_dtype(p) for p in params.split(",") if p.strip()), threads)
    return tuple(found.values())


def without_comments(text: str) -> str:
    """The text with a blank for every comment."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)


def element_type(name: str) -> str:
    """Our name of a scalar type of CUDA or Metal; `?` for any other."""
    return _TYPES.get(" ".join(name.split()), "?")


def _dtype(param: str) -> str:
    """Element type of a pointer parameter; `?` if it is none of ours."""
    found = re.fullmatch(r"\s*(?:const\s+)?([\w ]+?)\s*(?:const\s*)?\*\s*(?:__restrict__\s*)?\w+\s*", param)
    return element_type(found.group(1)) if found else "?"
