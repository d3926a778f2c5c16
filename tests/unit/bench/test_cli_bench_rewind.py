"""`ds4c bench --rewind` on a small artifact: which rewinds, what is reported, bytes as they were planned."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifacts import Build
from port import drop_snapshots, memory_of, snapshot_size

from ds4c.build import BuildOptions, build
from ds4c.cli.bench_picture import draw_rewinds, print_rewinds
from ds4c.cli.bench_rewind import byte_counts, targets
from ds4c.cli.main import main
from ds4c_runtime.local import LocalModel, open_local
from ds4c_runtime.session import Session

CONTEXT = 300
HORIZON = 12
INTERVAL = 128


def test_targets_cover_every_way() -> None:
    found = targets(4096, 64, 128)
    assert found == sorted(set(found), reverse=True)
    assert {4095, 4088, 4032, 4031, 3968, 3996, 3096, 2048, 2049, 2064, 2112, 2175, 128, 1} == set(found)
    assert all(1 <= to < 5 for to in targets(5, 64, 128))
    assert targets(1, 64, 128) == []


@pytest.fixture(scope="module")
def result(built: Build, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command prints, and a picture where that can be drawn."""
    arguments = ["bench", str(built("tiny-8").artifact), "--rewind", "--context", str(CONTEXT)]
    picture = tmp_path_factory.mktemp("rewind") / "rewind.png"
    if importlib.util.find_spec("matplotlib") is not None:
        arguments += ["--plot", str(picture)]
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("sys.stdout.write", lines.append)
        assert main([*arguments, "--repeats", "3", "--json"]) == 0
    assert "--plot" not in arguments or picture.read_bytes().startswith(b"\x89PNG")
    return json.loads("".join(lines))


def test_json_has_what_was_promised(result: dict[str, Any]) -> None:
    assert result["decode_step_ms"] > 0
    assert (result["horizon"], result["snapshot_interval"]) == (HORIZON, INTERVAL)
    assert [c["context"] for c in result["contexts"]] == [CONTEXT]
    for time in result["rewind"]:
        assert {"kind", "context", "distance", "replayed_tokens", "ms", "next_token_ms"} <= set(time)
        assert 0 < time["ms"] <= time["next_token_ms"]


def test_every_way_is_what_the_distance_asks_for(result: dict[str, Any]) -> None:
    kept = [t for t in result["rewind"] if t["snapshots"]]
    assert [CONTEXT - t["distance"] for t in kept] == targets(CONTEXT, HORIZON, INTERVAL)
    for time in kept:
        to = CONTEXT - time["distance"]
        base = to // INTERVAL * INTERVAL
        if time["distance"] <= HORIZON:
            expected = ("in_place", 0)
        elif base == 0:
            expected = ("rebuild", to)
        else:
            expected = ("snapshot", 0) if to == base else ("snapshot_replay", to - base)
        assert (time["kind"], time["replayed_tokens"]) == expected
        assert (time["prefill_ms"] is None) == (time["replayed_tokens"] == 0)
    dropped = [t for t in result["rewind"] if not t["snapshots"]]
    assert [(t["kind"], t["replayed_tokens"]) for t in dropped] == [("rebuild", 287), ("rebuild", 150)]


def test_summary_of_a_context(result: dict[str, Any]) -> None:
    (summary,) = result["contexts"]
    slowest = max(t["ms"] / t["decode_step_ms"] for t in result["rewind"] if t["kind"] == "in_place")
    assert summary["in_place_steps"] == pytest.approx(slowest, abs=1e-5)
    assert summary["replay_over_prefill"] > 0
    assert summary["snapshots"] == 3  # two of the interval, and the one taken here
    assert summary["page_bytes"] == 3 * result["bytes"]["page"]


def test_table(result: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    print_rewinds(result)
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith(f"{CONTEXT} ")]) == len(result["rewind"]) + 1
    assert sum("snapshots dropped" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rewind", "--profile"), "--profile, --rewind: expected one of them"),
        (("--rewind", "--context", "512"), "--context: expected 2 to 511"),
        (("--rewind", "--rows", "2"), "--rows: expected it with --profile"),
    ],
)
def test_refusals(
    built: Build, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    status = main(["bench", str(built("tiny-8").artifact), *arguments])
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_without_matplotlib_nothing_is_measured_for_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status = main(["bench", str(tmp_path), "--rewind", "--plot", str(tmp_path / "p.png")])
    assert status == 5
    assert "expected matplotlib" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"replayed_tokens": 5}, "failed: expected"),
        ({"base_position": 0}, "failed: expected"),
    ],
)
def test_a_rewind_that_does_something_else_is_a_failure(
    built: Build,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broken: dict[str, int],
    message: str,
) -> None:
    real = Session.rewind
    monkeypatch.setattr(Session, "rewind", lambda self, to: real(self, to)._replace(**broken))
    status = main(["bench", str(built("tiny-8").artifact), "--rewind", "--context", "200", "--repeats", "3"])
    assert status == 3
    assert message in capsys.readouterr().err


def test_a_replay_with_other_logits_is_a_failure(
    built: Build, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Session.logits

    def other(self: Session) -> Any:
        logits = real(self)
        return logits + np.float32(self.session_id == "rewind") if logits is not None else None

    monkeypatch.setattr(Session, "logits", other)
    status = main(["bench", str(built("tiny-8").artifact), "--rewind", "--context", "200", "--repeats", "3"])
    assert status == 3
    assert "expected the logits of a plain prefill" in capsys.readouterr().err


def test_an_empty_picture(tmp_path: Path) -> None:
    """A context without a replay, as the smallest has it."""
    pytest.importorskip("matplotlib", reason="needs matplotlib (extra `peers`)")
    time = {
        "kind": "in_place",
        "context": 5,
        "distance": 1,
        "ms": 0.01,
        "prefill_ms": None,
        "snapshots": True,
    }
    contexts = [{"context": 5, "decode_step_ms": 1.0}]
    draw_rewinds(
        {"artifact": "a", "target": "cpu", "horizon": 4, "contexts": contexts, "rewind": [time]},
        tmp_path / "p.png",
    )
    assert [p.name for p in tmp_path.iterdir()] == ["p.png"]


@pytest.fixture(params=["tiny-8", "tiny-128"])
def model(request: pytest.FixtureRequest, built: Build) -> LocalModel:
    return open_local(built(request.param).artifact, sessions=2)


def test_allocated_bytes_are_those_of_the_plan(model: LocalModel) -> None:
    """The slot is the rings and nothing else, each of its capacity; a page is the rows of append states."""
    manifest, counts = model.manifest, byte_counts(model)
    assert counts["slot"] == sum(r.capacity * r.row_bytes for r in manifest.rings)
    assert counts["page"] == pytest.approx(
        sum(a.rows_per_page * a.row_bytes for a in manifest.appends), abs=64 * len(manifest.appends)
    )
    memory = memory_of(model)
    assert memory.state_bytes_total == 2 * manifest.arenas.state_slot + memory.pages * manifest.arenas.page


@pytest.mark.parametrize("name", ["tiny-8", "tiny-128"])
def test_bytes_of_a_token_of_horizon(
    built: Build, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row in every ring, by the shapes of the model; eight tokens of horizon more cost eight of them.

    No kernel runs, so the second build has the library of the first.
    """
    made = built(name)

    def take_library(program: object, toolchain: object, path: str, *_: object) -> None:
        shutil.copy(made.artifact / "kernels.so", path)

    monkeypatch.setattr("ds4c.lower.build_library", take_library)
    options = BuildOptions(horizon=HORIZON + 8, context=512, rows=64, logit_rows=64, segments=2)
    build(made.checkpoint, tmp_path / "m", options)
    small, large = (byte_counts(open_local(each)) for each in (made.artifact, tmp_path / "m"))
    config = made.config
    ratios = config.compress_ratios
    two_lanes = sum(r == 4 for r in ratios)  # ratio 4 pools this window and the one before: twice the width
    one_lane = sum(r > 4 for r in ratios)
    width = len(ratios) * config.head_dim
    width += two_lanes * 2 * 2 * (config.head_dim + config.index_head_dim)
    width += one_lane * 2 * config.head_dim
    assert small["horizon_token"] == large["horizon_token"] == 4 * width
    assert large["slot"] - small["slot"] == 8 * small["horizon_token"]


def test_bytes_of_snapshots_and_sessions_as_they_are_taken(model: LocalModel) -> None:
    manifest = model.manifest
    session = model.session()
    for position in (1, 7, INTERVAL, 200):
        tokens = np.random.default_rng(position).integers(0, manifest.model.vocab_size, position).tolist()
        session.rewind(0)
        drop_snapshots(session)
        session.prefill(tokens)
        info = session.take_snapshot()
        assert info is not None
        rows = [(position - max(0, r.live.first(position)), r.row_bytes) for r in manifest.rings]
        parts = [n * size for n, size in rows] + [4 * manifest.model.vocab_size]
        assert info.bytes == sum(-(-part // 64) * 64 for part in parts)
        memory = memory_of(model)
        assert memory.snapshot_bytes == sum(s.bytes for s in session.snapshots())
        assert memory.state_bytes + memory.snapshot_bytes == session.state_bytes
    assert byte_counts(model)["snapshot_largest"] >= max(
        snapshot_size(manifest, p) for p in range(4 * INTERVAL)
    )
    session.close()
    memory = memory_of(model)
    assert memory.state_bytes == memory.snapshot_bytes == 0
