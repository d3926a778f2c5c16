"""Rewind in place against one decode step."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.own import tokens_of
from benchmarks.pairs import Goal, Row, Timed, alternate, row_of, timed

CONTEXTS = (256, 2048, 8192)
DRAFT = 6
GOAL = Goal("<=", 0.01, by_wall=True)


def rewind(bench: Bench) -> list[Row]:
    """Time of taking back six tokens over the time of one decode step, at each context."""
    return [_at(bench, context) for context in CONTEXTS]


def _at(bench: Bench, context: int) -> Row:
    own = bench.own
    tokens = tokens_of(bench.files.config, context + DRAFT, seed=5)
    own.clear()
    own.prefill(tokens[:context])

    def back() -> Timed:
        own.step(tokens[context:])
        return timed(lambda: own.session.rewind(context))

    def step() -> Timed:
        times = timed(lambda: own.step(tokens[context : context + 1]))
        own.session.rewind(context)
        return times

    pairs = alternate(back, step, max(bench.pairs, 15))
    return row_of(f"rewind_{context}", "decode step", bench.weights, pairs, GOAL)
