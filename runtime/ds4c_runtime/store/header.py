"""The start of every stored file: magic, version, and a JSON header with its own sha256.

Magic (8 bytes), version and bytes of the header (little-endian u32), sha256 of these and the header (32
bytes), the header as JSON.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np

from ds4c_runtime import strict
from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.store import files

T = TypeVar("T")
PREFIX_BYTES = 8 + 8 + 32


@dataclass(frozen=True)
class FileKind:
    """What the first bytes of a file say it is; `max_header` bytes bound what is read before any check."""

    name: str
    magic: bytes
    version: int
    max_header: int


def render(kind: FileKind, header: object, room: int = 0) -> tuple[bytes, bytes]:
    """The start of a file, at least `room` bytes of it, and the digest in it.

    Args:
        kind: what file it is.
        header: a dataclass.
        room: padded with spaces up to this size.
    """
    text = json.dumps(dataclasses.asdict(cast(Any, header)), sort_keys=True).encode()
    text = text.ljust(room - PREFIX_BYTES)
    start = kind.magic + np.array([kind.version, len(text)], "<u4").tobytes()
    digest = hashlib.sha256(start + text).digest()
    return start + digest + text, digest


def read(file: BinaryIO, size: int, path: Path, kind: FileKind, schema: type[T]) -> tuple[T, bytes]:
    """Read the start of a file of `size` bytes; leaves the file behind the header.

    Returns:
        The header and the digest of it.

    Raises:
        StoredFileError: another file, a header that was changed or that says what it may not.
    """
    if size < PREFIX_BYTES:
        raise files.rejected(path, f"{kind.name} of at least {PREFIX_BYTES} bytes", size)
    prefix = files.read_exactly(file, PREFIX_BYTES, path)
    version, length = (int(n) for n in np.frombuffer(prefix, "<u4", 2, 8))
    if (prefix[:8], version) != (kind.magic, kind.version):
        raise files.rejected(path, f"{kind.name} of version {kind.version}", prefix[:12].hex())
    if length > min(kind.max_header, size - PREFIX_BYTES):
        raise files.rejected(path, "a header inside the file", f"one of {length} bytes")
    text = files.read_exactly(file, length, path)
    digest = prefix[16:]
    if hashlib.sha256(prefix[:16] + text).digest() != digest:
        raise files.rejected(path, "a header of its sha256", "another")
    try:
        return strict.parse(schema, json.loads(text), path.name), digest
    except (ArtifactError, ValueError, RecursionError) as error:
        raise files.rejected(path, "a header of this version", str(error).split(";")[0]) from error
