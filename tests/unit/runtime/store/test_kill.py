"""kill -9 at random points of random turns: no turn is lost, nothing crashes, no token is wrong."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import port
import pytest
from bad_input.helpers import PATHS
from fake_executable import fake_engine
from port import die, engine_history
from unit.runtime.store import kill_child

from ds4c_runtime.engine import Engine
from ds4c_runtime.requests import GenerationRequest, StopParams

ON_TRIAL = "expected a state in use, got one on trial"
Line = dict[str, Any]
Histories = dict[str, list[int]]


class Child:
    """The process that forks those that are killed."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, kill_child.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PATHS},
        )

    def read(self) -> Line:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def killed(self, folder: Path, seed: int, turns: int, seconds: float) -> list[Line]:
        """Let one work on the folder, kill it `seconds` after some turns; everything it has said."""
        assert self.process.stdin is not None
        print(folder, seed, file=self.process.stdin, flush=True)
        said: list[Line] = []
        pid = 0
        while True:
            line = self.read()
            pid = line.get("pid", pid)
            assert "error" not in line, line
            if "dead" in line:
                return [each for each in said if "pid" not in each]
            said.append(line)
            if pid and sum("end" in each for each in said) == turns and "end" in line:
                time.sleep(seconds)
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.process.kill()
    made.process.communicate()


def greedy(engine: Engine, tokens: list[int], count: int) -> list[int]:
    """What a session says that did nothing else."""
    if not tokens or not count:
        return []
    stop = StopParams(max_output_tokens=count, ignore_eos=True)
    return list(engine.run(GenerationRequest(tuple(tokens), stop=stop, return_text=False)).tokens)


def after(reference: Engine, line: Line, known: Histories) -> list[int] | None:
    """The history that a turn which was begun leaves behind; `None` if it closes the session."""
    before = known.get(line["name"], [])
    if line["begin"] == "generate":
        given = [*before, *line["tokens"]]
        return given + greedy(reference, given, line["count"])
    if line["begin"] in ("rewind", "fork"):
        return known["a" if line["begin"] == "fork" else line["name"]][: line["to"]]
    return None if line["begin"] == "close" else before


def replayed(said: list[Line], known: Histories) -> tuple[Histories, Line | None]:
    """What is durable after all turns that were answered, and the one that was not."""
    pending: Line | None = None
    for line in said:
        if "begin" in line:
            pending = line
            continue
        pending = None
        if line["history"] is None:
            known.pop(line["name"])
        else:
            known[line["name"]] = line["history"]
    return known, pending


def histories(engine: Engine) -> Histories:
    names = [info.session_id for info in engine.list_sessions()]
    return {name: list(engine_history(engine, name)) for name in names}


def check(reference: Engine, engine: Engine, known: Histories, pending: Line | None) -> None:
    """All sessions are there with their histories; the turn that was not answered is done or not done."""
    there = histories(engine)
    allowed: dict[str, list[list[int] | None]] = {name: [history] for name, history in known.items()}
    if pending is not None:
        done = after(reference, pending, known)
        allowed.setdefault(pending["name"], [None]).append(done)
    for name in {*there, *allowed}:
        assert there.get(name) in allowed.get(name, []), (name, pending)


def use(reference: Engine, engine: Engine, rng: random.Random) -> Histories:
    """Each session goes on, some from an earlier position, as one does that did nothing else."""
    for info in engine.list_sessions():
        name = info.session_id
        if rng.random() < 0.5:
            engine.rewind(name, to=rng.randrange(info.position + 1))
        history = list(engine_history(engine, name))
        if history and len(history) < 250:
            kill_child.generate(engine, name, [], 3)
            assert list(engine_history(engine, name)) == history + greedy(reference, history, 3), name
        port.check(engine)
    return histories(engine)


def kill(child: Child, folder: Path, seed: int, points: int) -> None:
    rng = random.Random(seed)
    known: Histories = {}
    unanswered = 0
    with fake_engine(max_sessions=1) as reference:
        for point in range(points):
            said = child.killed(folder, rng.randrange(1 << 30), rng.randrange(1, 12), rng.random() * 0.02)
            known, pending = replayed(said, known)
            unanswered += pending is not None
            errors: list[tuple[str, str]] = []
            engine = kill_child.opened(folder, errors)
            check(reference, engine, known, pending)
            assert [line for _, line in errors if ON_TRIAL not in line] == []
            known = use(reference, engine, rng)
            assert len(errors) <= 4, errors
            if point % 2:
                engine.shutdown()
            else:
                die(engine)
    assert unanswered >= points // 4, "most were killed between turns"


def test_kill_at_20_points(child: Child, tmp_path: Path, seed: int) -> None:
    kill(child, tmp_path, seed, 20)


@pytest.mark.full
@pytest.mark.slow
def test_kill_at_200_points(child: Child, tmp_path: Path, seed: int) -> None:
    for number in range(10):
        kill(child, tmp_path / str(number), seed + 1 + number, 20)
