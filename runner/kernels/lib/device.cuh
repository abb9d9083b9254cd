// What every kernel file begins with: the two ways to compile it.
//
// NVRTC compiles it for a GPU; a plain C++ compiler after host/cuda.h, for the tests. No CUDA header is needed, and
// inline PTX stands only in small functions that have a twin in C++ beside it.
#pragma once

#define PREP_FN static __device__ __forceinline__
// Dynamic shared memory of the launch; one such array in a kernel.
#ifdef __CUDACC__
#define PREP_DYN_SHARED(T, name)                                                                                       \
    extern __shared__ __align__(16) unsigned char prep_dynamic[];                                                      \
    T *name = reinterpret_cast<T *>(prep_dynamic)
// A shared array of fixed size.
#define PREP_SHARED(T, name, count) __shared__ __align__(16) T name[count]
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

static const u32 ALL_LANES = 0xffffffffu;

PREP_FN u32 least(u32 a, u32 b) { return a < b ? a : b; }
PREP_FN u32 divided_up(u32 a, u32 b) { return (a + b - 1) / b; }

// Sixteen bytes from an address that is a multiple of sixteen.
#ifdef __CUDACC__
PREP_FN uint4 load16(const void *p) { return *reinterpret_cast<const uint4 *>(p); }
// The same for weights, which are read once: they do not push others out of the first cache.
PREP_FN uint4 load16_once(const void *p) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p));
    return v;
}
#else
PREP_FN uint4 load16(const void *p, PREP_WHERE) {
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) {
        ::prep::fail(PREP_CALL("load16"), "its address is not a multiple of 16");
    }
    return *static_cast<const uint4 *>(p);
}
PREP_FN uint4 load16_once(const void *p, PREP_WHERE) { return load16(p, file, line); }
#endif

PREP_FN float4 load_float4(const float *p) {
    uint4 v = load16(p);
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}
