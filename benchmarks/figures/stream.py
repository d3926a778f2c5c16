"""A decode step against the time that reading its weights takes."""

from __future__ import annotations

import statistics
from dataclasses import replace

from benchmarks.active import active_bytes
from benchmarks.bench import PROMPT, Bench
from benchmarks.own import tokens_of
from benchmarks.pairs import Goal, Row, Timed, alternate, row_of, timed
from benchmarks.stream import ReadStream

STEPS = 8
GOAL = Goal("<=", 1.35)


def stream(bench: Bench) -> Row:
    """Time of a decode step after 512 tokens over that of plainly reading as many bytes as it needs.

    The reader has huge pages and goes on through a buffer as large as all weights. Each side does one round
    before it is timed, so that both find in the caches what they themselves left there: otherwise the ratio
    has two values, by who began the pair.
    """
    config = bench.files.config
    size = active_bytes(config, bench.weights)
    total = bench.own.model.manifest.arenas.weights
    reader = ReadStream(bench.cache, size, total)
    tokens = tokens_of(config, PROMPT + (STEPS + 1) * (bench.pairs + 1), seed=4)
    bench.own.clear()
    bench.own.prefill(tokens[:PROMPT])

    def ours() -> Timed:
        at = bench.own.position
        bench.own.step([tokens[at]])
        return timed(lambda: [bench.own.step([token]) for token in tokens[at + 1 : at + 1 + STEPS]])

    def theirs() -> Timed:
        reader()
        return timed(lambda: [reader() for _ in range(STEPS)])

    pairs = alternate(ours, theirs, bench.pairs)
    row = row_of("stream", "read stream", bench.weights, pairs, GOAL, amount=STEPS)
    # By processor time, which other programs lengthen least.
    speed = size * STEPS / statistics.median(t.cpu for t in pairs.theirs) / 1e9
    facts = {"active_bytes": float(size), "read_gigabytes_per_s": speed}
    return replace(row, note=f"{size / 1e6:.1f} MB active, read at {speed:.1f} GB/s", facts=facts)
