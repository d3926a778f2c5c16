"""`ds4c bench --rewind`: what going back costs, by distance and by way, and how many bytes it takes.

Every rewind is done on a fork that is thrown away, so all of them start from the same session. A decode
step of another fork runs right before each: it is the unit of comparison, and it leaves the caches as a
session that generates finds them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ds4c.cli.common import CommandFailure, ExitCode, usage_error
from ds4c_runtime.local import LocalModel, open_local
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.reports import RewindKind, RewindPlan
from ds4c_runtime.session import Session

CONTEXTS = (256, 1024, 4096, 16384)
REBUILD_CONTEXT = 1024
"""Rebuilds are measured for comparison up to this context."""
MOST_REPLAYED = 256
"""Rewinds that run more tokens than this are measured three times only."""
SESSIONS = 3
"""The session that is rewound, a fork that is thrown away, a fork that decodes."""


@dataclass(frozen=True)
class RewindTime:
    """One rewind; medians, times in milliseconds.

    Attributes:
        kind: value of `RewindKind`.
        context: position before. distance: tokens back.
        replayed_tokens: known tokens that were run.
        ms: until the rewind returned. next_token_ms: until the next token's logits were there.
        decode_step_ms: of the decode steps that were measured between these rewinds.
        prefill_ms: of the same tokens from the same base by a plain prefill; None where none is replayed.
        snapshots: whether the session had its snapshots; without, a rewind beyond the horizon is a rebuild.
        repeats: measurements.
    """

    kind: str
    context: int
    distance: int
    replayed_tokens: int
    ms: float
    next_token_ms: float
    decode_step_ms: float
    prefill_ms: float | None
    snapshots: bool
    repeats: int


@dataclass(frozen=True)
class ContextSummary:
    """All rewinds of one context beside its decode step; times in milliseconds, sizes in bytes.

    Attributes:
        decode_step_ms: median. prefill_ms_per_token: of the prefill that led there.
        in_place_steps, snapshot_steps: slowest median of that kind, in decode steps.
        replay_ms_per_token: slope over the number of replayed tokens, with snapshots.
        replay_over_prefill: median over the rewinds with a replay of its time over a prefill of its tokens.
        slot_bytes, page_bytes: of the session. snapshot_bytes: of the snapshot at this position.
        snapshots, snapshots_bytes: that the session retains, without shared pages.
    """

    context: int
    decode_step_ms: float
    prefill_ms_per_token: float
    in_place_steps: float | None
    snapshot_steps: float | None
    replay_ms_per_token: float | None
    replay_over_prefill: float | None
    slot_bytes: int
    page_bytes: int
    snapshot_bytes: int
    snapshots: int
    snapshots_bytes: int


@dataclass
class _Samples:
    """Seconds of one rewind, measured several times."""

    back: list[float]
    next_token: list[float]
    decode: list[float]
    prefill: list[float]


def measure_rewinds(
    artifact: Path, threads: int, context: int | None, repeats: int, device: str | None = None
) -> dict[str, Any]:
    """Everything `ds4c bench --rewind` reports, as plain JSON values.

    Args:
        artifact: folder.
        threads: of the kernels.
        context: the only position to rewind from; by default those of `CONTEXTS` that fit.
        repeats: measurements of each rewind.
        device: by default that of the artifact's target.

    Raises:
        CommandFailure: the context does not fit, or a rewind did not do what was planned.
    """
    manifest = Manifest.read(artifact)
    contexts = chosen_contexts(manifest, context)
    pages = SESSIONS * (contexts[-1] // manifest.limits.page_tokens + 2)
    model = open_local(artifact, sessions=SESSIONS, threads=threads, device=device, pages=pages)
    tokens = np.random.default_rng(0).integers(0, manifest.model.vocab_size, contexts[-1] + 1).tolist()
    session = model.session("bench")
    times: list[RewindTime] = []
    summaries: list[ContextSummary] = []
    for at in contexts:
        added = at - session.position
        start = time.perf_counter()
        session.prefill(tokens[session.position : at])
        prefill = (time.perf_counter() - start) * 1e3 / added
        found = _at_context(session, tokens[at], repeats)
        times += found
        summaries.append(_summary(session, found, prefill))
    return {
        "artifact": str(artifact),
        "artifact_id": manifest.artifact_id,
        "target": f"{manifest.target.name}:{manifest.target.variant}",
        "device": model.device.name,
        "threads": threads,
        "horizon": manifest.limits.horizon,
        "snapshot_interval": manifest.limits.page_tokens,
        # The shortest, so that no share computed with it is too small.
        "decode_step_ms": min(s.decode_step_ms for s in summaries),
        "contexts": [asdict(s) for s in summaries],
        "bytes": byte_counts(model),
        "rewind": [asdict(t) for t in times],
    }


def chosen_contexts(manifest: Manifest, context: int | None) -> list[int]:
    """Positions to rewind from; a step has to fit behind each.

    Raises:
        CommandFailure: none fits.
    """
    most = manifest.model.context - 1
    if context is not None and not 2 <= context <= most:
        usage_error(f"--context: expected 2 to {most} (context less one step), got {context}")
    wanted = [c for c in CONTEXTS if c <= most] if context is None else [context]
    return wanted or [most]


def byte_counts(model: LocalModel) -> dict[str, int]:
    """Sizes as they are allocated: of a slot and a page, and of a token of horizon in every ring."""
    store, limits = model.store, model.manifest.limits
    layout = store.snapshots.layout
    return {
        "slot": len(store.states) // store.max_sessions,
        "horizon_token": sum(ring.row_bytes for ring in model.manifest.rings),
        "page": len(store.pages) // store.page_count if store.page_count else 0,
        "page_tokens": limits.page_tokens,
        "snapshot_aligned": layout.parts(4 * limits.page_tokens).total,
        "snapshot_largest": layout.largest(),
    }


def targets(context: int, horizon: int, interval: int) -> list[int]:
    """Positions to go back to, nearest first.

    A few tokens and the ends of the horizon; places of snapshots just beyond the horizon and half way;
    1, 16, half an interval and one less than an interval above the latter; 100, 1000, half and all of it.
    """
    beyond = (context - horizon - 1) // interval * interval
    half = context // 2 // interval * interval
    near = [context - back for back in (1, 8, horizon, horizon + 1, 100, 1000)]
    replays = [half + above for above in (1, 16, interval // 2, interval - 1)]
    found = {*near, *replays, beyond, half, context // 2, interval, 1}
    return sorted((to for to in found if 1 <= to < context), reverse=True)


def _at_context(session: Session, next_token: int, repeats: int) -> list[RewindTime]:
    at, limits = session.position, session.timeline.executor.limits
    probe, _ = session.fork(session_id="decode")
    probe.step([next_token])
    probe.rewind(at)
    found = [
        _rewind(session, probe, to, next_token, repeats, has_snapshots=True)
        for to in targets(at, limits.horizon, limits.page_tokens)
    ]
    beyond = at - limits.horizon - 1
    if 1 <= beyond and at <= REBUILD_CONTEXT:
        places = sorted({beyond, max(1, at // 2)}, reverse=True)
        found += [_rewind(session, probe, to, next_token, 3, has_snapshots=False) for to in places]
    probe.close()
    return found


def _rewind(
    session: Session, probe: Session, to: int, next_token: int, repeats: int, *, has_snapshots: bool
) -> RewindTime:
    """Measure one rewind several times; the first is a warm-up and left out."""
    samples = _Samples([], [], [], [])
    plan = session.plan_rewind(to)
    count = repeats if plan.replay_tokens <= MOST_REPLAYED else min(3, repeats)
    for _ in range(count + 1):
        plan = _rewind_once(
            session, to, samples, lambda: samples.decode.append(_step(probe, next_token)), has_snapshots
        )
    return RewindTime(
        kind=plan.kind.value,
        context=session.position,
        distance=session.position - to,
        replayed_tokens=plan.replay_tokens,
        ms=_median_ms(samples.back),
        next_token_ms=_median_ms(samples.next_token),
        decode_step_ms=_median_ms(samples.decode),
        prefill_ms=_median_ms(samples.prefill) if samples.prefill else None,
        snapshots=has_snapshots,
        repeats=count,
    )


def _median_ms(seconds: Sequence[float]) -> float:
    """Of all but the first, in milliseconds."""
    return round(statistics.median(seconds[1:]) * 1e3, 5)


def _step(probe: Session, token: int) -> float:
    """Seconds of a decode step, undone in place."""
    at = probe.position
    start = time.perf_counter()
    probe.step([token])
    seconds = time.perf_counter() - start
    probe.rewind(at)
    return seconds


def _rewind_once(
    session: Session, to: int, samples: _Samples, decode: Callable[[], None], has_snapshots: bool
) -> RewindPlan:
    """Rewind a fork right after `decode`; compare with its plan, and a replay with a prefill of its tokens.

    Raises:
        CommandFailure: something else was done, or the logits differ.
    """
    child, _ = session.fork(session_id="rewind")
    if not has_snapshots:
        child.timeline.store.snapshots.clear(child.timeline.ring)
    plan = child.plan_rewind(to)
    decode()
    start = time.perf_counter()
    report = child.rewind(to)
    back = time.perf_counter()
    logits = child.logits()
    samples.next_token.append(time.perf_counter() - start)
    samples.back.append(back - start)
    child.close()
    done, planned = (report.kind, report.replayed_tokens), (plan.kind, plan.replay_tokens)
    if done != planned or report.base_position != plan.base_position:
        raise _failed(session.position, to, f"{planned} from {plan.base_position}", f"{report}")
    if plan.replay_tokens:
        assert logits is not None
        if not np.array_equal(logits, _prefill(session, plan.base_position, to, samples)):
            raise _failed(session.position, to, "the logits of a plain prefill", "others")
    return plan


def _prefill(session: Session, base: int, to: int, samples: _Samples) -> np.ndarray:
    """Logits `[V]` after the same tokens by a prefill from the same base."""
    plain, _ = session.fork(base, session_id="prefill")
    start = time.perf_counter()
    plain.prefill(session.history[base:to])
    samples.prefill.append(time.perf_counter() - start)
    logits = plain.logits()
    plain.close()
    assert logits is not None
    return logits


def _failed(source: int, to: int, expected: str, got: str) -> CommandFailure:
    return CommandFailure(
        f"rewind from {source} to {to} failed: expected {expected}, got {got}; report this as a defect",
        ExitCode.CHECK_FAILED,
    )


def _summary(session: Session, times: Sequence[RewindTime], prefill: float) -> ContextSummary:
    decode = statistics.median(t.decode_step_ms for t in times)
    with_snapshots = [t for t in times if t.snapshots]
    restored = [t for t in with_snapshots if t.kind in _RESTORED]
    ratios = [t.ms / t.prefill_ms for t in restored if t.prefill_ms]
    line, info = session.timeline, session.take_snapshot()
    return ContextSummary(
        session.position,
        round(decode, 4),
        round(prefill, 4),
        _most_steps(with_snapshots, RewindKind.IN_PLACE),
        _most_steps(with_snapshots, RewindKind.SNAPSHOT),
        _slope(restored),
        round(statistics.median(ratios), 3) if ratios else None,
        line.store.manifest.arenas.state_slot,
        len(line.lease.pages) * line.store.manifest.arenas.page,
        0 if info is None else info.bytes,
        len(line.ring),
        line.ring.bytes,
    )


_RESTORED = (RewindKind.SNAPSHOT.value, RewindKind.SNAPSHOT_REPLAY.value)


def _most_steps(times: Sequence[RewindTime], kind: RewindKind) -> float | None:
    steps = [t.ms / t.decode_step_ms for t in times if t.kind == kind.value]
    return round(max(steps), 5) if steps else None


def _slope(times: Sequence[RewindTime]) -> float | None:
    """Milliseconds a replayed token, by least squares; None below two different numbers of tokens."""
    if len({t.replayed_tokens for t in times}) < 2:
        return None
    slope, _ = np.polyfit([t.replayed_tokens for t in times], [t.ms for t in times], 1)
    return round(float(slope), 4)
