"""Figures of rewinds and snapshots on a small artifact; no test looks at how long anything took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from artifacts import Build
from port import SnapshotOrigin, refuse_snapshots, set_snapshot_limits

from benchmarks.bench import Bench
from benchmarks.figures import memory, rewind, snapshots
from benchmarks.llama_peer import STATE_BUFFER, Cache
from benchmarks.own import Files, OwnModel
from ds4c_runtime.session import Session


@pytest.fixture
def bench(built: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(rewind, "CONTEXTS", (256, 384))
    monkeypatch.setattr(snapshots, "PROMPT", 140)
    monkeypatch.setattr(snapshots, "STEPS", 4)
    monkeypatch.setattr(snapshots, "PAIRS", 3)
    made = built("tiny-8")
    files = Files("f32", made.checkpoint, made.artifact, tmp_path / "none.gguf")
    return Bench(files, OwnModel(made.artifact), {}, 3, tmp_path, 0)


def test_rewinds_at_each_context(bench: Bench) -> None:
    rows = rewind.rewind(bench)
    assert [(r.figure, r.peer) for r in rows] == [
        (f"{figure}_{context}", peer)
        for context in (256, 384)
        for figure, peer in (("rewind", "decode step"), ("restore", "decode step"), ("replay", "prefill"))
    ]
    assert [str(r.goal) for r in rows[:3]] == ["<= 0.01", "<= 1", "<= 1.05"]
    assert all(r.ratio > 0 for r in rows)


def test_another_way_than_the_figure_is_about_is_an_error(bench: Bench) -> None:
    set_snapshot_limits(bench.own.model, session_bytes=0)
    with pytest.raises(RuntimeError, match=r"expected RewindKind.SNAPSHOT from 128, got .*REBUILD"):
        rewind.rewind(bench)


def test_snapshots_cost_a_generation_nothing_but_time(bench: Bench) -> None:
    rows = snapshots.snapshots(bench)
    assert [(r.figure, r.peer, r.pairs) for r in rows] == [
        ("snapshots_prefill", "no snapshots", 3),
        ("snapshots_decode", "no snapshots", 3),
    ]
    assert {str(r.goal) for r in rows} == {"<= 1.01"}


def test_other_tokens_with_snapshots_are_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Session.keep_snapshot

    def forgetful(self: Session, origin: SnapshotOrigin) -> None:
        real(self, origin)
        if self.snapshots() and origin is SnapshotOrigin.PROMPT_END:
            self.rewind(self.position - 1)

    monkeypatch.setattr(Session, "keep_snapshot", forgetful)
    with pytest.raises(RuntimeError, match="expected the same tokens"):
        snapshots.snapshots(bench)


def test_no_snapshots_on_either_side_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_snapshots(monkeypatch)
    with pytest.raises(RuntimeError, match="expected some on one side only, got 0 and 0"):
        snapshots.snapshots(bench)


def test_sizes_of_llama_are_read_from_its_log() -> None:
    lines = (
        "llama_kv_cache:        CPU KV buffer size =     8.00 MiB\n",
        "llama_dsv4_comp_state:        CPU DSV4 hca state buffer size =     3.38 MiB\n",
        "sched_reserve:        CPU compute buffer size =    25.76 MiB\n",
        "llama_context:        CPU  output buffer size =     0.03 MiB\n",
    )
    assert [size for line in lines for size in STATE_BUFFER.findall(line)] == ["8.00", "3.38"]


class FakePeer:
    """Sizes that are told apart by type, rollback and context."""

    def __init__(self, *_: Any) -> None:
        self.cache, self.fed, self.closed = Cache(), 0, False

    def resize(self, context: int, cache: Cache) -> float:
        self.cache, self.fed = cache, 0
        return (2e6 if cache.rows == "f32" else 1e6) + 1e5 * cache.rollback + context

    def step(self, tokens: list[int]) -> None:
        self.fed += len(tokens)

    def state_bytes(self, *, partial: bool) -> int:
        assert self.fed == memory.POSITION
        return (200_000 if self.cache.rows == "f32" else 100_000) * (1 if partial else 3)

    def close(self) -> None:
        self.closed = True


def test_bytes_beside_another_engine(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = FakePeer()
    monkeypatch.setattr(memory, "CONTEXTS", (256,))
    monkeypatch.setattr(memory, "POSITION", 256)
    monkeypatch.setattr(memory, "LlamaModel", lambda *_: peer)
    monkeypatch.setattr(memory, "fetch", lambda cache: cache)
    assert memory.memory(bench) == [], "a peer that is absent, or computes something else, has no bytes"
    rows = memory.memory(replace(bench, peers={"llama.cpp": bench.own}))
    assert peer.closed
    by_name = {(r.figure, r.peer): r for r in rows}
    assert len(by_name) == len(rows) == 5
    session = bench.own.session
    slot_and_pages = session.state_bytes - sum(s.bytes for s in session.snapshots())
    for rollback in (0, 8):
        row = by_name["bytes_session_256", f"llama.cpp n_rs_seq {rollback}"]
        assert row.facts["ours_bytes"] == slot_and_pages
        assert row.facts["theirs_bytes"] == 2e6 + 1e5 * rollback + 256
        assert row.facts["theirs_f16_bytes"] == 1e6 + 1e5 * rollback + 256
    snapshot, state = by_name["bytes_snapshot", "llama.cpp"], by_name["bytes_state", "llama.cpp"]
    assert snapshot.facts["ours_bytes"] == session.snapshots()[-1].bytes
    assert state.facts["ours_bytes"] > snapshot.facts["ours_bytes"]
    assert (snapshot.facts["theirs_bytes"], state.facts["theirs_bytes"]) == (200_000, 600_000)
    assert by_name["bytes_horizon", "llama.cpp"].facts["theirs_bytes"] == pytest.approx(1e5)
    assert all(r.is_met == (r.ratio <= 1) for r in rows)
