"""Rewinds on GPUs whose drivers do all as late as they may: order comes from events and waits alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from fake_executable import FakeDevice
from fakes.gpu import FakeGpu
from fakes.gpu_artifact import gpu_kernels, gpu_manifest, write_artifact
from fakes.metal import TEXT, FakeMetal
from port import CopyMode, Machine, graph_count, largest_snapshot, machine_of
from rewind.bug_scenarios import rows_of
from rewind.test_copy_modes import OPERATIONS, TRUTH
from rewind.walker import Chapter, Walk

from ds4c_runtime.device import cuda, rocm
from ds4c_runtime.device.base import Device
from ds4c_runtime.device.metal import MetalDevice
from ds4c_runtime.device.stream_device import StreamDevice

TARGETS = ("cuda", "rocm", "metal")


def machine_on(target: str, mode: CopyMode, largest: float = 8.5) -> Machine[Any]:
    """Three sessions on the device of a target, and snapshots of so many times the largest one."""
    manifest = gpu_manifest(target)
    kernels = gpu_kernels(FakeDevice(manifest))
    device: Device
    if target == "cuda":
        device = StreamDevice(cuda.CudaDriver(FakeGpu(cuda.NAMES, kernels)))
    elif target == "rocm":
        device = StreamDevice(rocm.RocmDriver(FakeGpu(rocm.NAMES, kernels)))
    else:
        device = MetalDevice(FakeMetal(manifest))
    with tempfile.TemporaryDirectory() as folder:
        artifact = write_artifact(Path(folder), target)
        if target == "metal":
            (artifact / "kernels.metal").write_text(TEXT)
        device.load(artifact, manifest, 1)
    room = int(largest * largest_snapshot(manifest))
    return machine_of(manifest, device, 3, snapshot_bytes=room, copy_mode=mode)


EVERY = [(mode, target) for mode in CopyMode for target in TARGETS]
FEW = EVERY[::4]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "target"),
    [pytest.param(*each, marks=[] if each in FEW else [pytest.mark.more]) for each in EVERY],
)
def test_random_sessions(mode: CopyMode, target: str, seed: int, tmp_path: Path) -> None:
    machine = machine_on(target, mode)
    chapters = [Chapter(mode, None)]  # a driver of these knows the memory that it began with
    walk = Walk(
        machine,
        TRUTH,
        f"{seed} {mode} {target}",
        tmp_path,
        chapters=chapters,
        memory_of_chapter=lambda _: machine,
    )
    walk.run(OPERATIONS, chapter_length=OPERATIONS)
    if isinstance(machine.device, StreamDevice):
        # One for each entry point, and of a step for each bucket of rows.
        assert graph_count(machine.device) <= 3 + 7


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", CopyMode)
def test_save_overwrite_and_restore_without_a_wait_between(mode: CopyMode, target: str) -> None:
    machine = machine_on(target, mode)
    session = machine.open()
    session.prefill(list(range(100, 140)))
    session.take_snapshot()
    wanted = rows_of(machine, session)
    session.prefill(list(range(200, 260)))
    assert rows_of(machine, session) != wanted
    session.rewind(40)
    assert rows_of(machine, session) == wanted
