// Who read and wrote each element last: finds accesses out of bounds, reads of what nobody wrote, and races.
//
// A stamp is the phase of an access and its thread. Phases count blocks and barriers and never repeat, so nothing is
// cleared: what was stamped before the launch is ordered before it, and within the launch two accesses of different
// blocks, or of different threads in one phase, are not ordered. A shuffle orders nothing.
#pragma once
#include <dlfcn.h>

#include "state.h"

namespace ds4 {

typedef u64 Stamp;  // phase << THREAD_BITS | thread; 0: never
constexpr uint THREAD_BITS = 12;
constexpr Stamp MANY = (1 << THREAD_BITS) - 1;         // several threads of one block
constexpr Stamp MANY_BLOCKS = (1 << THREAD_BITS) - 2;  // threads of several blocks

struct Cell {
  Stamp writer, reader;
};

struct Region {  // mirrored by calls.py
  char* start;
  size_t size;
  Cell* cells;  // one per element, kept by the owner of the memory; null: only bounds are checked
  const char* name;
  uint element;   // bytes, a power of two
  uint is_constant;
};

static const Region* regions;
static uint num_regions;
static uint last_region;
static Cell* shared_cells;
static u64 launch_phase, block_phase;

static void check_begin_launch() {
  launch_phase = core.phase + 1;
  last_region = 0;
}

static void check_begin_block() {
  block_phase = core.phase;
  if (!shared_cells) shared_cells = (Cell*)calloc(SHARED_BYTES, sizeof(Cell));
}

struct Access {
  const char* address;
  size_t size;
  bool is_write;
  const void* pc;
};

#define DS4_FAIL(access, ...)            \
  do {                                   \
    message_pc = (access).pc;            \
    fail(__VA_ARGS__);                   \
  } while (0)

static const char* verb(const Access& a) { return a.is_write ? "write" : "read"; }

// The end of a message: which thread of which block.
static const char* where() {
  static char text[96];
  snprintf(text, sizeof text, "block (%u, %u, %u) thread %u", core.block.x, core.block.y, core.block.z,
           core.current->number);
  return text;
}

// Whether the access of a stamp and one by the current thread now could happen in either order.
static bool clashes(Stamp stamp, bool is_shared) {
  u64 phase = stamp >> THREAD_BITS;
  Stamp thread = stamp & MANY;
  if (phase < launch_phase) return false;
  if (phase < block_phase) return !is_shared;  // another block: its shared memory was another one
  if (thread == MANY_BLOCKS) return true;
  return phase == core.phase && thread != core.current->number;
}

[[noreturn]] static void fail_race(const Access& a, const char* name, size_t at, Stamp other, bool other_wrote) {
  char who[96];
  Stamp thread = other & MANY;
  const char* block = other >> THREAD_BITS >= block_phase ? "the same" : "another";
  if (thread == MANY_BLOCKS) snprintf(who, sizeof who, "threads of several blocks");
  else if (thread == MANY) snprintf(who, sizeof who, "several threads of %s block", block);
  else snprintf(who, sizeof who, "thread %u of %s block", (uint)thread, block);
  DS4_FAIL(a, "race on %s at byte %zu: %s by %s, %s by %s", name, at, verb(a), where(),
           other_wrote ? "written" : "read", who);
}

// The stamp of readers after one more, `now`.
static Stamp add_reader(Stamp readers, Stamp now, bool is_shared) {
  if (!clashes(readers, is_shared)) return now;
  bool is_of_blocks = (readers & MANY) == MANY_BLOCKS || readers >> THREAD_BITS < block_phase;
  return (now & ~MANY) | (is_of_blocks ? MANY_BLOCKS : MANY);
}

static void check_cells(const Access& a, Cell* cells, const char* name, size_t at, uint element, bool is_shared) {
  Stamp now = core.phase << THREAD_BITS | core.current->number;
  size_t last = (at + a.size - 1) / element;
  for (size_t i = at / element; i <= last; i++) {
    Cell& cell = cells[i];
    bool is_known = is_shared ? cell.writer >> THREAD_BITS >= block_phase : cell.writer != 0;
    if (!a.is_write && !is_known)
      DS4_FAIL(a, "uninitialised read of %s at byte %zu by %s", name, i * element, where());
    if (clashes(cell.writer, is_shared)) fail_race(a, name, i * element, cell.writer, true);
    if (!a.is_write) {
      cell.reader = add_reader(cell.reader, now, is_shared);
      continue;
    }
    if (clashes(cell.reader, is_shared)) fail_race(a, name, i * element, cell.reader, false);
    cell.writer = now;
  }
}

// Whether an address belongs to a loaded library, such as a table of constants in a kernel text.
static bool is_library_memory(const char* address) {
  static const char* known;
  Dl_info info;
  if (known == address) return true;
  if (!dladdr(address, &info)) return false;
  known = address;
  return true;
}

static const Region* find_region(const char* address) {
  for (uint i = 0; i < num_regions; i++) {
    uint index = (last_region + i) % num_regions;
    const Region& r = regions[index];
    if (address >= r.start && address < r.start + r.size) {
      last_region = index;
      return &r;
    }
  }
  return nullptr;
}

// Text such as "4 bytes after the end of score (3072 bytes)" for an address outside of every region.
static void describe_outside(const char* address, char* text, size_t room) {
  const char* name = nullptr;
  size_t best = ~(size_t)0, size = 0;
  bool is_after = false;
  auto consider = [&](const char* start, size_t bytes, const char* candidate) {
    bool after = address >= start + bytes;
    size_t distance = after ? address - (start + bytes) : address < start ? start - address : 0;
    if (distance < best) best = distance, name = candidate, size = bytes, is_after = after;
  };
  for (uint i = 0; i < num_regions; i++) consider(regions[i].start, regions[i].size, regions[i].name);
  for (uint i = 0; kernel && i < kernel->num_arrays; i++) {
    const SharedArray& array = kernel->arrays[i];
    consider(core.shared + array.offset, array.bytes, array.name);
  }
  for (uint i = 0; i < num_regions; i++) {
    if (address < regions[i].start || address >= regions[i].start + regions[i].size) continue;
    snprintf(text, room, "to byte %zu of %s, which is constant", address - regions[i].start, regions[i].name);
    return;
  }
  if (!name || best > (size_t(1) << 32)) snprintf(text, room, "address %p, in no buffer", address);
  else if (is_after) snprintf(text, room, "%zu bytes after the end of %s (%zu bytes)", best, name, size);
  else snprintf(text, room, "%zu bytes before the start of %s (%zu bytes)", best, name, size);
}

[[noreturn]] static void fail_outside(const Access& a) {
  char place[160];
  describe_outside(a.address, place, sizeof place);
  DS4_FAIL(a, "out of bounds: %s of %zu bytes, %s, by %s", verb(a), a.size, place, where());
}

static void check_access(const void* address, size_t size, bool is_write, const void* pc) {
  Access a = {(const char*)address, size, is_write, pc};
  if (a.address >= stacks && a.address < stacks + MAX_THREADS * STACK_BYTES) return;
  if (a.address >= core.shared && a.address < shared_end) {
    for (uint i = 0; i < kernel->num_arrays; i++) {
      const SharedArray& array = kernel->arrays[i];
      const char* start = core.shared + array.offset;
      if (a.address < start || a.address + size > start + array.bytes) continue;
      return check_cells(a, shared_cells + (start - (shared_end - SHARED_BYTES)), array.name, a.address - start,
                         array.element, true);
    }
    fail_outside(a);
  }
  const Region* r = find_region(a.address);
  if (!r && !is_write && is_library_memory(a.address)) return;  // tables of constants
  if (!r || a.address + size > r->start + r->size) fail_outside(a);
  if (is_write && r->is_constant)
    DS4_FAIL(a, "write to constant %s at byte %zu by %s", r->name, a.address - r->start, where());
  if (r->cells) check_cells(a, r->cells, r->name, a.address - r->start, r->element, false);
}

}  // namespace ds4
