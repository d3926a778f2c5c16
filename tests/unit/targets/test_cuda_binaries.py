"""CUDA text to binaries by NVRTC and by nvcc: what the readers find in them, and failures in one line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from ds4c.errors import CompileError, TargetError
from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.package.cubin import read_cubin
from ds4c_runtime.package.ptx import read_ptx
from ds4c_targets.cuda import compile as module
from ds4c_targets.cuda.binaries import build_binaries

pytestmark = pytest.mark.slow

ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
TEXT = """#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__(256) add_rows(float* x, unsigned short* y, float* z) {
  int i = blockIdx.x * 256 + threadIdx.x;
  z[i] = x[i] + y[i];
}
extern "C" __global__ void __launch_bounds__(128) sum_shared(float* x, half* z) {
  __shared__ float s[300];
  __shared__ signed char c[3];
  s[threadIdx.x] = x[threadIdx.x];
  c[threadIdx.x & 1] = 3;
  __syncthreads();
  float t = 0;
  for (int i = 0; i < 128; ++i) t += s[i] + c[i & 1];
  z[threadIdx.x] = __float2half(t);
}
extern "C" __global__ void __launch_bounds__(256) local_array(float* x, int* y) {
  float a[200], t = 0;
  for (int i = 0; i < 200; ++i) a[i] = x[i] * i;
  for (int i = 0; i < 200; ++i) t += a[y[i] % 200];
  x[threadIdx.x] = t;
}
"""


@pytest.fixture(scope="module", params=["nvrtc", "nvcc"])
def compiler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Each of the two compilers that is there."""
    try:
        module.find_compiler(tmp_path_factory.mktemp("compiler"), request.param)
    except TargetError as error:
        pytest.skip(str(error))
    return request.param


@dataclass(frozen=True)
class Binaries:
    """What a compiler made of the text for every architecture, and the version that it gave."""

    folder: Path
    version: str

    def cubin(self, architecture: str) -> bytes:
        return (self.folder / f"kernels.{architecture}.cubin").read_bytes()


@pytest.fixture(scope="module")
def binaries(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Binaries:
    folder = write(tmp_path_factory.mktemp(compiler))
    return Binaries(folder, build_binaries(folder, ARCHITECTURES, compiler))


def write(folder: Path, text: str = TEXT) -> Path:
    (folder / "kernels.cu").write_text(text)
    return folder


def test_binaries_hold_the_kernels(binaries: Binaries) -> None:
    assert re.fullmatch(r"(NVRTC|nvcc) \d+\.\d+\.\d+", binaries.version)
    for each in ARCHITECTURES:
        found = read_cubin(each, binaries.cubin(each))
        assert found.architecture == each
        codes = found.by_name
        assert {n: (c.params, c.threads) for n, c in codes.items()} == {
            "add_rows": ((8, 8, 8), 256),
            "sum_shared": ((8, 8), 128),
            "local_array": ((8, 8), 256),
        }
        assert {n: (c.shared_bytes, c.local_bytes) for n, c in codes.items()} == {
            "add_rows": (0, 0),
            "sum_shared": (1203, 0),
            "local_array": (0, 800),
        }
        assert all(8 <= c.registers <= 255 for c in codes.values())
    ptx = read_ptx("kernels.ptx", (binaries.folder / "kernels.ptx").read_text())
    assert ptx.architecture == "sm_120"
    assert [(e.name, len(e.params), e.threads) for e in ptx.entries] == [
        ("add_rows", 3, 256),
        ("local_array", 2, 256),
        ("sum_shared", 2, 128),
    ]


def test_registers_are_those_that_ptxas_prints(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on the PATH")
    write(tmp_path)
    command = [nvcc, "-cubin", "-arch=sm_90", "-Xptxas", "-v", "kernels.cu", "-o", "k.cubin"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    printed = re.findall(
        r"Compiling entry function '(\w+)'[^$]*?(\d+) bytes stack frame[^$]*?Used (\d+) reg", shown
    )
    found = read_cubin("k.cubin", (tmp_path / "k.cubin").read_bytes())
    assert {k.name: (k.local_bytes, k.registers) for k in found.kernels} == {
        name: (int(stack), int(registers)) for name, stack, registers in printed
    }


def test_the_same_text_gives_the_same_bytes(binaries: Binaries, compiler: str, tmp_path: Path) -> None:
    """In another folder and beside no other architecture."""
    build_binaries(write(tmp_path), ["sm_90"], compiler)
    assert (tmp_path / "kernels.sm_90.cubin").read_bytes() == binaries.cubin("sm_90")
    assert str(binaries.folder).encode() not in binaries.cubin("sm_90")


def test_refused_text_is_one_line(compiler: str, tmp_path: Path) -> None:
    write(tmp_path, 'extern "C" __global__ void k(float* x) { misspelt(x); }\n')
    with pytest.raises(CompileError) as caught:
        build_binaries(tmp_path, ["sm_90"], compiler)
    assert "kernels.cu(1): error: identifier" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "kernels.sm_90.cubin").exists()


def test_unknown_architectures(compiler: str, tmp_path: Path) -> None:
    for name, message in (
        ("sm_20", "expected an architecture it knows, got sm_20"),
        ("gfx", "such as sm_90"),
    ):
        with pytest.raises(TargetError, match=message):
            build_binaries(write(tmp_path), [name], compiler)


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError) as caught:
        module.find_compiler(tmp_path)
    assert str(caught.value) == (
        "cuda compiler: expected NVRTC or nvcc, got no NVRTC and no nvcc on the PATH; "
        "pip install 'ds4c[cuda-build]'"
    )


def test_a_compiler_that_dies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program in the place of nvcc that is killed while it compiles."""
    tool = tmp_path / "bin" / "nvcc"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "release 1.2, V1.2.3" && exit 0\nkill -9 $$\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(
        CompileError, match=r"nvcc 1\.2\.3 for sm_90: expected exit code 0, got signal SIGKILL"
    ):
        build_binaries(write(tmp_path), ["sm_90"], "nvcc")


def test_a_cut_cubin_is_refused(binaries: Binaries) -> None:
    data = binaries.cubin("sm_90")
    for at in range(0, len(data), 997):
        with pytest.raises(ArtifactError):
            read_cubin("k", data[:at])
