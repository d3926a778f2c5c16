"""Host memory next to a page that nobody may touch."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c_runtime.errors import DeviceError

PAGE_BYTES = mmap.PAGESIZE
_PROT_NONE = 0


def guarded_bytes(size: int, alignment: int) -> NDArray[np.uint8]:
    """Zeroed bytes that end at a guard page, or before it by less than `alignment`.

    Args:
        size: bytes.
        alignment: of the address, a power of two up to the size of a page.

    Raises:
        DeviceError: the system refuses the guard page.
        MemoryError: no memory.
    """
    room = -(-max(size, 1) // PAGE_BYTES) * PAGE_BYTES
    try:
        mapping = mmap.mmap(-1, room + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no {room} bytes for the emulator") from error
    whole = np.frombuffer(mapping, np.uint8)
    _protect(address_of(whole) + room, PAGE_BYTES, _PROT_NONE)
    start = (room - size) & -alignment
    return np.ndarray(size, np.uint8, mapping, start)


def forbid_writes(array: NDArray[np.uint8]) -> None:
    """Make all pages of an array that `guarded_bytes` made read-only, for kernels and the host alike."""
    start = address_of(array) // PAGE_BYTES * PAGE_BYTES
    end = -(-(address_of(array) + len(array)) // PAGE_BYTES) * PAGE_BYTES
    if len(array):
        _protect(start, end - start, mmap.PROT_READ)


def _protect(address: int, size: int, access: int) -> None:
    if _library().mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), access):
        raise DeviceError("emulator not usable: expected pages to be protected, got a refusal of mprotect")


def address_of(array: NDArray[Any]) -> int:
    """Address of the first byte of an array."""
    return int(array.__array_interface__["data"][0])


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
