import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RewindKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REWIND_KIND_UNSPECIFIED: _ClassVar[RewindKind]
    REWIND_KIND_NONE: _ClassVar[RewindKind]
    REWIND_KIND_IN_PLACE: _ClassVar[RewindKind]
    REWIND_KIND_SNAPSHOT: _ClassVar[RewindKind]
    REWIND_KIND_SNAPSHOT_REPLAY: _ClassVar[RewindKind]
    REWIND_KIND_REBUILD: _ClassVar[RewindKind]
    REWIND_KIND_DEFERRED: _ClassVar[RewindKind]

class RewindCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REWIND_CAUSE_UNSPECIFIED: _ClassVar[RewindCause]
    REWIND_CAUSE_CLIENT: _ClassVar[RewindCause]
    REWIND_CAUSE_DRAFT_REJECTED: _ClassVar[RewindCause]
    REWIND_CAUSE_STOP: _ClassVar[RewindCause]
    REWIND_CAUSE_TOOL_BOUNDARY: _ClassVar[RewindCause]
    REWIND_CAUSE_BRANCH: _ClassVar[RewindCause]
    REWIND_CAUSE_PREFIX_MISMATCH: _ClassVar[RewindCause]
    REWIND_CAUSE_GRAMMAR: _ClassVar[RewindCause]

class RebuildReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REBUILD_REASON_UNSPECIFIED: _ClassVar[RebuildReason]
    REBUILD_REASON_NO_SNAPSHOT: _ClassVar[RebuildReason]
    REBUILD_REASON_SNAPSHOT_INVALIDATED: _ClassVar[RebuildReason]
    REBUILD_REASON_EVICTED: _ClassVar[RebuildReason]
    REBUILD_REASON_BACKEND_UNSUPPORTED: _ClassVar[RebuildReason]
    REBUILD_REASON_INTEGRITY_FAILED: _ClassVar[RebuildReason]

class SnapshotOrigin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SNAPSHOT_ORIGIN_UNSPECIFIED: _ClassVar[SnapshotOrigin]
    SNAPSHOT_ORIGIN_INTERVAL: _ClassVar[SnapshotOrigin]
    SNAPSHOT_ORIGIN_PROMPT_END: _ClassVar[SnapshotOrigin]
    SNAPSHOT_ORIGIN_BEFORE_DRAFT: _ClassVar[SnapshotOrigin]
    SNAPSHOT_ORIGIN_TOOL_BOUNDARY: _ClassVar[SnapshotOrigin]
    SNAPSHOT_ORIGIN_CLIENT: _ClassVar[SnapshotOrigin]
    SNAPSHOT_ORIGIN_TURN_END: _ClassVar[SnapshotOrigin]
    SNAPSHOT_ORIGIN_SAVE: _ClassVar[SnapshotOrigin]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_EOS: _ClassVar[FinishReason]
    FINISH_REASON_STOP_TOKEN: _ClassVar[FinishReason]
    FINISH_REASON_STOP_STRING: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CONTEXT_FULL: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALL: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
REWIND_KIND_UNSPECIFIED: RewindKind
REWIND_KIND_NONE: RewindKind
REWIND_KIND_IN_PLACE: RewindKind
REWIND_KIND_SNAPSHOT: RewindKind
REWIND_KIND_SNAPSHOT_REPLAY: RewindKind
REWIND_KIND_REBUILD: RewindKind
REWIND_KIND_DEFERRED: RewindKind
REWIND_CAUSE_UNSPECIFIED: RewindCause
REWIND_CAUSE_CLIENT: RewindCause
REWIND_CAUSE_DRAFT_REJECTED: RewindCause
REWIND_CAUSE_STOP: RewindCause
REWIND_CAUSE_TOOL_BOUNDARY: RewindCause
REWIND_CAUSE_BRANCH: RewindCause
REWIND_CAUSE_PREFIX_MISMATCH: RewindCause
REWIND_CAUSE_GRAMMAR: RewindCause
REBUILD_REASON_UNSPECIFIED: RebuildReason
REBUILD_REASON_NO_SNAPSHOT: RebuildReason
REBUILD_REASON_SNAPSHOT_INVALIDATED: RebuildReason
REBUILD_REASON_EVICTED: RebuildReason
REBUILD_REASON_BACKEND_UNSUPPORTED: RebuildReason
REBUILD_REASON_INTEGRITY_FAILED: RebuildReason
SNAPSHOT_ORIGIN_UNSPECIFIED: SnapshotOrigin
SNAPSHOT_ORIGIN_INTERVAL: SnapshotOrigin
SNAPSHOT_ORIGIN_PROMPT_END: SnapshotOrigin
SNAPSHOT_ORIGIN_BEFORE_DRAFT: SnapshotOrigin
SNAPSHOT_ORIGIN_TOOL_BOUNDARY: SnapshotOrigin
SNAPSHOT_ORIGIN_CLIENT: SnapshotOrigin
SNAPSHOT_ORIGIN_TURN_END: SnapshotOrigin
SNAPSHOT_ORIGIN_SAVE: SnapshotOrigin
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_EOS: FinishReason
FINISH_REASON_STOP_TOKEN: FinishReason
FINISH_REASON_STOP_STRING: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CONTEXT_FULL: FinishReason
FINISH_REASON_TOOL_CALL: FinishReason
FINISH_REASON_CANCELLED: FinishReason

class RewindReport(_message.Message):
    __slots__ = ("kind", "cause", "rebuild_reason", "from_position", "to_position", "base_position", "replayed_tokens", "restore_time", "replay_time", "snapshot_id")
    KIND_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    REBUILD_REASON_FIELD_NUMBER: _ClassVar[int]
    FROM_POSITION_FIELD_NUMBER: _ClassVar[int]
    TO_POSITION_FIELD_NUMBER: _ClassVar[int]
    BASE_POSITION_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_TIME_FIELD_NUMBER: _ClassVar[int]
    REPLAY_TIME_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    kind: RewindKind
    cause: RewindCause
    rebuild_reason: RebuildReason
    from_position: int
    to_position: int
    base_position: int
    replayed_tokens: int
    restore_time: _duration_pb2.Duration
    replay_time: _duration_pb2.Duration
    snapshot_id: str
    def __init__(self, kind: _Optional[_Union[RewindKind, str]] = ..., cause: _Optional[_Union[RewindCause, str]] = ..., rebuild_reason: _Optional[_Union[RebuildReason, str]] = ..., from_position: _Optional[int] = ..., to_position: _Optional[int] = ..., base_position: _Optional[int] = ..., replayed_tokens: _Optional[int] = ..., restore_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., replay_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., snapshot_id: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "draft_tokens", "accepted_draft_tokens", "verify_steps", "discarded_tokens", "accepted_per_position")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_STEPS_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    draft_tokens: int
    accepted_draft_tokens: int
    verify_steps: int
    discarded_tokens: int
    accepted_per_position: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, input_tokens: _Optional[int] = ..., cached_input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_draft_tokens: _Optional[int] = ..., verify_steps: _Optional[int] = ..., discarded_tokens: _Optional[int] = ..., accepted_per_position: _Optional[_Iterable[int]] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("queue", "prefill", "first_token", "decode", "rewind", "tail")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    REWIND_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    queue: _duration_pb2.Duration
    prefill: _duration_pb2.Duration
    first_token: _duration_pb2.Duration
    decode: _duration_pb2.Duration
    rewind: _duration_pb2.Duration
    tail: _duration_pb2.Duration
    def __init__(self, queue: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prefill: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., first_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., decode: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., rewind: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., tail: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("tokens", "text", "parse_special", "add_bos")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PARSE_SPECIAL_FIELD_NUMBER: _ClassVar[int]
    ADD_BOS_FIELD_NUMBER: _ClassVar[int]
    tokens: TokenIds
    text: str
    parse_special: bool
    add_bos: bool
    def __init__(self, tokens: _Optional[_Union[TokenIds, _Mapping]] = ..., text: _Optional[str] = ..., parse_special: _Optional[bool] = ..., add_bos: _Optional[bool] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "logit_bias")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    logit_bias: _containers.ScalarMap[int, float]
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., seed: _Optional[int] = ..., logit_bias: _Optional[_Mapping[int, float]] = ...) -> None: ...

class StopCondition(_message.Message):
    __slots__ = ("max_output_tokens", "min_output_tokens", "token_ids", "strings", "ignore_eos", "at_tool_call_end")
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    AT_TOOL_CALL_END_FIELD_NUMBER: _ClassVar[int]
    max_output_tokens: int
    min_output_tokens: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    strings: _containers.RepeatedScalarFieldContainer[str]
    ignore_eos: bool
    at_tool_call_end: bool
    def __init__(self, max_output_tokens: _Optional[int] = ..., min_output_tokens: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., strings: _Optional[_Iterable[str]] = ..., ignore_eos: _Optional[bool] = ..., at_tool_call_end: _Optional[bool] = ...) -> None: ...

class Speculation(_message.Message):
    __slots__ = ("enabled", "max_draft_tokens", "drafter")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    max_draft_tokens: int
    drafter: str
    def __init__(self, enabled: _Optional[bool] = ..., max_draft_tokens: _Optional[int] = ..., drafter: _Optional[str] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "session_id", "expected_position", "expected_prefix_digest", "rewind_to", "prompt", "sampling", "stop", "speculation", "logprobs", "return_text", "return_token_ids", "allow_retraction", "detach_ttl", "prefill_progress")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_POSITION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_PREFIX_DIGEST_FIELD_NUMBER: _ClassVar[int]
    REWIND_TO_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RETURN_TEXT_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_RETRACTION_FIELD_NUMBER: _ClassVar[int]
    DETACH_TTL_FIELD_NUMBER: _ClassVar[int]
    PREFILL_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    session_id: str
    expected_position: int
    expected_prefix_digest: str
    rewind_to: int
    prompt: Prompt
    sampling: Sampling
    stop: StopCondition
    speculation: Speculation
    logprobs: int
    return_text: bool
    return_token_ids: bool
    allow_retraction: bool
    detach_ttl: _duration_pb2.Duration
    prefill_progress: bool
    def __init__(self, request_id: _Optional[str] = ..., session_id: _Optional[str] = ..., expected_position: _Optional[int] = ..., expected_prefix_digest: _Optional[str] = ..., rewind_to: _Optional[int] = ..., prompt: _Optional[_Union[Prompt, _Mapping]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., stop: _Optional[_Union[StopCondition, _Mapping]] = ..., speculation: _Optional[_Union[Speculation, _Mapping]] = ..., logprobs: _Optional[int] = ..., return_text: _Optional[bool] = ..., return_token_ids: _Optional[bool] = ..., allow_retraction: _Optional[bool] = ..., detach_ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prefill_progress: _Optional[bool] = ...) -> None: ...

class TokenAlternative(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob", "alternatives")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    alternatives: _containers.RepeatedCompositeFieldContainer[TokenAlternative]
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., alternatives: _Optional[_Iterable[_Union[TokenAlternative, _Mapping]]] = ...) -> None: ...

class TokenDelta(_message.Message):
    __slots__ = ("position", "token_ids", "text", "logprobs")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("generation_id", "session_id", "start_position", "cached_input_tokens", "rewind", "request_id")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    CACHED_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REWIND_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    generation_id: str
    session_id: str
    start_position: int
    cached_input_tokens: int
    rewind: RewindReport
    request_id: str
    def __init__(self, generation_id: _Optional[str] = ..., session_id: _Optional[str] = ..., start_position: _Optional[int] = ..., cached_input_tokens: _Optional[int] = ..., rewind: _Optional[_Union[RewindReport, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class PrefillProgress(_message.Message):
    __slots__ = ("done_tokens", "total_tokens")
    DONE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    done_tokens: int
    total_tokens: int
    def __init__(self, done_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ...) -> None: ...

class Retraction(_message.Message):
    __slots__ = ("to_position", "rewind")
    TO_POSITION_FIELD_NUMBER: _ClassVar[int]
    REWIND_FIELD_NUMBER: _ClassVar[int]
    to_position: int
    rewind: RewindReport
    def __init__(self, to_position: _Optional[int] = ..., rewind: _Optional[_Union[RewindReport, _Mapping]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "end_position", "prefix_digest", "matched_stop", "usage", "timing", "rewinds", "continuable")
    REASON_FIELD_NUMBER: _ClassVar[int]
    END_POSITION_FIELD_NUMBER: _ClassVar[int]
    PREFIX_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MATCHED_STOP_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    REWINDS_FIELD_NUMBER: _ClassVar[int]
    CONTINUABLE_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    end_position: int
    prefix_digest: str
    matched_stop: str
    usage: Usage
    timing: Timing
    rewinds: _containers.RepeatedCompositeFieldContainer[RewindReport]
    continuable: bool
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., end_position: _Optional[int] = ..., prefix_digest: _Optional[str] = ..., matched_stop: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., rewinds: _Optional[_Iterable[_Union[RewindReport, _Mapping]]] = ..., continuable: _Optional[bool] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("sequence", "started", "prefill", "delta", "retraction", "finished")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    RETRACTION_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    started: Started
    prefill: PrefillProgress
    delta: TokenDelta
    retraction: Retraction
    finished: Finished
    def __init__(self, sequence: _Optional[int] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., prefill: _Optional[_Union[PrefillProgress, _Mapping]] = ..., delta: _Optional[_Union[TokenDelta, _Mapping]] = ..., retraction: _Optional[_Union[Retraction, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class ResumeGenerateRequest(_message.Message):
    __slots__ = ("generation_id", "after_sequence")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    generation_id: str
    after_sequence: int
    def __init__(self, generation_id: _Optional[str] = ..., after_sequence: _Optional[int] = ...) -> None: ...

class ResumeGenerateResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: GenerateResponse
    def __init__(self, response: _Optional[_Union[GenerateResponse, _Mapping]] = ...) -> None: ...

class CancelGenerationRequest(_message.Message):
    __slots__ = ("generation_id",)
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    generation_id: str
    def __init__(self, generation_id: _Optional[str] = ...) -> None: ...

class CancelGenerationResponse(_message.Message):
    __slots__ = ("was_running",)
    WAS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    was_running: bool
    def __init__(self, was_running: _Optional[bool] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("text", "add_bos", "parse_special")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ADD_BOS_FIELD_NUMBER: _ClassVar[int]
    PARSE_SPECIAL_FIELD_NUMBER: _ClassVar[int]
    text: str
    add_bos: bool
    parse_special: bool
    def __init__(self, text: _Optional[str] = ..., add_bos: _Optional[bool] = ..., parse_special: _Optional[bool] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: TokenIds
    def __init__(self, tokens: _Optional[_Union[TokenIds, _Mapping]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("tokens", "skip_special")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_FIELD_NUMBER: _ClassVar[int]
    tokens: TokenIds
    skip_special: bool
    def __init__(self, tokens: _Optional[_Union[TokenIds, _Mapping]] = ..., skip_special: _Optional[bool] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("session_id", "position", "capacity", "prefix_digest", "parent_session_id", "forked_at", "state_bytes", "resident", "state_valid", "create_time", "last_used_time", "high_water", "floor", "horizon", "epoch", "is_busy")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    PREFIX_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PARENT_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    FORKED_AT_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    STATE_VALID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_TIME_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATER_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    IS_BUSY_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    position: int
    capacity: int
    prefix_digest: str
    parent_session_id: str
    forked_at: int
    state_bytes: int
    resident: bool
    state_valid: bool
    create_time: _timestamp_pb2.Timestamp
    last_used_time: _timestamp_pb2.Timestamp
    high_water: int
    floor: int
    horizon: int
    epoch: int
    is_busy: bool
    def __init__(self, session_id: _Optional[str] = ..., position: _Optional[int] = ..., capacity: _Optional[int] = ..., prefix_digest: _Optional[str] = ..., parent_session_id: _Optional[str] = ..., forked_at: _Optional[int] = ..., state_bytes: _Optional[int] = ..., resident: _Optional[bool] = ..., state_valid: _Optional[bool] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_used_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., high_water: _Optional[int] = ..., floor: _Optional[int] = ..., horizon: _Optional[int] = ..., epoch: _Optional[int] = ..., is_busy: _Optional[bool] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("session_id", "capacity", "idle_ttl", "persistent")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    IDLE_TTL_FIELD_NUMBER: _ClassVar[int]
    PERSISTENT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    capacity: int
    idle_ttl: _duration_pb2.Duration
    persistent: bool
    def __init__(self, session_id: _Optional[str] = ..., capacity: _Optional[int] = ..., idle_ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., persistent: _Optional[bool] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class GetSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions", "next_page_token")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    next_page_token: str
    def __init__(self, sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ForkSessionRequest(_message.Message):
    __slots__ = ("session_id", "new_session_id", "at_position")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AT_POSITION_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    new_session_id: str
    at_position: int
    def __init__(self, session_id: _Optional[str] = ..., new_session_id: _Optional[str] = ..., at_position: _Optional[int] = ...) -> None: ...

class ForkSessionResponse(_message.Message):
    __slots__ = ("session", "rewind")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REWIND_FIELD_NUMBER: _ClassVar[int]
    session: Session
    rewind: RewindReport
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., rewind: _Optional[_Union[RewindReport, _Mapping]] = ...) -> None: ...

class RewindRequest(_message.Message):
    __slots__ = ("session_id", "request_id", "to_position", "drop_tokens", "to_snapshot_id", "expected_position", "max_replay_tokens", "defer_rebuild")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TO_POSITION_FIELD_NUMBER: _ClassVar[int]
    DROP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TO_SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_POSITION_FIELD_NUMBER: _ClassVar[int]
    MAX_REPLAY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEFER_REBUILD_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    request_id: str
    to_position: int
    drop_tokens: int
    to_snapshot_id: str
    expected_position: int
    max_replay_tokens: int
    defer_rebuild: bool
    def __init__(self, session_id: _Optional[str] = ..., request_id: _Optional[str] = ..., to_position: _Optional[int] = ..., drop_tokens: _Optional[int] = ..., to_snapshot_id: _Optional[str] = ..., expected_position: _Optional[int] = ..., max_replay_tokens: _Optional[int] = ..., defer_rebuild: _Optional[bool] = ...) -> None: ...

class RewindResponse(_message.Message):
    __slots__ = ("session", "rewind")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REWIND_FIELD_NUMBER: _ClassVar[int]
    session: Session
    rewind: RewindReport
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., rewind: _Optional[_Union[RewindReport, _Mapping]] = ...) -> None: ...

class PlanRewindRequest(_message.Message):
    __slots__ = ("session_id", "to_position", "drop_tokens", "to_snapshot_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TO_POSITION_FIELD_NUMBER: _ClassVar[int]
    DROP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TO_SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    to_position: int
    drop_tokens: int
    to_snapshot_id: str
    def __init__(self, session_id: _Optional[str] = ..., to_position: _Optional[int] = ..., drop_tokens: _Optional[int] = ..., to_snapshot_id: _Optional[str] = ...) -> None: ...

class PlanRewindResponse(_message.Message):
    __slots__ = ("kind", "rebuild_reason", "base_position", "replay_tokens", "estimated_time", "to_position", "snapshot_id")
    KIND_FIELD_NUMBER: _ClassVar[int]
    REBUILD_REASON_FIELD_NUMBER: _ClassVar[int]
    BASE_POSITION_FIELD_NUMBER: _ClassVar[int]
    REPLAY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_TIME_FIELD_NUMBER: _ClassVar[int]
    TO_POSITION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    kind: RewindKind
    rebuild_reason: RebuildReason
    base_position: int
    replay_tokens: int
    estimated_time: _duration_pb2.Duration
    to_position: int
    snapshot_id: str
    def __init__(self, kind: _Optional[_Union[RewindKind, str]] = ..., rebuild_reason: _Optional[_Union[RebuildReason, str]] = ..., base_position: _Optional[int] = ..., replay_tokens: _Optional[int] = ..., estimated_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., to_position: _Optional[int] = ..., snapshot_id: _Optional[str] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("snapshot_id", "position", "bytes", "pinned", "has_logits", "on_device", "origin", "create_time", "label", "prefix_digest")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    HAS_LOGITS_FIELD_NUMBER: _ClassVar[int]
    ON_DEVICE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PREFIX_DIGEST_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    position: int
    bytes: int
    pinned: bool
    has_logits: bool
    on_device: bool
    origin: SnapshotOrigin
    create_time: _timestamp_pb2.Timestamp
    label: str
    prefix_digest: str
    def __init__(self, snapshot_id: _Optional[str] = ..., position: _Optional[int] = ..., bytes: _Optional[int] = ..., pinned: _Optional[bool] = ..., has_logits: _Optional[bool] = ..., on_device: _Optional[bool] = ..., origin: _Optional[_Union[SnapshotOrigin, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., label: _Optional[str] = ..., prefix_digest: _Optional[str] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class ListSnapshotsResponse(_message.Message):
    __slots__ = ("snapshots",)
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[Snapshot]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[Snapshot, _Mapping]]] = ...) -> None: ...

class PinSnapshotRequest(_message.Message):
    __slots__ = ("session_id", "snapshot_id", "position", "label")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    snapshot_id: str
    position: int
    label: str
    def __init__(self, session_id: _Optional[str] = ..., snapshot_id: _Optional[str] = ..., position: _Optional[int] = ..., label: _Optional[str] = ...) -> None: ...

class PinSnapshotResponse(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ...) -> None: ...

class UnpinSnapshotRequest(_message.Message):
    __slots__ = ("session_id", "snapshot_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    snapshot_id: str
    def __init__(self, session_id: _Optional[str] = ..., snapshot_id: _Optional[str] = ...) -> None: ...

class UnpinSnapshotResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelInfoResponse(_message.Message):
    __slots__ = ("served_model_name", "architecture", "max_context_length", "vocab_size", "eos_token_ids", "bos_token_id", "artifact_id", "checkpoint_sha256", "target", "compiler_version", "tokenizer_sha256", "parameters", "layers")
    SERVED_MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_SHA256_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    COMPILER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    served_model_name: str
    architecture: str
    max_context_length: int
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bos_token_id: int
    artifact_id: str
    checkpoint_sha256: str
    target: str
    compiler_version: str
    tokenizer_sha256: str
    parameters: int
    layers: int
    def __init__(self, served_model_name: _Optional[str] = ..., architecture: _Optional[str] = ..., max_context_length: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., bos_token_id: _Optional[int] = ..., artifact_id: _Optional[str] = ..., checkpoint_sha256: _Optional[str] = ..., target: _Optional[str] = ..., compiler_version: _Optional[str] = ..., tokenizer_sha256: _Optional[str] = ..., parameters: _Optional[int] = ..., layers: _Optional[int] = ...) -> None: ...

class GetCapabilitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCapabilitiesResponse(_message.Message):
    __slots__ = ("can_rewind", "best_rewind_kind", "rewind_to_block_start", "can_fork", "can_pin_snapshots", "max_snapshots_per_session", "snapshot_bytes", "max_draft_tokens", "speculation_needs_greedy", "deterministic_replay", "max_sessions", "features", "max_request_bytes", "drafters", "horizon", "rewind_kinds", "max_queue")
    CAN_REWIND_FIELD_NUMBER: _ClassVar[int]
    BEST_REWIND_KIND_FIELD_NUMBER: _ClassVar[int]
    REWIND_TO_BLOCK_START_FIELD_NUMBER: _ClassVar[int]
    CAN_FORK_FIELD_NUMBER: _ClassVar[int]
    CAN_PIN_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_SNAPSHOTS_PER_SESSION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_NEEDS_GREEDY_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_REPLAY_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    REWIND_KINDS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_FIELD_NUMBER: _ClassVar[int]
    can_rewind: bool
    best_rewind_kind: RewindKind
    rewind_to_block_start: bool
    can_fork: bool
    can_pin_snapshots: bool
    max_snapshots_per_session: int
    snapshot_bytes: int
    max_draft_tokens: int
    speculation_needs_greedy: bool
    deterministic_replay: bool
    max_sessions: int
    features: _containers.RepeatedScalarFieldContainer[str]
    max_request_bytes: int
    drafters: _containers.RepeatedScalarFieldContainer[str]
    horizon: int
    rewind_kinds: _containers.RepeatedScalarFieldContainer[RewindKind]
    max_queue: int
    def __init__(self, can_rewind: _Optional[bool] = ..., best_rewind_kind: _Optional[_Union[RewindKind, str]] = ..., rewind_to_block_start: _Optional[bool] = ..., can_fork: _Optional[bool] = ..., can_pin_snapshots: _Optional[bool] = ..., max_snapshots_per_session: _Optional[int] = ..., snapshot_bytes: _Optional[int] = ..., max_draft_tokens: _Optional[int] = ..., speculation_needs_greedy: _Optional[bool] = ..., deterministic_replay: _Optional[bool] = ..., max_sessions: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ..., max_request_bytes: _Optional[int] = ..., drafters: _Optional[_Iterable[str]] = ..., horizon: _Optional[int] = ..., rewind_kinds: _Optional[_Iterable[_Union[RewindKind, str]]] = ..., max_queue: _Optional[int] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("running_generations", "waiting_generations", "resident_sessions", "max_sessions", "state_bytes_used", "state_bytes_budget", "snapshot_bytes_used", "draining", "snapshot_bytes_budget")
    RUNNING_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    WAITING_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_BUDGET_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_BUDGET_FIELD_NUMBER: _ClassVar[int]
    running_generations: int
    waiting_generations: int
    resident_sessions: int
    max_sessions: int
    state_bytes_used: int
    state_bytes_budget: int
    snapshot_bytes_used: int
    draining: bool
    snapshot_bytes_budget: int
    def __init__(self, running_generations: _Optional[int] = ..., waiting_generations: _Optional[int] = ..., resident_sessions: _Optional[int] = ..., max_sessions: _Optional[int] = ..., state_bytes_used: _Optional[int] = ..., state_bytes_budget: _Optional[int] = ..., snapshot_bytes_used: _Optional[int] = ..., draining: _Optional[bool] = ..., snapshot_bytes_budget: _Optional[int] = ...) -> None: ...
