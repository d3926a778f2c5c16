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
    """Time of a prompt of 1000 tokens, and of 128 greedy tokens after it, with snapshots over without.

    Both sides are new sessions of one store, in the same slot and pages: where memory lies makes more of a
    difference than snapshots do. Tokens and logits of all sessions are the same bits.

    Raises:
        RuntimeError: the sides differ in what they computed, or not in what they kept.
    """
    manifest, device = bench.own.model.manifest, bench.own.model.device
    store = StateStore(manifest, device, 1, manifest.limits.pages_per_session)
    model = LocalModel(manifest, device, store, Stepper(manifest, device, store))
    prompt = tokens_of(bench.files.config, PROMPT, seed=7)
    sides = [_Side(model, prompt, size) for size in (store.snapshots.session_bytes, 0)]
    prefill = alternate(sides[0].run, sides[1].run, max(bench.pairs, PAIRS))
    if len(sides[0].digests | sides[1].digests) != 1:
        raise RuntimeError("snapshots: expected the same tokens and logits without them, got others")
    kept = sides[0].kept, sides[1].kept
    if kept[0] < PROMPT // manifest.limits.page_tokens or kept[1]:
        raise RuntimeError(f"snapshots: expected some on one side only, got {kept[0]} and {kept[1]}")
    turns = Pairs(*(tuple(side.turns[1:]) for side in sides))  # the first is the warm-up
    return [_row("snapshots_prefill", bench, prefill, PROMPT), _row("snapshots_decode", bench, turns, STEPS)]


def _row(figure: str, bench: Bench, pairs: Pairs, amount: int) -> Row:
    return row_of(figure, "no snapshots", bench.weights, pairs, GOAL, amount=amount)


class _Side:
    """Sessions that may hold some bytes of snapshots."""

    def __init__(self, model: LocalModel, prompt: list[int], session_bytes: int) -> None:
        self._model, self._prompt, self._session_bytes = model, prompt, session_bytes
        self.turns: list[Timed] = []
        self.digests: set[str] = set()
        self.kept = 0

    def run(self) -> Timed:
        """A new session's prompt; the turn after it is added to `turns`."""
        self._model.store.snapshots.session_bytes = self._session_bytes
        session = self._model.session("snapshots")
        rows: list[np.ndarray] = []
        prefill = timed(lambda: self._read(session))
        self.turns.append(timed(lambda: self._generate(session, rows)))
        self.kept = len(session.snapshots())
        bits = hashlib.sha256(session.digest.encode())
        for row in rows:
            bits.update(row.tobytes())
        self.digests.add(bits.hexdigest())
        session.close()
        return prefill

    def _read(self, session: Session) -> None:
        session.prefill(self._prompt)
        session.keep_snapshot(SnapshotOrigin.PROMPT_END)

    @staticmethod
    def _generate(session: Session, rows: list[np.ndarray]) -> None:
        row = session.logits()
        for _ in range(STEPS):
            assert row is not None
            row = session.step([int(row.argmax())])[0]
            rows.append(row)
        session.keep_snapshot(SnapshotOrigin.TURN_END)
