// The scheduler: runs lists of launches, one block after the other, the threads of a block as fibers of one OS thread.
//
// Threads of a warp run in the order of a ring until they meet; then the last to arrive goes on and the ring turns. A
// thread that ends without ever having met another leaves its stack to the next one.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "state.h"

namespace ds4 {

struct Launch {  // mirrored by calls.py
  const Kernel* kernel;
  void** args;
  uint grid[3];
  uint threads;
};

constexpr size_t STACK_BYTES = 64 * 1024;
// Below the stacks: a large array of a thread jumps far.
constexpr size_t STACK_GUARD_BYTES = 16 << 20;
constexpr size_t SHARED_BYTES = 256 * 1024;
constexpr size_t PAGE = 16 * 1024;  // a multiple of every system's page

enum Flags : uint { SHUFFLE = 1, CHECK = 2 };

static Core core;
static Thread threads[MAX_THREADS];
static Warp warps[MAX_WARPS];
static uint warp_order[MAX_WARPS];
static uint num_warps;
static Context main_context;
static sigjmp_buf unwind;
static char* stacks;
static char* shared_end;
static const Kernel* kernel;
static uint flags;
static u64 random_state;
static char message[512];
static const void* message_pc;

static uint random_below(uint n) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint)(((random_state >> 32) * n) >> 32);
}

static void permute(uint* order, uint n) {
  for (uint i = 0; i < n; i++) order[i] = i;
  if (!(flags & SHUFFLE)) return;
  for (uint i = n; i > 1; i--) {
    uint j = random_below(i), kept = order[i - 1];
    order[i - 1] = order[j];
    order[j] = kept;
  }
}

// Ends the list of launches with a message.
[[noreturn]] static void fail(const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(message, sizeof message, format, values);
  va_end(values);
  siglongjmp(unwind, 1);
}

static bool may_run(const Thread* t) { return t->ticket <= t->warp->released; }

// Why nobody of the block can go on.
[[noreturn]] static void fail_stuck() {
  uint n = core.threads.x, exited = 0, waiting = 0, at_barrier = 0;
  const Thread* shuffler = nullptr;
  for (uint i = 0; i < n; i++) {
    u64 ticket = threads[i].ticket;
    exited += ticket == EXITED;
    at_barrier += ticket == AT_BARRIER;
    if (ticket < AT_BARRIER) {
      waiting++;
      if (!shuffler) shuffler = &threads[i];
    }
  }
  if (!shuffler)
    fail("line %d: divergence: %u of %u threads at a barrier, %u have exited", core.barrier_line, at_barrier, n, exited);
  uint gone = 0, missing = 0;
  for (uint i = 0; i < LANES; i++) {
    u64 ticket = threads[shuffler->warp->first->number / LANES * LANES + i].ticket;
    gone += ticket == EXITED;
    missing += ticket == AT_BARRIER;
  }
  fail("line %d: divergence: thread %u waits at a shuffle for lanes of its warp: %u have exited, %u are at the barrier "
       "of line %d", shuffler->warp->line, shuffler->number, gone, missing, missing ? core.barrier_line : 0);
}

// Whom to run when `me` and the one after it cannot: another lane, another warp, or the end of the block.
static Thread* pick(Thread* me) {
  for (Thread* t = me->next; t != me; t = t->next)
    if (may_run(t)) return t;
  uint at = 0;
  while (&warps[warp_order[at]] != me->warp) at++;
  for (uint i = 1; i < num_warps; i++) {
    Thread *first = warps[warp_order[(at + i) % num_warps]].first, *t = first;
    do {
      if (may_run(t)) return t;
      t = t->next;
    } while (t != first);
  }
  for (uint i = 0; i < core.threads.x; i++)
    if (threads[i].ticket != EXITED) fail_stuck();
  return nullptr;
}

static void release_block() {
  for (uint i = 0; i < core.threads.x; i++) threads[i].ticket = 0;
  core.barrier_arrived = 0;
  core.phase++;
}

// Where a fresh fiber begins.
[[noreturn]] static void enter() {
  for (;;) {
    kernel->body(core.args);
    Thread* me = core.current;
    me->ticket = EXITED;
    Thread* to = may_run(me->next) ? me->next : pick(me);
    if (!to) jump_context(&main_context);
    core.current = to;
    if (to->resume != (void*)enter) jump_context(to);  // else it runs here: its own stack stays unused
  }
}

static char* stack_top(uint number) {
  // Equal offsets in all stacks would fall into one set of the cache.
  return stacks + (number + 1) * STACK_BYTES - (number * 7 % 61) * 64;
}

static void prepare_launch(const Launch& launch) {
  kernel = launch.kernel;
  core.args = launch.args;
  core.grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
  core.threads = {launch.threads, 1, 1};
  core.shared = shared_end - kernel->shared_bytes;
  num_warps = launch.threads / LANES;
}

static void link_warp(uint warp) {
  uint order[LANES];
  permute(order, LANES);
  Thread* lanes = &threads[warp * LANES];
  warps[warp].first = &lanes[order[0]];
  for (uint i = 0; i < LANES; i++) lanes[order[i]].next = &lanes[order[(i + 1) % LANES]];
}

// Rings of lanes and order of warps: by number, unless orders are shuffled.
static void link_threads() {
  static bool is_by_number = false;
  if (is_by_number && !(flags & SHUFFLE)) return;
  bool is_shuffled = flags & SHUFFLE;
  uint count = is_shuffled ? num_warps : MAX_WARPS;
  for (uint w = 0; w < count; w++) link_warp(w);
  permute(warp_order, count);
  is_by_number = !is_shuffled;
}

static void prepare_block() {
  link_threads();
  for (uint i = 0; i < core.threads.x; i++) {
    threads[i].ticket = 0;
    threads[i].stack = stack_top(i) + ENTRY_BIAS;
    threads[i].resume = (void*)enter;
  }
  for (uint w = 0; w < num_warps; w++) {
    warps[w].released = 0;
    warps[w].arrived = 0;
  }
  core.barrier_arrived = 0;
  core.phase++;
}

static void check_begin_launch();
static void check_begin_block();

static u64 common_divisor(u64 a, u64 b) { return b ? common_divisor(b, a % b) : a; }

static void run_launch(const Launch& launch) {
  prepare_launch(launch);
  check_begin_launch();
  u64 blocks = (u64)launch.grid[0] * launch.grid[1] * launch.grid[2], step = 1, at = 0;
  if ((flags & SHUFFLE) && blocks > 1) {
    do step = 1 + random_below((uint)(blocks - 1));
    while (common_divisor(step, blocks) != 1);
    at = random_below((uint)blocks);
  }
  for (u64 i = 0; i < blocks; i++, at = (at + step) % blocks) {
    core.block = {(uint)(at % core.grid.x), (uint)(at / core.grid.x % core.grid.y),
                  (uint)(at / core.grid.x / core.grid.y)};
    prepare_block();
    if (flags & CHECK) check_begin_block();
    memset(core.shared, 0xff, kernel->shared_bytes);  // NaN in every float type
    // Not the first warp first: what it leaves for the others they could read without a barrier.
    core.current = warps[warp_order[(num_warps - 1 + i) % num_warps]].first;
    switch_context(&main_context, core.current);
  }
}

}  // namespace ds4

#include "checker.h"
#include "faults.h"

namespace ds4 {

// Takes memory for stacks, which end below at guard pages, and for shared arrays, which end above at one.
static bool prepare_memory() {
  if (stacks) return true;
  int access = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char* memory = (char*)mmap(nullptr, STACK_GUARD_BYTES + MAX_THREADS * STACK_BYTES, access, kind, -1, 0);
  char* shared = (char*)mmap(nullptr, SHARED_BYTES + PAGE, access, kind, -1, 0);
  if (memory == MAP_FAILED || shared == MAP_FAILED) return false;
  mprotect(memory, STACK_GUARD_BYTES, PROT_NONE);
  mprotect(shared + SHARED_BYTES, PAGE, PROT_NONE);
  shared_end = shared + SHARED_BYTES;
  stacks = memory + STACK_GUARD_BYTES;
#ifdef MADV_HUGEPAGE
  madvise(stacks, MAX_THREADS * STACK_BYTES, MADV_HUGEPAGE);  // 256 stacks are more pages than a TLB holds
#endif
  for (uint i = 0; i < MAX_THREADS; i++) {
    threads[i].warp = &warps[i / LANES];
    threads[i].number = i;
    threads[i].lane = i % LANES;
    threads[i].index = {i, 0, 0};
  }
  return true;
}

}  // namespace ds4

#pragma GCC visibility push(default)
extern "C" {

// The state that kernel libraries refer to.
ds4::Core* ds4_emulator_core() {
  ds4::core.pick = ds4::pick;
  ds4::core.release_block = ds4::release_block;
  ds4::core.fail = ds4::fail;
  ds4::core.where = ds4::where;
  ds4::core.access = ds4::check_access;
  return &ds4::core;
}

// Memory that the kernels of the next runs may touch; the list must live as long.
void ds4_emulator_regions(const ds4::Region* list, uint count) {
  ds4::regions = list;
  ds4::num_regions = count;
}

// Runs launches in order. Returns the index of the one that failed, or -1; `ds4_emulator_error` tells why.
int ds4_emulator_run(const ds4::Launch* launches, int count, uint flags, ds4::u64 seed) {
  using namespace ds4;
  message[0] = 0;
  message_pc = nullptr;
  ds4::flags = flags;
  random_state = seed * 2654435761u + 88172645463325252u;
  static volatile int index;
  index = 0;
  if (!prepare_memory()) {
    snprintf(message, sizeof message, "no memory for the stacks of %u threads", MAX_THREADS);
    return 0;
  }
  FaultHandlers handlers;
  if (sigsetjmp(unwind, 1)) return index;
  for (; index < count; index = index + 1) {
    const Launch& launch = launches[index];
    if (launch.threads < 1 || launch.threads > MAX_THREADS || launch.threads % LANES)
      fail("block of %u threads: expected whole warps, at most %u threads", launch.threads, MAX_THREADS);
    if (launch.kernel->shared_bytes > SHARED_BYTES)
      fail("block with %u bytes of shared memory: expected at most %zu", launch.kernel->shared_bytes, SHARED_BYTES);
    run_launch(launch);
  }
  return -1;
}

const char* ds4_emulator_error() { return ds4::message; }

// The library in whose code the error was noticed and the offset there; null if only the message says.
const char* ds4_emulator_error_place(size_t* offset) {
  Dl_info info;
  if (!ds4::message_pc || !dladdr(ds4::message_pc, &info)) return nullptr;
  *offset = (const char*)ds4::message_pc - (const char*)info.dli_fbase;
  return info.dli_fname;
}
}
#pragma GCC visibility pop
