"""Requests: proto messages checked and turned into what the engine takes. Errors name the field.

What this server cannot do yet is refused by name; nothing that a client asked for is ignored.
"""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ds4c_runtime.engine import Engine
from ds4c_runtime.errors import InvalidRequestError, NotInArtifactError, NoTokenizerError
from ds4c_runtime.requests import GenerationRequest, StopParams
from ds4c_runtime.sampler import SamplingParams
from ds4c_serve.v1 import engine_pb2 as pb

_SESSION_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_MAX_LABEL = 128


@dataclass(frozen=True)
class OpenWanted:
    """A session to open; `capacity` in tokens, None for the context of the model."""

    session_id: str | None
    capacity: int | None
    idle_seconds: float | None


@dataclass(frozen=True)
class ForkWanted:
    """A fork; `at` None means the present position."""

    session_id: str
    new_id: str | None
    at: int | None


@dataclass(frozen=True)
class RewindWanted:
    """A rewind; exactly one of `to`, `drop` and `to_snapshot` is given."""

    session_id: str
    to: int | None = None
    drop: int | None = None
    to_snapshot: str | None = None
    expected_position: int | None = None
    max_replay_tokens: int | None = None
    defer: bool = False


@dataclass(frozen=True)
class PinWanted:
    """A snapshot to keep; exactly one of `snapshot_id` and `position` is given."""

    session_id: str
    snapshot_id: str | None
    position: int | None
    label: str


def not_in_artifact(what: str, needs: str) -> NotInArtifactError:
    """The error for a feature that this server does not have."""
    return NotInArtifactError(
        f"{what} refused: expected a server with {needs}, got one without; leave it out"
    )


def session_id(given: str, field: str = "session_id") -> str:
    """Check the id of an existing session.

    Raises:
        InvalidRequestError: it is empty.
    """
    if not given:
        raise InvalidRequestError("call refused: expected a session_id, got an empty one", field=field)
    return given


def new_session_id(given: str, field: str) -> str | None:
    """Check an id that a client chose for a new session; None lets the engine choose.

    Raises:
        InvalidRequestError: it is not made of 1 to 128 of the characters allowed.
    """
    if given and not _SESSION_ID.fullmatch(given):
        raise InvalidRequestError(
            f"session id refused: expected 1 to 128 characters of [A-Za-z0-9._:-], got {len(given)} "
            "characters with others among them or too many",
            field=field,
        )
    return given or None


def generation_id(request: pb.CancelGenerationRequest) -> str:
    """Check which generation is meant.

    Raises:
        InvalidRequestError: it is empty.
    """
    if not request.generation_id:
        raise InvalidRequestError(
            "call refused: expected a generation_id, got an empty one", field="generation_id"
        )
    return request.generation_id


def open_session(request: pb.OpenSessionRequest) -> OpenWanted:
    """Check a session to open.

    Raises:
        InvalidRequestError: the id or the idle time is not allowed.
        NotInArtifactError: it should be persistent.
    """
    if request.persistent:
        raise not_in_artifact("persistent session", "a session store")
    idle = None
    if request.HasField("idle_ttl"):
        idle = request.idle_ttl.seconds + request.idle_ttl.nanos / 1e9
        if idle <= 0:
            raise InvalidRequestError(
                f"session not opened: expected an idle_ttl above 0, got {idle} s", field="idle_ttl"
            )
    return OpenWanted(new_session_id(request.session_id, "session_id"), request.capacity or None, idle)


def fork(request: pb.ForkSessionRequest) -> ForkWanted:
    """Check a fork.

    Raises:
        InvalidRequestError: an id is not allowed.
    """
    return ForkWanted(
        session_id=session_id(request.session_id),
        new_id=new_session_id(request.new_session_id, "new_session_id"),
        at=request.at_position if request.HasField("at_position") else None,
    )


def rewind(request: pb.RewindRequest) -> RewindWanted:
    """Check a rewind.

    Raises:
        InvalidRequestError: no session or no target is named.
    """
    return RewindWanted(
        session_id=session_id(request.session_id),
        **_target(request),
        expected_position=request.expected_position if request.HasField("expected_position") else None,
        max_replay_tokens=request.max_replay_tokens if request.HasField("max_replay_tokens") else None,
        defer=request.defer_rebuild,
    )


def plan(request: pb.PlanRewindRequest) -> RewindWanted:
    """Check a rewind to be priced; raises as `rewind`."""
    return RewindWanted(session_id(request.session_id), **_target(request))


def _target(request: pb.RewindRequest | pb.PlanRewindRequest) -> dict[str, Any]:
    """The position, the count or the snapshot that a rewind names, by the name it has in `RewindWanted`."""
    kind = request.WhichOneof("target")
    if kind is None:
        raise InvalidRequestError(
            "rewind refused: expected to_position, drop_tokens or to_snapshot_id, got none", field="target"
        )
    if kind == "to_snapshot_id":
        return {"to_snapshot": snapshot_id(request.to_snapshot_id, "to_snapshot_id")}
    return {"to": request.to_position} if kind == "to_position" else {"drop": request.drop_tokens}


def snapshot_id(given: str, field: str = "snapshot_id") -> str:
    """Check the id of a snapshot.

    Raises:
        InvalidRequestError: it is empty.
    """
    if not given:
        raise InvalidRequestError(f"call refused: expected a {field}, got an empty one", field=field)
    return given


def pin(request: pb.PinSnapshotRequest) -> PinWanted:
    """Check a snapshot to keep.

    Raises:
        InvalidRequestError: no session or no snapshot is named, or the label is too long or not printable.
    """
    kind = request.WhichOneof("target")
    if kind is None:
        raise InvalidRequestError(
            "pin refused: expected snapshot_id or position, got neither; give one", field="target"
        )
    if len(request.label) > _MAX_LABEL or not request.label.isprintable():
        raise InvalidRequestError(
            f"pin refused: expected a label of at most {_MAX_LABEL} printable characters, got "
            f"{len(request.label)} characters",
            field="label",
        )
    return PinWanted(
        session_id=session_id(request.session_id),
        snapshot_id=snapshot_id(request.snapshot_id) if kind == "snapshot_id" else None,
        position=request.position if kind == "position" else None,
        label=request.label,
    )


def generation(request: pb.GenerateRequest, engine: Engine) -> GenerationRequest:
    """Check a generation and tokenize its text; may take long for a long prompt.

    Raises:
        InvalidRequestError: a value is not allowed.
        NoTokenizerError: text is given or asked for and the artifact has no tokenizer.
        NotInArtifactError: it needs what this server does not have.
    """
    _refuse_unsupported(request)
    _refuse_handle_without_session(request)
    if request.return_text and engine.tokenizer is None:
        raise no_tokenizer("return_text")
    wanted = GenerationRequest(
        session_id=request.session_id,
        expected_position=request.expected_position if request.HasField("expected_position") else None,
        expected_digest=request.expected_prefix_digest,
        rewind_to=request.rewind_to if request.HasField("rewind_to") else None,
        tokens=prompt_tokens(request.prompt, engine),
        sampling=sampling(request.sampling),
        stop=stop(request.stop),
        logprobs=request.logprobs if request.HasField("logprobs") else None,
        return_text=request.return_text,
        return_token_ids=request.return_token_ids,
        prefill_progress=request.prefill_progress,
    )
    wanted.validate(engine.manifest.model.vocab_size)
    return wanted


def _refuse_unsupported(request: pb.GenerateRequest) -> None:
    if request.HasField("detach_ttl"):
        raise not_in_artifact("detach_ttl", "kept streams")
    speculation = request.speculation
    wants_drafts = speculation.max_draft_tokens > 0 or bool(speculation.drafter)
    if speculation.enabled or (wants_drafts and not speculation.HasField("enabled")):
        raise not_in_artifact("speculation", "a drafter")


def _refuse_handle_without_session(request: pb.GenerateRequest) -> None:
    """A session that lives for one call has no past that a client could know of."""
    if request.session_id:
        return
    for name in ("expected_position", "rewind_to"):
        if getattr(request, name):
            raise InvalidRequestError(
                f"generation refused: expected {name} only with a session_id, got it without; add one",
                field=name,
            )
    if request.expected_prefix_digest:
        raise InvalidRequestError(
            "generation refused: expected expected_prefix_digest only with a session_id, got it without; "
            "name the session",
            field="expected_prefix_digest",
        )


def prompt_tokens(prompt: pb.Prompt, engine: Engine) -> tuple[int, ...]:
    """Token ids of a prompt.

    Raises:
        InvalidRequestError: an option of text is set with token ids.
        NoTokenizerError: it is text and the artifact has no tokenizer.
    """
    if prompt.WhichOneof("input") == "text":
        if engine.tokenizer is None:
            raise no_tokenizer("prompt.text")
        with field_prefix("prompt"):
            return tuple(encode(prompt.text, prompt.add_bos, prompt.parse_special, engine))
    for name in ("parse_special", "add_bos"):
        if getattr(prompt, name):
            raise InvalidRequestError(
                f"prompt refused: expected {name} only with text, got it without", field=f"prompt.{name}"
            )
    return tuple(check_token_ids(prompt.tokens.ids, engine, "prompt.tokens.ids"))


def check_token_ids(ids: Sequence[int], engine: Engine, field: str) -> Sequence[int]:
    """Refuse ids that the model does not have.

    Raises:
        InvalidRequestError: one is not below the size of the vocabulary.
    """
    size = engine.manifest.model.vocab_size
    if len(ids) and max(ids) >= size:
        index, wrong = next((index, token) for index, token in enumerate(ids) if token >= size)
        raise InvalidRequestError(
            f"token id refused: expected ids below {size}, got {wrong} at index {index}", field=field
        )
    return ids


def sampling(message: pb.Sampling) -> SamplingParams:
    """Sampling parameters, not yet checked; absent fields keep the defaults of the runtime."""
    given: dict[str, Any] = {
        field.name: value for field, value in message.ListFields() if field.name != "logit_bias"
    }
    if message.logit_bias:
        given["logit_bias"] = dict(message.logit_bias)
    return SamplingParams(**given)


def stop(message: pb.StopCondition) -> StopParams:
    """Stop rules, not yet checked."""
    return StopParams(
        max_output_tokens=message.max_output_tokens if message.HasField("max_output_tokens") else None,
        min_output_tokens=message.min_output_tokens,
        token_ids=tuple(message.token_ids),
        strings=tuple(message.strings),
        ignore_eos=message.ignore_eos,
        at_tool_call_end=message.at_tool_call_end,
    )


@contextmanager
def field_prefix(prefix: str) -> Generator[None]:
    """Name the fields of errors from inside a message by their full path."""
    try:
        yield
    except InvalidRequestError as error:
        raise InvalidRequestError(str(error), field=f"{prefix}.{error.field}") from error


def tokenize(request: pb.TokenizeRequest, engine: Engine) -> list[int]:
    """Token ids of a text.

    Raises:
        NoTokenizerError: the artifact has no tokenizer.
    """
    if engine.tokenizer is None:
        raise no_tokenizer("Tokenize")
    return encode(request.text, request.add_bos, request.parse_special, engine)


def encode(text: str, add_bos: bool, parse_special: bool, engine: Engine) -> list[int]:
    """Token ids of a text, by an engine that has a tokenizer.

    Raises:
        InvalidRequestError: a begin-of-sequence token is asked for and the model has none.
    """
    assert engine.tokenizer is not None
    bos = engine.manifest.model.bos_token_id if add_bos else None
    if add_bos and bos is None:
        raise InvalidRequestError(
            "text refused: expected a model with a begin-of-sequence token for add_bos, got one without",
            field="add_bos",
        )
    return engine.tokenizer.encode(text, bos_token_id=bos, parse_special=parse_special)


def detokenize(request: pb.DetokenizeRequest, engine: Engine) -> str:
    """Text of token ids.

    Raises:
        InvalidRequestError: an id is not below the size of the vocabulary.
        NoTokenizerError: the artifact has no tokenizer.
    """
    if engine.tokenizer is None:
        raise no_tokenizer("Detokenize")
    ids = check_token_ids(request.tokens.ids, engine, "tokens.ids")
    return engine.tokenizer.decode(list(ids), skip_special=request.skip_special)


def no_tokenizer(what: str) -> NoTokenizerError:
    """The error for text without a tokenizer."""
    return NoTokenizerError(
        f"{what} refused: expected an artifact with tokenizer.json, got one without; use token ids"
    )
