"""What keeping snapshots costs a generation that never goes back."""

from __future__ import annotations

import hashlib

import numpy as np

from benchmarks.bench import Bench
from benchmarks.own import tokens_of
from benchmarks.pairs import Goal, Pairs, Row, Timed, alternate, row_of, timed
from ds4c_runtime.local import LocalModel
from ds4c_runtime.session import Session
from ds4c_runtime.snapshot import SnapshotOrigin
from ds4c_runtime.state import StateStore
from ds4c_runtime.step import Stepper

PROMPT = 1000
"""Not a multiple of the interval: the end of the prompt and of every turn is a snapshot of its own."""
STEPS = 128
"""Of a turn: as many as lie between two snapshots of the interval, so that each has one of them."""
PAIRS = 31
GOAL = Goal("<=", 1.01)


def snapshots(bench: Bench) -> list[Row]:
    """Time of a prompt of 1000 tokens, and of turns of 128 greedy tokens, with snapshots over without.

    Two stores of one loaded model, so both sides read the same weights. Prompts are taken by new sessions,
    the turns by one after the other in the last of them; tokens and logits of both sides are the same bits.

    Raises:
        RuntimeError: the sides differ in what they computed, or not in what they kept.
    """
    with_snapshots, without = _Side(bench, None), _Side(bench, 0)
    pairs = max(bench.pairs, PAIRS)
    prefill = alternate(with_snapshots.prefill, without.prefill, pairs)
    decode = alternate(with_snapshots.decode, without.decode, pairs)
    if with_snapshots.digest != without.digest:
        raise RuntimeError("snapshots: expected the same tokens and logits without them, got others")
    kept, none = len(with_snapshots.session.snapshots()), len(without.session.snapshots())
    if none or kept < PROMPT // with_snapshots.interval:
        raise RuntimeError(f"snapshots: expected some on one side only, got {kept} and {none}")
    return [_row("snapshots_prefill", bench, prefill, PROMPT), _row("snapshots_decode", bench, decode, STEPS)]


def _row(figure: str, bench: Bench, pairs: Pairs, amount: int) -> Row:
    return row_of(figure, "no snapshots", bench.weights, pairs, GOAL, amount=amount)


class _Side:
    """Sessions of the loaded model with a store of their own."""

    def __init__(self, bench: Bench, snapshot_bytes: int | None) -> None:
        manifest, device = bench.own.model.manifest, bench.own.model.device
        self.interval = manifest.limits.page_tokens
        pages = manifest.limits.pages_per_session
        store = StateStore(manifest, device, 1, pages, snapshot_bytes=snapshot_bytes)
        self._model = LocalModel(manifest, device, store, Stepper(manifest, device, store))
        self._prompt = tokens_of(bench.files.config, PROMPT, seed=7)
        self.session = self._open()
        self._bits = hashlib.sha256()

    def _open(self) -> Session:
        return self._model.session("snapshots")

    def prefill(self) -> Timed:
        """A new session's prompt, and the snapshot at its end."""
        self.session.close()
        self.session = self._open()
        return timed(self._run_prompt)

    def _run_prompt(self) -> None:
        self.session.prefill(self._prompt)
        self.session.keep_snapshot(SnapshotOrigin.PROMPT_END)

    def decode(self) -> Timed:
        """A turn of greedy tokens, and the snapshot at its end."""
        rows: list[np.ndarray] = []
        times = timed(lambda: self._generate(rows))
        for row in rows:
            self._bits.update(row.tobytes())
        return times

    def _generate(self, rows: list[np.ndarray]) -> None:
        row = self.session.logits()
        for _ in range(STEPS):
            assert row is not None
            row = self.session.step([int(row.argmax())])[0]
            rows.append(row)
        self.session.keep_snapshot(SnapshotOrigin.TURN_END)

    @property
    def digest(self) -> tuple[str, str]:
        """Of all tokens, and of the logits of all turns."""
        return self.session.digest, self._bits.hexdigest()
