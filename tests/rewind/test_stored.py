"""Sessions of compiled artifacts that are saved and loaded: `==` those that stayed, wherever they go next."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from artifacts import Build, Built
from bad_input.helpers import PATHS, flip
from port import Machine, Session, check, flood, is_on, load_session, open_machine, poison
from rewind_reference import Memo

from ds4c_runtime.engine import Engine
from ds4c_runtime.reports import RebuildReason, RewindKind
from ds4c_runtime.requests import GenerationRequest, StopParams
from ds4c_runtime.store.history_log import HistoryLog
from ds4c_runtime.store.session_store import SessionStore, Storage

MODELS = ["tiny-128", "tiny-8", "tiny-delta"]
MOST = 300


class Pair:
    """Two machines with one artifact: sessions stay on the first and are loaded by the second."""

    def __init__(self, model: Built, folder: Path) -> None:
        self.home = open_machine(model.artifact, sessions=2)
        self.away = open_machine(model.artifact, sessions=2)
        self.memo = Memo(self.home, model.config)
        self.memo_away = Memo(self.away, model.config, self.memo.logits, self.memo.states)
        self.folder = folder
        self.vocabulary = self.home.manifest.model.vocab_size

    def tokens(self, count: int, seed: int) -> list[int]:
        return random.Random(seed).choices(range(self.vocabulary), k=count)

    def open_store(self, model: Machine[Any]) -> SessionStore:
        return SessionStore(model.manifest, Storage(self.folder))

    def move(self, session: Session, *, harm: bool = False) -> Session:
        """Save, close the folder, and load on the other machine, whose memory is full of NaN."""
        store = self.open_store(self.home)
        logs = {log.header.session_id: log for log in store.scan()}
        log = logs.get(session.session_id) or store.create(store.header(session), session)
        assert store.save(log, session)
        store.close()
        if harm:
            flip(log.path.with_suffix(".state"), -1)
        flood(self.away)
        return self.load(session.session_id)

    def load(self, session_id: str) -> Session:
        store = self.open_store(self.away)
        log: HistoryLog = next(log for log in store.scan() if log.header.session_id == session_id)
        loaded = load_session(self.away, store, log)
        store.close()
        return loaded

    def check(self, session: Session) -> None:
        """Equal to a session that did nothing else, with all dead rows NaN."""
        is_home = is_on(self.home, session)
        machine = self.home if is_home else self.away
        poison(machine, session)
        check(machine, session)
        (self.memo if is_home else self.memo_away).check(session)


@pytest.fixture(scope="module")
def pairs(built: Build, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    return {name: Pair(built(name), tmp_path_factory.mktemp("sessions")) for name in MODELS}


@pytest.fixture(params=MODELS)
def pair(request: pytest.FixtureRequest, pairs: dict[str, Pair], tmp_path: Path) -> Pair:
    chosen = pairs[request.param]
    chosen.folder = tmp_path
    return chosen


def test_rewinds_of_a_loaded_session(pair: Pair) -> None:
    """To and around ends of windows and pages; the base is the snapshot that the original has too."""
    session = pair.home.open("s")
    session.prefill(pair.tokens(290, 1))
    session.rewind(270)
    session.prefill(pair.tokens(15, 2))
    try:
        for to in (285, 284, 257, 256, 255, 200, 129, 128, 127, 5, 1, 0):
            loaded = pair.move(session)
            try:
                assert loaded.state_valid
                assert loaded.history == session.history
                pair.check(loaded)
                base = max((s.position for s in session.snapshots() if s.position <= to), default=0)
                report = loaded.rewind(to)
                assert report.kind is (
                    RewindKind.NONE if to == 285 else
                    RewindKind.IN_PLACE if to == 0 else
                    RewindKind.REBUILD if not base else
                    RewindKind.SNAPSHOT if base == to else RewindKind.SNAPSHOT_REPLAY
                )  # fmt: skip
                assert report.replayed_tokens == to - base
                pair.check(loaded)
                loaded.prefill(pair.tokens(9, 3))
                pair.check(loaded)
            finally:
                loaded.close()
    finally:
        session.close()


def test_a_bad_file_costs_a_rebuild_and_nothing_else(pair: Pair) -> None:
    session = pair.home.open("s")
    session.prefill(pair.tokens(140, 4))
    loaded = pair.move(session, harm=True)
    try:
        plan = loaded.plan_rewind(140)
        assert (plan.kind, plan.rebuild_reason) == (RewindKind.REBUILD, RebuildReason.INTEGRITY_FAILED)
        loaded.rebuild()
        pair.check(loaded)
        assert len(list(pair.folder.glob("*.bad"))) == 1
    finally:
        loaded.close()
        session.close()


@pytest.mark.parametrize("number", range(2))
def test_walks_with_saves_and_loads(pair: Pair, seed: int, number: int) -> None:
    rng = random.Random(seed + number)
    session = pair.home.open("s")
    try:
        for step in range(30):
            kind = rng.choice(["prefill", "prefill", "garbage", "rewind", "rewind"])
            if kind == "prefill":
                session.prefill(pair.tokens(min(rng.randrange(1, 90), MOST - session.position), step % 3))
            elif kind == "garbage" and session.position < MOST - 8:
                at = session.position
                session.step(pair.tokens(rng.randrange(1, 8), step))
                session.rewind(at)
            else:
                session.rewind(int(session.position * rng.random()))
            pair.check(session)
            if session.position and step % 2:
                loaded = pair.move(session)
                pair.check(loaded)
                loaded.rewind(int(session.position * rng.random()))
                loaded.step(pair.tokens(2, step))
                pair.check(loaded)
                loaded.close()
    finally:
        session.close()


LOAD = """
import hashlib, sys
from pathlib import Path
from port import load_session, open_machine
from ds4c_runtime.store.session_store import SessionStore, Storage
model = open_machine(Path(sys.argv[1]))
store = SessionStore(model.manifest, Storage(Path(sys.argv[2])))
(log,) = store.scan()
session = load_session(model, store, log)
print(session.state_valid, hashlib.sha256(session.logits()).hexdigest())
report = session.rewind(133)
print(report.kind.value, report.replayed_tokens, hashlib.sha256(session.logits()).hexdigest())
"""


def test_another_process(built: Build, tmp_path: Path) -> None:
    artifact = built("tiny-8").artifact
    model = open_machine(artifact)
    session = model.open()
    session.prefill(random.Random(5).choices(range(model.manifest.model.vocab_size), k=170))
    store = SessionStore(model.manifest, Storage(tmp_path))
    store.save(store.create(store.header(session), session), session)
    store.close()
    before = hashlib.sha256(session.logits()).hexdigest()  # pyright: ignore
    report = session.rewind(133)
    after = hashlib.sha256(session.logits()).hexdigest()  # pyright: ignore
    said = subprocess.run(
        [sys.executable, "-c", LOAD, str(artifact), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": PATHS}, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert said == ["True", before, report.kind.value, str(report.replayed_tokens), after]
    assert report.kind is RewindKind.SNAPSHOT_REPLAY


def test_an_engine_after_a_restart(built: Build, tmp_path: Path) -> None:
    """Two sessions in one slot, then another engine: the same tokens as one that never stopped."""
    artifact = built("tiny-8").artifact
    prompts = {"a": tuple(range(3, 103)), "b": tuple(range(20, 160))}
    stop = StopParams(max_output_tokens=6, ignore_eos=True)

    def turn(engine: Engine, name: str, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return engine.run(GenerationRequest(tokens, name, stop=stop, return_text=False)).tokens

    expected: list[tuple[int, ...]] = []
    with Engine.load(artifact, max_sessions=2) as engine:
        for name, tokens in prompts.items():
            engine.open_session(name)
            expected.append(turn(engine, name, tokens) + turn(engine, name, ()))
    got = {name: () for name in prompts}
    for run in range(2):
        with Engine.load(artifact, max_sessions=2, max_resident=1, storage=Storage(tmp_path)) as engine:
            for name, tokens in prompts.items():
                if not run:
                    engine.open_session(name)
                assert engine.plan_rewind(name, to=engine.get_session(name).position).kind is RewindKind.NONE
                got[name] += turn(engine, name, () if run else tokens)
    assert list(got.values()) == expected
