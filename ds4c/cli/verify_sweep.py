"""The executed part of `ds4c verify --rewind`: rewound sessions against sessions that never rewound.

Runs the artifact's own kernels. The tokens are random, which is what finds a wrong row: every row is unlike
every other. Steps of the reference also show which rows they wrote, which has to be where the plan has them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ds4c.cli.verify_runner import Expected, Runner, Sweep, digest_of, fail, state_digests, with_copies
from ds4c_runtime.device.base import HostBytes
from ds4c_runtime.local import LocalModel, open_local
from ds4c_runtime.manifest import Limits, Manifest
from ds4c_runtime.reports import RewindKind
from ds4c_runtime.session import Session
from ds4c_runtime.snapshot import DEAD_BYTE, SnapshotLayout
from ds4c_runtime.transport import CopyMode

SESSIONS = 4
"""Slots: reference, the session that rewinds, its fork, and one that nobody may write to."""
NEAR_DISTANCES = 16
"""Every distance up to this is tried at every position; beyond it the horizon itself."""
WALKS = 4
"""Sessions that share the positions of snapshots, so that each has some tokens between two of them."""
MORE_SNAPSHOTS = 16
"""Room for snapshots of a session besides those at every interval."""
MAX_TOKENS = 1024
"""Longest session of a sweep."""
SEED = 20261130


def sweep(folder: Path, threads: int, device: str | None, progress: Callable[[str], None]) -> Sweep:
    """Run all comparisons; `progress` is told what begins.

    Raises:
        CommandFailure: the first difference (exit code 3).
        ArtifactError, DeviceError: the artifact cannot be loaded here.
    """
    manifest = Manifest.read(folder)
    length = sweep_length(manifest)
    intervals = -(-length // manifest.limits.page_tokens)
    # The proof has run; a plan that it cannot see through is for the sweep to find.
    model = open_local(
        folder,
        sessions=SESSIONS,
        threads=threads,
        device=device,
        pages=2 * SESSIONS * intervals,
        snapshot_bytes=SESSIONS * (intervals + MORE_SNAPSHOTS) * SnapshotLayout(manifest).largest(),
        check_rings=False,
    )
    rng = np.random.default_rng(SEED)
    tokens, garbage = (rng.integers(0, manifest.model.vocab_size, length).tolist() for _ in range(2))
    runner = Runner(model, tokens, garbage, Sweep(length))
    for name, part in (
        ("a straight session", run_straight),
        ("rewinds in place", rewind_in_place),
        ("rejected drafts", reject_drafts),
        ("rewinds to snapshots", restore_snapshots),
        ("rewinds to snapshots that steps took", restore_marks),
        ("forks", fork_everywhere),
    ):
        progress(name)
        part(runner)
    for mode in (CopyMode.HOST, CopyMode.HOST_ASYNC, CopyMode.HOST_PINNED):
        progress(f"rewinds to snapshots kept in memory of the host ({mode.value})")
        restore_snapshots(replace(runner, model=with_copies(model, mode)))
    return runner.counts


def sweep_length(manifest: Manifest) -> int:
    """Tokens of the sessions: two laps of the longest ring, window and page, within the context."""
    longest = max(manifest.limits.page_tokens, *(max(r.capacity, r.live.align) for r in manifest.rings))
    return min(manifest.model.context, MAX_TOKENS, 2 * longest + 2 * NEAR_DISTANCES + 16)


# ------------------------------------------------------------------------------ the parts of a sweep


def run_straight(runner: Runner) -> None:
    """Record every position of a session of one-token steps, and see that a step writes its rows alone."""
    model = runner.model
    session = model.session("straight")
    runner.expected.append(Expected("", {}))
    for at, token in enumerate(runner.tokens):
        before = _mark_rows(model, session, at)
        row = session.step([token])[0]
        _check_writes(model, session, at, before)
        runner.expected.append(Expected(digest_of(row), state_digests(model, session)))
    session.close()


def _mark_rows(model: LocalModel, session: Session, at: int) -> tuple[HostBytes, HostBytes]:
    """Make the ring rows that the token at `at` will replace NaN, and read both arenas."""
    for _, start, size in _rows_of_token(model, session, at):
        model.device.fill(model.store.states, start, size, DEAD_BYTE)
    return _read_arenas(model)


def _read_arenas(model: LocalModel) -> tuple[HostBytes, HostBytes]:
    """All slots and all pages."""
    states, pages = model.store.states, model.store.pages
    return model.device.read(states, 0, len(states)), model.device.read(pages, 0, len(pages))


def _rows_of_token(model: LocalModel, session: Session, at: int) -> Iterator[tuple[str, int, int]]:
    """Name of each ring, and start and size in the arena of states of its row that belongs to a position."""
    manifest, slot = model.manifest, session.timeline.lease.slot
    for ring in manifest.rings:
        start = slot * manifest.arenas.state_slot + ring.offset + at % ring.capacity * ring.row_bytes
        yield ring.name, start, ring.row_bytes


def _append_rows_of_token(model: LocalModel, session: Session, at: int) -> Iterator[tuple[str, int, int]]:
    """Name, start and size in the arena of pages of each append row that the token at `at` completes."""
    manifest, pages = model.manifest, session.timeline.lease.pages
    for state in manifest.appends:
        if (at + 1) % state.every:
            continue
        row = at // state.every
        page = pages[row // state.rows_per_page]
        start = page * manifest.arenas.page + state.offset + row % state.rows_per_page * state.row_bytes
        yield state.name, start, state.row_bytes


def _check_writes(model: LocalModel, session: Session, at: int, before: tuple[HostBytes, HostBytes]) -> None:
    what = f"step at position {at}"
    owned = (_rows_of_token(model, session, at), _append_rows_of_token(model, session, at))
    for name, rows, arena, old in zip(("states", "pages"), owned, _read_arenas(model), before, strict=True):
        for state, start, size in rows:
            own = arena[start : start + size]
            if np.all(own == DEAD_BYTE):
                fail(what, f"a row of @{state} where the plan has it", "none")
            own[:] = DEAD_BYTE  # what is left are rows that the plan gives to nobody
        changed = np.flatnonzero((arena != old) & (arena != DEAD_BYTE))
        if len(changed):
            fail(what, f"no write but to its own rows, none in {name}", f"one at byte {changed[0]}")


def rewind_in_place(runner: Runner) -> None:
    """At chosen positions of one walk: garbage and back, by every near distance and by the horizon."""
    limits = runner.model.manifest.limits
    session = runner.model.session("rewound")
    distances = [*range(1, min(limits.horizon, NEAR_DISTANCES) + 1), limits.horizon]
    for at in interesting_positions(runner.model.manifest, runner.counts.tokens):
        session.prefill(runner.tokens[session.position : at], chunk=_chunk(limits))
        for distance in sorted({d for d in distances if 0 < d <= session.capacity - at}):
            step_in_parts(session, runner.garbage[:distance], parts=1 + distance % 2)
            _rewind_in_place(runner, session, at)
    session.close()


def reject_drafts(runner: Runner) -> None:
    """One walk of blocks that are accepted in part: 0 to all of 1 to 6 tokens, in a mixed order."""
    session = runner.model.session("drafts")
    widths = range(1, min(6, runner.model.manifest.limits.horizon) + 1)
    cases = [(q, accepted) for q in widths for accepted in range(q + 1)]
    order = np.random.default_rng(SEED).permutation(len(cases)).tolist() if cases else []
    for index in itertools.cycle(order):
        q, accepted = cases[index]
        at = session.position
        if at + q > runner.counts.tokens:
            break
        block = runner.tokens[at : at + accepted] + runner.garbage[: q - accepted]
        session.step(block, all_logits=True)
        _rewind_in_place(runner, session, at + accepted)
        runner.counts.drafts += 1
    session.close()


def _rewind_in_place(runner: Runner, session: Session, to: int) -> None:
    source = session.position
    what = f"rewind in place by {source - to} from {source} to {to}"
    kind = session.rewind(to).kind
    if kind not in (RewindKind.IN_PLACE, RewindKind.NONE):
        fail(what, "a rewind in place", kind.value)
    _count(runner.counts, kind)
    runner.check(session, what)


def restore_snapshots(runner: Runner) -> None:
    """Walks: a snapshot, garbage beyond the horizon, back to it; then again to some tokens after it."""
    positions = interesting_positions(runner.model.manifest, runner.counts.tokens)
    for first in range(WALKS):
        session = runner.model.session("restored")
        for at in positions[first::WALKS]:
            _restore_at(runner, session, at, known=1 + at % 5)
        session.close()


def _restore_at(runner: Runner, session: Session, at: int, known: int) -> None:
    limits, length = runner.model.manifest.limits, runner.counts.tokens
    away = limits.horizon + 1
    if at < session.position or at + known + away > session.capacity:
        return
    session.prefill(runner.tokens[session.position : at], chunk=_chunk(limits))
    pinned = session.pin(position=at)
    for to in (at, min(at + known, length)):
        session.prefill(runner.tokens[at:to])
        leave_and_return(runner, session, to, away)
    session.unpin(pinned.snapshot_id)


def leave_and_return(runner: Runner, session: Session, to: int, away: int) -> None:
    """Garbage of `away` tokens, and a rewind that has to restore a snapshot."""
    session.prefill(list(itertools.islice(itertools.cycle(runner.garbage), away)))
    report = session.rewind(to)
    what = f"{report.kind.value} from {to + away} to {to} (snapshot at {report.base_position})"
    if report.kind not in (RewindKind.SNAPSHOT, RewindKind.SNAPSHOT_REPLAY):
        fail(what, "a rewind that restores a snapshot", report.kind.value)
    _count(runner.counts, report.kind)
    runner.check(session, what)


def _count(counts: Sweep, kind: RewindKind) -> None:
    counts.in_place += kind in (RewindKind.IN_PLACE, RewindKind.NONE)
    counts.snapshots += kind is RewindKind.SNAPSHOT
    counts.replays += kind is RewindKind.SNAPSHOT_REPLAY


def restore_marks(runner: Runner) -> None:
    """Snapshots that long steps took in passing: back to each of them and near it, then forwards again."""
    limits, length = runner.model.manifest.limits, runner.counts.tokens
    session = runner.model.session("marks")
    session.prefill(runner.tokens)
    for base in range(length // limits.page_tokens * limits.page_tokens, 0, -limits.page_tokens):
        for to in sorted({min(base + more, session.position) for more in (0, 1, 37)}, reverse=True):
            source = session.position
            report = session.rewind(to)
            if report.kind is RewindKind.REBUILD:
                fail(f"rewind from {source} to {to}", f"a snapshot at {base}", "a rebuild from position 0")
            _count(runner.counts, report.kind)
            runner.check(session, f"{report.kind.value} from {source} to {to}")
    for info in session.snapshots():
        if info.position > session.position:
            session.rewind_to_snapshot(info.snapshot_id)
            runner.counts.forwards += 1
            runner.check(session, f"restore of snapshot {info.snapshot_id} at {info.position}, forwards")
    session.close()


def fork_everywhere(runner: Runner) -> None:
    """Children at the end of a session and anywhere before it; parent and child go on apart."""
    model, tokens = runner.model, runner.tokens
    if not model.manifest.capabilities.fork:
        return
    limits, length = model.manifest.limits, runner.counts.tokens
    for index, at in enumerate(interesting_positions(model.manifest, length)[::3]):
        ahead = min((index * 7) % (2 * limits.horizon + 2), length - at)
        parent = model.session("parent")
        parent.prefill(tokens[: at + ahead], chunk=_chunk(limits))
        child, report = parent.fork(at)
        what = f"fork at {at} of a session of {at + ahead} tokens ({report.kind.value})"
        step_in_parts(parent, runner.garbage[: min(3, parent.capacity - parent.position)], parts=1)
        child.prefill(tokens[at : min(at + 2, length)])
        runner.check(child, what)
        child.close()
        parent.rewind(at + ahead)
        runner.check(parent, f"rewind of the parent of a {what}")
        parent.close()
        runner.counts.forks += 1


def step_in_parts(session: Session, tokens: Sequence[int], parts: int) -> None:
    """Evaluate tokens in that many steps."""
    size = max(1, -(-len(tokens) // parts))
    for start in range(0, len(tokens), size):
        session.step(tokens[start : start + size])


def _chunk(limits: Limits) -> int:
    """A chunk size that divides no window, so that borders fall everywhere."""
    return min(limits.max_rows, 23)


def interesting_positions(manifest: Manifest, length: int) -> list[int]:
    """Borders of windows and rings with their neighbours, and sixteen positions in a row."""
    borders: set[int] = {1}
    for ring in manifest.rings:
        for step in {ring.live.align, ring.live.back + 1, ring.capacity}:
            if step >= NEAR_DISTANCES:
                borders |= set(range(step, length, step))
    near = {b + k for b in borders for k in (-1, 0, 1)}
    near |= set(range(length // 2, length // 2 + NEAR_DISTANCES))
    return sorted(p for p in near if 0 < p < length)
