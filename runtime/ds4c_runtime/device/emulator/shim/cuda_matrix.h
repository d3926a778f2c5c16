// Matrix functions that CUDA text calls by name and defines in assembly unless DS4_EMU is set.
//
// d += a b for a 16 x 16 tile of halves, a 16 x 8 tile of halves and a 16 x 8 tile of floats, in the fragment layout of
// PTX (mma.m16n8k16.row.col): with g = lane / 4 and t = lane % 4, register r of a holds row g + 8 (r % 2), columns
// 2 t + 8 (r / 2) and the next; register r of b rows 2 t + 8 r and the next of column g; d[i] is row g + 8 (i / 2),
// column 2 t + i % 2. The order of the sum inside a chip is not documented; here it is that of k.
#pragma once
#include "rendezvous.h"
#include "scalars.h"

namespace ds4 {

struct MmaOperands {
  half a[8], b[4];
};

DS4_RENDEZVOUS void mma_m16n8k16(int line, float* d, const void* a, const void* b) {
  MmaOperands mine;
  __builtin_memcpy(mine.a, a, sizeof mine.a);
  __builtin_memcpy(mine.b, b, sizeof mine.b);
  const char* all = exchange(line, &mine, sizeof mine);
  auto lane_of = [&](int lane) { return (const MmaOperands*)(all + 32 * lane); };
  int lane = ds4_core->current->lane, group = lane / 4, pair = lane % 4;
  for (int i = 0; i < 4; i++) {
    int row = group + 8 * (i / 2), column = 2 * pair + i % 2;
    float sum = d[i];
    for (int k = 0; k < 16; k++) {
      half x = lane_of(row % 8 * 4 + k % 8 / 2)->a[row / 8 * 2 + k / 8 * 4 + k % 2];
      half y = lane_of(column * 4 + k % 8 / 2)->b[k / 8 * 2 + k % 2];
      sum = __builtin_fmaf((float)x, (float)y, sum);
    }
    d[i] = sum;
  }
}

}  // namespace ds4

#define ds4_mma_m16n8k16(d, a, b) ds4::mma_m16n8k16(__LINE__, d, a, b)
