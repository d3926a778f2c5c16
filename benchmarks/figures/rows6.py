"""A step of six rows: what checks five drafted tokens."""

from __future__ import annotations

from benchmarks.bench import PROMPT, Bench, Peer
from benchmarks.own import tokens_of
from benchmarks.pairs import Goal, Row, Timed, alternate, row_of, timed

ROWS = 6
STEPS = 4
GOALS = {"f32": 1.8, "bf16": 2.5}


def rows6(bench: Bench, name: str, peer: Peer) -> Row:
    """Speed of a step of six rows with all their logits, of ours over the peer's, after 512 tokens.

    Both sides go on with the same tokens and keep all of them.
    """
    tokens = tokens_of(bench.files.config, PROMPT + ROWS * STEPS * (bench.pairs + 1), seed=3)
    bench.own.clear()
    bench.own.prefill(tokens[:PROMPT])
    peer.clear()
    peer.step(tokens[:PROMPT])

    def run(side: Peer) -> Timed:
        starts = range(side.position, side.position + ROWS * STEPS, ROWS)
        return timed(lambda: [side.step(tokens[i : i + ROWS], all_logits=True) for i in starts])

    pairs = alternate(lambda: run(bench.own), lambda: run(peer), bench.pairs)
    goal = Goal(">=", GOALS[bench.weights]) if name == "llama.cpp" else None
    return row_of("rows6", name, bench.weights, pairs, goal, amount=STEPS)
