// Threads of a block as fibers: each has a stack of its own, and hands over only in the calls of cuda.h.

#include "cuda.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <sys/mman.h>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the running stack at *from and goes on with the stack `to`.
extern "C" void prep_switch(void **from, void *to);
// What a new fiber returns into.
extern "C" void prep_enter();

#if defined(__x86_64__)
asm(R"(
.text
.globl prep_switch
prep_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.globl prep_enter
prep_enter:
    xorl %ebp, %ebp
    call prep_fiber_main
    hlt
)");
static const size_t SAVED = 7;     // words below the top: six registers and the return address
static const size_t RETURN_AT = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.globl prep_switch
prep_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.globl prep_enter
prep_enter:
    bl prep_fiber_main
    brk #1
)");
static const size_t SAVED = 20;
static const size_t RETURN_AT = 11;
#else
#error "a context switch for this processor is missing"
#endif

namespace prep {

PREP_NEAR __thread Place place;

namespace {

const unsigned MOST_THREADS = 1024;
const size_t STACK = STACKS / MOST_THREADS, MESSAGE = MESSAGES / MOST_THREADS;
// What every GPU from sm_80 on lets a block have after asking for it.
const size_t MOST_SHARED = 99 << 10;

enum class State { Ready, InBlock, InWarp, Done };

struct Fiber {
    void *stack_pointer;
    void *fake_stack;
    State state;
    Call call;
    unsigned mask;
    size_t size;
    unsigned char sent[MESSAGE];
};

struct Machine {
    char *stacks = nullptr;
    std::vector<Fiber> fibers;
    std::vector<unsigned> ready;
    std::vector<unsigned> in_warp;
    unsigned in_block = 0, done = 0, threads = 0, running = 0;
    void *scheduler = nullptr, *scheduler_fake = nullptr;
    const void *scheduler_bottom = nullptr;
    size_t scheduler_size = 0;
    const Kernel *kernel = nullptr;
    void **arguments = nullptr;
    dim3 block;
    unsigned char *shared = nullptr;
    std::map<const void *, std::pair<void *, size_t>> arrays;
    std::string report;
    bool failed = false;
    uint64_t random = 0;
};
// A plain pointer, and in the thread's first block of memory: it is looked at all the time.
PREP_NEAR __thread Machine *machine = nullptr;

std::map<std::string, const Kernel *> &kernels() {
    static std::map<std::string, const Kernel *> all;
    return all;
}

char *message_to(unsigned thread) { return machine->stacks + STACKS + thread * MESSAGE; }
char *stack_of(unsigned thread) { return machine->stacks + size_t(thread) * STACK; }

__attribute__((no_sanitize("address"))) void to_scheduler(bool forever) {
    Fiber &self = machine->fibers[machine->running];
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(forever ? nullptr : &self.fake_stack, machine->scheduler_bottom,
                                   machine->scheduler_size);
#endif
    prep_switch(&self.stack_pointer, machine->scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(self.fake_stack, nullptr, nullptr);
#endif
    (void)forever;
}

uint3 thread_at(unsigned i) {
    const dim3 &b = machine->block;
    return {i % b.x, i / b.x % b.y, i / b.x / b.y};
}

__attribute__((no_sanitize("address"))) void run(unsigned thread) {
    machine->running = thread;
    place.thread = thread_at(thread);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&machine->scheduler_fake, stack_of(thread), STACK);
#endif
    prep_switch(&machine->scheduler, machine->fibers[thread].stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(machine->scheduler_fake, nullptr, nullptr);
#endif
}

void prepare(unsigned thread) {
    Fiber &f = machine->fibers[thread];
    f = Fiber{};
    auto *top = reinterpret_cast<uintptr_t *>(stack_of(thread) + STACK - 64);
    top -= SAVED;
#if defined(__x86_64__)
    // A function finds its stack 8 bytes off a multiple of 16; prep_enter calls from a multiple of 16.
    top = reinterpret_cast<uintptr_t *>((reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15)) + 8);
#endif
    for (size_t i = 0; i < SAVED; i++) {
        top[i] = 0;
    }
    top[RETURN_AT] = reinterpret_cast<uintptr_t>(&prep_enter);
    f.stack_pointer = top;
}

std::string position(uint3 at) {
    char text[64];
    std::snprintf(text, sizeof text, "(%u, %u, %u)", at.x, at.y, at.z);
    return text;
}

std::string told(Call call) {
    const char *slash = std::strrchr(call.file, '/');
    return std::string(call.name) + " at " + (slash ? slash + 1 : call.file) + ":" + std::to_string(call.line);
}

void start_report() {
    machine->report = std::string("kernel ") + machine->kernel->name + ", block " + position(place.block) + ": ";
    machine->failed = true;
}

// Nobody can go on: says who waits where.
void report_divergence() {
    start_report();
    std::map<std::string, std::pair<unsigned, unsigned>> groups;
    for (unsigned i = 0; i < machine->threads; i++) {
        const Fiber &f = machine->fibers[i];
        std::string key = f.state == State::Done ? "finished" : "waiting in " + told(f.call);
        auto entry = groups.emplace(key, std::make_pair(0u, i)).first;
        entry->second.first++;
    }
    machine->report += "threads wait for each other in vain:";
    for (auto &g : groups) {
        machine->report += "\n  " + std::to_string(g.second.first) + " " + g.first + ", the first of them thread " +
                          position(thread_at(g.second.second));
    }
}

void make_ready(unsigned thread) {
    machine->fibers[thread].state = State::Ready;
    machine->ready.push_back(thread);
}

bool same(const char *a, const char *b) { return a == b || std::strcmp(a, b) == 0; }
bool same(const Call &a, const Call &b) { return a.line == b.line && same(a.name, b.name) && same(a.file, b.file); }

void release_block() {
    const Call &first = machine->fibers[0].call;
    for (unsigned i = 1; i < machine->threads; i++) {
        if (!same(first, machine->fibers[i].call)) {
            return;
        }
    }
    machine->in_block = 0;
    for (unsigned i = 0; i < machine->threads; i++) {
        make_ready(i);
    }
}

// Lets the lanes of `thread`'s mask go on if all of them wait in the same call.
void release_warp(unsigned thread) {
    const Fiber &me = machine->fibers[thread];
    unsigned first = thread / 32 * 32;
    for (unsigned l = 0; l < 32; l++) {
        if (me.mask >> l & 1) {
            if (first + l >= machine->threads) {
                return;
            }
            const Fiber &f = machine->fibers[first + l];
            if (f.state != State::InWarp || f.mask != me.mask || !same(f.call, me.call)) {
                return;
            }
        }
    }
    for (unsigned l = 0; l < 32; l++) {
        if (me.mask >> l & 1) {
            Fiber &f = machine->fibers[first + l];
            std::memcpy(message_to(first + l), f.sent, f.size);
            make_ready(first + l);
        }
    }
}

unsigned next(unsigned seed) {
    size_t at = 0;
    auto &ready = machine->ready;
    if (seed == 1) {
        at = ready.size() - 1;
    } else if (seed > 1) {
        machine->random = machine->random * 6364136223846793005u + 1442695040888963407u;
        at = size_t(machine->random >> 33) % ready.size();
    }
    unsigned thread = ready[at];
    if (seed == 0) {
        ready.erase(ready.begin());
    } else {
        ready[at] = ready.back();
        ready.pop_back();
    }
    return thread;
}

void run_block(const Order &order) {
    if (order.shared > 0) {
        std::memset(machine->shared, 0xff, order.shared);
    }
    for (auto &a : machine->arrays) {
        std::memset(a.second.first, 0xff, a.second.second);
    }
    machine->in_block = machine->done = 0;
    machine->ready.clear();
    for (unsigned i = 0; i < machine->threads; i++) {
        prepare(i);
        make_ready(i);
    }
    while (machine->done < machine->threads && !machine->failed) {
        if (machine->ready.empty()) {
            report_divergence();
            return;
        }
        run(next(order.seed));
    }
}

// Which block is the i-th to run.
uint64_t block_at(uint64_t i, uint64_t blocks, unsigned seed) {
    if (seed == 0) {
        return i;
    }
    if (seed == 1) {
        return blocks - 1 - i;
    }
    // A step that shares no factor with their number meets every block once.
    uint64_t step = seed;
    while (std::gcd(step, blocks) != 1) {
        step++;
    }
    return (i * (step % blocks) + seed) % blocks;
}

bool within_limits(const Order &o) {
    auto refuse = [](const std::string &what) {
        machine->report = std::string("kernel ") + machine->kernel->name + ": " + what;
        machine->failed = true;
        return false;
    };
    size_t threads = size_t(o.block.x) * o.block.y * o.block.z;
    if (threads == 0 || threads > MOST_THREADS || o.block.z > 64) {
        return refuse("a block of " + std::to_string(threads) + " threads");
    }
    if (threads % 32 != 0) {
        return refuse("a block of " + std::to_string(threads) + " threads, not of whole warps");
    }
    if (o.grid.x == 0 || o.grid.y == 0 || o.grid.z == 0 || o.grid.x > 0x7fffffffu || o.grid.y > 65535 ||
        o.grid.z > 65535) {
        return refuse("a grid outside the limits");
    }
    if (o.shared > MOST_SHARED) {
        return refuse(std::to_string(o.shared) + " bytes of dynamic shared memory");
    }
    return true;
}

} // namespace

void block_barrier(Call call) {
    Fiber &self = machine->fibers[machine->running];
    self.state = State::InBlock;
    self.call = call;
    if (++machine->in_block == machine->threads) {
        release_block();
    }
    to_scheduler(false);
}

void warp_exchange(Call call, unsigned mask, const void *mine, size_t size) {
    unsigned thread = machine->running;
    Fiber &self = machine->fibers[thread];
    if (!(mask >> (thread % 32) & 1)) {
        fail(call, "a lane calls that is not in its mask");
    }
    if (size > 0) {
        std::memcpy(self.sent, mine, size);
    }
    self.state = State::InWarp;
    self.call = call;
    self.mask = mask;
    self.size = size;
    release_warp(thread);
    to_scheduler(false);
}

const void *theirs(unsigned lane) { return message_to(machine->running / 32 * 32 + lane); }

unsigned lane() { return machine->running % 32; }

void *dynamic_shared() { return machine->shared; }

void *static_shared(const void *key, size_t size) {
    auto &array = machine->arrays[key];
    if (array.first == nullptr) {
        array = {shared_room(size), size};
        std::memset(array.first, 0xff, size);
    }
    return array.first;
}

void fail(Call call, const char *what) { fail(("in " + told(call) + ": " + what).c_str()); }

void fail(const char *what) {
    start_report();
    machine->report += "thread " + position(place.thread) + " " + what;
    to_scheduler(true);
    std::abort();
}

void add(const Kernel *kernel) { kernels()[kernel->name] = kernel; }

const Kernel *find(const char *name) {
    auto at = kernels().find(name);
    return at == kernels().end() ? nullptr : at->second;
}

const char *launch(const Kernel &kernel, void **arguments, const Order &order) {
    static thread_local Machine mine;
    machine = &mine;
    machine->kernel = &kernel;
    machine->arguments = arguments;
    machine->block = order.block;
    machine->failed = false;
    machine->report.clear();
    if (!within_limits(order)) {
        return machine->report.c_str();
    }
    machine->threads = order.block.x * order.block.y * order.block.z;
    machine->random = order.seed * 0x9e3779b97f4a7c15u + 1;
    if (machine->stacks == nullptr) {
        void *room = mmap(nullptr, OWN, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (room == MAP_FAILED) {
            std::abort();
        }
        machine->stacks = static_cast<char *>(room);
    }
    machine->fibers.resize(MOST_THREADS);
    machine->arrays.clear();
    machine->shared = order.shared > 0 ? static_cast<unsigned char *>(shared_room(order.shared)) : nullptr;
    place.own = reinterpret_cast<uintptr_t>(machine->stacks);
    place.block_size = order.block;
    place.grid_size = order.grid;
    uint64_t blocks = uint64_t(order.grid.x) * order.grid.y * order.grid.z;
    for (uint64_t i = order.first; i < blocks && !machine->failed; i += order.step) {
        uint64_t at = block_at(i, blocks, order.seed);
        place.block = {unsigned(at % order.grid.x), unsigned(at / order.grid.x % order.grid.y),
                       unsigned(at / order.grid.x / order.grid.y)};
        run_block(order);
    }
    shared_return();
    machine->arrays.clear();
    return machine->failed ? machine->report.c_str() : nullptr;
}

} // namespace prep

extern "C" __attribute__((no_sanitize("address"))) void prep_fiber_main() {
    using namespace prep;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &machine->scheduler_bottom, &machine->scheduler_size);
#endif
    machine->kernel->call(machine->arguments);
    machine->fibers[machine->running].state = State::Done;
    machine->done++;
    to_scheduler(true);
    std::abort();
}
