"""Answers: what the runtime says, as proto messages. Requests are the business of `checks.py`."""

from collections.abc import Sequence
from enum import Enum

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from ds4c_runtime.engine import (
    EngineLimits,
    Event,
    Finished,
    LoadInfo,
    PrefillProgress,
    SessionInfo,
    Started,
    Timing,
    TokenDelta,
    TokenLogprob,
    Usage,
)
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.reports import RebuildReason, RewindKind, RewindPlan, RewindReport
from ds4c_serve.v1 import engine_pb2 as pb


def duration(seconds: float) -> Duration:
    """Seconds as a message, rounded to nanoseconds."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def timestamp(seconds: float) -> Timestamp:
    """Seconds of the system clock as a message, rounded to nanoseconds."""
    message = Timestamp()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def _number(enum: type, prefix: str, member: Enum) -> int:
    """The proto value with the name of a runtime member; the two enums have the same names by contract."""
    return enum.Value(f"{prefix}_{member.name}")


def rewind_kind(kind: RewindKind) -> int:
    """Kind of a rewind."""
    return pb.RewindKind.Value(f"REWIND_KIND_{kind.name}")


def rebuild_reason(reason: RebuildReason) -> int:
    """Reason of a rebuild; unspecified where nothing was rebuilt."""
    if reason is RebuildReason.NOT_REBUILT:
        return pb.REBUILD_REASON_UNSPECIFIED
    return pb.RebuildReason.Value(f"REBUILD_REASON_{reason.name}")
