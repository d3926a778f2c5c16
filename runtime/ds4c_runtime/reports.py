"""What a rewind or fork did or would do, as data: kinds, causes, plans and reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class RewindKind(Enum):
    """How the state got to the target position."""

    NONE = "none"
    IN_PLACE = "in_place"
    SNAPSHOT = "snapshot"
    SNAPSHOT_REPLAY = "snapshot_replay"
    REBUILD = "rebuild"
    DEFERRED = "deferred"


class RewindCause(Enum):
    """Why a session was rewound."""

    CLIENT = "client"
    DRAFT_REJECTED = "draft_rejected"
    STOP = "stop"
    TOOL_BOUNDARY = "tool_boundary"
    BRANCH = "branch"
    PREFIX_MISMATCH = "prefix_mismatch"
    GRAMMAR = "grammar"


class RebuildReason(Enum):
    """Why the state had to be built again from the history; `NOT_REBUILT` if it was not."""

    NOT_REBUILT = "not_rebuilt"
    NO_SNAPSHOT = "no_snapshot"
    SNAPSHOT_INVALIDATED = "snapshot_invalidated"
    EVICTED = "evicted"
    BACKEND_UNSUPPORTED = "backend_unsupported"
    INTEGRITY_FAILED = "integrity_failed"


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What a rewind would cost. Positions and counts in tokens, time in seconds.

    `estimated_seconds` is `replay_tokens` at the prefill rate measured so far, and the time to put the
    snapshot back; `snapshot_id` is empty if none is used.
    """

    kind: RewindKind
    rebuild_reason: RebuildReason
    to_position: int
    base_position: int
    replay_tokens: int
    estimated_seconds: float
    snapshot_id: str = ""


class RewindReport(NamedTuple):
    """What a rewind did. Positions and counts in tokens, times in seconds.

    A tuple, as it is made inside a rewind in place, which has to be short: a frozen dataclass of nine fields
    takes several microseconds when the caches are cold.

    `base_position` is where replay or rebuild began; it equals `to_position` if nothing was run.
    `replayed_tokens` is 1 after an in-place rewind whose logits were not held and were asked for.
    """

    kind: RewindKind
    cause: RewindCause
    rebuild_reason: RebuildReason
    from_position: int
    to_position: int
    base_position: int
    replayed_tokens: int
    restore_seconds: float
    replay_seconds: float
    snapshot_id: str = ""
