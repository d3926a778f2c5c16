"""The CPU device without kernels: features, versions, memory, and what importing the runtime costs."""

from __future__ import annotations

import dataclasses
import mmap
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_executable import small_manifest

from ds4c_runtime.device import memory
from ds4c_runtime.device.cpu import FILES, CpuDevice, check_features, host_features
from ds4c_runtime.device.memory import aligned_zeros, load_weights, map_file, pinned_zeros
from ds4c_runtime.devices import (
    BUILT_IN,
    BuiltIn,
    default_device,
    device_for,
    make_device,
    probe_devices,
)
from ds4c_runtime.errors import ArtifactError, DeviceError
from ds4c_runtime.manifest import FileEntry, Manifest, TargetInfo

RUNTIME = Path(__file__).parents[3] / "runtime"


def installed_tvm_ffi() -> str:
    import tvm_ffi

    return tvm_ffi.__version__


def manifest(**versions: str) -> Manifest:
    made = small_manifest()
    files = tuple(FileEntry(name, "0" * 64, 1) for name in FILES)
    return dataclasses.replace(made, versions=dataclasses.replace(made.versions, **versions), files=files)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4096, 1 << 20])
def test_memory_is_aligned_and_zeroed(size: int) -> None:
    zeroed = aligned_zeros(size)
    assert zeroed.shape == (size,)
    assert not zeroed.any()
    assert zeroed.__array_interface__["data"][0] % 64 == 0  # `ctypes.data` of no bytes is 0
    zeroed[-1:] = 1


def test_mapped_file_is_page_aligned_and_the_file_never_changes(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(range(256)) * 32)
    mapped = map_file(path)
    assert mapped.ctypes.data % 4096 == 0
    assert mapped.tobytes() == path.read_bytes()
    mapped[0] = 99
    assert path.read_bytes()[0] == 0
    (tmp_path / "empty").touch()
    assert map_file(tmp_path / "empty").shape == (0,)
    with pytest.raises(ArtifactError, match="weights not mapped"):
        map_file(tmp_path / "missing")


@pytest.mark.parametrize("size", [0, 1, 4096, (2 << 20) + 5])
def test_small_weights_are_copied_large_ones_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(range(1, 252)) * (size // 251) + bytes(size % 251))
    copied = load_weights(path)
    assert copied.tobytes() == path.read_bytes()
    assert size == 0 or copied.ctypes.data % (2 << 20) == 0
    monkeypatch.setattr(memory, "COPIED_BYTES", 4000)
    calls: list[Path] = []
    monkeypatch.setattr(memory, "map_file", lambda p: calls.append(p) or map_file(p))
    assert load_weights(path).tobytes() == path.read_bytes()
    assert bool(calls) == (size == 0 or size > 4000)
    with pytest.raises(ArtifactError, match="weights not read"):
        load_weights(tmp_path / "missing")


def test_weights_load_where_the_kernel_has_no_huge_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights.bin").write_bytes(b"weights")
    monkeypatch.setattr(memory.mmap, "MADV_HUGEPAGE", 9999)  # EINVAL, as from a kernel built without them
    assert load_weights(tmp_path / "weights.bin").tobytes() == b"weights"


def test_no_room_for_weights_is_no_fault_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(1 << 20)
    monkeypatch.setattr(memory, "HUGE_PAGE_BYTES", 1 << 60)
    with pytest.raises(MemoryError, match="1048576 bytes for the weights"):
        load_weights(tmp_path / "weights.bin")


def test_weights_that_end_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights.bin").write_bytes(b"weights")
    monkeypatch.setattr(Path, "stat", lambda _, **__: SimpleNamespace(st_size=8))
    with pytest.raises(ArtifactError, match=r"expected 8 bytes in .*weights\.bin, got 7; copy"):
        load_weights(tmp_path / "weights.bin")


def test_copy_inside_an_arena() -> None:
    device = CpuDevice()
    arena = device.allocate(64)
    arena[:8] = np.arange(8)
    device.copy(arena, 2, 32, 4)
    assert arena[32:36].tolist() == [2, 3, 4, 5]


def test_features_in_either_spelling() -> None:
    linux = "fpu sse4_1 avx2 fma bmi1 abm avx512_vnni amx_int8 pni".split()
    check_features(
        ["avx2", "fma", "bmi", "lzcnt", "avx512vnni", "amx-int8", "sse4.1", "sse3", "+avx2"], linux
    )
    with pytest.raises(
        DeviceError, match=r"features avx2, avx512f, fma, got a CPU without avx512f; build"
    ) as refused:
        check_features(["fma", "avx512f", "avx2"], linux)
    assert refused.value.metadata == {"needed": "avx2,avx512f,fma", "missing": "avx512f"}
    assert refused.value.exit_code == 5


def test_features_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert host_features(path) == {"fpu", "avx2"}
    path.write_text("Features\t: asimd\n")
    assert host_features(path) == {"asimd"}
    path.write_text("nothing\n")
    with pytest.raises(DeviceError):
        host_features(path)
    with pytest.raises(DeviceError):
        host_features(tmp_path / "missing")


def test_unsuitable_artifacts_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    good = manifest(tvm_ffi=installed_tvm_ffi())
    cases = [
        (
            dataclasses.replace(good, target=dataclasses.replace(good.target, name="cuda")),
            "target cpu, got 'cuda'",
        ),
        (
            dataclasses.replace(good, target=dataclasses.replace(good.target, features=("no-such",))),
            "without no-such",
        ),
        (manifest(tvm_ffi="0.0.1"), r"expected apache-tvm-ffi 0\.0\.1, got"),
    ]
    for bad, message in cases:
        with pytest.raises(DeviceError, match=message):
            CpuDevice().load(tmp_path, bad, 1)
    for name in FILES:
        unlisted = dataclasses.replace(good, files=tuple(f for f in good.files if f.name != name))
        with pytest.raises(ArtifactError, match=f"expected {name} in the file list"):
            CpuDevice().load(tmp_path, unlisted, 1)
    with pytest.raises(ArtifactError, match="kernels not loaded"):
        CpuDevice().load(tmp_path, good, 1)
    (tmp_path / "libtvm_runtime.so").write_bytes(b"not a library")
    with pytest.raises(ArtifactError, match="kernels not loaded"):
        CpuDevice().load(tmp_path, good, 1)


def test_devices_by_name() -> None:
    assert make_device("cpu").name == "cpu"
    with pytest.raises(DeviceError, match=r"expected one of cpu.*got 'tpu'"):
        make_device("tpu")


def for_target(name: str) -> Manifest:
    return dataclasses.replace(small_manifest(), target=TargetInfo(name, "v", ()))


def test_an_artifact_runs_on_the_device_of_its_target() -> None:
    assert default_device(for_target("rocm")) == "rocm"
    assert device_for(for_target("cpu")).name == "cpu"
    assert device_for(for_target("cpu"), "cpu").name == "cpu"


@pytest.mark.parametrize(
    ("target", "device", "wanted"),
    [
        ("cuda", "cpu", "cpu"),
        ("cpu", "cuda", "cuda"),
        ("rocm", "metal", "metal"),
        ("cpu", "emulator", "cuda or metal"),
        ("rocm", "emulator", "cuda or metal"),
    ],
)
def test_an_artifact_for_another_device_is_refused(target: str, device: str, wanted: str) -> None:
    with pytest.raises(DeviceError, match=f"device {device} refused: expected .* {wanted}, got '{target}'"):
        device_for(for_target(target), device)


def test_a_device_whose_module_does_not_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, "odd", BuiltIn("ds4c_runtime.device.odd", "OddDevice", ("odd",)))
    with pytest.raises(DeviceError, match="device odd not loaded: expected its module to import, got No mod"):
        device_for(for_target("odd"))
    (status,) = (s for s in probe_devices() if s.name == "odd")
    assert not status.is_usable


@pytest.mark.serial
def test_import_is_fast_and_brings_no_compiler() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import ds4c_runtime.engine; "
        "print(time.perf_counter() - start); "
        "banned = ('tvm', 'tvm_ffi', 'torch', 'xdsl', 'ds4c', 'grpc', 'tokenizers'); "
        "print(*[m for m in banned if m in sys.modules])"
    )
    best = 10.0
    for _ in range(5):
        result = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONPATH": str(RUNTIME)}, capture_output=True
        )
        seconds, loaded = result.stdout.decode().split("\n")[:2]
        assert loaded == "", result.stderr
        best = min(best, float(seconds))
    assert best < 0.5


def locked_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmLck:")[2].split()[0])


@pytest.mark.parametrize("size", [1000, 4096, 5000])
def test_a_pinned_buffer_stays_locked_when_another_is_freed(size: int) -> None:
    before = locked_kib()
    buffers = [pinned_zeros(size) for _ in range(4)]
    if not all(is_pinned for _, is_pinned in buffers):
        pytest.skip("this system grants no locked memory")
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE // 1024
    for left in range(4, 0, -1):
        assert locked_kib() - before == left * pages
        assert all(not b.any() and b.shape == (size,) and b.ctypes.data % 64 == 0 for b, _ in buffers)
        buffers.pop()
    assert locked_kib() == before


def test_pinned_memory_that_is_refused_is_memory_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def mlock(self, *_: object) -> int:
            return -1

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda *_: Refusing())
    buffer, is_pinned = pinned_zeros(100)
    assert (buffer.shape, is_pinned) == ((100,), False)
