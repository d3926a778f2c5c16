"""The speed of plain reading: the time that no engine can beat for weights that come from memory."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
from pathlib import Path

MADV_HUGEPAGE = 14
SOURCE = Path(__file__).with_name("read_stream.c")


class ReadStream:
    """Reads `size` bytes out of a buffer that is too large for the caches, each time further on in it.

    The buffer has huge pages, as the fastest reader would ask for.
    """

    def __init__(self, cache: Path, size: int, total: int) -> None:
        """Compile the reader and fill the buffer.

        Args:
            cache: folder for the compiled reader.
            size: bytes of one reading.
            total: bytes of the buffer, at least `size`; take the size of all weights, so that as much stays
                in the caches between two readings as between two steps.
        """
        cache.mkdir(parents=True, exist_ok=True)
        library = cache / "read_stream.so"
        command = [
            "g++",
            "-x",
            "c",
            "-O3",
            "-march=native",
            "-shared",
            "-fPIC",
            str(SOURCE),
            "-o",
            str(library),
        ]
        subprocess.run(command, check=True)
        self._read = ctypes.CDLL(str(library)).read_stream
        self._read.argtypes, self._read.restype = [ctypes.c_void_p, ctypes.c_uint64], ctypes.c_uint64
        self.size = size // 256 * 256
        self._total = max(total, self.size)
        self._map = mmap.mmap(-1, self._total + (2 << 20))
        self._map.madvise(MADV_HUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._start = (start + (2 << 20) - 1) // (2 << 20) * (2 << 20)
        ctypes.memset(self._start, 1, self._total)
        self._at = 0

    def __call__(self) -> None:
        """Read once."""
        if self._at + self.size > self._total:
            self._at = 0
        self._read(self._start + self._at, self.size)
        self._at += self.size // 64 * 64
