// Sums and maxima over the lanes of a warp and the threads of a block. The order is fixed, so are the bits.
#pragma once
#include "device.cuh"

// In every lane: lane l + lane l^16, then ^8, ^4, ^2, ^1.
PREP_FN float warp_sum(float x) {
    for (u32 step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, step);
    }
    return x;
}
PREP_FN double warp_sum(double x) {
    for (u32 step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, step);
    }
    return x;
}
PREP_FN u32 warp_sum(u32 x) {
    for (u32 step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, step);
    }
    return x;
}
PREP_FN float warp_max(float x) {
    for (u32 step = 16; step > 0; step /= 2) {
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    }
    return x;
}
PREP_FN u32 warp_max(u32 x) {
    for (u32 step = 16; step > 0; step /= 2) {
        u32 other = __shfl_xor_sync(ALL_LANES, x, step);
        x = x > other ? x : other;
    }
    return x;
}

// Sums over a block of one dimension; every thread gets it. All threads must call.
template <class T> PREP_FN T block_sum(T x) {
    PREP_SHARED(T, parts, 32);
    x = warp_sum(x);
    u32 warps = blockDim.x / 32;
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = x;
    }
    __syncthreads();
    T sum = 0;
    for (u32 w = 0; w < warps; w++) {
        sum += parts[w];
    }
    // Before the next call writes there.
    __syncthreads();
    return sum;
}
PREP_FN u32 block_max(u32 x) {
    PREP_SHARED(u32, parts, 32);
    x = warp_max(x);
    u32 warps = blockDim.x / 32;
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = x;
    }
    __syncthreads();
    u32 top = 0;
    for (u32 w = 0; w < warps; w++) {
        top = top > parts[w] ? top : parts[w];
    }
    __syncthreads();
    return top;
}
