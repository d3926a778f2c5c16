"""Errors of the runtime, each with the status that a server answers with and the exit code of a command.

One tree. Statuses are spelled as gRPC spells them, but nothing here imports gRPC; a server may add details
by class, and says the same `code` and `reason`.
"""

from __future__ import annotations

from typing import ClassVar


class RuntimeFailure(Exception):
    """Base of every error that a caller of the runtime can meet.

    Attributes:
        code: name of the gRPC status code.
        reason: stable word for programs, in upper case.
        retry: whether the same call may succeed later without any change by the caller.
        exit_code: what a command line exits with.
        metadata: facts a program needs to react, as text.
    """

    code: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "BACKEND_FAILED"
    retry: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.metadata: dict[str, str] = {key: str(value) for key, value in metadata.items()}


class InvalidRequestError(RuntimeFailure):
    """A value of the request is not allowed; `field` names it."""

    code = "INVALID_ARGUMENT"
    reason = "INVALID_ARGUMENT"
    exit_code = 2

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message, field=field)
        self.field = field


class ContextLengthError(RuntimeFailure):
    """Tokens do not fit into the session; all numbers in tokens."""

    code = "INVALID_ARGUMENT"
    reason = "CONTEXT_LENGTH_EXCEEDED"
    exit_code = 2

    def __init__(self, n_prompt_tokens: int, n_ctx: int) -> None:
        super().__init__(
            f"tokens do not fit: expected at most {n_ctx} in the session, got {n_prompt_tokens}; "
            "rewind the session or send fewer tokens",
            n_prompt_tokens=n_prompt_tokens,
            n_ctx=n_ctx,
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class UnknownSessionError(RuntimeFailure):
    """No session of that id belongs to the caller."""

    code = "NOT_FOUND"
    reason = "SESSION_NOT_FOUND"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session not found: expected an open session, got {session_id!r}; open it first",
            session_id=session_id,
        )
        self.session_id = session_id


class UnknownSnapshotError(RuntimeFailure):
    """The session retains no snapshot of that id."""

    code = "NOT_FOUND"
    reason = "SNAPSHOT_NOT_FOUND"

    def __init__(self, snapshot_id: str) -> None:
        super().__init__(
            f"snapshot not found: expected one that the session retains, got {snapshot_id[:80]!r}; list them",
            snapshot_id=snapshot_id,
        )
        self.snapshot_id = snapshot_id


class NoProgressError(RuntimeFailure):
    """A generation put the same state back twice without a new token, and was ended."""

    code = "INTERNAL"
    reason = "NO_PROGRESS"

    def __init__(self, position: int, snapshot_id: str) -> None:
        base = f"snapshot {snapshot_id}" if snapshot_id else "nothing"
        super().__init__(
            f"generation ended: expected a new token between two restores, got position {position} from "
            f"{base} twice; please report it, with the log",
            position=position,
            snapshot_id=snapshot_id,
        )


class SessionExistsError(RuntimeFailure):
    """The session id chosen by the caller is taken."""

    code = "ALREADY_EXISTS"
    reason = "SESSION_EXISTS"

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session not opened: expected an unused id, got {session_id!r}; choose another id or close it",
            session_id=session_id,
        )
        self.session_id = session_id


class StaleContinuationError(RuntimeFailure):
    """The session has moved since the caller last saw it; `position` and `digest` say where it is."""

    code = "ABORTED"
    reason = "CONTINUATION_STALE"

    def __init__(self, message: str, *, position: int, digest: str) -> None:
        super().__init__(message, position=position, digest=digest)
        self.position = position
        self.digest = digest


class SessionBusyError(RuntimeFailure):
    """Another call is changing the session."""

    code = "ABORTED"
    reason = "SESSION_BUSY"
    retry = True

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} is busy: expected one changing call at a time, got a second; "
            "retry when the first has ended",
            session_id=session_id,
        )


class RewindTooDearError(RuntimeFailure):
    """A rewind would run more tokens than the caller allows; nothing was changed."""

    code = "FAILED_PRECONDITION"
    reason = "REWIND_TOO_DEAR"

    def __init__(self, replay_tokens: int, base_position: int, allowed: int) -> None:
        super().__init__(
            f"rewind refused: expected at most {allowed} replayed tokens, got {replay_tokens} from position "
            f"{base_position}; allow more or rewind less far",
            replay_tokens=replay_tokens,
            base_position=base_position,
        )
        self.replay_tokens = replay_tokens
        self.base_position = base_position


class PositionOutOfRangeError(RuntimeFailure):
    """A position outside `[0, position]` of the session."""

    code = "OUT_OF_RANGE"
    reason = "POSITION_OUT_OF_RANGE"
    exit_code = 2

    def __init__(self, what: str, got: int, position: int, *, field: str = "to_position") -> None:
        super().__init__(
            f"{what} refused: expected a position in [0, {position}], got {got}; read the session again",
            position=position,
            field=field,
        )
        self.field = field


class QueueFullError(RuntimeFailure):
    """Too many generations wait."""

    code = "RESOURCE_EXHAUSTED"
    reason = "QUEUE_FULL"
    retry = True


class SessionLimitError(RuntimeFailure):
    """All session slots are taken."""

    code = "RESOURCE_EXHAUSTED"
    reason = "SESSION_LIMIT"
    retry = True


class MemoryBudgetError(RuntimeFailure):
    """State does not fit into the memory that was granted."""

    code = "RESOURCE_EXHAUSTED"
    reason = "MEMORY_BUDGET"
    retry = True
    exit_code = 6


class DrainingError(RuntimeFailure):
    """The engine is going down and takes no new work."""

    code = "UNAVAILABLE"
    reason = "DRAINING"
    retry = True


class NotInArtifactError(RuntimeFailure):
    """The artifact was built without what the call needs."""

    code = "UNIMPLEMENTED"
    reason = "NOT_IN_ARTIFACT"


class StateInvalidError(RuntimeFailure):
    """The state of a session is not its history any more; prefill or rewind rebuilds it."""

    code = "FAILED_PRECONDITION"
    reason = "STATE_INVALID"


class NoTokenizerError(RuntimeFailure):
    """Text was asked for and the artifact has no tokenizer."""

    code = "FAILED_PRECONDITION"
    reason = "NO_TOKENIZER"


class BackendFailedError(RuntimeFailure):
    """The device or its kernels failed."""


class ArtifactError(RuntimeFailure):
    """The artifact is malformed or a file of it is not the one that was built."""

    code = "DATA_LOSS"
    reason = "INTEGRITY_FAILED"
    exit_code = 4


class StoredFileError(RuntimeFailure):
    """A file of a stored session is damaged or belongs to something else."""

    code = "DATA_LOSS"
    reason = "INTEGRITY_FAILED"
    exit_code = 4


class StoreFailedError(RuntimeFailure):
    """The folder of stored sessions cannot be written; what is in memory is as before."""

    reason = "STORE_FAILED"


class DeviceError(RuntimeFailure):
    """This machine cannot run the artifact."""

    code = "FAILED_PRECONDITION"
    reason = "DEVICE_UNSUITABLE"
    exit_code = 5


class DeviceMemoryError(DeviceError, MemoryError):
    """The device has no room for an allocation."""

    code = "RESOURCE_EXHAUSTED"
    reason = "DEVICE_MEMORY"
    exit_code = 6
