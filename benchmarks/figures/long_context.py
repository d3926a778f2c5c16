"""Decode at a context of 8192 against 512."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.own import tokens_of
from benchmarks.pairs import Goal, Row, Timed, alternate, row_of, timed
from ds4c_runtime.local import open_local

SHORT, LONG = 512, 8192
STEPS = 8
GOAL = Goal("<=", 1.25)


def long_context(bench: Bench) -> Row:
    """Time of a decode step after 8192 tokens over that after 512, two sessions of one model in turns."""
    model = open_local(bench.files.artifact, sessions=2, threads=1)
    tokens = tokens_of(bench.files.config, LONG + STEPS * (bench.pairs + 1), seed=6)
    sessions = {length: model.session(f"at-{length}") for length in (SHORT, LONG)}
    for length, session in sessions.items():
        session.prefill(tokens[:length])

    def run(length: int) -> Timed:
        session = sessions[length]
        at = session.position
        return timed(lambda: [session.step([token]) for token in tokens[at : at + STEPS]])

    pairs = alternate(lambda: run(LONG), lambda: run(SHORT), bench.pairs)
    return row_of("decode_8k", f"context {SHORT}", bench.weights, pairs, GOAL, amount=STEPS)
