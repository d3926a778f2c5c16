// What the scheduler (core.cpp) and a compiled kernel text share. Every struct is also read by Python where it says so.
//
// No system header: text defines int64_t and its like itself, as its language does.
#pragma once
#include "machine.h"

typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;

namespace ds4 {

typedef unsigned long long u64;
typedef decltype(sizeof 0) size;

constexpr uint LANES = 32;
constexpr uint MAX_THREADS = 1024;
constexpr uint MAX_WARPS = MAX_THREADS / LANES;

struct Index3 {
  uint x, y, z;
};

// Tickets of lanes that no release of their warp lets go on.
constexpr u64 AT_BARRIER = ~u64(1);
constexpr u64 EXITED = ~u64(0);

struct Warp;

// A GPU thread. It may run if its ticket is not above the number of releases of its warp.
struct Thread : Context {
  u64 ticket;
  Thread* next;  // around the warp, in the order in which lanes run
  Warp* warp;
  Index3 index;
  uint number;
  uint lane;
};

// A warp rendezvous: the last lane to arrive releases the others and goes on without a switch.
struct Warp {
  u64 released;
  uint arrived;
  int line;
  Thread* first;
  u64 slots[2][LANES];     // what lanes handed over, by parity of `released`
  u64 wide[2][LANES][4];   // the same for more than 8 bytes
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
  u64 phase;  // counts blocks and barriers over the life of the process: what is ordered has another phase
  uint barrier_arrived;
  int barrier_line;
  Thread* (*pick)(Thread* me);
  void (*release_block)();
  [[noreturn]] void (*fail)(const char* format, ...);
  const char* (*where)();
  void (*access)(const void* address, size bytes, bool is_write, const void* pc);
};

}  // namespace ds4
