"""The emulator behind the device protocol: artifacts with launches, arenas and a step of a certain size."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from emulator_texts import KINDS, Kind, function, render, whole_text
from fake_executable import small_manifest

from ds4c_runtime.device.emulator import EmulatorDevice, probe
from ds4c_runtime.device.emulator.calls import EmulatorFault
from ds4c_runtime.device.emulator.sources import FILES
from ds4c_runtime.devices import device_for
from ds4c_runtime.errors import ArtifactError, DeviceError
from ds4c_runtime.launches import FORMAT, ONE, VERSION, Address, Dim, Entry, Extent, Launch, LaunchPlan
from ds4c_runtime.manifest import FileEntry, Manifest, TargetInfo

MODES = ("fast", "shuffled:3", "checked")
SIZE = 4096
FILL = function("fill", 32, rows="int32", w="float32", t="float32")
FILL_BODY = """  if (BLOCK >= rows[0]) {
    return;
  }
  t[((BLOCK * 32) + THREAD)] = (w[THREAD] + ((float)BLOCK));
"""
TURN = function("turn", 32, rows="int32", t="float32", s="float32")
TURN_BODY = """  if (BLOCK >= rows[0]) {
    return;
  }
  s[((BLOCK * 32) + THREAD)] = t[((BLOCK * 32) + (31 - THREAD))];
"""
Change = Callable[[LaunchPlan], LaunchPlan]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


def make_plan(kind: Kind, manifest: Manifest) -> LaunchPlan:
    rows, weights = Address("io", manifest.io.block.offset), Address("weights", 0)
    workspace, states = Address("workspace", 64), Address("states", 128)
    grid = (Dim(24, "rows"), ONE, ONE)
    launches = (
        Launch("fill", (rows, weights, workspace), grid),
        Launch("turn", (rows, workspace, states), grid),
    )
    entries = (Entry("step", launches), *(Entry(n, ()) for n in ("snapshot", "restore", "fork")))
    return LaunchPlan(FORMAT, VERSION, kind, (FILL, TURN), entries)


def write_artifact(folder: Path, kind: Kind, change: Change = lambda plan: plan) -> Manifest:
    made = small_manifest()
    files = (FileEntry(FILES[kind], "0" * 64, 1),)
    manifest = dataclasses.replace(made, target=TargetInfo(kind, "any", ()), files=files)
    text = whole_text(kind, render(kind, FILL, FILL_BODY), render(kind, TURN, TURN_BODY))
    (folder / FILES[kind]).write_text(text)
    (folder / "launches.json").write_text(change(make_plan(kind, manifest)).to_json())
    (folder / "weights.bin").write_bytes(np.arange(32, dtype=np.float32).tobytes())
    return manifest


def with_step(change: Callable[[tuple[Launch, ...]], tuple[Launch, ...]]) -> Change:
    def changed(plan: LaunchPlan) -> LaunchPlan:
        step, *others = plan.entries
        return dataclasses.replace(plan, entries=(Entry("step", change(step.launches)), *others))

    return changed


def run_step(
    device: EmulatorDevice, manifest: Manifest, rows: int, extent: Extent | None = None
) -> np.ndarray:
    io = device.allocate_io(manifest)
    io[manifest.io.block.offset :].view(np.int32)[0] = rows
    workspace, states, pages, snapshots = (device.allocate(SIZE) for _ in range(4))
    device.fill(states, 0, SIZE, 0)
    arenas = [io, device.weights, workspace, states, pages, snapshots]
    for _ in range(2):
        device.call("step", arenas, extent or Extent(rows, 100))
    return device.read(states, 128, SIZE - 128).view(np.float32)


def load(folder: Path, manifest: Manifest, mode: str, monkeypatch: pytest.MonkeyPatch) -> EmulatorDevice:
    monkeypatch.setenv("DS4C_EMULATOR", mode)
    device = EmulatorDevice()
    device.load(folder, manifest, 1)
    return device


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [1, 3])
def test_step(kind: Kind, mode: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write_artifact(tmp_path, kind)
    found = run_step(load(tmp_path, manifest, mode, monkeypatch), manifest, rows)
    want = np.arange(32, dtype=np.float32)[::-1] + np.arange(rows, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(found[: rows * 32].reshape(rows, 32), want)
    assert not found[rows * 32 :].any()


def test_grid_is_made_for_the_step(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write_artifact(tmp_path, kind)
    device = load(tmp_path, manifest, "fast", monkeypatch)
    assert (
        run_step(device, manifest, 24, Extent(5, 1))[: 24 * 32].reshape(24, 32).any(1).sum() == 6
    )  # bucket of 5


def test_weights_are_constant(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turned = with_step(
        lambda step: (dataclasses.replace(step[0], args=step[0].args[:2] + step[0].args[1:2]),)
    )
    manifest = write_artifact(tmp_path, kind, turned)
    with pytest.raises(
        EmulatorFault, match=r"fill: line .*: guard page: access to byte .* of weights, which is constant"
    ):
        run_step(load(tmp_path, manifest, "fast", monkeypatch), manifest, 1)
    with pytest.raises(EmulatorFault, match=r"fill: line .*: write to constant weights at byte"):
        run_step(load(tmp_path, manifest, "checked", monkeypatch), manifest, 1)


def test_workspace_is_forgotten_between_calls(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_artifact(tmp_path, kind, with_step(lambda step: step[1:]))
    with pytest.raises(EmulatorFault, match=r"turn: line \d+: uninitialised read of workspace at byte 188"):
        run_step(load(tmp_path, manifest, "checked", monkeypatch), manifest, 1)


def test_access_beyond_an_arena(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(step: tuple[Launch, ...]) -> tuple[Launch, ...]:
        fill = step[0]
        return (dataclasses.replace(fill, args=(*fill.args[:2], Address("workspace", SIZE - 64))),)

    manifest = write_artifact(tmp_path, kind, with_step(moved))
    for mode in ("fast", "checked"):
        with pytest.raises(EmulatorFault, match=r"0 bytes after the end of workspace \(4096 bytes\)"):
            run_step(load(tmp_path, manifest, mode, monkeypatch), manifest, 1)


def test_address_beyond_an_arena(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(step: tuple[Launch, ...]) -> tuple[Launch, ...]:
        fill = step[0]
        return (dataclasses.replace(fill, args=(*fill.args[:2], Address("workspace", SIZE + 64))),)

    manifest = write_artifact(tmp_path, kind, with_step(moved))
    with pytest.raises(
        ArtifactError, match="launches rejected: step, fill: expected offset 4160 in arena workspace"
    ):
        run_step(load(tmp_path, manifest, "fast", monkeypatch), manifest, 1)


def test_renamed_kernel_is_refused(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write_artifact(tmp_path, kind)
    path = tmp_path / FILES[kind]
    path.write_text(path.read_text().replace("turn(", "tern(").replace(": turn", ": tern"))
    with pytest.raises(ArtifactError, match="expected a function turn, got none of that name"):
        load(tmp_path, manifest, "fast", monkeypatch)


def test_dropped_argument_is_refused(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write_artifact(tmp_path, kind)
    path = tmp_path / FILES[kind]
    text = path.read_text()
    start = text.index("turn(")
    for parameter in ("float* __restrict__ t, ", "  device float* t [[ buffer(1) ]],\n"):
        text = text[:start] + text[start:].replace(parameter, "", 1)
    path.write_text(text)
    with pytest.raises(ArtifactError, match="kernel text does not compile: kernels"):
        load(tmp_path, manifest, "fast", monkeypatch)


def test_entry_point_without_launches_is_refused(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_artifact(
        tmp_path, kind, lambda plan: dataclasses.replace(plan, entries=plan.entries[1:])
    )
    with pytest.raises(ArtifactError, match="expected an entry point 'step', got none"):
        load(tmp_path, manifest, "fast", monkeypatch)


def test_launches_of_another_language_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write_artifact(tmp_path, "cuda", lambda plan: dataclasses.replace(plan, kind="metal"))
    with pytest.raises(ArtifactError, match="expected launches for cuda, got metal"):
        load(tmp_path, manifest, "fast", monkeypatch)


def test_text_that_nobody_vouches_for_is_refused(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = dataclasses.replace(write_artifact(tmp_path, kind), files=())
    with pytest.raises(ArtifactError, match=rf"expected {FILES[kind]} in the file list of its manifest"):
        load(tmp_path, manifest, "fast", monkeypatch)


@pytest.mark.parametrize(
    ("target", "why"), [("rocm", "it ships no text"), ("cpu", "its kernels are no GPU text")]
)
def test_targets_without_text_are_refused(target: str, why: str, tmp_path: Path) -> None:
    manifest = dataclasses.replace(small_manifest(), target=TargetInfo(target, "any", ()))
    with pytest.raises(DeviceError, match=rf"emulator cannot run {target}: {why}; build"):
        EmulatorDevice().load(tmp_path, manifest, 1)


def test_device_is_found_by_name(kind: Kind, tmp_path: Path) -> None:
    assert isinstance(device_for(write_artifact(tmp_path, kind), "emulator"), EmulatorDevice)
    assert probe().is_usable


@pytest.mark.parametrize("text", ["slow", "fast:1", "shuffled:x", ""])
def test_unknown_mode_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS4C_EMULATOR", text)
    with pytest.raises(
        DeviceError, match="expected DS4C_EMULATOR to be fast, shuffled, shuffled:SEED or checked"
    ):
        EmulatorDevice()
