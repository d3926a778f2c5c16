// -fsanitize=thread calls these at every access to memory that another thread could see. The text is linked without that
// sanitizer's own runtime: the hooks ask our checker. Loads and stores of 3, 6, 12 ... bytes come as ranges.
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
