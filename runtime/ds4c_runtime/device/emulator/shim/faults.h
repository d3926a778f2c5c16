// Accesses into guard pages become errors of the launch.
#pragma once
#include <pthread.h>
#include <signal.h>
#include <ucontext.h>

#include "state.h"

namespace ds4 {

static pthread_t owner;
static struct sigaction kept_segv, kept_bus;

static const void* fault_pc(void* context) {
  ucontext_t* at = (ucontext_t*)context;
#if defined(__x86_64__) && defined(__linux__)
  return (const void*)at->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__) && defined(__linux__)
  return (const void*)at->uc_mcontext.pc;
#else
  (void)at;
  return nullptr;
#endif
}

static void on_fault(int signal, siginfo_t* info, void* context) {
  if (!pthread_equal(pthread_self(), owner)) {  // not ours: as if we had not been asked
    sigaction(signal, signal == SIGBUS ? &kept_bus : &kept_segv, nullptr);
    return;
  }
  char place[160];
  message_pc = (const char*)fault_pc(context) + 1;  // as a return address would stand
  const char* address = (const char*)info->si_addr;
  if (address < stacks && address >= stacks - STACK_GUARD_BYTES) fail("stack overflow: more than %zu bytes, by %s", STACK_BYTES, where());
  describe_outside(address, place, sizeof place);
  fail("guard page: access %s, by %s", place, core.current ? where() : "no thread");
}

// While it lives, faults of this OS thread end the list of launches.
class FaultHandlers {
 public:
  FaultHandlers() {
    static char stack[64 * 1024];
    stack_t ours = {};
    ours.ss_sp = stack;
    ours.ss_size = sizeof stack;
    sigaltstack(&ours, &kept_stack_);
    owner = pthread_self();
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &kept_segv);
    sigaction(SIGBUS, &action, &kept_bus);
  }
  ~FaultHandlers() {
    sigaction(SIGSEGV, &kept_segv, nullptr);
    sigaction(SIGBUS, &kept_bus, nullptr);
    sigaltstack(&kept_stack_, nullptr);
  }

 private:
  stack_t kept_stack_;
};

}  // namespace ds4
