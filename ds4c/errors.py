"""Error tree of the compiler: one class per exit code of the command line.

Every message is one line of the form `what failed: expected X, got Y; what to do`.
Errors of the runtime and of the server have trees of their own.
"""

from typing import ClassVar


class Ds4cError(Exception):
    """Base of every error a caller of `ds4c` can meet.

    `exit_code` is what the command line exits with.
    """

    exit_code: ClassVar[int] = 1


class CompileError(Ds4cError):
    """A kernel or a pass failed on valid input; this is a defect of ds4c or of its tool chain."""

    exit_code: ClassVar[int] = 1


class UsageError(Ds4cError):
    """The call itself is wrong: an unknown option value, a missing file, a folder in the way."""

    exit_code: ClassVar[int] = 2


class CheckFailedError(Ds4cError):
    """A requested comparison or verification ended with a difference."""

    exit_code: ClassVar[int] = 3


class MalformedInputError(Ds4cError):
    """A checkpoint, configuration, artifact or other input file is damaged or not what it says."""

    exit_code: ClassVar[int] = 4


class TargetError(Ds4cError):
    """The target is unknown, unavailable here, or lacks a feature the artifact needs."""

    exit_code: ClassVar[int] = 5


class MemoryBudgetError(Ds4cError):
    """The model or its sessions do not fit the memory that was granted."""

    exit_code: ClassVar[int] = 6
