// -fsanitize=thread calls these at every access to memory that another thread could see. The text is linked without that
// sanitizer's own runtime: the hooks ask our checker. Loads and stores of 3, 6, 12 ... bytes come as ranges.
//
// -fsanitize=alignment,bounds,shift-exponent calls the handlers of what no hook sees: a vector at an address that is not
// its own multiple, an index beyond an array in registers, a shift by the width of a number and more.
#pragma once

#define DS4_HOOK __attribute__((noinline, no_sanitize("thread"), visibility("hidden"))) void

extern "C" {
#define DS4_HOOKS(n)                                                                                              \
  DS4_HOOK __tsan_read##n(void* p) { ds4_core->access(p, n, false, __builtin_return_address(0)); }                \
  DS4_HOOK __tsan_write##n(void* p) { ds4_core->access(p, n, true, __builtin_return_address(0)); }                \
  DS4_HOOK __tsan_unaligned_read##n(void* p) { ds4_core->access(p, n, false, __builtin_return_address(0)); }      \
  DS4_HOOK __tsan_unaligned_write##n(void* p) { ds4_core->access(p, n, true, __builtin_return_address(0)); }      \
  DS4_HOOK __tsan_volatile_read##n(void* p) { ds4_core->access(p, n, false, __builtin_return_address(0)); }       \
  DS4_HOOK __tsan_volatile_write##n(void* p) { ds4_core->access(p, n, true, __builtin_return_address(0)); }
DS4_HOOKS(1)
DS4_HOOKS(2)
DS4_HOOKS(4)
DS4_HOOKS(8)
DS4_HOOKS(16)
#undef DS4_HOOKS
DS4_HOOK __tsan_read_range(void* p, ds4::size n) { ds4_core->access(p, n, false, __builtin_return_address(0)); }
DS4_HOOK __tsan_write_range(void* p, ds4::size n) { ds4_core->access(p, n, true, __builtin_return_address(0)); }
DS4_HOOK __tsan_func_entry(void*) {}
DS4_HOOK __tsan_func_exit() {}
DS4_HOOK __tsan_init() {}
}

namespace ds4 {

struct SourceLocation {  // as the compiler lays it out
  const char* file;
  uint line, column;
};

struct TypeMismatch {
  SourceLocation at;
  const void* type;
  uchar alignment_log, kind;
};

struct TypeName {
  ushort kind, info;
  char name[1];  // more follow
};

struct OutOfBounds {
  SourceLocation at;
  const TypeName *array, *index;
};

}  // namespace ds4

extern "C" {
DS4_HOOK __ubsan_handle_type_mismatch_v1(ds4::TypeMismatch* found, ds4::size address) {
  ds4_core->fail("line %u: misaligned access: expected a multiple of %u bytes, got 0x%llx, by %s", found->at.line,
                 1u << found->alignment_log, (ds4::u64)address, ds4_core->where());
}
DS4_HOOK __ubsan_handle_out_of_bounds(ds4::OutOfBounds* found, ds4::size index) {
  ds4_core->fail("line %u: index %lld beyond an array %s by %s", found->at.line, (long long)index, found->array->name,
                 ds4_core->where());
}
DS4_HOOK __ubsan_handle_shift_out_of_bounds(ds4::SourceLocation* at, ds4::size, ds4::size exponent) {
  ds4_core->fail("line %u: shift of a number by %lld bits by %s", at->line, (long long)exponent, ds4_core->where());
}
}
