// What the scheduler (core.cpp) and a compiled kernel text share. Every struct is also read by Python where it says so.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "machine.h"

typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;

namespace ds4 {

constexpr uint LANES = 32;
constexpr uint MAX_THREADS = 1024;
constexpr uint MAX_WARPS = MAX_THREADS / LANES;

struct Index3 {
  uint x, y, z;
};

// Tickets of lanes that no release of their warp lets go on.
constexpr uint64_t AT_BARRIER = ~uint64_t(1);
constexpr uint64_t EXITED = ~uint64_t(0);

struct Warp;

// A GPU thread. It may run if its ticket is not above the number of releases of its warp.
struct Thread : Context {
  uint64_t ticket;
  Thread* next;  // around the warp, in the order in which lanes run
  Warp* warp;
  Index3 index;
  uint number;
  uint lane;
};

// A warp rendezvous: the last lane to arrive releases the others and goes on without a switch.
struct Warp {
  uint64_t released;
  uint arrived;
  int line;
  Thread* first;
  uint64_t slots[2][LANES];     // what lanes handed over, by parity of `released`
  uint64_t wide[2][LANES][4];   // the same for more than 8 bytes
};

struct SharedArray {
  const char* name;
  uint offset, bytes, element;
};

// A kernel of a compiled text; exported as `ds4_kernel_NAME`.
struct Kernel {
  const char* name;
  void (*body)(void** args);
  uint shared_bytes;
  uint num_arrays;
  const SharedArray* arrays;
};

struct Core {
  Thread* current;
  void** args;
  char* shared;  // of the block: `shared_bytes`, at the end of a page before a guard page
  Index3 block, grid, threads;
  uint64_t phase;  // counts blocks and barriers over the life of the process: what is ordered has another phase
  uint barrier_arrived;
  int barrier_line;
  Thread* (*pick)(Thread* me);
  void (*release_block)();
  [[noreturn]] void (*fail)(const char* format, ...);
  void (*access)(const void* address, size_t size, bool is_write, const void* pc);
};

}  // namespace ds4
