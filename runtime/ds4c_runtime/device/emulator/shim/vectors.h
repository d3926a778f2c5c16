// Short vectors with components x, y, z, w, indices and, for Metal, arithmetic by component.
//
// In the fast mode their alignment is that of a component, so that arrays may end at any byte before a guard page; the
// checked mode keeps the alignment of the language and reports what is not aligned.
#pragma once
#include "scalars.h"

#ifdef DS4_CHECKED
#define DS4_ALIGNED(T, N) __attribute__((aligned(sizeof(T) * N), may_alias))
#else
#define DS4_ALIGNED(T, N) __attribute__((may_alias))
#endif

namespace ds4 {

template <class T, int N>
struct Vector;

template <class T>
struct DS4_ALIGNED(T, 2) Vector<T, 2> {
  T x, y;
  Vector() = default;
  constexpr explicit Vector(T all) : x(all), y(all) {}
  constexpr Vector(T x, T y) : x(x), y(y) {}
  template <class U>
  explicit Vector(const Vector<U, 2>& o) : x((T)o.x), y((T)o.y) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};

template <class T>
struct DS4_ALIGNED(T, 4) Vector<T, 3> {
  T x, y, z;
  Vector() = default;
  constexpr explicit Vector(T all) : x(all), y(all), z(all) {}
  constexpr Vector(T x, T y, T z) : x(x), y(y), z(z) {}
  template <class U>
  explicit Vector(const Vector<U, 3>& o) : x((T)o.x), y((T)o.y), z((T)o.z) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};

template <class T>
struct DS4_ALIGNED(T, 4) Vector<T, 4> {
  T x, y, z, w;
  Vector() = default;
  constexpr explicit Vector(T all) : x(all), y(all), z(all), w(all) {}
  constexpr Vector(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}
  template <class U>
  explicit Vector(const Vector<U, 4>& o) : x((T)o.x), y((T)o.y), z((T)o.z), w((T)o.w) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};

#define DS4_VECTOR_OPERATOR(op)                                                           \
  template <class T, int N>                                                               \
  inline Vector<T, N> operator op(const Vector<T, N>& a, const Vector<T, N>& b) {         \
    Vector<T, N> r;                                                                       \
    for (int i = 0; i < N; i++) r[i] = (T)(a[i] op b[i]);                                 \
    return r;                                                                             \
  }                                                                                       \
  template <class T, int N>                                                               \
  inline Vector<T, N> operator op(const Vector<T, N>& a, T b) {                           \
    return a op Vector<T, N>(b);                                                          \
  }                                                                                       \
  template <class T, int N>                                                               \
  inline Vector<T, N> operator op(T a, const Vector<T, N>& b) {                           \
    return Vector<T, N>(a) op b;                                                          \
  }
DS4_VECTOR_OPERATOR(+)
DS4_VECTOR_OPERATOR(-)
DS4_VECTOR_OPERATOR(*)
DS4_VECTOR_OPERATOR(/)
DS4_VECTOR_OPERATOR(&)
DS4_VECTOR_OPERATOR(|)
DS4_VECTOR_OPERATOR(^)
DS4_VECTOR_OPERATOR(<<)
DS4_VECTOR_OPERATOR(>>)
#undef DS4_VECTOR_OPERATOR

}  // namespace ds4

#define DS4_VECTORS(T, name)              \
  typedef ds4::Vector<T, 2> name##2;      \
  typedef ds4::Vector<T, 3> name##3;      \
  typedef ds4::Vector<T, 4> name##4;
DS4_VECTORS(float, float)
DS4_VECTORS(half, half)
DS4_VECTORS(int, int)
DS4_VECTORS(uint, uint)
DS4_VECTORS(short, short)
DS4_VECTORS(ushort, ushort)
DS4_VECTORS(signed char, char)
DS4_VECTORS(uchar, uchar)
#undef DS4_VECTORS
