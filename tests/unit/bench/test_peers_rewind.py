"""The harness of the side-by-side grid: what it calls exact, and what it makes of engines that misbehave."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.machine import Machine
from benchmarks.peers_rewind import children, install, installed, table
from benchmarks.peers_rewind.children import Measured, WorkerError, control, grid, measure
from benchmarks.peers_rewind.grid import (
    AnsweredNoError,
    Cell,
    Line,
    Logits,
    Measurement,
    Outcome,
    Result,
    Side,
    Tokens,
    cells,
    from_json,
    judged,
    to_json,
)
from benchmarks.peers_rewind.ways import LABELS, WAYS, Variant, Way, way_of

VOCAB = 11
PLAIN = Way("ds4c", "fake", "`fake`")
SOME = [Cell(Variant.PLAIN, 5, n) for n in range(3)]


class FakeLine:
    """Logits are a function of all tokens; `kind` says how its rewind is wrong."""

    def __init__(self, kind: str, tokens: Sequence[int]) -> None:
        self.kind, self.tokens, self.rewinds = kind, list(tokens), 0
        self.stale = 0

    def before_draft(self, count: int) -> None:
        pass

    def decode(self, tokens: Sequence[int], *, one_batch: bool) -> Logits:
        if self.kind == "falls over" and self.rewinds:
            raise RuntimeError("shape 3 against 4")
        rows: list[np.ndarray] = []
        for token in tokens:
            self.tokens.append(token)
            seen = hash((*self.tokens, self.stale)) % 2**32
            rows.append(np.random.default_rng(seen).standard_normal(VOCAB).astype(np.float32))
        noise = np.float32(1e-3 if self.kind == "rounds" and one_batch else 0)
        close = np.float32(1e-4 if self.kind == "rounds" and self.rewinds else 0)
        return np.stack(rows) + noise + close

    def rewind(self, to: int) -> None:
        self.rewinds += 1
        if self.kind == "once" and self.rewinds > 1:
            raise AnsweredNoError("not again")
        if self.kind == "forgets" and len(self.tokens) - to > 1:
            self.stale = 1
        del self.tokens[to:]

    def reloaded(self, folder: Path) -> Line:
        assert list(folder.iterdir()) == []
        (folder / "state").write_text("x")
        if self.kind == "unsaved":
            raise NotImplementedError("no such thing")
        return self


class FakeSide:
    version, vocab_size = "1", VOCAB

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def line(self, prompt: Sequence[int]) -> Line:
        return FakeLine(self.kind, prompt)

    def prompt_logits(self, tokens: Sequence[int]) -> Logits:
        return FakeLine(self.kind, []).decode(tokens, one_batch=True)


def measured(kind: str, folder: Path, positions: Sequence[int] = (5, 8)) -> list[Result]:
    side: Side = FakeSide(kind)
    measurement = Measurement(side, PLAIN, Tokens.of(VOCAB, 40), folder)
    return [measurement.measure(cell) for cell in cells(PLAIN, positions)]


def test_the_grid_has_every_cell_and_its_controls() -> None:
    wanted = cells(PLAIN, [5, 8])
    assert len(wanted) == len(set(wanted)) == 2 * (9 + 7 + 9)
    assert sum(cell.drafted == 0 for cell in wanted) == 4  # plain and saved, each P


def test_wrong_tokens_are_wrong_everywhere() -> None:
    tokens = Tokens.of(VOCAB, 500)
    assert all(a != b for a, b in zip(tokens.right, tokens.wrong, strict=True))
    assert set(tokens.wrong) <= set(range(VOCAB))


def test_an_engine_that_comes_back(tmp_path: Path) -> None:
    assert {r.outcome for r in measured("right", tmp_path)} == {Outcome.EXACT}


def test_an_engine_that_comes_back_almost(tmp_path: Path) -> None:
    found = measured("rounds", tmp_path)
    assert {r.outcome for r in found if r.cell.drafted} == {Outcome.CLOSE}
    assert {r.outcome for r in control(found)} == {Outcome.EXACT}


def test_an_engine_that_forgets_is_caught_where_it_does(tmp_path: Path) -> None:
    for result in measured("forgets", tmp_path):
        back = result.cell.drafted
        if result.cell.variant is Variant.STACKED:
            back = max(back - back // 2, back // 2)
        assert result.outcome is (Outcome.DIFFERS if back > 1 else Outcome.EXACT), result


@pytest.mark.parametrize(
    ("kind", "variant", "outcome", "detail"),
    [
        ("once", Variant.STACKED, Outcome.REFUSED, "second rewind: not again"),
        ("once", Variant.PLAIN, Outcome.EXACT, ""),
        ("unsaved", Variant.SAVED, Outcome.REFUSED, "save and load: NotImplementedError: no such thing"),
        ("falls over", Variant.PLAIN, Outcome.FAILED, "right tokens: RuntimeError: shape 3 against 4"),
    ],
)
def test_an_engine_that_says_no(
    tmp_path: Path, kind: str, variant: Variant, outcome: Outcome, detail: str
) -> None:
    found = grid(measured(kind, tmp_path), variant)
    assert found
    assert {(r.outcome, r.detail) for r in found} == {(outcome, detail)}


def test_nan_and_negative_zero_are_not_equal() -> None:
    zero = np.zeros((8, VOCAB), np.float32)
    nan = zero.copy()
    nan[3, 3] = np.nan
    assert judged(SOME[1], nan, zero, 1.0).outcome is Outcome.DIFFERS
    assert judged(SOME[1], -zero, zero, 1.0).outcome is Outcome.CLOSE
    assert judged(SOME[1], zero, zero, 0.0).outcome is Outcome.EXACT


def test_results_survive_json() -> None:
    result = Result(SOME[2], Outcome.DIFFERS, 0.25, 0.5, 0.125, "said")
    assert from_json(to_json(result)) == result


WORKER = """
import json, os, sys, time
job = json.loads(sys.stdin.read())
print(json.dumps({"version": "7"}), flush=True)
for variant, position, drafted in job["cells"]:
    print(json.dumps({"begin": [variant, position, drafted]}), flush=True)
    {act}
    result = dict(variant=variant, position=position, drafted=drafted, outcome="exact", largest=0, argmax=1)
    print(json.dumps({"result": {**result, "noise": 0, "detail": ""}}), flush=True)
"""


def fake_worker(act: str) -> list[str]:
    return [sys.executable, "-c", WORKER.replace("{act}", act)]


def test_a_process_that_ends_costs_its_cell() -> None:
    command = fake_worker("if drafted == 1: sys.stderr.write('GGML_ASSERT(x)\\n'); os.abort()")
    found = measure(PLAIN, SOME, {}, command=command)
    assert found.version == "7"
    assert [r.cell for r in found.results] == SOME
    assert [r.outcome for r in found.results] == [Outcome.EXACT, Outcome.ABORTED, Outcome.EXACT]
    assert found.results[1].detail == "SIGABRT: GGML_ASSERT(x)"


def test_a_process_that_always_ends_is_left_alone() -> None:
    wanted = [Cell(Variant.PLAIN, 5, n) for n in range(6)]
    found = measure(PLAIN, wanted, {}, command=fake_worker("sys.exit(3)"))
    assert [r.cell for r in found.results] == wanted
    assert {r.outcome for r in found.results} == {Outcome.ABORTED}
    assert [r.detail for r in found.results] == ["exit status 3"] * 3 + ["not tried after that"] * 3


def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "START_SECONDS", 2.0)
    monkeypatch.setattr(children, "CELL_SECONDS", 0.0)
    found = measure(PLAIN, SOME[:1], {}, command=fake_worker("time.sleep(60)"))
    assert [(r.outcome, r.detail) for r in found.results] == [(Outcome.ABORTED, "no end within 2 s")]


def test_an_engine_that_cannot_be_loaded_is_named() -> None:
    command = [sys.executable, "-c", "raise ImportError('no module x')"]
    with pytest.raises(WorkerError, match="ds4c fake: expected it to start, got: exit status 1: ImportError"):
        measure(PLAIN, SOME, {}, command=command)


def test_every_way_is_found_and_told_apart() -> None:
    assert len({(way.engine, way.name) for way in WAYS}) == len(WAYS)
    assert len({(way.engine, way.call) for way in WAYS}) == len(WAYS)
    assert {way.engine for way in WAYS} == set(LABELS)
    assert all(way_of(way.engine, way.name) is way for way in WAYS)


def test_the_page() -> None:
    def result(variant: Variant, n: int, outcome: Outcome, **more: Any) -> Result:
        return Result(Cell(variant, 5, n), outcome, **more)

    way = Way("llama", "x", "`call`", variants=(Variant.PLAIN, Variant.STACKED))
    results = [
        result(Variant.PLAIN, 0, Outcome.EXACT, noise=0.5),
        result(Variant.PLAIN, 1, Outcome.CLOSE, largest=0.25),
        result(Variant.PLAIN, 2, Outcome.DIFFERS, largest=2.5, argmax=0.5),
        result(Variant.STACKED, 2, Outcome.REFUSED, detail="second rewind: no, 12 tokens"),
    ]
    machine = Machine("x86", 2, 8.0, "6.1", 0.0, 0.0)
    text = table.document(
        [Measured(way, "v1", results)], [table.Agreement("llama", 3, 1e-6, 2e-6)], ["mlx: x"], machine, [5]
    )
    for line in (
        "* Engines: llama.cpp v1.",
        "* Left out: mlx: x.",
        "| llama.cpp | `call` | plain | 2 |  | 1 | 1 |  |  |  | 2.5 | 75.0% |",
        "| llama.cpp | `call` | stacked | 1 |  |  |  | 1 |  |  |  |  |",
        "| 5 | 1 | ~0.2 | 2.5 |",
        "* refused: `second rewind: no, # tokens`, 1 of 1 cells",
        "| llama.cpp | `call` | 1 of 1 | 0.5 |",
        "| llama.cpp | 3 | 1.0e-06 | 2.0e-06 |",
    ):
        assert line in text.splitlines(), line


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(engine: str) -> str | None:
        return installed.missing(engine, tmp_path)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert lacks("transformers") == "transformers: torch and transformers not installed; run make peers"
    assert lacks("llama") == "llama.cpp: the package gguf is not installed; run make peers"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert lacks("llama") == "llama.cpp: its binaries are not fetched; run make peers"
    assert lacks("mlx") == "mlx-vlm: its environment is not installed; run make peers"
    assert installed.missing("ds4c") is None
    installed.mlx_stamp(tmp_path).parent.mkdir()
    installed.mlx_stamp(tmp_path).write_text("mlx-vlm==0.1")
    assert installed.missing("mlx", tmp_path) is not None  # another version than the pinned one
    installed.mlx_stamp(tmp_path).write_text(installed.mlx_contents())
    assert installed.missing("mlx", tmp_path) is None


def test_a_failing_pip_leaves_no_half_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(folder: Path, **_: Any) -> None:
        folder.mkdir()

    monkeypatch.setattr("venv.create", create)
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: x\nERROR: No matching distribution\nhint")
    monkeypatch.setattr("subprocess.run", lambda *a, **k: failed)
    reason = install.install_mlx(tmp_path)
    assert reason == "mlx-vlm: expected pip to install it, got: ERROR: No matching distribution"
    assert list(tmp_path.iterdir()) == []
