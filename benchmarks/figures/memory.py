"""Bytes of a session, a snapshot and a token of horizon, ours beside llama.cpp's for the same model."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.llama_peer import Cache, LlamaModel, fetch
from benchmarks.own import tokens_of
from benchmarks.pairs import Goal, Row

CONTEXTS = (256, 1024, 4096, 16384)
POSITION = 1024
"""At which states are copied."""
ROLLBACK = 8
"""Tokens that llama.cpp can take back where it can at all; our horizon is larger."""
GOAL = Goal("<=", 1.0)
LIBRARY = "llama.cpp"


def memory(bench: Bench) -> list[Row]:
    """Sizes in MB, as ours over theirs; our rows are float32.

    llama.cpp keeps float16 rows unless told otherwise: its sizes with float32 rows are compared with a goal,
    those with float16 rows stand beside them. Its raw rows are cut to the window (`swa_full` off), and its
    buffers are of a context as long as ours is.
    """
    if LIBRARY not in bench.peers:
        return []
    peer = LlamaModel(fetch(bench.cache), bench.files.gguf, bench.files.config.vocab_size, POSITION)
    try:
        return [*_sessions(bench, peer), *_horizon(bench, peer), *_states(bench, peer)]
    finally:
        peer.close()


def _sessions(bench: Bench, peer: LlamaModel) -> list[Row]:
    """Everything one sequence needs: rings and pages, against caches and rolling states."""
    rows: list[Row] = []
    for context in CONTEXTS:
        ours = session_bytes(bench, context)
        for cache in (Cache("f32", 0, False), Cache("f32", ROLLBACK, False)):
            half = peer.resize(context, Cache("f16", cache.rollback, False))
            theirs = peer.resize(context, cache)
            note = f"takes back {cache.rollback} tokens, ours {horizon(bench)}; with f16 rows {_mb(half)}"
            facts = {"theirs_f16_bytes": half}
            name = f"bytes_session_{context}"
            rows.append(_row(name, f"{LIBRARY} n_rs_seq {cache.rollback}", bench, ours, theirs, note, facts))
    return rows


def _horizon(bench: Bench, peer: LlamaModel) -> list[Row]:
    """One more token that can be taken back."""
    less, more = (peer.resize(POSITION, Cache("f32", tokens, False)) for tokens in (0, 64))
    ours = sum(ring.row_bytes for ring in bench.own.model.manifest.rings)
    return [_row("bytes_horizon", LIBRARY, bench, ours, (more - less) / 64, "one token more", {})]


def _states(bench: Bench, peer: LlamaModel) -> list[Row]:
    """A copy of the state at a position: what must be copied, and with all compressed rows."""
    tokens = tokens_of(bench.files.config, POSITION, seed=8)
    sizes: dict[tuple[str, bool], int] = {}
    for rows in ("f16", "f32"):
        peer.resize(POSITION, Cache(rows, 0, False))
        for start in range(0, POSITION, 512):
            peer.step(tokens[start : start + 512])
        for partial in (True, False):
            sizes[rows, partial] = peer.state_bytes(partial=partial)
    bench.own.clear()
    bench.own.prefill(tokens)
    info = bench.own.session.take_snapshot()
    assert info is not None
    layout, limits = bench.own.model.store.snapshots.layout, bench.own.model.manifest.limits
    every = [layout.parts(POSITION + above).total for above in range(limits.page_tokens)]
    pages = len(bench.own.session.timeline.lease.pages) * bench.own.model.manifest.arenas.page
    copied = {True: info.bytes, False: info.bytes + pages}
    facts = {"largest_bytes": float(layout.largest()), "mean_bytes": sum(every) / len(every)}
    found: list[Row] = []
    for partial, name in ((True, "bytes_snapshot"), (False, "bytes_state")):
        half = float(sizes["f16", partial])
        note = f"at {POSITION}; with f16 rows {_mb(half)}"
        if partial:
            note += f"; ours with logits, at any position {_mb(min(every))} to {_mb(max(every))}"
        facts["theirs_f16_bytes"] = half
        found.append(_row(name, LIBRARY, bench, copied[partial], sizes["f32", partial], note, facts))
    return found


def session_bytes(bench: Bench, context: int) -> int:
    """Bytes of a slot and of the pages of a context, as a session counts them."""
    store, manifest = bench.own.model.store, bench.own.model.manifest
    pages = -(-context // manifest.limits.page_tokens)
    return len(store.states) // store.max_sessions + pages * (len(store.pages) // store.page_count)


def horizon(bench: Bench) -> int:
    """Tokens that a rewind in place reaches."""
    return bench.own.model.manifest.limits.horizon


def _mb(size: float) -> str:
    return f"{size / 1e6:.3g} MB"


def _row(
    figure: str, peer: str, bench: Bench, ours: float, theirs: float, note: str, facts: dict[str, float]
) -> Row:
    ratio = ours / theirs
    counts = {"ours_bytes": float(ours), "theirs_bytes": float(theirs)}
    return Row(
        figure, peer, bench.weights, ratio, 1, ours / 1e6, theirs / 1e6, "MB", ratio, ratio, None, GOAL, note,
        facts={**facts, **counts},
    )  # fmt: skip
