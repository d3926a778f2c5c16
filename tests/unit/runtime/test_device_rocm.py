"""The ROCm device on a fake of HIP: what differs from CUDA, and a step through every function it uses."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_executable import FakeDevice
from fakes.gpu import FakeGpu
from fakes.gpu_artifact import gpu_kernels, gpu_manifest, write_artifact

from ds4c_runtime.device import rocm
from ds4c_runtime.device.rocm import NAMES, RocmDevice, RocmDriver, choose_image
from ds4c_runtime.device.stream_device import StreamDevice
from ds4c_runtime.errors import DeviceError, DeviceMemoryError
from ds4c_runtime.launches import Extent


def make(folder: Path) -> tuple[FakeGpu, StreamDevice]:
    manifest = gpu_manifest("rocm")
    gpu = FakeGpu(NAMES, gpu_kernels(FakeDevice(manifest)))
    gpu.kernels["step"] = lambda gpu, a, b, c, d, e, f: None
    write_artifact(folder, "rocm")
    return gpu, StreamDevice(RocmDriver(gpu))


def test_loading_stepping_and_copying(tmp_path: Path) -> None:
    gpu, device = make(tmp_path)
    manifest = gpu_manifest("rocm")
    device.load(tmp_path, manifest, 1)
    assert device.description == "Fake Radeon, gfx1100, HIP 7.2"
    assert gpu.took() == [
        "hipInit",
        "hipGetDeviceCount",
        "hipGetDeviceProperties",
        "hipDriverGetVersion",
        "hipSetDevice",
        "hipStreamCreateWithFlags",
        "hipEventCreateWithFlags",
        "hipModuleLoadData",
        "hipModuleGetFunction",
        "hipMalloc",
        "hipHostMalloc",
        "hipEventCreateWithFlags",
        "hipStreamSynchronize",
        "hipEventDestroy",
        "hipHostFree",
    ]
    io, states = device.allocate_io(manifest), device.allocate(4096)
    arenas = [io, device.weights, *(device.allocate(64) for _ in range(2)), states, states]
    gpu.took()
    for _ in range(2):
        device.call("step", arenas, Extent(1, 1))
    assert gpu.took() == [
        "hipMemcpyHtoDAsync",
        "hipStreamBeginCapture",
        "hipModuleLaunchKernel",
        "hipStreamEndCapture",
        "hipGraphInstantiateWithFlags",
        "hipGraphDestroy",
        "hipGraphLaunch",
        "hipStreamSynchronize",
        "hipMemcpyHtoDAsync",
        "hipGraphLaunch",
        "hipStreamSynchronize",
    ]
    device.fill(states, 0, 64, 3)
    device.copy(states, 0, 64, 64)
    host, is_pinned = device.host_buffer(64, pinned=True)
    copy = device.copy_to_host(states, 64, host)
    assert (is_pinned, copy.poll()) == (True, False)
    copy.wait()
    assert (host == 3).all()
    device.close()


def test_statuses_by_name(tmp_path: Path) -> None:
    gpu, device = make(tmp_path)
    device.load(tmp_path, gpu_manifest("rocm"), 1)
    gpu.fails["hipMalloc"] = 2
    with pytest.raises(
        DeviceMemoryError, match=r"got hipMalloc failed: .* hipSuccess, got hipErrorOutOfMemory"
    ):
        device.allocate(10)
    gpu.fails["hipMemsetAsync"] = 700
    with pytest.raises(DeviceError, match=r"hipMemsetAsync failed: .* got hipErrorIllegalAddress"):
        device.allocate(10)
    copy = device.copy_to_host(device.allocate(8), 0, np.zeros(8, np.uint8))
    gpu.fails["hipEventQuery"] = 700
    assert copy.poll()
    with pytest.raises(DeviceError, match="hipEventQuery failed"):
        copy.wait()


def test_a_code_object_runs_on_its_architecture_alone() -> None:
    files = ("kernels.gfx942.co", "kernels.gfx1100.co", "launches.json")
    assert choose_image(files, "gfx942") == "kernels.gfx942.co"
    with pytest.raises(
        DeviceError, match=r"expected kernels for gfx1101, got gfx1100, gfx942; build .* rocm:gfx1101"
    ) as refused:
        choose_image(files, "gfx1101")
    assert refused.value.exit_code == 5


@pytest.mark.parametrize("text", ["gfx942", b"gfx942\0\0"])
def test_names_of_either_version_of_the_bindings(tmp_path: Path, text: str | bytes) -> None:
    gpu, _ = make(tmp_path)
    driver = RocmDriver(gpu)
    properties = SimpleNamespace(name=text, gcnArchName=text)
    gpu.hipGetDeviceProperties = lambda ordinal: (0, properties)  # type: ignore[method-assign]
    assert driver.open() == "gfx942, gfx942, HIP 7.2"


def test_a_machine_without_rocm_or_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(DeviceError, match=r"expected the package hip-python, got No module .*; pip install"):
        RocmDevice().load(tmp_path, gpu_manifest("rocm"), 1)

    class NoLibrary:
        @staticmethod
        def hipInit(flags: int) -> None:
            raise RuntimeError("failed to dlopen")

    monkeypatch.setattr(importlib, "import_module", lambda name: NoLibrary)
    assert rocm.probe().detail == (
        "device rocm refused: expected ROCm's libamdhip64, got RuntimeError; install ROCm"
    )
    gpu, _ = make(tmp_path)
    monkeypatch.setattr(importlib, "import_module", lambda name: gpu)
    assert rocm.probe().is_usable
    gpu.devices = 0
    assert "expected a GPU, got none" in rocm.probe().detail


def test_the_names_are_those_of_the_bindings() -> None:
    hip = pytest.importorskip(rocm.MODULE)
    for name in set(re.findall(r'"(hip[A-Z]\w+)"', Path(rocm.__file__).read_text())) - {"hipSuccess"}:
        assert callable(getattr(hip, name)), name
    RocmDriver(hip).constants()
