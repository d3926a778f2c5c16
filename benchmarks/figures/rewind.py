"""Rewinds against one decode step, and replays against a prefill of the same tokens."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.own import OwnModel, tokens_of
from benchmarks.pairs import Goal, Pairs, Row, Timed, alternate, row_of, timed
from ds4c_runtime.reports import RewindKind, RewindReport

CONTEXTS = (256, 1024, 4096, 16384)
DRAFT = 6
IN_PLACE = Goal("<=", 0.01, by_wall=True)
SNAPSHOT = Goal("<=", 1.0, by_wall=True)
REPLAY = Goal("<=", 1.05)


def rewind(bench: Bench) -> list[Row]:
    """What three kinds of rewind take at each context.

    `rewind`: taking back six tokens in place, over one decode step. `restore`: going to a snapshot beyond the
    horizon, over one decode step. `replay`: going to the first position beyond the horizon, by a snapshot and
    a replay, over a prefill of the replayed tokens from the same position.
    """
    rows: list[Row] = []
    bench.own.clear()
    tokens = tokens_of(bench.files.config, CONTEXTS[-1] + DRAFT, seed=5)
    for context in CONTEXTS:
        bench.own.prefill(tokens[bench.own.position : context])
        own = _Own(bench.own, tokens, context)
        for figure, peer, goal, pairs in (
            ("rewind", "decode step", IN_PLACE, own.in_place(max(bench.pairs, 15))),
            ("restore", "decode step", SNAPSHOT, own.restore(bench.pairs)),
            ("replay", "prefill", REPLAY, own.replay(bench.pairs)),
        ):
            rows.append(row_of(f"{figure}_{context}", peer, bench.weights, pairs, goal))
    return rows


class _Own:
    """A session at a context, to which every measurement returns."""

    def __init__(self, own: OwnModel, tokens: list[int], context: int) -> None:
        self._own, self._tokens, self._context = own, tokens, context
        limits = own.model.manifest.limits
        self._beyond = context - limits.horizon - 1
        self._base = self._beyond // limits.page_tokens * limits.page_tokens

    def in_place(self, pairs: int) -> Pairs:
        """Six tokens back, and a decode step."""

        def back() -> Timed:
            self._own.step(self._tokens[self._context : self._context + DRAFT])
            return timed(lambda: self._own.session.rewind(self._context))

        return alternate(back, self._step, pairs)

    def restore(self, pairs: int) -> Pairs:
        """To a snapshot, and a decode step."""

        def back() -> Timed:
            times = timed(lambda: self._rewind(self._base, RewindKind.SNAPSHOT))
            self._refill()
            return times

        return alternate(back, self._step, pairs)

    def replay(self, pairs: int) -> Pairs:
        """To a position above a snapshot, and a prefill of the tokens between."""

        def back() -> Timed:
            times = timed(lambda: self._rewind(self._beyond, RewindKind.SNAPSHOT_REPLAY))
            self._refill()
            return times

        def prefill() -> Timed:
            self._rewind(self._base, RewindKind.SNAPSHOT)
            times = timed(lambda: self._own.prefill(self._tokens[self._base : self._beyond]))
            self._refill()
            return times

        return alternate(back, prefill, pairs)

    def _rewind(self, to: int, kind: RewindKind) -> RewindReport:
        """Rewind beyond the horizon.

        Raises:
            RuntimeError: another way was taken.
        """
        report = self._own.session.rewind(to)
        if report.kind is not kind or report.base_position != self._base:
            raise RuntimeError(f"rewind to {to}: expected {kind} from {self._base}, got {report}")
        return report

    def _step(self) -> Timed:
        times = timed(lambda: self._own.step(self._tokens[self._context : self._context + 1]))
        self._own.session.rewind(self._context)
        return times

    def _refill(self) -> None:
        self._own.prefill(self._tokens[self._own.position : self._context])
