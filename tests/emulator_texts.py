"""Small kernels in both languages, in the form that the code generators print, for tests of the emulator."""

from ds4c_runtime.launches import Function, Param

CUDA_PRELUDE = """#include <cuda_fp16.h>
typedef unsigned int uint; typedef unsigned char uchar; typedef unsigned short ushort;
typedef signed char int8_t; typedef unsigned char uint8_t; typedef unsigned short uint16_t;
typedef unsigned int uint32_t; typedef long long int64_t; typedef unsigned long long uint64_t;
"""
CUDA_TOTAL = """
extern "C" __global__ void __launch_bounds__(256) total(float* __restrict__ x, float* __restrict__ y);
extern "C" __global__ void __launch_bounds__(256) total(float* __restrict__ x, float* __restrict__ y) {
  __shared__ alignas(64) float red[8];
  float s = x[((((int)blockIdx.x) * 256) + ((int)threadIdx.x))];
  for (int d = 16; d > 0; d >>= 1) {
    s = (s + __shfl_sync((uint)4294967295, s, ((((int)threadIdx.x) & 31) ^ d), 32));
  }
  if ((((int)threadIdx.x) & 31) == 0) {
    red[(((int)threadIdx.x) >> 5)] = s;
  }
  __syncthreads();
  if (((int)threadIdx.x) == 0) {
    float t = 0x0p+0f/*0.000000e+00*/;
    for (int i = 0; i < 8; ++i) {
      t = (t + red[i]);
    }
    y[((int)blockIdx.x)] = t;
  }
}
"""
METAL_TOTAL = """// Function: total
#include <metal_stdlib>
using namespace metal;

union __TVMArgUnion {
 int v_int[2];
};

kernel void total(  device float* x [[ buffer(0) ]],
  device float* y [[ buffer(1) ]],
  uint blockIdx [[threadgroup_position_in_grid]],
  uint threadIdx [[thread_position_in_threadgroup]]
) {
  threadgroup float red[8];
  float s = x[((((int)blockIdx) * 256) + ((int)threadIdx))];
  for (int d = 16; d > 0; d >>= 1) {
    s = (s + simd_shuffle(s, ((((int)threadIdx) & 31) ^ d)));
  }
  if ((((int)threadIdx) & 31) == 0) {
    red[(((int)threadIdx) >> 5)] = s;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (((int)threadIdx) == 0) {
    float t = 0.000000e+00f;
    for (int i = 0; i < 8; ++i) {
      t = (t + red[i]);
    }
    y[((int)blockIdx)] = t;
  }
}
"""
TOTALS = {"cuda": CUDA_PRELUDE + CUDA_TOTAL, "metal": METAL_TOTAL}
"""`y[block] = sum of x[256 * block : 256 * (block + 1)]`."""


def function(name: str, threads: int = 256, **params: str) -> Function:
    """A function of a test's text; parameters in order, by name with their dtype."""
    return Function(name, name, tuple(Param(n, d) for n, d in params.items()), threads, 0)


TOTAL = function("total", x="float32", y="float32")
