"""Decode: one row a step, right after a prompt of 512 tokens."""

from __future__ import annotations

from benchmarks.bench import PROMPT, Bench, Peer
from benchmarks.own import tokens_of
from benchmarks.pairs import Goal, Row, Timed, alternate, row_of, timed

STEPS = 8
"""Steps of one measurement: a disturbance then weighs less than on a single step."""

GOALS = {
    ("llama.cpp", "f32"): 1.25,
    ("llama.cpp", "bf16"): 1.8,
    ("transformers", "f32"): 3.0,
    ("transformers", "bf16"): 3.0,
}


def decode(bench: Bench, name: str, peer: Peer) -> Row:
    """Speed of a decode step of ours over the peer's.

    Both sides hold the same 512 tokens and go on with the same ones, so both choose the same experts. A
    step includes its logits in memory of the caller, and excludes sampling.
    """
    tokens = tokens_of(bench.files.config, PROMPT + STEPS * (bench.pairs + 1))
    bench.own.clear()
    bench.own.prefill(tokens[:PROMPT])
    peer.clear()
    peer.step(tokens[:PROMPT])

    def run(side: Peer) -> Timed:
        at = side.position
        return timed(lambda: [side.step([token]) for token in tokens[at : at + STEPS]])

    pairs = alternate(lambda: run(bench.own), lambda: run(peer), bench.pairs)
    goal = Goal(">=", GOALS[name, bench.weights])
    return row_of("decode", name, bench.weights, pairs, goal, amount=STEPS)
