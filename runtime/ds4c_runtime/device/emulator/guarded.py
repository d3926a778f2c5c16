"""Host memory next to a page that nobody may touch."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ds4c_runtime.errors import DeviceError

PAGE_BYTES = max(mmap.PAGESIZE, 4096)


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
    if _library().mprotect(ctypes.c_void_p(address_of(whole) + room), ctypes.c_size_t(PAGE_BYTES), 0):
        raise DeviceError("emulator not usable: expected a guard page, got a refusal of mprotect")
    start = (room - size) & -alignment
    return np.ndarray(size, np.uint8, mapping, start)


def address_of(array: NDArray[Any]) -> int:
    """Address of the first byte of an array."""
    return int(array.__array_interface__["data"][0])


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
