// simdgroup_matrix: 8 x 8, held by the 32 lanes of a warp together. Here lane l holds row l / 4, columns 2 (l % 4) and
// the next; Apple documents no layout, so text must not index a matrix.
#pragma once
#include "rendezvous.h"
#include "scalars.h"

namespace metal {

template <class T, int Rows, int Columns>
struct simdgroup_matrix {
  static_assert(Rows == 8 && Columns == 8, "simdgroup matrices are 8 x 8");
  T held[2];
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;

template <class T, int Rows, int Columns>
inline simdgroup_matrix<T, Rows, Columns> make_filled_simdgroup_matrix(T value) {
  return {{value, value}};
}

// The address of element i of a lane in a matrix of rows `stride` elements apart, or in its transpose.
template <class T>
inline T* element(T* start, unsigned long stride, bool is_transposed, int i) {
  int lane = ds4_core->current->lane, row = lane / 4, column = lane % 4 * 2 + i;
  return is_transposed ? start + column * stride + row : start + row * stride + column;
}

template <class T, class P>
DS4_RENDEZVOUS void load_matrix(int line, simdgroup_matrix<T, 8, 8>& matrix, const P* from, unsigned long stride,
                                int /* origin */, bool is_transposed) {
  ds4::meet(line);
  for (int i = 0; i < 2; i++) {
    const P* at = element(from, stride, is_transposed, i);
    ds4::touch(at, sizeof(P), false);
    matrix.held[i] = *at;
  }
}

template <class T, class P>
DS4_RENDEZVOUS void store_matrix(int line, const simdgroup_matrix<T, 8, 8>& matrix, P* to, unsigned long stride,
                                 int /* origin */, bool is_transposed) {
  ds4::meet(line);
  for (int i = 0; i < 2; i++) {
    P* at = element(to, stride, is_transposed, i);
    ds4::touch(at, sizeof(P), true);
    *at = matrix.held[i];
  }
}

// d = a b + c, summed in the order of k.
template <class D, class A, class B, class C>
DS4_RENDEZVOUS void multiply_matrices(int line, D& d, const A& a, const B& b, const C& c) {
  float mine[4] = {(float)a.held[0], (float)a.held[1], (float)b.held[0], (float)b.held[1]};
  const char* all = ds4::exchange(line, mine, sizeof mine);
  auto lane_of = [&](int lane) { return (const float*)(all + 32 * lane); };
  int lane = ds4_core->current->lane, row = lane / 4;
  D result;
  for (int i = 0; i < 2; i++) {
    int column = lane % 4 * 2 + i;
    float sum = (float)c.held[i];
    for (int k = 0; k < 8; k++) {
      float x = lane_of(row * 4 + k / 2)[k % 2], y = lane_of(k * 4 + column / 2)[2 + column % 2];
      sum = __builtin_fmaf(x, y, sum);
    }
    result.held[i] = sum;
  }
  d = result;
}

}  // namespace metal

#define simdgroup_load(...) metal::load_matrix(__LINE__, __VA_ARGS__)
#define simdgroup_store(...) metal::store_matrix(__LINE__, __VA_ARGS__)
#define simdgroup_multiply_accumulate(...) metal::multiply_matrices(__LINE__, __VA_ARGS__)
