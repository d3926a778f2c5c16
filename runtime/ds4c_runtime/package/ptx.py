"""Entry points of PTX text, by their heads alone; nothing is compiled."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ds4c_runtime.errors import ArtifactError

_ENTRY = re.compile(
    r"^[ \t]*(?:\.visible|\.weak)?[ \t]*\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?([^{;]*)", re.MULTILINE
)
_PARAM = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]\d+)(?=[\s.])")
_TARGET = re.compile(r"^[ \t]*\.target\s+(\w+)", re.MULTILINE)
_MAX_THREADS = re.compile(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")


@dataclass(frozen=True)
class PtxEntry:
    """An entry point: name, types of its parameters (`u64`, ...) and its most threads, if it says so."""

    name: str
    params: tuple[str, ...]
    threads: int | None


@dataclass(frozen=True)
class Ptx:
    """PTX that was read: the architecture it is for (`sm_90`) and its entry points, in order of name."""

    architecture: str
    entries: tuple[PtxEntry, ...]


def read_ptx(file: str, text: str) -> Ptx:
    """Read PTX text.

    Raises:
        ArtifactError: the text names no target, or an entry point twice.
    """
    plain = re.sub(r"/\*.*?\*/", " ", re.sub(r"//[^\n]*", "", text), flags=re.DOTALL)
    target = _TARGET.search(plain)
    if target is None:
        raise ArtifactError(
            f"{file} rejected: expected PTX with a .target, got none; copy the artifact again"
        )
    entries: dict[str, PtxEntry] = {}
    for name, params, rest in _ENTRY.findall(plain):
        if name in entries:
            raise ArtifactError(
                f"{file} rejected: expected each entry point once, got {name} again; copy the artifact again"
            )
        most = _MAX_THREADS.search(rest)
        entries[name] = PtxEntry(name, tuple(_PARAM.findall(params)), _threads(most))
    return Ptx(target.group(1), tuple(entries[name] for name in sorted(entries)))


def _threads(found: re.Match[str] | None) -> int | None:
    if found is None:
        return None
    x, y, z = (int(n) if n else 1 for n in found.groups())
    return x * y * z
