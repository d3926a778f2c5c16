"""The Metal device on a fake of PyObjC's `Metal`: calls and their order, memory, compilation, errors."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_executable import small_manifest
from fakes.gpu_artifact import gpu_manifest, gpu_plan, write_artifact
from fakes.metal import ARENAS, TEXT, FakeMetal, NewOptions, Options
from port import metal_buffer, metal_buffers

from ds4c_runtime.device import metal, metal_library
from ds4c_runtime.device.metal import MetalDevice
from ds4c_runtime.errors import ArtifactError, DeviceError, DeviceMemoryError
from ds4c_runtime.launches import Extent


class Case:
    def __init__(self, folder: Path, weights: bytes = b"weights") -> None:
        self.manifest = gpu_manifest("metal", weights=len(weights))
        self.api = FakeMetal(self.manifest)
        self.device = MetalDevice(self.api)
        self.folder = write_artifact(folder, "metal", weights)
        (folder / "kernels.metal").write_text(TEXT)

    def load(self) -> None:
        self.device.load(self.folder, self.manifest, 1)


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(metal_library.shutil, "which", lambda name: None)
    return Case(tmp_path / "artifact")


@pytest.mark.parametrize(("options", "line"), [(NewOptions, "math safe"), (Options, "fast math False")])
def test_every_section_is_compiled_alone_in_safe_mathematics(
    case: Case, options: type[Options], line: str
) -> None:
    case.api.options = options
    case.load()
    assert sorted(case.api.log) == sorted([f"compile {n}" for n in ARENAS] + [line] * len(ARENAS))


def test_a_step_is_one_command_buffer(case: Case) -> None:
    case.load()
    case.api.machine.call = lambda *_: None  # type: ignore[method-assign]
    device, sizes = case.device, case.manifest.arenas
    io, work = device.allocate_io(case.manifest), device.allocate(sizes.workspace)
    others = [device.allocate(64) for _ in range(3)]
    case.api.log.clear()
    device.call("step", [io, device.weights, work, *others], Extent(5, 9))
    assert case.api.log == [
        "command buffer",
        "pipeline count",
        "buffer 0",
        "dispatch count",
        "pipeline step",
        *(f"buffer {i}" for i in range(6)),
        "dispatch step",
        "end",
        "commit",
        "wait",
    ]
    assert [(e[0], e[2]) for e in case.api.encoded] == [("count", (13, 4, 1)), ("step", (1, 1, 1))]
    assert case.api.encoded[0][1][0][1] == 4
    assert work[4:8].view(np.int32)[0] == 1


def test_what_is_bound_already_is_not_bound_again(case: Case) -> None:
    plan = gpu_plan("metal")
    (fork,) = plan.entry("fork").launches
    entries = tuple(
        dataclasses.replace(e, launches=(fork, fork)) if e.name == "fork" else e for e in plan.entries
    )
    (case.folder / "launches.json").write_text(dataclasses.replace(plan, entries=entries).to_json())
    case.load()
    case.api.machine.call = lambda *_: None  # type: ignore[method-assign]
    case.api.log.clear()
    case.device.call("fork", [case.device.allocate(64), case.device.allocate(64)], Extent(1, 0))
    assert case.api.log[1:6] == ["pipeline fork", "buffer 0", "buffer 1", "dispatch fork", "dispatch fork"]


def test_a_device_error_is_told(case: Case) -> None:
    case.load()
    case.api.result = 5
    case.api.machine.call = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match=r"fork failed on device metal: .* got Caused GPU Timeout Error"):
        case.device.call("fork", [case.device.allocate(64), case.device.allocate(64)], Extent(1, 0))


@pytest.mark.parametrize("how", ["wraps", "copies", "refuses"])
def test_weights_are_the_mapped_file_or_a_copy_of_it(case: Case, how: str) -> None:
    case.api.wraps = how == "wraps"
    if how == "refuses":
        case.api.refused.add("wrap")
    case.load()
    assert case.device.weights.tobytes() == b"weights"
    buffer = metal_buffer(case.device, case.device.weights)
    assert bytes(buffer.contents().as_buffer(7)) == b"weights"
    assert (len(buffer.memory) == 4096) == (how == "wraps")


def test_arenas_are_shared_buffers_that_live_as_long_as_any_view(case: Case) -> None:
    case.load()
    held = metal_buffers(case.device)
    arena, empty = case.device.allocate(100), case.device.allocate(0)
    assert (arena.shape, arena.any(), empty.shape) == ((100,), False, (0,))
    assert metal_buffers(case.device) == held + 2
    case.device.write(arena, 4, np.full(4, 9, np.uint8))
    view = arena[4:8]
    del arena, empty
    gc.collect()
    assert metal_buffers(case.device) == held + 1
    assert view.tolist() == [9] * 4
    del view
    gc.collect()
    assert metal_buffers(case.device) == held


def test_no_room(case: Case) -> None:
    case.load()
    with pytest.raises(DeviceMemoryError, match=f"buffers of {(1 << 30) + 1} bytes, got at most {1 << 30}"):
        case.device.allocate((1 << 30) + 1)
    case.api.refused.add("buffer")
    with pytest.raises(DeviceMemoryError, match="expected 64 bytes for an arena"):
        case.device.allocate(64)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"refused": {"device"}}, DeviceError, "expected a GPU, got none"),
        ({"unified": False}, DeviceError, "memory that CPU and GPU share, got Fake M4"),
        (
            {"refused": {"step"}},
            ArtifactError,
            "step: expected text that Metal compiles, got program_source:3: no$",
        ),
        ({"refused": {"pipeline fork"}}, DeviceError, "fork: expected a pipeline, got too many registers"),
        ({"threads": 128}, DeviceError, "threadgroups of 256 threads in groups of 32, got at most 128"),
        ({"lanes": 16}, DeviceError, "got at most 1024 in groups of 16"),
    ],
)
def test_machines_and_texts_that_do_not_fit(
    case: Case, change: dict[str, Any], error: type[Exception], match: str
) -> None:
    for name, value in change.items():
        setattr(case.api, name, value)
    with pytest.raises(error, match=match) as raised:
        case.load()
    assert "\n" not in str(raised.value)


def test_artifacts_that_do_not_fit(case: Case) -> None:
    with pytest.raises(DeviceError, match="for target metal, got 'cpu'"):
        case.device.load(case.folder, small_manifest(), 1)
    text = case.folder / "kernels.metal"
    text.write_text(TEXT.replace("// Function: fork\n", ""))
    with pytest.raises(ArtifactError, match="expected a section of 'fork', got none"):
        case.load()
    text.write_text(TEXT.replace("void fork(", "void fork2("))
    with pytest.raises(ArtifactError, match="expected a kernel 'fork' in its section, got none"):
        case.load()
    text.write_text(TEXT + TEXT)
    with pytest.raises(ArtifactError, match="expected each function once"):
        case.load()
    text.unlink()
    with pytest.raises(ArtifactError, match="kernel text not read"):
        case.load()


def test_apples_tools_make_one_library_for_all_later_loads(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        if "-o" in command:
            Path(command[-1]).write_bytes(b"made")
        return SimpleNamespace(stdout="metal 32023")

    monkeypatch.setattr(metal_library.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(metal_library.subprocess, "run", run)
    for _ in range(2):
        MetalDevice(case.api).load(case.folder, case.manifest, 1)
    assert case.api.log == ["library of the cache"] * 2
    made = [c for c in commands if "-o" in c]
    assert len(made) == 1
    assert "-fno-fast-math" in made[0]
    assert sum(each.endswith(".metal") for each in made[0]) == len(ARENAS)


@pytest.mark.parametrize("fails_at", ["--version", "-o"])
def test_tools_that_fail_leave_it_to_the_device(
    case: Case, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    def run(command: list[str], **_: object) -> SimpleNamespace:
        if fails_at in command:
            raise subprocess.CalledProcessError(1, command)
        return SimpleNamespace(stdout="")

    monkeypatch.setattr(metal_library.shutil, "which", lambda name: name)
    monkeypatch.setattr(metal_library.subprocess, "run", run)
    case.load()
    assert case.api.log.count("compile step") == 1


def test_other_systems_and_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert "expected macOS, got linux; use --device emulator" in metal.probe().detail
    monkeypatch.setattr(sys, "platform", "darwin")

    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    status = metal.probe()
    assert not status.is_usable
    assert "pip install 'ds4c[metal]'" in status.detail
    monkeypatch.setattr(importlib, "import_module", lambda name: FakeMetal(small_manifest()))
    assert metal.probe() == type(status)("metal", True, "Fake M4")
