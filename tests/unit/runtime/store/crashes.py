"""Failures of the system at every call that writes: an error once, or the end of the process."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

CALLS = ("open", "write", "fsync", "rename", "ftruncate", "unlink", "link")


class Crash(BaseException):
    """The process is dead: nothing it would still do reaches the disk."""


@contextmanager
def failing(at: int, *, crash: bool = False, half: bool = True) -> Iterator[list[str]]:
    """Let the call number `at` (from 0) of those of `os` that write fail; gives the calls made so far.

    Args:
        at: number of the call.
        crash: it and all later ones raise `Crash`; otherwise it alone raises that the disk is full.
        half: a write that fails has written half of its bytes.
    """
    made: list[str] = []
    real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in CALLS}

    def wrap(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name == "open" and not arguments[1] & (os.O_WRONLY | os.O_RDWR):
                return real[name](*arguments, **options)
            number = len(made)
            made.append(name)
            if number == at and name == "write" and half:
                real["write"](arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            if number == at and not crash:
                raise OSError(errno.ENOSPC, "No space left on device")
            if number >= at and crash:
                raise Crash
            return real[name](*arguments, **options)

        return call

    try:
        for name in CALLS:
            setattr(os, name, wrap(name))
        yield made
    finally:
        for name, call in real.items():
            setattr(os, name, call)


def number_of_calls(body: Callable[[], object]) -> int:
    """How many calls that write `body` makes."""
    with failing(1 << 30) as made:
        body()
    return len(made)
