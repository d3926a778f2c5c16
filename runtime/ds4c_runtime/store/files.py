"""How files of stored sessions are written, opened and set aside: whole or not at all, never through a link.

A write is a temporary file, fsync, rename, fsync of the folder. Files hold prompts: only their owner may read
them. Knows nothing of what is in them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ds4c_runtime.errors import StoredFileError, StoreFailedError

TEMPORARY_SUFFIX = ".tmp"
BAD_SUFFIX = ".bad"
FILE_MODE = 0o600
FOLDER_MODE = 0o700
Part = bytes | bytearray | memoryview


@contextmanager
def store_errors(what: str, path: Path) -> Generator[None]:
    """Turn an error of the system into `StoreFailedError`, which names the file and the reason."""
    try:
        yield
    except OSError as error:
        raise StoreFailedError(
            f"{what} failed: expected to write {path}, got {error.strerror or error}; free space "
            "or mend the folder"
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder that only this user reads, with its parents.

    Raises:
        StoreFailedError: it cannot be made, or the name is taken by something else.
    """
    with store_errors("session folder", folder):
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)


def write_whole(path: Path, parts: Iterable[Part]) -> int:
    """Replace a file by the parts, one after the other; after a failure or a crash it is the old or the new.

    Returns:
        Bytes written.

    Raises:
        StoreFailedError: the disk is full or refuses; the old file is as before.
    """
    with store_errors("write", path):
        temporary = write_temporary(path, parts)
        size = temporary.stat().st_size
        publish(temporary, path)
        return size


def write_temporary(path: Path, parts: Iterable[Part]) -> Path:
    """Write and sync the parts under a temporary name beside `path`; `OSError` leaves nothing."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        for part in parts:
            write_all(handle, part)
        os.fsync(handle)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(handle)
    return temporary


def publish(temporary: Path, path: Path) -> None:
    """Give a temporary file its name, durably; `OSError` leaves the old file or the new one."""
    try:
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def write_all(handle: int, part: Part) -> None:
    """Write all bytes of a part."""
    left = memoryview(part).cast("B")
    while left:
        left = left[os.write(handle, left) :]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def opened(path: Path) -> Generator[tuple[BinaryIO, int]]:
    """Open a regular file for reading; gives it and its size in bytes.

    Raises:
        StoredFileError: no file, a link, a folder or a device.
        StoreFailedError: the system cannot read it, which says nothing about the file.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags)  # without O_NONBLOCK a FIFO would wait for a writer
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            raise rejected(path, "a regular file", error.strerror) from error
        raise _unreadable(path, error) from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise rejected(path, "a regular file", "something else")
        with os.fdopen(handle, "rb", closefd=False) as file:
            yield file, status.st_size
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(handle)


def _unreadable(path: Path, error: OSError) -> StoreFailedError:
    return StoreFailedError(
        f"read failed: expected a readable file {path}, got {error.strerror or error}; mend the disk"
    )


def read_exactly(file: BinaryIO, count: int, path: Path) -> bytes:
    """Read `count` bytes, a number that was compared with the size of the file before.

    Raises:
        StoredFileError: the file became shorter meanwhile.
    """
    content = file.read(count)
    if len(content) != count:
        raise rejected(path, f"{count} bytes more", len(content))
    return content


def rejected(path: Path, expected: object, got: object) -> StoredFileError:
    """The error of a file that is not what it should be."""
    return StoredFileError(f"{path.name} rejected: expected {expected}, got {got}")


def set_aside(path: Path) -> Path:
    """Rename a bad file so that it is never read again; it stays for whoever wants to look.

    Returns:
        Its new path, `NAME.bad` or `NAME.2.bad` and so on.

    Raises:
        StoreFailedError: it cannot be renamed.
    """
    with store_errors("quarantine", path):
        target = free_bad_name(path)
        os.rename(path, target)
        sync_folder(path.parent)
        return target


def copy_aside(path: Path) -> Path:
    """Give a bad file a second name, as `set_aside` would; `OSError` leaves it as it is."""
    target = free_bad_name(path)
    try:
        os.link(path, target)
    except OSError:  # a file system without links
        shutil.copyfile(path, target, follow_symlinks=False)
    return target


def free_bad_name(path: Path) -> Path:
    """First unused name for a bad file."""
    number = 1
    while True:
        target = path.with_name(path.name + (f".{number}" if number > 1 else "") + BAD_SUFFIX)
        if not os.path.lexists(target):
            return target
        number += 1


def remove(path: Path) -> None:
    """Delete a file, durably; nothing if there is none.

    Raises:
        StoreFailedError: it cannot be deleted.
    """
    with store_errors("removal", path):
        if os.path.lexists(path):
            os.unlink(path)
            sync_folder(path.parent)
