// The part of CUDA C++ that the kernels use, for a plain C++17 compiler: every thread of a block is a fiber, and every
// call by which threads wait for each other hands over to a scheduler (fibers.cpp). Include before a kernel file, as
// `-include cuda.h`.
//
// What a GPU leaves undefined is reported here: a barrier that some threads miss, a shuffle within a divergent branch,
// a read from a lane that takes no part, a misaligned vector load. Shared memory begins as NaN in every block. Run
// under -fsanitize=address,undefined it sees what lies outside a buffer or a shared array, too.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct uint3 {
    unsigned x = 0, y = 0, z = 0;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace prep {

// Where a thread stands, for reports.
struct Call {
    const char *name;
    const char *file;
    int line;
};
#define PREP_CALL(name) ::prep::Call{name, file, line}
#define PREP_WHERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

struct Place {
    uint3 thread, block;
    dim3 block_size, grid_size;
    // Where the block's threads have their stacks, and what they send each other.
    uintptr_t own = 0;
};
#define PREP_NEAR __attribute__((tls_model("initial-exec")))
// Of the running fiber.
extern PREP_NEAR __thread Place place;

// Waits until every thread of the block stands at this call.
void block_barrier(Call call);
// Waits until every lane of `mask` stands at this call. `mine` goes to the others, at most 64 bytes; what they sent
// lies at `theirs(lane)` until the next exchange.
void warp_exchange(Call call, unsigned mask, const void *mine, size_t size);
const void *theirs(unsigned lane);
unsigned lane();
// The launch's dynamic shared memory.
void *dynamic_shared();
// `size` bytes of shared memory that belong to `key`, the same for all threads of a block.
void *static_shared(const void *key, size_t size);
// Ends the launch with a report.
[[noreturn]] void fail(Call call, const char *what);
// The same for what no call of this file has found.
[[noreturn]] void fail(const char *what);
// Bytes of that.
const size_t STACKS = 128 << 20, MESSAGES = 64 << 10, OWN = STACKS + MESSAGES;
// Shared memory of exactly this size, and the end of all of it. Whoever runs the kernels defines them.
void *shared_room(size_t size);
void shared_return();

// A kernel with its arguments' types erased: as cuLaunchKernel has it, a pointer to each argument's value.
struct Kernel {
    const char *name;
    void (*call)(void **arguments);
    // A letter for each argument: P writes, p reads, u unsigned, f float, d double, l unsigned long long, s a struct.
    const char *signature;
    const size_t *sizes;
    unsigned arguments;
    const char *file;
};
const Kernel *find(const char *name);

struct Order {
    dim3 grid, block;
    size_t shared;
    // Which of the ready threads runs next: 0 the longest ready, 1 the latest ready, others a random one. Blocks run
    // forwards, backwards, in some order.
    unsigned seed;
    // This share of the blocks: the first, and how many further the next is.
    unsigned first = 0, step = 1;
};
// Runs the kernel, block after block; 0, or what went wrong.
const char *launch(const Kernel &kernel, void **arguments, const Order &order);

void add(const Kernel *kernel);

template <class T> struct Letter { static constexpr char value = 's'; };
template <class T> struct Letter<T *> { static constexpr char value = 'P'; };
template <class T> struct Letter<const T *> { static constexpr char value = 'p'; };
template <> struct Letter<unsigned> { static constexpr char value = 'u'; };
template <> struct Letter<float> { static constexpr char value = 'f'; };
template <> struct Letter<double> { static constexpr char value = 'd'; };
template <> struct Letter<unsigned long long> { static constexpr char value = 'l'; };

template <size_t... I> struct Places {};
template <size_t N, size_t... I> struct Count : Count<N - 1, N - 1, I...> {};
template <size_t... I> struct Count<0, I...> { using Type = Places<I...>; };

template <class F, F f> struct Registered;
template <class... A, void (*f)(A...)> struct Registered<void (*)(A...), f> {
    template <size_t... I> static void spread(void **a, Places<I...>) { f(*static_cast<A *>(a[I])...); }
    static void call(void **a) { spread(a, typename Count<sizeof...(A)>::Type()); }
    Registered(const char *name, const char *file) {
        static const char signature[] = {Letter<A>::value..., 0};
        static const size_t sizes[] = {sizeof(A)..., 0};
        static const Kernel kernel{name, call, signature, sizes, sizeof...(A), file};
        add(&kernel);
    }
};
#define PREP_REGISTER(kernel) static ::prep::Registered<decltype(&kernel), &kernel> prep_registered_##kernel(#kernel, PREP_FILE);

} // namespace prep

#define threadIdx (::prep::place.thread)
#define blockIdx (::prep::place.block)
#define blockDim (::prep::place.block_size)
#define gridDim (::prep::place.grid_size)

#define PREP_DYN_SHARED(T, name) T *name = static_cast<T *>(::prep::dynamic_shared())
#define PREP_SHARED(T, name, count)                                                                                    \
    static char prep_key_##name;                                                                                       \
    T *name = static_cast<T *>(::prep::static_shared(&prep_key_##name, sizeof(T) * (count)))

inline void __syncthreads(PREP_WHERE) { ::prep::block_barrier(PREP_CALL("__syncthreads")); }
inline void __syncwarp(unsigned mask = 0xffffffffu, PREP_WHERE) {
    ::prep::warp_exchange(PREP_CALL("__syncwarp"), mask, nullptr, 0);
}

namespace prep {
template <class T> T from_lane(Call call, unsigned mask, T mine, unsigned source) {
    warp_exchange(call, mask, &mine, sizeof mine);
    if (!(mask >> source & 1)) {
        fail(call, "reads from a lane that is not in its mask");
    }
    T value;
    std::memcpy(&value, theirs(source), sizeof value);
    return value;
}
} // namespace prep

template <class T> T __shfl_sync(unsigned mask, T value, unsigned source, unsigned width = 32, PREP_WHERE) {
    unsigned lane = ::prep::lane();
    return ::prep::from_lane(PREP_CALL("__shfl_sync"), mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, unsigned other, unsigned width = 32, PREP_WHERE) {
    unsigned lane = ::prep::lane(), from = lane ^ other;
    return ::prep::from_lane(PREP_CALL("__shfl_xor_sync"), mask, value, (from & ~(width - 1)) > lane ? lane : from);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, unsigned width = 32, PREP_WHERE) {
    unsigned lane = ::prep::lane();
    bool inside = (lane & (width - 1)) >= delta;
    return ::prep::from_lane(PREP_CALL("__shfl_up_sync"), mask, value, inside ? lane - delta : lane);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, unsigned width = 32, PREP_WHERE) {
    unsigned lane = ::prep::lane();
    bool inside = (lane & (width - 1)) + delta < width;
    return ::prep::from_lane(PREP_CALL("__shfl_down_sync"), mask, value, inside ? lane + delta : lane);
}
namespace prep {
inline unsigned votes(Call call, unsigned mask, int predicate) {
    bool mine = predicate != 0;
    warp_exchange(call, mask, &mine, sizeof mine);
    unsigned all = 0;
    for (unsigned l = 0; l < 32; l++) {
        if (mask >> l & 1) {
            all |= unsigned(*static_cast<const bool *>(theirs(l))) << l;
        }
    }
    return all;
}
} // namespace prep
inline unsigned __ballot_sync(unsigned mask, int predicate, PREP_WHERE) {
    return ::prep::votes(PREP_CALL("__ballot_sync"), mask, predicate);
}
inline int __any_sync(unsigned mask, int predicate, PREP_WHERE) {
    return ::prep::votes(PREP_CALL("__any_sync"), mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate, PREP_WHERE) {
    return ::prep::votes(PREP_CALL("__all_sync"), mask, predicate) == mask;
}

inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float rintf_even(float a) { return std::nearbyint(a); }
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }
