"""Answers: what the runtime says, as proto messages. Requests are the business of `checks.py`."""

from collections.abc import Sequence
from typing import cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from ds4c_runtime.engine_snapshots import SnapshotLimits
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.reports import RebuildReason, RewindKind, RewindPlan, RewindReport
from ds4c_runtime.requests import (
    Event,
    Finished,
    LoadInfo,
    PrefillProgress,
    SessionInfo,
    Started,
    Timing,
    TokenDelta,
    Usage,
)
from ds4c_runtime.sampler import TokenLogprobs
from ds4c_runtime.snapshot import SnapshotInfo
from ds4c_serve.v1 import engine_pb2 as pb


def duration(seconds: float) -> Duration:
    """Seconds as a message, rounded to nanoseconds."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def timestamp(seconds: float) -> Timestamp:
    """Seconds since 1970 as a message, rounded to nanoseconds."""
    message = Timestamp()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def rewind_kind(kind: RewindKind) -> str:
    """Kind of a rewind by name; the members of both enums have the same names."""
    return f"REWIND_KIND_{kind.name}"


def rebuild_reason(reason: RebuildReason) -> str:
    """Reason of a rebuild by name; unspecified where nothing was rebuilt."""
    word = "UNSPECIFIED" if reason is RebuildReason.NOT_REBUILT else reason.name
    return f"REBUILD_REASON_{word}"


def rewind(report: RewindReport) -> pb.RewindReport:
    """What a rewind or a fork did."""
    return pb.RewindReport(
        kind=rewind_kind(report.kind),
        cause=f"REWIND_CAUSE_{report.cause.name}",
        rebuild_reason=rebuild_reason(report.rebuild_reason),
        from_position=report.from_position,
        to_position=report.to_position,
        base_position=report.base_position,
        replayed_tokens=report.replayed_tokens,
        restore_time=duration(report.restore_seconds),
        replay_time=duration(report.replay_seconds),
        snapshot_id=report.snapshot_id,
    )


def no_rewind(position: int) -> pb.RewindReport:
    """The report for a session that was where it had to be."""
    zero = Duration()
    return pb.RewindReport(
        kind=pb.REWIND_KIND_NONE,
        from_position=position,
        to_position=position,
        base_position=position,
        restore_time=zero,
        replay_time=zero,
    )


def plan(found: RewindPlan) -> pb.PlanRewindResponse:
    """What a rewind would cost."""
    return pb.PlanRewindResponse(
        kind=rewind_kind(found.kind),
        rebuild_reason=rebuild_reason(found.rebuild_reason),
        base_position=found.base_position,
        replay_tokens=found.replay_tokens,
        estimated_time=duration(found.estimated_seconds),
        to_position=found.to_position,
        snapshot_id=found.snapshot_id,
    )


def snapshot(info: SnapshotInfo) -> pb.Snapshot:
    """A snapshot that a session retains."""
    return pb.Snapshot(
        snapshot_id=info.snapshot_id,
        position=info.position,
        bytes=info.bytes,
        pinned=info.is_pinned,
        has_logits=info.has_logits,
        on_device=info.on_device,
        origin=f"SNAPSHOT_ORIGIN_{info.origin.name}",
        create_time=timestamp(info.create_time),
        label=info.label,
        prefix_digest=info.digest,
    )


def session(info: SessionInfo) -> pb.Session:
    """A session."""
    return pb.Session(
        session_id=info.session_id,
        position=info.position,
        capacity=info.capacity,
        prefix_digest=info.digest,
        parent_session_id=info.parent_session_id,
        forked_at=info.forked_at,
        state_bytes=info.state_bytes,
        resident=info.is_resident,
        state_valid=info.state_valid,
        create_time=timestamp(info.create_time),
        last_used_time=timestamp(info.last_used_time),
        high_water=info.high_water,
        floor=info.floor,
        horizon=info.horizon,
        epoch=info.epoch,
        is_busy=info.is_busy,
    )


class ResponseWriter:
    """Turns the events of one generation into numbered messages."""

    def __init__(self, generation_id: str, request_id: str):
        self._request_id = request_id or generation_id
        self._sequence = 0

    def response(self, batch: Sequence[Event]) -> pb.GenerateResponse:
        """Make the next message of one event, or of consecutive tokens."""
        self._sequence += 1
        first = batch[0]
        if isinstance(first, TokenDelta):  # all but two of the messages, so the cheapest way
            tokens = cast(Sequence[TokenDelta], batch)
            return pb.GenerateResponse(sequence=self._sequence, delta=delta(tokens))
        response = pb.GenerateResponse(sequence=self._sequence)
        match first:
            case Started():
                response.started.CopyFrom(started(first, self._request_id))
            case PrefillProgress():
                response.prefill.done_tokens, response.prefill.total_tokens = first.done, first.total
            case Finished():
                response.finished.CopyFrom(finished(first))
        return response


def started(event: Started, request_id: str) -> pb.Started:
    """The first message of a generation."""
    report = rewind(event.rewind) if event.rewind is not None else no_rewind(event.start_position)
    return pb.Started(
        generation_id=event.generation_id,
        session_id=event.session_id,
        start_position=event.start_position,
        cached_input_tokens=event.cached_input_tokens,
        rewind=report,
        request_id=request_id,
    )


def delta(events: Sequence[TokenDelta]) -> pb.TokenDelta:
    """One message of consecutive tokens."""
    if len(events) == 1 and not events[0].logprobs:
        only = events[0]
        return pb.TokenDelta(position=only.position, token_ids=only.token_ids, text=only.text)
    return pb.TokenDelta(
        position=events[0].position,
        token_ids=[token for event in events for token in event.token_ids],
        text="".join(event.text for event in events),
        logprobs=[logprob(entry) for event in events for entry in event.logprobs],
    )


def logprob(entry: TokenLogprobs) -> pb.TokenLogprob:
    """Log-probabilities of a token and of the likeliest ones."""
    alternatives = [pb.TokenAlternative(token_id=token, logprob=value) for token, value in entry.top]
    return pb.TokenLogprob(token_id=entry.token_id, logprob=entry.logprob, alternatives=alternatives)


def finished(event: Finished) -> pb.Finished:
    """The last message of a generation."""
    return pb.Finished(
        reason=f"FINISH_REASON_{event.reason.name}",
        end_position=event.end_position,
        prefix_digest=event.digest,
        matched_stop=event.matched_stop,
        usage=usage(event.usage),
        timing=timing(event.timing),
        rewinds=[rewind(report) for report in event.rewinds],
        continuable=event.continuable,
    )


def usage(counts: Usage) -> pb.Usage:
    """Token counts of a generation."""
    return pb.Usage(
        input_tokens=counts.input_tokens,
        cached_input_tokens=counts.cached_input_tokens,
        output_tokens=counts.output_tokens,
        discarded_tokens=counts.discarded_tokens,
    )


def timing(seconds: Timing) -> pb.Timing:
    """Where the time of a generation went."""
    return pb.Timing(
        queue=duration(seconds.queue),
        prefill=duration(seconds.prefill),
        first_token=duration(seconds.first_token),
        decode=duration(seconds.decode),
        rewind=duration(seconds.rewind),
        tail=duration(seconds.tail),
    )


def model_info(manifest: Manifest) -> pb.GetModelInfoResponse:
    """Identity of the model and of its artifact."""
    model, tokenizer = manifest.model, manifest.file("tokenizer.json")
    return pb.GetModelInfoResponse(
        served_model_name=model.name,
        architecture=model.architecture,
        max_context_length=model.context,
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_token_ids,
        bos_token_id=model.bos_token_id,
        artifact_id=manifest.artifact_id,
        checkpoint_sha256=model.checkpoint_sha256,
        target=f"{manifest.target.name}:{manifest.target.variant}",
        compiler_version=manifest.versions.ds4c,
        tokenizer_sha256=tokenizer.sha256 if tokenizer is not None else "",
        parameters=model.parameters,
        layers=model.layers,
    )


def load(info: LoadInfo) -> pb.GetLoadResponse:
    """How busy the engine is."""
    return pb.GetLoadResponse(
        running_generations=info.running_generations,
        waiting_generations=info.waiting_generations,
        resident_sessions=info.resident_sessions,
        max_sessions=info.max_sessions,
        state_bytes_used=info.state_bytes_used,
        state_bytes_budget=info.state_bytes_budget,
        draining=info.is_draining,
        snapshot_bytes_used=info.snapshot_bytes_used,
        snapshot_bytes_budget=info.snapshot_bytes_budget,
    )


def capabilities(
    manifest: Manifest,
    snapshots: SnapshotLimits,
    *,
    max_sessions: int,
    max_queue: int,
    max_request_bytes: int,
) -> pb.GetCapabilitiesResponse:
    """What can be asked of the artifact on this server."""
    able = manifest.capabilities
    kinds = [rewind_kind(kind) for kind in RewindKind if kind.value in able.rewind_kinds]
    return pb.GetCapabilitiesResponse(
        can_rewind=True,
        best_rewind_kind=kinds[0] if kinds else None,
        rewind_to_block_start=able.rewind_to_block_start,
        can_fork=able.fork,
        can_pin_snapshots=able.pin_snapshots,
        max_snapshots_per_session=snapshots.per_session,
        snapshot_bytes=snapshots.bytes,
        max_draft_tokens=0,
        deterministic_replay=able.deterministic_replay,
        max_sessions=max_sessions,
        features=able.features,
        max_request_bytes=max_request_bytes,
        horizon=manifest.limits.horizon,
        rewind_kinds=kinds,
        max_queue=max_queue,
    )
