// The scheduler of the fibers.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "metal_stdlib"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace shim {

Here here;

namespace {

constexpr size_t STACK_BYTES = 256 << 10;
constexpr uint MAX_THREADS = 1024;

Thread threads[MAX_THREADS];
uint8_t rooms[MAX_THREADS / SIMD][2][SIMD][16];
uint8_t* stacks;
void (*work)(void*);
void* given;

void run_thread() {
  work(given);
  here.own->state = DONE;
  wait(DONE);
  __builtin_unreachable();
}

#if defined(__x86_64__)

// Saves what a called function has to keep, and goes on where another stack was left.
__attribute__((naked, noinline)) void switch_stacks(void** saved, void* to) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}

void start(Thread& one, uint8_t* stack) {
  void** top = (void**)(stack + STACK_BYTES);
  *--top = nullptr;  // a called function finds its stack 8 bytes off a multiple of 16
  *--top = (void*)run_thread;
  one.stack = top - 6;
}

void enter(Thread& one) { switch_stacks(&here.scheduler, one.stack); }
void leave(Thread& one) { switch_stacks(&one.stack, here.scheduler); }

#else

ucontext_t contexts[MAX_THREADS], scheduler;

void start(Thread& one, uint8_t* stack) {
  ucontext_t& made = contexts[one.index];
  getcontext(&made);
  made.uc_stack.ss_sp = stack;
  made.uc_stack.ss_size = STACK_BYTES;
  makecontext(&made, run_thread, 0);
}

void enter(Thread& one) { swapcontext(&scheduler, &contexts[one.index]); }
void leave(Thread& one) { swapcontext(&contexts[one.index], &scheduler); }

#endif

[[noreturn]] void fail(const char* why) {
  fprintf(stderr, "%s: threads of a group do not come to one place\n", why);
  abort();
}

void run(Thread& one) {
  one.state = RUNS;
  here.own = &one;
  enter(one);
}

// Threads of a simdgroup until all wait for the threadgroup, or are done.
void run_simdgroup(uint first, uint end) {
  for (;;) {
    uint at_simd = 0, others = 0;
    for (uint i = first; i < end; ++i) {
      if (threads[i].state == RUNS) run(threads[i]);
      ++(threads[i].state == AT_SIMD ? at_simd : others);
    }
    if (!at_simd) return;
    if (others) fail("an operation of a simdgroup");
    for (uint i = first; i < end; ++i) threads[i].state = RUNS;
  }
}

void run_group() {
  for (uint i = 0; i < here.threads; ++i) {
    threads[i] = {i, RUNS, nullptr, 0};
    start(threads[i], stacks + i * STACK_BYTES);
  }
  for (;;) {
    for (uint i = 0; i < here.threads; i += SIMD) {
      const uint end = i + SIMD < here.threads ? i + SIMD : here.threads;
      run_simdgroup(i, end);
    }
    uint waiting = 0;
    for (uint i = 0; i < here.threads; ++i) waiting += threads[i].state == AT_GROUP;
    if (!waiting) return;
    if (waiting != here.threads) fail("a barrier");
    for (uint i = 0; i < here.threads; ++i) threads[i].state = RUNS;
  }
}

}  // namespace

void wait(Waits at) {
  here.own->state = at;
  leave(*here.own);
}

}  // namespace shim

// All threadgroups of a grid, one after the other; threads that never wait need no stacks.
extern "C" void shim_run(
    void (*kernel_)(void*), void* arguments, const uint* grid, uint count, int waits) {
  using namespace shim;
  if (count > MAX_THREADS) fail("more threads than a threadgroup has");
  if (waits && !stacks) {
    void* made = mmap(nullptr, MAX_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) fail("no memory for stacks");
    stacks = (uint8_t*)made;
  }
  work = kernel_;
  given = arguments;
  here.groups = {grid[0], grid[1], grid[2]};
  here.threads = count;
  here.rooms = rooms;
  for (uint z = 0; z < grid[2]; ++z)
    for (uint y = 0; y < grid[1]; ++y)
      for (uint x = 0; x < grid[0]; ++x) {
        here.group = {x, y, z};
        if (waits) {
          run_group();
          continue;
        }
        for (uint i = 0; i < count; ++i) {
          threads[i] = {i, RUNS, nullptr, 0};
          here.own = &threads[i];
          kernel_(arguments);
        }
      }
}
