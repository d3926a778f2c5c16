"""What goes into an engine and what comes out of it, as data: requests, events, session and load facts.

Mirrors the messages of the server without knowing gRPC. Positions and counts in tokens, times in
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ds4c_runtime.errors import InvalidRequestError
from ds4c_runtime.reports import RewindReport
from ds4c_runtime.sampler import SamplingParams, TokenLogprobs

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024
MAX_LOGPROBS = 64


@dataclass(frozen=True)
class StopParams:
    """When a generation ends.

    Attributes:
        max_output_tokens: end after that many (`LENGTH`); 0 only appends the prompt; `None`: no limit.
        min_output_tokens: below that many, end-of-sequence and stop tokens are not chosen and stop
            strings are not looked for.
        token_ids: end when one is chosen; it is neither sent nor kept in the history.
        strings: end when one appears in the text; it is not sent, its tokens are not kept.
        ignore_eos: treat end-of-sequence tokens as any other.
        at_tool_call_end: end after the token that completes a tool call; it is sent and kept.
    """

    max_output_tokens: int | None = None
    min_output_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    at_tool_call_end: bool = False

    @property
    def needs_text(self) -> bool:
        """Whether stopping depends on text."""
        return bool(self.strings) or self.at_tool_call_end

    def validate(self, vocab_size: int) -> None:
        """Refuse values outside their range.

        Raises:
            InvalidRequestError: `field` is `stop.NAME`.
        """
        most = self.max_output_tokens
        if most is not None and most < 0:
            raise _invalid("max_output_tokens", "0 or more", most)
        if self.min_output_tokens < 0 or (most is not None and self.min_output_tokens > most):
            raise _invalid("min_output_tokens", "0 to max_output_tokens", self.min_output_tokens)
        for token in self.token_ids:
            if not 0 <= token < vocab_size:
                raise _invalid("token_ids", f"ids in [0, {vocab_size})", token)
        if len(self.strings) > MAX_STOP_STRINGS:
            raise _invalid("strings", f"at most {MAX_STOP_STRINGS} strings", len(self.strings))
        for text in self.strings:
            if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
                raise _invalid("strings", f"1 to {MAX_STOP_CHARACTERS} characters each", len(text))


@dataclass(frozen=True)
class GenerationRequest:
    """Optionally rewind a session, append tokens, generate.

    Attributes:
        session_id: empty for a session that lives for this call only.
        expected_position: refuse unless the session is there.
        expected_digest: refuse unless the history has this digest; empty: any.
        rewind_to: rewind to this position first.
        tokens: appended to the history; may be empty if the history is not.
        sampling: how to choose tokens.
        stop: when to end.
        logprobs: number of alternatives to report per token; `None` reports nothing.
        return_text: send text; needs a tokenizer.
        return_token_ids: send token ids.
        prefill_progress: send `PrefillProgress` after each chunk.
    """

    tokens: tuple[int, ...] = ()
    session_id: str = ""
    expected_position: int | None = None
    expected_digest: str = ""
    rewind_to: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: StopParams = field(default_factory=StopParams)
    logprobs: int | None = None
    return_text: bool = True
    return_token_ids: bool = True
    prefill_progress: bool = False

    def validate(self, vocab_size: int) -> None:
        """Refuse what can be seen without the session.

        Raises:
            InvalidRequestError: naming the field.
        """
        self.sampling.validate(vocab_size)
        self.stop.validate(vocab_size)
        if self.logprobs is not None and not 0 <= self.logprobs <= min(MAX_LOGPROBS, vocab_size):
            raise InvalidRequestError(
                f"request refused: expected logprobs of 0 to {min(MAX_LOGPROBS, vocab_size)}, "
                f"got {self.logprobs}",
                field="logprobs",
            )


class FinishReason(Enum):
    """Why a generation ended."""

    EOS = "eos"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    CONTEXT_FULL = "context_full"
    TOOL_CALL = "tool_call"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Usage:
    """Tokens of a generation.

    `input_tokens` is the whole history before the first output token; `cached_input_tokens` of them
    were not run. `discarded_tokens` were generated and not sent.
    """

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    discarded_tokens: int = 0


@dataclass(frozen=True)
class Timing:
    """Seconds of a generation.

    Waiting; appending the prompt; from the request to the first token; from the first token to the
    last; rewind and rebuild; from the last token to the end.
    """

    queue: float = 0.0
    prefill: float = 0.0
    first_token: float = 0.0
    decode: float = 0.0
    rewind: float = 0.0
    tail: float = 0.0


@dataclass(frozen=True)
class Started:
    """First event. `start_position` is where the prompt begins; `rewind` is what was done to get there."""

    generation_id: str
    session_id: str
    start_position: int
    cached_input_tokens: int
    rewind: RewindReport | None


@dataclass(frozen=True)
class PrefillProgress:
    """Tokens of the prompt that are evaluated."""

    done: int
    total: int


@dataclass(frozen=True)
class TokenDelta:
    """Final tokens and text. `position` is that of the first token; fields not asked for are empty.

    A last delta before a stop string may have text and no token.
    """

    position: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True)
class Finished:
    """Last event: the session is at `end_position` with `digest`, exactly prompt and tokens sent.

    `continuable` says that the session is still there for another request.
    """

    reason: FinishReason
    end_position: int
    digest: str
    matched_stop: str
    usage: Usage
    timing: Timing
    rewinds: tuple[RewindReport, ...]
    continuable: bool


Event = Started | PrefillProgress | TokenDelta | Finished


@dataclass(frozen=True)
class SessionInfo:
    """A session as others may see it. Times in seconds since 1970.

    The state of one that is not resident is on disk if `state_valid`, else it is rebuilt on next use.
    """

    session_id: str
    position: int
    capacity: int
    digest: str
    parent_session_id: str
    forked_at: int
    state_bytes: int
    state_valid: bool
    is_busy: bool
    epoch: int
    high_water: int
    floor: int
    horizon: int
    create_time: float
    last_used_time: float
    is_resident: bool = True


@dataclass(frozen=True)
class LoadInfo:
    """How busy an engine is. Bytes count state only, not weights.

    Resident sessions have a slot; the others are parked. `stored_bytes` are those of states in the session
    folder, without a budget if it is `None`.
    """

    running_generations: int
    waiting_generations: int
    resident_sessions: int
    max_sessions: int
    state_bytes_used: int
    state_bytes_budget: int
    is_draining: bool
    snapshot_bytes_used: int = 0
    snapshot_bytes_budget: int = 0
    parked_sessions: int = 0
    stored_bytes_used: int = 0
    stored_bytes_budget: int | None = None


def _invalid(name: str, expected: str, got: object) -> InvalidRequestError:
    return InvalidRequestError(f"stop refused: expected {name} {expected}, got {got}", field=f"stop.{name}")
