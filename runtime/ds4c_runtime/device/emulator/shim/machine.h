// Fibers: a context is a stack pointer and an address to go on at; a switch saves one and takes up another.
//
// The switch is inlined where it is needed and tells the compiler that every register is lost, so only what is alive
// there is saved; and the indirect jump of every place is predicted by itself, which a common function that ends in
// `ret` on another stack would spoil. Compile with -mno-red-zone: the switch pushes.
#pragma once

namespace ds4 {

struct Context {
  void* stack;
  void* resume;
};

#if defined(__x86_64__)

#define DS4_LOST                                                                                                     \
  "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3",   \
      "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc",     \
      "memory"

// Goes on at `to`; comes back when something switches to `from`.
__attribute__((always_inline)) static inline void switch_context(Context* from, Context* to) {
  // rbp may be the frame pointer, which cannot be declared lost.
  asm volatile(
      "pushq %%rbp\n\t"
      "leaq 1f(%%rip), %%rax\n\t"
      "movq %%rsp, 0(%0)\n\t"
      "movq %%rax, 8(%0)\n\t"
      "movq 0(%1), %%rsp\n\t"
      "jmpq *8(%1)\n"
      "1:\n\t"
      "popq %%rbp"
      : "+D"(from), "+S"(to)
      :
      : DS4_LOST);
}

// Goes on at `to` for good.
[[noreturn]] __attribute__((always_inline)) static inline void jump_context(Context* to) {
  asm volatile("movq 0(%0), %%rsp\n\tjmpq *8(%0)" : : "S"(to) : "memory");
  __builtin_unreachable();
}

// Stack pointer with which a function may be entered by a jump: as after a call.
constexpr long ENTRY_BIAS = -8;

#elif defined(__aarch64__)

// x18 belongs to the platform; x29 may be the frame pointer, so it is saved by hand.
#define DS4_LOST                                                                                                      \
  "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x19",      \
      "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x30", "v0", "v1", "v2", "v3", "v4", "v5", "v6", \
      "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22",    \
      "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "cc", "memory"

__attribute__((always_inline)) static inline void switch_context(Context* from, Context* to) {
  register Context* saved asm("x0") = from;
  register Context* taken asm("x1") = to;
  asm volatile(
      "stp x29, x30, [sp, #-16]!\n\t"
      "adr x9, 1f\n\t"
      "mov x10, sp\n\t"
      "stp x10, x9, [x0]\n\t"
      "ldp x10, x9, [x1]\n\t"
      "mov sp, x10\n\t"
      "br x9\n"
      "1:\n\t"
      "ldp x29, x30, [sp], #16"
      : "+r"(saved), "+r"(taken)
      :
      : DS4_LOST);
}

[[noreturn]] __attribute__((always_inline)) static inline void jump_context(Context* to) {
  asm volatile("ldp x10, x9, [%0]\n\tmov sp, x10\n\tbr x9" : : "r"(to) : "x9", "x10", "memory");
  __builtin_unreachable();
}

constexpr long ENTRY_BIAS = 0;

#else
#error "the emulator knows the context switch of x86-64 and aarch64 only"
#endif

}  // namespace ds4
