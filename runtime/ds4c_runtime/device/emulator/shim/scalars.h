// Scalar types and functions that both languages build on. No system header is used: their parsing would cost more than
// the kernels, and their overloads would be candidates for calls in a text.
#pragma once
#if defined(__x86_64__)
typedef _Float16 half;
#else
typedef __fp16 half;
#endif

extern "C" {
float expf(float);
float exp2f(float);
float logf(float);
float log2f(float);
float tanhf(float);
float sinf(float);
float cosf(float);
float powf(float, float);
}

namespace ds4 {

template <class To, class From>
__attribute__((always_inline)) inline To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits of another size");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace ds4

// Exact: one instruction each, rounding once.
#define DS4_EXACT(result, name, ...) __attribute__((always_inline)) static inline result name(__VA_ARGS__)
