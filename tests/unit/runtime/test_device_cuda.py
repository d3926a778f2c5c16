"""The CUDA device on a fake of the driver: calls and their order, graphs, errors, memory."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_executable import FakeDevice
from fakes.gpu import FakeGpu
from fakes.gpu_artifact import gpu_kernels, gpu_manifest, write_artifact
from port import twin_address

from ds4c_runtime.device import cuda, stream_device
from ds4c_runtime.device.cuda import NAMES, CudaDevice, CudaDriver, choose_image
from ds4c_runtime.device.stream_device import StreamDevice
from ds4c_runtime.errors import ArtifactError, DeviceError, DeviceMemoryError
from ds4c_runtime.launches import Extent
from ds4c_runtime.manifest import Manifest

ONE = Extent(1, 0)


class Case:
    """A loaded device, its driver and arenas for the entry points."""

    def __init__(self, folder: Path, weights: bytes = b"", **changes: object) -> None:
        self.manifest = gpu_manifest("cuda", weights=len(weights))
        self.gpu = FakeGpu(NAMES, gpu_kernels(FakeDevice(self.manifest)))
        for name, value in changes.items():
            setattr(self.gpu, name, value)
        self.device = StreamDevice(CudaDriver(self.gpu))
        self.folder = write_artifact(folder, "cuda", weights)

    def load(self) -> Case:
        self.device.load(self.folder, self.manifest, 1)
        arenas = self.manifest.arenas
        self.io = self.device.allocate_io(self.manifest)
        sizes = (arenas.workspace, 2 * arenas.state_slot, 4 * arenas.page, 4096)
        self.workspace, self.states, self.pages, self.snapshots = map(self.device.allocate, sizes)
        self.device.read(self.states, 0, 1)  # all are zeroed now
        self.gpu.took()
        return self

    def step(self, rows: int = 1, tokens: int = 1) -> None:
        """A step without rows: the fake kernel is not told any, only the grid is."""
        self.gpu.kernels["step"] = lambda gpu, a, b, c, d, e, f: None
        arenas = [self.io, self.device.weights, self.workspace, self.states, self.pages, self.snapshots]
        self.device.call("step", arenas, Extent(rows, tokens))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path).load()


UP = ["cuMemcpyHtoDAsync"]
CAPTURE = [
    "cuStreamBeginCapture",
    "cuLaunchKernel",
    "cuStreamEndCapture",
    "cuGraphInstantiate",
    "cuGraphDestroy",
]
RUN = ["cuGraphLaunch", "cuStreamSynchronize"]


def test_loading_takes_the_device_its_kernels_and_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_device, "UPLOAD_BYTES", 1000)
    weights = np.random.default_rng(1).integers(0, 256, 5500, np.uint8).tobytes()
    case = Case(tmp_path, weights)
    case.device.load(case.folder, case.manifest, 1)
    upload = ["cuEventSynchronize", "cuMemcpyHtoDAsync", "cuEventRecord"]
    assert case.gpu.took() == [
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetAttribute",
        "cuDevicePrimaryCtxRetain",
        "cuDeviceGetName",
        "cuDriverGetVersion",
        "cuCtxSetCurrent",
        "cuStreamCreate",
        "cuEventCreate",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuMemAlloc",
        "cuMemHostAlloc",
        "cuEventCreate",
        *upload * 6,
        "cuStreamSynchronize",
        "cuEventDestroy",
        "cuMemFreeHost",
    ]
    assert case.device.description == "Fake H200, sm_90, driver for CUDA 12.8"
    assert case.device.read(case.device.weights, 0, 5500).tobytes() == weights
    assert not case.gpu.pinned


def test_a_step_is_captured_once_for_each_size_and_replayed(case: Case) -> None:
    case.step()
    assert case.gpu.took() == [*UP, *CAPTURE, *RUN]
    case.step()
    case.step(1, 4096)
    assert case.gpu.took() == [*UP, *RUN] * 2
    case.step(3)
    assert case.gpu.took() == [*UP, *CAPTURE, *RUN]
    case.step(4, 4097)
    assert case.gpu.took() == [*UP, *RUN]  # 4097 tokens are more than the context: one bucket of tokens
    assert case.gpu.launches == [
        ("count", (3, 4, 1)),
        ("step", (1, 1, 1)),
        ("count", (9, 4, 1)),
        ("step", (1, 1, 1)),
    ]
    assert case.device.read(case.workspace, 4, 4).view(np.int32)[0] == 5


def test_other_arenas_are_another_graph(case: Case) -> None:
    case.step()
    case.gpu.took()
    case.snapshots = case.device.allocate(64)
    case.gpu.took()
    case.step()
    assert case.gpu.took() == [*UP, *CAPTURE, *RUN]


def test_without_graphs_every_step_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS4C_GRAPH", "off")
    case = Case(tmp_path).load()
    case.step()
    case.step()
    assert case.gpu.took() == [*UP, "cuLaunchKernel", "cuStreamSynchronize"] * 2


def test_only_the_logits_that_were_asked_for_come_down(case: Case) -> None:
    io = case.manifest.io
    at, start = io.logit_rows.offset, io.logits.offset
    filled = case.gpu.view(twin_address(case.device))
    filled[start : start + io.logits.bytes] = 7
    case.io[at : at + 4].view(np.int32)[0] = 2
    case.step()
    assert case.gpu.took()[-2:] == ["cuMemcpyDtoHAsync", "cuStreamSynchronize"]
    got = case.io[start : start + io.logits.bytes]
    assert (got[: 2 * 4 * 1024] == 7).all()
    assert not got[2 * 4 * 1024 :].any()
    assert (filled[start : start + io.logits.bytes] == 7).all(), "logits of the host went up"


def test_all_inputs_go_up_before_each_call(case: Case) -> None:
    seen: list[bytes] = []

    def look(gpu: FakeGpu, io: int, states: int) -> None:
        at = case.manifest.io.fork_args
        seen.append(gpu.view(io)[at.offset : at.offset + 4].tobytes())

    case.gpu.kernels["fork"] = look
    at = case.manifest.io.fork_args.offset
    for byte in (1, 2):
        case.io[at : at + 4] = byte
        case.device.call("fork", [case.io, case.states], ONE)
    assert seen == [bytes([1] * 4), bytes([2] * 4)]


def test_copies_beside_steps_are_ordered_by_events(case: Case) -> None:
    """Save, overwrite, restore, without any wait: each sees what was asked for before it."""
    device, gpu = case.device, case.gpu
    device.fill(case.snapshots, 0, 64, 1)
    gpu.took()
    host, is_pinned = device.host_buffer(64, pinned=True)
    assert is_pinned
    save = device.copy_to_host(case.snapshots, 0, host)
    done: list[str] = []
    save.then(lambda: done.append("saved"))
    order = ["cuEventRecord", "cuStreamWaitEvent"]
    assert gpu.took() == ["cuMemHostAlloc", *order, "cuMemcpyDtoHAsync", "cuEventCreate", "cuEventRecord"]
    assert not save.poll()
    device.fill(case.snapshots, 64, 64, 9)
    load = device.copy_from_host(host, case.snapshots, 128)
    device.copy(case.snapshots, 128, 192, 64)
    assert not load.poll()
    assert not host.any(), "done too early for this test to show anything"
    assert device.read(case.snapshots, 192, 64).tolist() == [1] * 64
    assert load.poll()
    assert save.poll()
    save.wait()
    assert done == ["saved"]
    assert host.tolist() == [1] * 64


def test_steps_do_not_wait_for_saves_but_for_what_is_put_back(case: Case) -> None:
    host = np.zeros(64, np.uint8)
    save = case.device.copy_to_host(case.snapshots, 0, host)
    case.step()
    assert not save.poll()
    load = case.device.copy_from_host(host, case.snapshots, 64)
    case.step()
    assert load.poll()
    assert save.poll()


def test_memory_of_a_copy_lives_until_it_is_done(case: Case) -> None:
    host, _ = case.device.host_buffer(4096, pinned=True)
    arena = case.device.allocate(4096)
    before = case.gpu.used
    case.device.copy_to_host(arena, 0, host)
    del arena, host
    gc.collect()
    assert case.gpu.used == before
    assert len(case.gpu.pinned) == 2  # with the io arena's
    case.device.copy_to_host(case.snapshots, 0, np.zeros(1, np.uint8)).wait()
    case.device.copy_to_host(case.snapshots, 0, np.zeros(1, np.uint8))
    gc.collect()
    assert case.gpu.used == before - 4096
    assert len(case.gpu.pinned) == 1


def test_arenas_and_pinned_buffers_are_given_back_with_their_last_view(case: Case) -> None:
    before = case.gpu.used
    arena = case.device.allocate(1000)
    assert case.gpu.used == before + 1000
    del arena
    assert case.gpu.used == before
    buffer, _ = case.device.host_buffer(1000, pinned=True)
    view = buffer[10:20]
    del buffer
    assert len(case.gpu.pinned) == 2
    assert not view.any()
    del view
    assert len(case.gpu.pinned) == 1


def test_new_arenas_are_zero_and_may_be_empty(case: Case) -> None:
    assert not case.device.read(case.device.allocate(100), 0, 100).any()
    empty = case.device.allocate(0)
    assert len(empty) == 0
    assert len(case.device.read(empty, 0, 0)) == 0
    case.device.write(empty, 0, np.zeros(0, np.uint8))
    case.device.fill(empty, 0, 0, 1)
    case.device.copy_to_host(empty, 0, np.zeros(0, np.uint8)).wait()


def test_the_context_is_made_current_once_in_every_thread(case: Case) -> None:
    case.step()
    assert "cuCtxSetCurrent" not in case.gpu.took()
    for _ in range(2):
        thread = threading.Thread(target=case.step)
        thread.start()
        thread.join()
    case.step()
    assert case.gpu.took().count("cuCtxSetCurrent") == 2


CALLS: list[tuple[str, Callable[[Case], object]]] = [
    ("cuMemcpyHtoDAsync", lambda c: c.step()),
    ("cuStreamBeginCapture", lambda c: c.step()),
    ("cuLaunchKernel", lambda c: c.step()),
    ("cuStreamEndCapture", lambda c: c.step()),
    ("cuGraphInstantiate", lambda c: c.step()),
    ("cuGraphLaunch", lambda c: c.step()),
    ("cuStreamSynchronize", lambda c: c.step()),
    ("cuMemAlloc", lambda c: c.device.allocate(10)),
    ("cuMemsetD8Async", lambda c: c.device.fill(c.states, 0, 1, 1)),
    ("cuMemcpyDtoDAsync", lambda c: c.device.copy(c.states, 0, 8, 8)),
    ("cuMemcpyDtoHAsync", lambda c: c.device.read(c.states, 0, 8)),
    ("cuMemcpyHtoDAsync", lambda c: c.device.write(c.states, 0, np.zeros(8, np.uint8))),
    ("cuEventRecord", lambda c: c.device.copy_to_host(c.states, 0, np.zeros(8, np.uint8))),
    ("cuStreamWaitEvent", lambda c: c.device.copy_from_host(np.zeros(8, np.uint8), c.states, 0)),
    ("cuEventCreate", lambda c: c.device.copy_to_host(c.states, 0, np.zeros(8, np.uint8))),
    ("cuEventSynchronize", lambda c: c.device.copy_to_host(c.states, 0, np.zeros(8, np.uint8)).wait()),
]


@pytest.mark.parametrize(("name", "act"), CALLS)
def test_every_status_is_looked_at(case: Case, name: str, act: Callable[[Case], object]) -> None:
    case.gpu.fails[name] = 700
    with pytest.raises(
        DeviceError,
        match=rf"{name} failed: expected CUDA_SUCCESS, got CUDA_ERROR_ILLEGAL_ADDRESS \(what it means\)",
    ) as failed:
        act(case)
    assert (failed.value.exit_code, "\n" in str(failed.value)) == (5, False)
    assert not case.gpu.fails


def test_a_capture_that_failed_is_ended_and_tried_again(case: Case) -> None:
    case.gpu.fails["cuLaunchKernel"] = 700
    with pytest.raises(DeviceError):
        case.step()
    assert not case.gpu.graphs
    case.gpu.took()
    case.step()
    assert case.gpu.took() == [*UP, *CAPTURE, *RUN]


def test_a_copy_that_failed_is_done_and_tells_whoever_waits(case: Case) -> None:
    copy = case.device.copy_to_host(case.states, 0, np.zeros(8, np.uint8))
    done: list[int] = []
    copy.then(lambda: done.append(1))
    case.gpu.fails["cuEventQuery"] = 700
    assert copy.poll()
    assert done == [1]
    for _ in range(2):
        with pytest.raises(DeviceError, match="cuEventQuery failed"):
            copy.wait()
    assert done == [1]


def test_no_room_is_told_with_the_size(case: Case) -> None:
    case.gpu.room = case.gpu.used + 1000
    with pytest.raises(
        MemoryError, match=r"expected 1001 bytes for an arena, got cuMemAlloc .*OUT_OF_MEM"
    ) as full:
        case.device.allocate(1001)
    assert isinstance(full.value, DeviceMemoryError)
    assert full.value.exit_code == 6
    case.device.allocate(1000)


def test_pinned_memory_that_is_refused_is_memory_all_the_same(case: Case) -> None:
    case.gpu.fails["cuMemHostAlloc"] = 2
    buffer, is_pinned = case.device.host_buffer(100, pinned=True)
    assert (buffer.shape, is_pinned, buffer.any()) == ((100,), False, False)
    assert case.device.host_buffer(100, pinned=False)[1] is False


def test_closing_gives_everything_back(case: Case) -> None:
    case.step()
    case.gpu.took()
    case.device.close()
    # The workspace, states and so on are still referenced by the test.
    wanted = ["cuStreamSynchronize", "cuGraphExecDestroy", "cuMemFree", "cuDevicePrimaryCtxRelease"]
    assert case.gpu.took() == wanted
    assert not case.gpu.graphs
    case.device.close()
    assert case.gpu.took() == []


FILES = ("kernels.sm_80.cubin", "kernels.sm_90.cubin", "kernels.sm_120.cubin", "kernels.cu", "weights.bin")


@pytest.mark.parametrize(
    ("capability", "wanted"),
    [((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90"), ((12, 0), "sm_120"), ((12, 1), "sm_120")],
)
def test_a_cubin_runs_on_its_major_version_from_its_minor_one_on(
    capability: tuple[int, int], wanted: str
) -> None:
    assert choose_image(FILES, capability) == f"kernels.{wanted}.cubin"
    assert choose_image((*FILES, "kernels.ptx"), capability) == f"kernels.{wanted}.cubin"


def test_the_newest_that_fits_and_code_for_one_architecture_alone() -> None:
    files = ("kernels.sm_80.cubin", "kernels.sm_86.cubin", "kernels.sm_90a.cubin")
    assert choose_image(files, (8, 9)) == "kernels.sm_86.cubin"
    assert choose_image(files, (8, 0)) == "kernels.sm_80.cubin"
    assert choose_image(files, (9, 0)) == "kernels.sm_90a.cubin"
    with pytest.raises(DeviceError):
        choose_image(files, (9, 1))


@pytest.mark.parametrize("capability", [(7, 5), (10, 0)])
def test_the_driver_compiles_ptx_where_no_cubin_fits(capability: tuple[int, int]) -> None:
    assert choose_image((*FILES, "kernels.ptx"), capability) == "kernels.ptx"
    wanted = f"sm_{capability[0]}{capability[1]}"
    with pytest.raises(
        DeviceError, match=f"expected kernels for {wanted}, got sm_80, sm_90, sm_120; build .* cuda:{wanted}"
    ) as refused:
        choose_image(FILES, capability)
    assert refused.value.exit_code == 5


def refused(case: Case, error: type[Exception], match: str, manifest: Manifest | None = None) -> None:
    with pytest.raises(error, match=match) as raised:
        case.device.load(case.folder, manifest or case.manifest, 1)
    assert "\n" not in str(raised.value)


def test_machines_that_cannot_run_it(tmp_path: Path) -> None:
    refused(Case(tmp_path, capability=(8, 0)), DeviceError, "expected kernels for sm_80, got sm_90")
    refused(Case(tmp_path, devices=0), DeviceError, "expected a GPU, got none")
    refused(Case(tmp_path), DeviceError, "for target cuda, got 'rocm'", gpu_manifest("rocm"))
    case = Case(tmp_path)
    case.gpu.fails["cuInit"] = 700
    refused(case, DeviceError, "expected a GPU that answers, got cuInit failed")
    case = Case(tmp_path)
    case.gpu.fails["cuModuleLoadData"] = 700
    refused(case, DeviceError, "kernels not loaded: .* install a newer driver")


def test_artifacts_that_are_damaged(tmp_path: Path) -> None:
    case = Case(tmp_path)
    del case.gpu.kernels["restore"]
    refused(
        case, ArtifactError, r"kernels.sm_90.cubin rejected: expected a function 'restore', got cuModuleGet"
    )
    case = Case(tmp_path, b"12345")
    (case.folder / "weights.bin").write_bytes(b"1234")
    refused(case, ArtifactError, "expected 5 bytes in .*, got 4")
    case = Case(tmp_path)
    (case.folder / "launches.json").unlink()
    refused(case, ArtifactError, "launches.json rejected")
    for name in ("launches.json", "weights.bin"):
        files = tuple(f for f in case.manifest.files if f.name != name)
        unlisted = cuda_manifest_with(case.manifest, files)
        refused(Case(tmp_path), ArtifactError, f"expected {name} in the file list", unlisted)


def cuda_manifest_with(manifest: Manifest, files: object) -> Manifest:
    return dataclasses.replace(manifest, files=files)  # type: ignore[arg-type]


def test_a_machine_without_a_driver_or_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    case = Case(tmp_path)
    case.device = CudaDevice()
    refused(
        case, DeviceError, "expected the package cuda-bindings, got No module .* pip install 'ds4c.cuda.'"
    )
    assert not cuda.probe().is_usable

    class NoLibrary:
        @staticmethod
        def cuInit(flags: int) -> None:
            raise RuntimeError("libcuda\nnot found")

    monkeypatch.setattr(importlib, "import_module", lambda name: NoLibrary)
    refused(case, DeviceError, "expected the NVIDIA driver's libcuda, got RuntimeError; install the driver")
    assert "libcuda" in cuda.probe().detail


def test_a_device_that_answers_is_usable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = Case(tmp_path).gpu
    monkeypatch.setattr(importlib, "import_module", lambda name: gpu)
    status = cuda.probe()
    assert status == type(status)("cuda", True, "Fake H200, sm_90, driver for CUDA 12.8")
    assert gpu.took()[-1] == "cuDevicePrimaryCtxRelease"


def test_the_names_are_those_of_the_bindings() -> None:
    driver = pytest.importorskip(cuda.MODULE)
    text = Path(cuda.__file__).read_text()
    for name in set(re.findall(r'"(cu[A-Z]\w+)"', text)):
        assert callable(getattr(driver, name)), name
    CudaDriver(driver).constants()
