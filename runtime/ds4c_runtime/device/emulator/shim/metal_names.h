// The names of the Metal shading language that kernel text uses. Address spaces vanish: one memory is all there is.
//
// `threadgroup` arrays are rewritten before (sources.py); what is left of the word stands in types of pointers.
#pragma once
#include "rendezvous.h"
#include "vectors.h"

#define kernel static
#define device
#define constant const
#define thread
#define threadgroup

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long ulong;

constexpr half operator""h(long double value) { return (half)value; }

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define threadgroup_barrier(flags) ds4::barrier(__LINE__)
#define simd_shuffle(value, source) ds4::shuffle(__LINE__, value, (int)(source))
#define simd_shuffle_xor(value, bits) ds4::shuffle(__LINE__, value, ds4::lane_index() ^ (int)(bits))

template <class To, class From>
DS4_EXACT(To, as_type, From from) { return ds4::bits_of<To>(from); }

namespace metal {

enum class mem_flags { mem_none, mem_device, mem_threadgroup, mem_texture };

// Of a number and a NaN, the number.
DS4_EXACT(float, fmin, float a, float b) { return b < a || a != a ? b : a; }
DS4_EXACT(float, fmax, float a, float b) { return b > a || a != a ? b : a; }
DS4_EXACT(float, min, float a, float b) { return fmin(a, b); }
DS4_EXACT(float, max, float a, float b) { return fmax(a, b); }
#define DS4_MIN_MAX(T)                                            \
  DS4_EXACT(T, min, T a, T b) { return b < a ? b : a; }           \
  DS4_EXACT(T, max, T a, T b) { return b > a ? b : a; }
DS4_MIN_MAX(int)
DS4_MIN_MAX(uint)
DS4_MIN_MAX(long)
DS4_MIN_MAX(ulong)
#undef DS4_MIN_MAX
template <class T>
DS4_EXACT(T, clamp, T x, T low, T high) { return min(max(x, low), high); }
template <class T>
DS4_EXACT(T, select, T no, T yes, bool condition) { return condition ? yes : no; }
DS4_EXACT(int, abs, int x) { return x < 0 ? -x : x; }
DS4_EXACT(uint, popcount, uint x) { return (uint)__builtin_popcount(x); }
DS4_EXACT(uint, clz, uint x) { return x ? (uint)__builtin_clz(x) : 32u; }
DS4_EXACT(float, abs, float x) { return __builtin_fabsf(x); }
DS4_EXACT(float, fabs, float x) { return __builtin_fabsf(x); }
DS4_EXACT(float, fma, float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DS4_EXACT(float, sqrt, float x) { return __builtin_sqrtf(x); }
DS4_EXACT(float, rsqrt, float x) { return 1.0f / __builtin_sqrtf(x); }
DS4_EXACT(float, floor, float x) { return __builtin_floorf(x); }
DS4_EXACT(float, ceil, float x) { return __builtin_ceilf(x); }
DS4_EXACT(float, rint, float x) { return __builtin_rintf(x); }
DS4_EXACT(float, round, float x) { return __builtin_roundf(x); }
DS4_EXACT(float, trunc, float x) { return __builtin_truncf(x); }
DS4_EXACT(bool, isnan, float x) { return x != x; }
DS4_EXACT(bool, isinf, float x) { return __builtin_fabsf(x) == INFINITY; }
DS4_EXACT(float, exp, float x) { return expf(x); }
DS4_EXACT(float, exp2, float x) { return exp2f(x); }
DS4_EXACT(float, log, float x) { return logf(x); }
DS4_EXACT(float, log2, float x) { return log2f(x); }
DS4_EXACT(float, tanh, float x) { return tanhf(x); }
DS4_EXACT(float, sin, float x) { return sinf(x); }
DS4_EXACT(float, cos, float x) { return cosf(x); }
DS4_EXACT(float, pow, float x, float y) { return powf(x, y); }

}  // namespace metal

#include "metal_matrix.h"
