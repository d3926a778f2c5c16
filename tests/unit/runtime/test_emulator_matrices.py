"""The matrix functions that kernel text calls by name, against NumPy."""

import numpy as np
import pytest
from emulator_texts import CUDA_PRELUDE, function, render, whole_text

from ds4c_runtime.device.emulator.calls import EmulatorFault
from ds4c_runtime.device.emulator.program import CHECKED, FAST, SHUFFLED, Mode, Uninitialised, compile_text

pytestmark = pytest.mark.slow  # g++ compiles each text

M, N, K = 32, 16, 48
MODES = (FAST, SHUFFLED, CHECKED)
GEMM = {"a": "float16", "b": "float16", "c": "float32"}

MMA_HELPER = """
#ifndef DS4_EMU
__device__ __forceinline__ void ds4_mma_m16n8k16(float* d, const void* a, const void* b) {
  asm volatile("not for this compiler");
}
#endif
"""
MMA_BODY = """  half a_[8];
  half b_[4];
  float d[4];
  for (int i = 0; i < 4; ++i) {
    d[i] = 0x0p+0f;
  }
  for (int k = 0; k < 3; ++k) {
    for (int r = 0; r < 4; ++r) {
      for (int v = 0; v < 2; ++v) {
        int row = ((((int)blockIdx.x) * 16) + (THREAD / 4) + ((r % 2) * 8));
        a_[((r * 2) + v)] = a[((row * 48) + (k * 16) + ((THREAD % 4) * 2) + ((r / 2) * 8) + v)];
      }
    }
    for (int r = 0; r < 2; ++r) {
      for (int v = 0; v < 2; ++v) {
        int column = ((((int)blockIdx.y) * 8) + (THREAD / 4));
        b_[((r * 2) + v)] = b[((column * 48) + (k * 16) + ((THREAD % 4) * 2) + (r * 8) + v)];
      }
    }
    ds4_mma_m16n8k16(d, a_, b_);
  }
  for (int i = 0; i < 4; ++i) {
    int row = ((((int)blockIdx.x) * 16) + (THREAD / 4) + ((i / 2) * 8));
    c[((row * 16) + (((int)blockIdx.y) * 8) + ((THREAD % 4) * 2) + (i % 2))] = d[i];
  }
"""
SIMDGROUP_BODY = """  simdgroup_half8x8 a_[1];
  simdgroup_half8x8 b_[1];
  simdgroup_float8x8 d[1];
  d[0] = make_filled_simdgroup_matrix<float, 8, 8>(0.000000e+00f);
  for (int k = 0; k < 6; ++k) {
    simdgroup_load(a_[0], (&(a[((((int)blockIdx.x) * 384) + (k * 8))])), 48, 0, false);
    simdgroup_load(b_[0], (&(b[((((int)blockIdx.y) * 384) + (k * 8))])), 48, 0, true);
    simdgroup_multiply_accumulate(d[0], a_[0], b_[0], d[0]);
  }
  simdgroup_store(d[0], (&(c[((((int)blockIdx.x) * 128) + (((int)blockIdx.y) * 8))])), 16, 0, false);
"""


def check(kind: str, text: str, grid: tuple[int, int, int], mode: Mode) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((M, K)).astype(np.float16), rng.standard_normal((N, K)).astype(np.float16)
    c = np.zeros((M, N), np.float32)
    kernel = function("gemm", 32, **GEMM)
    compile_text(text, kind, [kernel], mode).launch("gemm", [a, b, Uninitialised(c)], grid)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-5, atol=1e-5)


def cuda_text(body: str = MMA_BODY) -> str:
    return CUDA_PRELUDE + MMA_HELPER + render("cuda", function("gemm", 32, **GEMM), body)


def metal_text(body: str = SIMDGROUP_BODY) -> str:
    text = whole_text("metal", render("metal", function("gemm", 32, **GEMM), body))
    return text.replace("uint blockIdx", "uint3 blockIdx")


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_mma_m16n8k16(mode: Mode) -> None:
    check("cuda", cuda_text(), (M // 16, N // 8, 1), mode)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_simdgroup_matrices(mode: Mode) -> None:
    check("metal", metal_text(), (M // 8, N // 8, 1), mode)


def test_matrix_loads_are_checked() -> None:
    beyond = metal_text(SIMDGROUP_BODY.replace("(&(a[(", "(&(a[(48 + "))
    with pytest.raises(EmulatorFault, match=r"out of bounds: read of 2 bytes, .* after the end of a"):
        check("metal", beyond, (M // 8, N // 8, 1), CHECKED)
    twice = metal_text(SIMDGROUP_BODY.replace("(((int)blockIdx.y) * 8))])), 16", "0)])), 16"))
    with pytest.raises(EmulatorFault, match="race on c"):
        check("metal", twice, (M // 8, N // 8, 1), CHECKED)


def test_half_a_warp_cannot_multiply() -> None:
    divergent = MMA_BODY.replace("ds4_mma", "if (THREAD < 16) ds4_mma")
    with pytest.raises(EmulatorFault, match="waits at a shuffle for lanes of its warp: 16 have exited"):
        check("cuda", cuda_text(divergent), (M // 16, N // 8, 1), FAST)
