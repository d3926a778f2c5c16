"""The one table from errors to what a client sees: status code, reason and machine-readable details.

Handlers raise; `rpc.py` translates with `status_of`. Nothing else in the server makes a status. Meaning of
the codes: UNAVAILABLE, retry the same call; ABORTED, read the session and redo the step; FAILED_PRECONDITION,
do not retry before something is changed. Clients decide by `ErrorInfo.reason`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf import duration_pb2
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from ds4c_runtime import errors as runtime

DOMAIN = "ds4c.dev"
MAX_MESSAGE = 1000
MAX_VALUE = 200
"""Characters of a status. It travels in the trailing headers, of which a client takes 8 KiB by default, and
it may quote what the client sent."""


class LoadingError(runtime.RuntimeFailure):
    """The artifact is still being loaded."""

    code = "UNAVAILABLE"
    reason = "LOADING"
    retry = True


class UnauthenticatedError(runtime.RuntimeFailure):
    """The call carries no token or a wrong one."""

    code = "UNAUTHENTICATED"
    reason = "UNAUTHENTICATED"


@dataclass(frozen=True)
class Rule:
    """How one class of error is told to a client.

    Attributes:
        code: Name of the status code.
        reason: `ErrorInfo.reason`.
        retry_ms: If given, `RetryInfo.retry_delay` in milliseconds.
        quota: If given, the subject of a `QuotaFailure` violation.
        names_field: The error has a `field`: it becomes a `BadRequest` field violation.
    """

    code: str
    reason: str
    retry_ms: int | None = None
    quota: str | None = None
    names_field: bool = False


RULES: Mapping[type[runtime.RuntimeFailure], Rule] = {
    runtime.InvalidRequestError: Rule("INVALID_ARGUMENT", "INVALID_ARGUMENT", names_field=True),
    runtime.ContextLengthError: Rule("INVALID_ARGUMENT", "CONTEXT_LENGTH_EXCEEDED"),
    runtime.UnknownSessionError: Rule("NOT_FOUND", "SESSION_NOT_FOUND"),
    runtime.UnknownSnapshotError: Rule("NOT_FOUND", "SNAPSHOT_NOT_FOUND"),
    runtime.SessionExistsError: Rule("ALREADY_EXISTS", "SESSION_EXISTS"),
    runtime.StaleContinuationError: Rule("ABORTED", "CONTINUATION_STALE"),
    runtime.SessionBusyError: Rule("ABORTED", "SESSION_BUSY", retry_ms=200),
    runtime.RewindTooDearError: Rule("FAILED_PRECONDITION", "REWIND_TOO_DEAR"),
    runtime.PositionOutOfRangeError: Rule("OUT_OF_RANGE", "POSITION_OUT_OF_RANGE", names_field=True),
    runtime.QueueFullError: Rule("RESOURCE_EXHAUSTED", "QUEUE_FULL", retry_ms=1000, quota="queue"),
    runtime.SessionLimitError: Rule("RESOURCE_EXHAUSTED", "SESSION_LIMIT", retry_ms=5000, quota="sessions"),
    runtime.MemoryBudgetError: Rule("RESOURCE_EXHAUSTED", "MEMORY_BUDGET", retry_ms=5000, quota="memory"),
    runtime.DrainingError: Rule("UNAVAILABLE", "DRAINING", retry_ms=2000),
    LoadingError: Rule("UNAVAILABLE", "LOADING", retry_ms=2000),
    runtime.NotInArtifactError: Rule("UNIMPLEMENTED", "NOT_IN_ARTIFACT"),
    runtime.StateInvalidError: Rule("FAILED_PRECONDITION", "STATE_INVALID"),
    runtime.NoTokenizerError: Rule("FAILED_PRECONDITION", "NO_TOKENIZER"),
    runtime.BackendFailedError: Rule("INTERNAL", "BACKEND_FAILED"),
    runtime.NoProgressError: Rule("INTERNAL", "NO_PROGRESS"),
    runtime.ArtifactError: Rule("DATA_LOSS", "INTEGRITY_FAILED"),
    runtime.StoredFileError: Rule("DATA_LOSS", "INTEGRITY_FAILED"),
    runtime.StoreFailedError: Rule("INTERNAL", "STORE_FAILED"),
    runtime.DeviceError: Rule("FAILED_PRECONDITION", "DEVICE_UNSUITABLE"),
    runtime.DeviceMemoryError: Rule("RESOURCE_EXHAUSTED", "DEVICE_MEMORY"),
    runtime.RuntimeFailure: Rule("INTERNAL", "BACKEND_FAILED"),
    UnauthenticatedError: Rule("UNAUTHENTICATED", "UNAUTHENTICATED"),
}

_DEFECT = Rule("INTERNAL", "INTERNAL")


def rule_for(error: BaseException) -> Rule:
    """Find the rule of the error's class or its nearest base; outside the tree it is a defect of ours."""
    for base in type(error).__mro__:
        if base in RULES:
            return RULES[base]
    return _DEFECT


def is_expected(error: BaseException) -> bool:
    """Tell whether the error has a rule; the others are logged with their traceback."""
    return rule_for(error) is not _DEFECT


def status_of(error: BaseException) -> status_pb2.Status:
    """Translate an error into a rich status.

    The text of an unexpected error stays in the log: it may quote a prompt.
    """
    rule = rule_for(error)
    message = cut(str(error), MAX_MESSAGE) if rule is not _DEFECT else "internal error; see the server's log"
    given = error.metadata if isinstance(error, runtime.RuntimeFailure) else {}
    metadata = {key: cut(value, MAX_VALUE) for key, value in given.items()}
    status = status_pb2.Status(code=code_pb2.Code.Value(rule.code), message=message)
    for detail in _details(rule, message, getattr(error, "field", ""), metadata):
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def cut(text: str, most: int) -> str:
    """The text, or its begin and end with a mark between them if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    part = most // 2 - 3
    return f"{text[:part]} ... {text[-part:]}"


def _details(rule: Rule, message: str, field: str, metadata: Mapping[str, str]) -> list[Message]:
    """The detail messages of a rule; an `ErrorInfo` always comes first."""
    info = error_details_pb2.ErrorInfo(reason=rule.reason, domain=DOMAIN, metadata=dict(metadata))
    details: list[Message] = [info]
    if rule.retry_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(rule.retry_ms)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if rule.quota is not None:
        violation = error_details_pb2.QuotaFailure.Violation(subject=rule.quota, description=message)
        details.append(error_details_pb2.QuotaFailure(violations=[violation]))
    if rule.names_field:
        wrong = error_details_pb2.BadRequest.FieldViolation(field=field, description=message)
        details.append(error_details_pb2.BadRequest(field_violations=[wrong]))
    return details
