// The names of CUDA that kernel text uses.
#pragma once
#include "rendezvous.h"
#include "vectors.h"

#define DS4_EMU 1  // text with inline assembly leaves it out where this is set
#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define alignas(n) __attribute__((aligned(n)))
#define threadIdx ds4::thread_index()
#define blockIdx ds4::block_index()
#define blockDim ds4::block_size()
#define gridDim ds4::grid_size()

#define __syncthreads() ds4::barrier(__LINE__)
#define __activemask() (~0u)
// Lanes of a part of the warp of `width` lanes, a power of two.
#define __shfl_sync(mask, value, source, width) \
  ds4::shuffle(__LINE__, value, ds4::lane_in_part(source, width))
#define __shfl_xor_sync(mask, value, bits, ...) ds4::shuffle(__LINE__, value, ds4::lane_index() ^ (bits))

// As the artifacts' own prelude has them.
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef half __half;
typedef half2 __half2;

#define make_float2(...) float2(__VA_ARGS__)
#define make_float3(...) float3(__VA_ARGS__)
#define make_float4(...) float4(__VA_ARGS__)
#define make_int2(...) int2(__VA_ARGS__)
#define make_int3(...) int3(__VA_ARGS__)
#define make_int4(...) int4(__VA_ARGS__)
#define make_uint2(...) uint2(__VA_ARGS__)
#define make_uint3(...) uint3(__VA_ARGS__)
#define make_uint4(...) uint4(__VA_ARGS__)
#define make_short2(...) short2(__VA_ARGS__)
#define make_short4(...) short4(__VA_ARGS__)
#define make_ushort2(...) ushort2(__VA_ARGS__)
#define make_ushort4(...) ushort4(__VA_ARGS__)
#define make_char2(...) char2(__VA_ARGS__)
#define make_char4(...) char4(__VA_ARGS__)
#define make_uchar2(...) uchar2(__VA_ARGS__)
#define make_uchar4(...) uchar4(__VA_ARGS__)

namespace ds4 {
__attribute__((always_inline)) inline int lane_in_part(int source, int width) {
  int lane = lane_index();
  return lane / width * width + (source & (width - 1));
}
}  // namespace ds4

DS4_EXACT(float, __fmaf_rn, float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DS4_EXACT(float, __fadd_rn, float a, float b) { return a + b; }
DS4_EXACT(float, __fsub_rn, float a, float b) { return a - b; }
DS4_EXACT(float, __fmul_rn, float a, float b) { return a * b; }
DS4_EXACT(float, __fdiv_rn, float a, float b) { return a / b; }
DS4_EXACT(float, __frcp_rn, float a) { return 1.0f / a; }
DS4_EXACT(float, __fsqrt_rn, float a) { return __builtin_sqrtf(a); }
DS4_EXACT(float, fmaf, float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DS4_EXACT(float, sqrtf, float x) { return __builtin_sqrtf(x); }
DS4_EXACT(float, rsqrtf, float x) { return 1.0f / __builtin_sqrtf(x); }
DS4_EXACT(float, floorf, float x) { return __builtin_floorf(x); }
DS4_EXACT(float, ceilf, float x) { return __builtin_ceilf(x); }
DS4_EXACT(float, rintf, float x) { return __builtin_rintf(x); }
DS4_EXACT(float, nearbyintf, float x) { return __builtin_rintf(x); }
DS4_EXACT(float, truncf, float x) { return __builtin_truncf(x); }
DS4_EXACT(float, fabsf, float x) { return __builtin_fabsf(x); }
// IEEE minimum and maximum as CUDA's: of a number and a NaN, the number.
DS4_EXACT(float, fminf, float a, float b) { return b < a || a != a ? b : a; }
DS4_EXACT(float, fmaxf, float a, float b) { return b > a || a != a ? b : a; }
DS4_EXACT(float, min, float a, float b) { return fminf(a, b); }
DS4_EXACT(float, max, float a, float b) { return fmaxf(a, b); }
#define DS4_MIN_MAX(T)                                            \
  DS4_EXACT(T, min, T a, T b) { return b < a ? b : a; }           \
  DS4_EXACT(T, max, T a, T b) { return b > a ? b : a; }
DS4_MIN_MAX(int)
DS4_MIN_MAX(uint)
DS4_MIN_MAX(long long)
DS4_MIN_MAX(unsigned long long)
#undef DS4_MIN_MAX
DS4_EXACT(int, abs, int x) { return x < 0 ? -x : x; }
DS4_EXACT(int, __popc, uint x) { return __builtin_popcount(x); }
DS4_EXACT(int, __clz, int x) { return x ? __builtin_clz((uint)x) : 32; }

DS4_EXACT(int, __float_as_int, float x) { return ds4::bits_of<int>(x); }
DS4_EXACT(uint, __float_as_uint, float x) { return ds4::bits_of<uint>(x); }
DS4_EXACT(float, __int_as_float, int x) { return ds4::bits_of<float>(x); }
DS4_EXACT(float, __uint_as_float, uint x) { return ds4::bits_of<float>(x); }
DS4_EXACT(half, __float2half_rn, float x) { return (half)x; }
DS4_EXACT(half, __float2half, float x) { return (half)x; }
DS4_EXACT(float, __half2float, half x) { return (float)x; }
DS4_EXACT(ushort, __half_as_ushort, half x) { return ds4::bits_of<ushort>(x); }
DS4_EXACT(half, __ushort_as_half, ushort x) { return ds4::bits_of<half>(x); }
DS4_EXACT(bool, __hgt, half a, half b) { return (float)a > (float)b; }
DS4_EXACT(bool, __hlt, half a, half b) { return (float)a < (float)b; }

#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define INFINITY __builtin_inff()

#include "cuda_matrix.h"
