"""`ds4c bench` and `ds4c bench --profile` on a small artifact; no test looks at how long anything took."""

from __future__ import annotations

import importlib.util
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from artifacts import Build
from one_layer import one_layer
from sizes import more

from ds4c.build import BuildOptions, build
from ds4c.cli.bench import check_limits
from ds4c.cli.bench_picture import draw_profile, print_profile
from ds4c.cli.bench_profile import KernelTime, Profile, TimedDevice, open_timed, profile_program
from ds4c.cli.bench_traffic import StepShape, kernel_bytes
from ds4c.cli.common import CommandFailure
from ds4c.cli.main import main
from ds4c.ir.dialect import parse_module
from ds4c.ir.kernel import KernelSpec, Operand, Program
from ds4c.passes.program import program_of
from ds4c.passes.target import get_target
from ds4c_runtime.local import LocalModel, open_local

FIGURES = {
    "load_ms",
    "first_step_ms",
    "prefill_tokens_per_s",
    "decode_step_ms",
    "decode_tokens_per_s",
    "rows6_step_ms",
    "rewind_in_place_ms",
}


def ds4c(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main([*arguments])
    out, err = capsys.readouterr()
    return int(status), out, err


def test_json(built: Build, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = built("tiny-8").artifact
    status, out, _ = ds4c(capsys, "bench", str(artifact), "--context", "32", "--repeats", "3", "--json")
    assert status == 0
    found = json.loads(out)
    assert set(found) >= FIGURES
    assert all(found[name] > 0 for name in FIGURES)
    assert found["decode_step_best_ms"] <= found["decode_step_ms"] <= found["decode_step_worst_ms"]
    assert found["context"] == 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--context", "512"), "--context: expected at most 506"),
        (("--profile", "--rows", "65"), "--rows: expected at most 64"),
        (("--profile", "--context", "512"), "--context: expected at most 511"),
        (("-o", "x.png"), "--output: expected it with --profile or --rewind"),
        (("--rows", "2"), "--rows: expected it with --profile"),
    ],
)
def test_refusals(
    built: Build, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    status, out, err = ds4c(capsys, "bench", str(built("tiny-8").artifact), *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_an_artifact_of_small_steps_is_refused() -> None:
    limits = SimpleNamespace(max_rows=64, max_logit_rows=2)
    manifest = SimpleNamespace(model=SimpleNamespace(context=512), limits=limits)
    with pytest.raises(CommandFailure, match="got 64 and 2; build it with larger --rows and --logit-rows"):
        check_limits(cast(Any, SimpleNamespace(manifest=manifest)), 32, 6)


@dataclass(frozen=True)
class Timed:
    """An artifact, and it on a timed device whose library of single calls is in `work`.

    `layers`: how many have experts.
    """

    artifact: Path
    layers: int
    work: Path
    model: LocalModel
    device: TimedDevice


@pytest.fixture(scope="module", params=["one layer", more("tiny-8")])
def timed(request: pytest.FixtureRequest, built: Build, tmp_path_factory: pytest.TempPathFactory) -> Timed:
    folder = tmp_path_factory.mktemp("profile")
    if request.param == "one layer":
        options = BuildOptions(horizon=12, context=512, rows=64, logit_rows=64, segments=2)
        build(one_layer(folder / "checkpoint"), folder / "m", options)
        artifact, layers = folder / "m", 1
    else:
        artifact, layers = built(request.param).artifact, 6
    work = folder / "work"
    work.mkdir()
    return Timed(artifact, layers, work, *open_timed(artifact, work, 1))


@pytest.mark.slow
def test_the_calls_one_by_one_are_the_step(timed: Timed) -> None:
    """What is timed computes the same bits, states included, as the step that it stands for."""
    device = timed.device
    plain = open_local(timed.artifact).session()
    session = timed.model.session()
    tokens = np.random.default_rng(3).integers(0, 160, 40).tolist()
    device.is_timing = True
    for start in range(0, 40, 5):
        block = tokens[start : start + 5]
        ours, theirs = session.step(block, all_logits=True), plain.step(block, all_logits=True)
        assert np.array_equal(ours, theirs)
    assert {len(times) for times in device.times} == {8}
    used = [n for n, call in zip(device.experts, device.calls, strict=True) if "moe_experts" in call.kernel]
    assert len(used) == timed.layers
    assert all(2 <= n <= 8 for n in used)
    session.close()


@pytest.mark.slow
@pytest.mark.parametrize("timed", ["one layer"], indirect=True)
def test_profile_json_and_picture(
    timed: Timed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The library of single calls is the one that is there: it was compiled from the same artifact."""
    artifact = timed.artifact

    def copied(_: object, program: Program, variant: str, work: Path) -> None:
        shutil.copytree(timed.work, work, dirs_exist_ok=True)

    monkeypatch.setattr(type(get_target("cpu")), "build_kernels", copied)
    before = {file.name for file in artifact.iterdir()}
    options = ["--profile", "--context", "16", "--repeats", "3", "--rows", "2", "--json"]
    picture = tmp_path / "profile.png"
    if importlib.util.find_spec("matplotlib") is not None:
        options += ["-o", str(picture)]
    status, out, _ = ds4c(capsys, "bench", str(artifact), *options)
    assert status == 0
    found = json.loads(out)
    assert (found["rows"], found["position"]) == (2, 16)
    times = [kernel["microseconds"] for kernel in found["kernels"]]
    assert times == sorted(times, reverse=True)
    assert sum(kernel["share"] for kernel in found["kernels"]) == pytest.approx(1.0)
    program = program_of(parse_module((artifact / "module.mlir").read_text()))
    calls = next(entry.calls for entry in program.entry_points if entry.name == "step")
    assert sum(kernel["calls"] for kernel in found["kernels"]) == len(calls)
    assert {kernel["kernel"] for kernel in found["kernels"]} == {call.kernel for call in calls}
    assert "-o" not in options or picture.read_bytes().startswith(b"\x89PNG")
    assert {file.name for file in artifact.iterdir()} == before, "the artifact was changed"


MADE_UP = Profile(
    rows=1,
    position=16,
    step_microseconds=12.0,
    kernel_microseconds=10.0,
    kernels=(
        KernelTime("linear_a", "linear", "64x32 float32", 2, 8.0, 16_000, 0.8),
        KernelTime("add_b", "add", "64", 40, 2.0, 400, 0.2),
    ),
)


def test_a_picture_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_profile(MADE_UP)
    _, _, first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["linear", "64x32", "float32", "2", "8.0", "80.0%", "0.02", "2.0", "#" * 30]
    # 0.05 us a call is below what the clock can tell, so no speed is claimed.
    assert second.split() == ["add", "64", "40", "2.0", "20.0%", "0.00", "#" * 8]


def test_no_picture_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CommandFailure, match="expected matplotlib"):
        draw_profile(MADE_UP, tmp_path / "p.png", "title")
    assert list(tmp_path.iterdir()) == []


def test_a_profile_program_has_every_call_once(built: Build) -> None:
    program = program_of(parse_module((built("tiny-8").artifact / "module.mlir").read_text()))
    step = next(entry for entry in program.entry_points if entry.name == "step")
    *singles, empty = profile_program(program).entry_points
    assert tuple(entry.calls for entry in singles) == tuple((call,) for call in step.calls)
    assert {entry.arenas for entry in (*singles, empty)} == {step.arenas}
    assert empty.calls == ()


def linear(rows: int) -> KernelSpec:
    return KernelSpec(
        "linear",
        (),
        (
            Operand("x", "in", "float32", (rows, 32)),
            Operand("w", "weight", "bfloat16", (64, 32), "panel16"),
            Operand("y", "out", "float32", (rows, 64)),
            Operand("count", "count", "int32", (1,)),
            Operand("scratch", "scratch", "uint8", (4096,)),
        ),
    )


def test_traffic_of_a_product() -> None:
    step = StepShape(rows=3, logit_rows=1, position=100, max_rows=64, max_logit_rows=16)
    assert kernel_bytes(linear(64), step, 0) == 64 * 32 * 2 + 3 * 4 * (32 + 64)
    assert kernel_bytes(linear(16), step, 0) == 64 * 32 * 2 + 1 * 4 * (32 + 64)


def test_traffic_by_row_experts_and_window() -> None:
    step = StepShape(rows=4, logit_rows=4, position=10, max_rows=64, max_logit_rows=16)
    table = Operand("table", "weight", "float32", (1000, 8), "row")
    embed = KernelSpec("embed", (), (table, Operand("x", "out", "float32", (64, 8))))
    assert kernel_bytes(embed, step, 0) == 2 * 4 * 8 * 4
    experts = KernelSpec("moe_experts", (), (Operand("w1", "weight", "float32", (8, 16, 32), "panel16"),))
    assert kernel_bytes(experts, step, 3) == 3 * 16 * 32 * 4
    old = Operand("old", "ring", "float32", (192, 8), "", 6144, 1)
    attention = KernelSpec("attention", (("window", 128),), (old,))
    assert kernel_bytes(attention, step, 0) == 10 * 8 * 4  # the ring holds only ten rows so far
    assert (step.closed(4), step.closed(1), StepShape(1, 1, 10, 64, 16).closed(4)) == (1, 4, 0)
