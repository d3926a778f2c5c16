"""Prefill: 512 tokens into an empty context."""

from __future__ import annotations

from benchmarks.bench import PROMPT, Bench, Peer
from benchmarks.own import tokens_of
from benchmarks.pairs import Goal, Row, Timed, alternate, row_of, timed

GOALS = {"llama.cpp": 3.5, "transformers": 1.5}


def prefill(bench: Bench, name: str, peer: Peer) -> Row:
    """Speed of a prompt of 512 tokens of ours over the peer's, logits of the last token only.

    llama.cpp takes it in one batch of 512, transformers in one call, ours in chunks of the artifact's size.
    """
    tokens = tokens_of(bench.files.config, PROMPT, seed=2)

    def ours() -> Timed:
        bench.own.clear()
        return timed(lambda: bench.own.prefill(tokens))

    def theirs() -> Timed:
        peer.clear()
        return timed(lambda: peer.step(tokens))

    pairs = alternate(ours, theirs, bench.pairs)
    goal = Goal(">=", GOALS[name])
    return row_of("prefill", name, bench.weights, pairs, goal, unit="tok/s", amount=PROMPT)
