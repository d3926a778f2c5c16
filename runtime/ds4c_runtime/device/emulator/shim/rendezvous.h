// Barriers and warp shuffles for kernel text. Every rendezvous knows its source line, so lanes that meet at different
// ones, or with lanes that will not come, are an error and never a hang.
#pragma once
#include "state.h"

// The state of the process, set by whoever loads this library.
extern "C" {
__attribute__((visibility("default"))) ds4::Core* ds4_core;
}

#ifdef DS4_CHECKED
// The compiler refuses to inline functions that it must not instrument into those that it must.
#define DS4_UNCHECKED __attribute__((noinline, no_sanitize("thread")))
#define DS4_RENDEZVOUS DS4_UNCHECKED static
#define DS4_CONSTANT __attribute__((noinline, const, no_sanitize("thread"))) static
#else
#define DS4_UNCHECKED
#define DS4_RENDEZVOUS __attribute__((always_inline)) static inline
#define DS4_CONSTANT __attribute__((always_inline)) static inline
#endif

namespace ds4 {

// What does not change while a thread lives.
DS4_CONSTANT Index3 thread_index() { return ds4_core->current->index; }
DS4_CONSTANT Index3 block_index() { return ds4_core->block; }
DS4_CONSTANT Index3 block_size() { return ds4_core->threads; }
DS4_CONSTANT Index3 grid_size() { return ds4_core->grid; }
DS4_CONSTANT int lane_index() { return ds4_core->current->lane; }
DS4_CONSTANT char* shared_memory() { return ds4_core->shared; }

DS4_RENDEZVOUS void leave(Core* core, Thread* me) {
  Thread* to = me->next;
  if (to->ticket > me->warp->released) to = core->pick(me);
  core->current = to;
  switch_context(me, to);
}

// All lanes of the warp meet; what one wrote to its slots before, all may read after.
DS4_RENDEZVOUS void meet(int line) {
  Core* core = ds4_core;
  Thread* me = core->current;
  Warp* warp = me->warp;
  if (warp->arrived == 0) {
    warp->line = line;
  } else if (__builtin_expect(warp->line != line, 0)) {
    core->fail("line %d: thread %d at a shuffle while others of its warp are at the shuffle of line %d", line,
               me->number, warp->line);
  }
  if (++warp->arrived == LANES) {
    warp->arrived = 0;
    warp->released++;
    return;
  }
  me->ticket = warp->released + 1;
  leave(core, me);
}

// All threads of the block meet.
DS4_RENDEZVOUS void barrier(int line) {
  Core* core = ds4_core;
  Thread* me = core->current;
  if (core->barrier_arrived == 0) {
    core->barrier_line = line;
  } else if (__builtin_expect(core->barrier_line != line, 0)) {
    core->fail("line %d: thread %d at a barrier while others of its block are at the barrier of line %d", line,
               me->number, core->barrier_line);
  }
  if (++core->barrier_arrived == core->threads.x) {
    core->release_block();
    return;
  }
  me->ticket = AT_BARRIER;
  leave(core, me);
}

// The value of another lane of the warp.
template <class V>
DS4_RENDEZVOUS V shuffle(int line, V value, int lane) {
  static_assert(sizeof(V) <= 8, "a shuffle moves up to 8 bytes");
  Thread* me = ds4_core->current;
  Warp* warp = me->warp;
  u64* slots = warp->slots[warp->released & 1];
  __builtin_memcpy(&slots[me->lane], &value, sizeof(V));
  meet(line);
  if (__builtin_expect((uint)lane >= LANES, 0)) ds4_core->fail("line %d: shuffle from lane %d", line, lane);
  V result;
  __builtin_memcpy(&result, &slots[lane], sizeof(V));
  return result;
}

// Up to 32 bytes of each lane: hands over `bytes` of them, returns those of all lanes, 32 bytes apart.
DS4_RENDEZVOUS const char* exchange(int line, const void* mine, size bytes) {
  Thread* me = ds4_core->current;
  Warp* warp = me->warp;
  u64(*slots)[4] = warp->wide[warp->released & 1];
  __builtin_memcpy(slots[me->lane], mine, bytes);
  meet(line);
  return (const char*)slots;
}

// Tells the checker of memory that the shim itself reads or writes for a kernel.
__attribute__((always_inline)) static inline void touch(const void* address, size bytes, bool is_write) {
#ifdef DS4_CHECKED
  ds4_core->access(address, bytes, is_write, __builtin_return_address(0));
#else
  (void)address, (void)bytes, (void)is_write;
#endif
}

}  // namespace ds4

#ifdef DS4_CHECKED
#include "hooks.h"
#endif
