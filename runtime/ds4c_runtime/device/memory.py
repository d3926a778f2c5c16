"""Host memory that kernels can use: aligned allocation and mapped files."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any, cast

import numpy as np

from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.errors import ArtifactError

ALIGNMENT = 64
HUGE_PAGE_BYTES = 2 << 20
COPIED_BYTES = 1 << 30
"""Weights up to this size are copied to huge pages, where a step misses fewer address translations."""


def aligned_zeros(size: int) -> HostBytes:
    """Zeroed bytes at a 64-byte aligned address, also for size 0; pages are taken when first written."""
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    # A slice would do but for size 0, where NumPy gives the address of `raw`: a model without compressed
    # rows has no pages, and its empty arena is passed to the kernels too.
    return np.ndarray(size, np.uint8, raw, -raw.ctypes.data % ALIGNMENT)


def pinned_zeros(size: int) -> tuple[HostBytes, bool]:
    """Zeroed bytes that cannot be paged out, and whether the system granted that.

    They are a mapping of their own, whole pages: locks do not nest, so a page that two buffers share would be
    unlocked for both with the first. The lock ends with the mapping, that is, when the array is freed.
    """
    try:
        lock = ctypes.CDLL(None).mlock
        mapping = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, AttributeError):
        return aligned_zeros(size), False
    pages = np.frombuffer(mapping, np.uint8)
    if lock(ctypes.c_void_p(pages.ctypes.data), ctypes.c_size_t(len(pages))):
        return aligned_zeros(size), False
    return pages[:size], True


def bytes_at(address: int, size: int, release: Callable[[], object]) -> HostBytes:
    """Host memory that somebody else allocated, as an array.

    Args:
        address: of its first byte.
        size: bytes.
        release: called once neither the array nor any view of it is left, on any thread; not at the end of
            the process.
    """
    memory = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(memory, release).atexit = False
    return np.frombuffer(cast(Any, memory), np.uint8)


def load_weights(path: Path) -> HostBytes:
    """A weights file as memory: copied to huge pages if it is small, else mapped.

    Raises:
        ArtifactError: the file cannot be read.
        MemoryError: there is no room for the copy.
    """
    try:
        size = path.stat().st_size
        if not 0 < size <= COPIED_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
            return map_file(path)
        with path.open("rb", buffering=0) as file:
            return _read_whole(file, _huge_pages(size))
    except OSError as error:
        raise ArtifactError(
            f"weights not read: expected a readable file {path}, got {error}; copy the artifact again"
        ) from error


def _read_whole(file: FileIO, arena: HostBytes) -> HostBytes:
    """Fill the arena from the file, which must have that many bytes."""
    done = 0
    while done < arena.size:
        count = file.readinto(arena[done:].data)
        if not count:
            raise ArtifactError(
                f"weights not read: expected {arena.size} bytes in {file.name}, got {done}; "
                "copy the artifact again"
            )
        done += count
    return arena


def _huge_pages(size: int) -> HostBytes:
    """Memory that asks for huge pages; a machine without them gives small ones."""
    try:
        memory = mmap.mmap(-1, size + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no {size} bytes for the weights") from error
    with contextlib.suppress(OSError):  # a kernel built without huge pages refuses the advice
        memory.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    start = -raw.ctypes.data % HUGE_PAGE_BYTES
    return raw[start : start + size]


def map_file(path: Path) -> HostBytes:
    """Map a whole file; page aligned, private, read on demand.

    The mapping is copy-on-write because tensors of read-only memory cannot be passed to kernels;
    nothing writes to it.

    Raises:
        ArtifactError: the file cannot be opened.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                return aligned_zeros(0)
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ArtifactError(f"weights not mapped: expected a readable file {path}, got {error}") from error
    return np.frombuffer(mapping, np.uint8)
