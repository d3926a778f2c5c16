"""`ds4c verify`: files, the proof of a manifest, the sweep on the kernels, and plans that somebody edited."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from artifacts import Build
from sizes import more

from ds4c.cli import verify_plan
from ds4c.cli.main import main
from ds4c_runtime.manifest import AppendState, Live, Manifest, RingState
from ds4c_runtime.manifest_checks import marks_layout


def edited(source: Path, target: Path, edit: Callable[[Manifest], Manifest]) -> Path:
    """A copy of an artifact whose manifest is edited and otherwise in order: hashes and id are right."""
    target.mkdir()
    manifest = edit(Manifest.read(source)).with_id()
    for entry in manifest.files:
        os.link(source / entry.name, target / entry.name)
    (target / "manifest.json").write_text(manifest.to_json())
    return target


def with_ring(name: str, **changes: object) -> Callable[[Manifest], Manifest]:
    def edit(manifest: Manifest) -> Manifest:
        assert any(s.name == name for s in manifest.rings)
        states = [replace(s, **changes) if s.name == name else s for s in manifest.states]  # pyright: ignore[reportArgumentType]
        return replace(manifest, states=tuple(states))

    return edit


def with_horizon(horizon: int) -> Callable[[Manifest], Manifest]:
    return lambda manifest: replace(manifest, limits=replace(manifest.limits, horizon=horizon))


def with_larger_ring(manifest: Manifest) -> Manifest:
    """The first ring gets eight rows more, all that stands behind it moves up: a plan that fits together."""
    first = manifest.rings[0]
    room = -(-8 * first.row_bytes // 64) * 64
    states = [
        replace(
            s,
            capacity=s.capacity + 8 * (s.name == first.name),
            offset=s.offset + room * (s.name != first.name),
        )
        if isinstance(s, RingState)
        else s
        for s in manifest.states
    ]
    arenas = replace(manifest.arenas, state_slot=manifest.arenas.state_slot + room)
    return replace(manifest, states=tuple(states), arenas=arenas)


def with_larger_slot(manifest: Manifest) -> Manifest:
    return replace(manifest, arenas=replace(manifest.arenas, state_slot=manifest.arenas.state_slot + 64))


def with_longer_pages(manifest: Manifest) -> Manifest:
    """Pages of twice the tokens, half as many: all numbers of the manifest agree with each other."""
    limits, io = manifest.limits, manifest.io
    states = [
        replace(s, rows_per_page=2 * s.rows_per_page, offset=2 * s.offset)
        if isinstance(s, AppendState)
        else s
        for s in manifest.states
    ]
    tables = replace(io.page_tables, shape=(limits.max_segments, limits.pages_per_session // 2))
    return replace(
        manifest,
        states=tuple(states),
        arenas=replace(manifest.arenas, page=2 * manifest.arenas.page),
        limits=replace(
            limits, page_tokens=2 * limits.page_tokens, pages_per_session=limits.pages_per_session // 2
        ),
        io=replace(io, page_tables=tables),
    )


def with_other_order(manifest: Manifest) -> Manifest:
    """Two rings have each other's turn in a snapshot, whose parts stand in the order of the rings."""
    one, two = manifest.rings[0], next(s for s in manifest.rings if s.name == "l2.kv")
    turns = {one.name: two, two.name: one}
    return replace(manifest, states=tuple(turns.get(s.name, s) for s in manifest.states))


def with_more_marks(manifest: Manifest) -> Manifest:
    """Room for more snapshots in one call, and their list at another place."""
    io, limits = manifest.io, replace(manifest.limits, max_marks=manifest.limits.max_marks + 16)
    shape = (marks_layout(limits.max_marks, len(manifest.rings)).size,)
    marks = replace(io.marks, offset=manifest.arenas.io, shape=shape)
    arenas = replace(manifest.arenas, io=manifest.arenas.io + marks.bytes)
    return replace(manifest, limits=limits, io=replace(io, marks=marks), arenas=arenas)


BY_PROOF: dict[str, tuple[Callable[[Manifest], Manifest], str]] = {
    "a row less": (with_ring("l2.kv", capacity=19), "@l2.kv: expected 19 rows to serve every rewind of 12"),
    "raw ring of the window": (with_ring("l0.raw", capacity=8), "@l0.raw: expected 8 rows"),
    "longer horizon": (with_horizon(13), "to serve every rewind of 13 tokens, got position"),
    "more live rows": (with_ring("l0.raw", live=Live(1, 8)), "@l0.raw: expected"),
    "other alignment": (with_ring("l2.score", live=Live(2, 4)), "begin at a multiple of 4 tokens, got 2"),
}
BY_SWEEP: dict[str, Callable[[Manifest], Manifest]] = {
    "a live row less, raw": with_ring("l0.raw", live=Live(1, 6)),
    "a live row less, ratio 4": with_ring("l2.kv", live=Live(4, 3)),
    "a live row less, indexer": with_ring("l2.index_score", live=Live(4, 3)),
    "no previous window": with_ring("l2.score", live=Live(4, 0)),
    "shorter windows": with_ring("l2.kv", live=Live(2, 4), every=2),
    "larger ring": with_larger_ring,
    "larger slot": with_larger_slot,
    "longer pages": with_longer_pages,
    "other order": with_other_order,
    "more marks": with_more_marks,
}


def failure_of(folder: Path, capsys: pytest.CaptureFixture[str], code: int = 3) -> str:
    assert main(["verify", str(folder), "--rewind"]) == code
    notes = ("running ", "plan not compared")
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith(notes)]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("name", BY_PROOF)
def test_a_wrong_plan_is_refuted_before_anything_runs(
    built: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    edit, message = BY_PROOF[name]
    line = failure_of(edited(built("tiny-8").artifact, tmp_path / "m", edit), capsys)
    assert line.startswith("error: verify --rewind failed at @")
    assert message in line


@pytest.mark.parametrize("name", BY_SWEEP)
def test_a_plan_that_is_not_that_of_the_kernels_is_found_by_running_them(
    built: Build,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    folder = edited(built("tiny-8").artifact, tmp_path / "m", BY_SWEEP[name])
    verify_plan.prove_manifest(Manifest.read(folder))  # the proof alone cannot see it
    monkeypatch.setattr(verify_plan, "compare_with_ir", lambda *_: False)
    line = failure_of(folder, capsys)
    assert line.startswith("error: verify --rewind failed: ")
    assert ": expected " in line


@pytest.mark.parametrize("name", [*BY_SWEEP, "shorter horizon", "other context"])
def test_a_plan_that_is_not_that_of_the_ir_is_found_by_reading_it(
    built: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Also where nothing can go wrong with it: a promise of less than what was built."""
    harmless = {"shorter horizon": with_horizon(11), "other context": with_context(128)}
    line = failure_of(
        edited(built("tiny-8").artifact, tmp_path / "m", {**BY_SWEEP, **harmless}[name]), capsys
    )
    assert line.startswith("error: verify --rewind failed at manifest")
    assert "(plan of module.mlir), got" in line


def with_context(context: int) -> Callable[[Manifest], Manifest]:
    """Fewer pages a session."""

    def edit(manifest: Manifest) -> Manifest:
        pages = context // manifest.limits.page_tokens
        tables = replace(manifest.io.page_tables, shape=(manifest.limits.max_segments, pages))
        return replace(
            manifest,
            model=replace(manifest.model, context=context),
            limits=replace(manifest.limits, pages_per_session=pages),
            io=replace(manifest.io, page_tables=tables),
        )

    return edit


@pytest.mark.parametrize("name", ["tiny-8", more("tiny-128"), "tiny-delta"])
def test_an_artifact_as_built_passes(built: Build, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["verify", str(built(name).artifact), "--rewind"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == "files proved plan rewinds compared".split()
    assert "all equal, bit for bit" in out
    assert all(line.startswith("running ") for line in err.splitlines())


def test_json_has_the_counts(built: Build, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(built("tiny-8").artifact), "--rewind", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    counts = document["rewind"]["sweep"]
    kinds = [counts[name] for name in ("in_place", "snapshots", "replays", "forwards")]
    assert counts["compared"] == sum(kinds) + 2 * counts["forks"]
    assert all(count > 0 for count in kinds)
    assert counts["in_place"] > counts["drafts"] > 20
    assert document["rewind"]["proof"]["horizon"] == 12


def test_the_base_install_does_all_but_read_the_ir(
    built: Build, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xdsl.utils.exceptions", None)
    assert main(["verify", str(built("tiny-8").artifact), "--rewind"]) == 0
    out, err = capsys.readouterr()
    assert "all equal, bit for bit" in out
    assert "plan not compared with module.mlir: that needs the extra `build`" in err


def test_without_the_flag_only_files_are_checked(built: Build, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(built("tiny-8").artifact), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"artifact_id", "files", "bytes", "seconds"}


@pytest.mark.parametrize("flags", [[], ["--rewind"]])
@pytest.mark.parametrize("name", ["kernels.so", "weights.bin", "module.mlir"])
def test_a_damaged_file_ends_with_code_4(
    built: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, flags: list[str]
) -> None:
    folder = edited(built("tiny-8").artifact, tmp_path / "m", lambda manifest: manifest)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).unlink()  # the file itself is that of the artifact
    (folder / name).write_bytes(content)
    assert main(["verify", str(folder), *flags]) == 4
    err = capsys.readouterr().err
    assert f"for {name}" in err
    assert err.count("\n") == 1


def test_an_edited_manifest_without_its_id_ends_with_code_4(
    built: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = edited(built("tiny-8").artifact, tmp_path / "m", lambda manifest: manifest)
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"horizon": 12', '"horizon": 11'))
    assert main(["verify", str(folder)]) == 4
    assert "expected artifact_id" in capsys.readouterr().err


def test_no_such_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / "none")]) == 4
    assert capsys.readouterr().err.startswith("error: artifact rejected: expected a file")


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--help"]) == 0
    assert "Example: ds4c verify out/m --rewind" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("live", "capacity", "message"),
    [
        (Live(1, 1), 13, "@l0.delta: expected 13 rows to serve every rewind of 12"),
        (Live(1, 0), 14, "verify --rewind failed: "),
    ],
    ids=["a plane less", "no plane lives"],
)
def test_a_wrong_plan_of_an_opaque_state_is_found(
    built: Build,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    live: Live,
    capacity: int,
    message: str,
) -> None:
    monkeypatch.setattr(verify_plan, "compare_with_ir", lambda *_: False)
    source = built("tiny-delta").artifact
    assert next(s for s in Manifest.read(source).rings if s.name == "l0.delta").capacity == 14
    folder = edited(source, tmp_path / "m", with_ring("l0.delta", live=live, capacity=capacity))
    assert message in failure_of(folder, capsys)
