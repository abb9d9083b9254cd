// Moments of a linear's inputs: how neighbouring columns go together.
//
//   gram[i][j] = fma(x[t][first + i], x[t][first + j], gram[i][j]) for every token t in order, tokens filled up with zeros
//   to a multiple of 8                                                                quant::awq::moments::Moments::add
//
// Tiles of 64 x 64, a block of 256 threads each, 4 x 4 sums a thread, grid (ceil(width / 64), ceil(width / 64)). gram is
// symmetric: tiles below the diagonal are those above it, turned.
#include "device.cuh"

extern "C" __global__ void __launch_bounds__(256, 2)
    gram(const float *x, u32 tokens, u32 cols, u32 first, u32 width, float *sums) {
    PREP_SHARED(float, across, 8 * 64);
    PREP_SHARED(float, down, 8 * 64);
    u32 thread = threadIdx.x, left = blockIdx.x * 64, top = blockIdx.y * 64;
    if (left < top) {
        return;
    }
    u32 col = left + thread % 16 * 4, row = top + thread / 16 * 4;
    float tile[16];
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        u32 r = row + i / 4, c = col + i % 4;
        tile[i] = r < width && c < width ? sums[u64(r) * width + c] : 0.0f;
    }
    for (u32 from = 0; from < tokens; from += 8) {
        for (u32 i = thread; i < 8 * 64; i += 256) {
            u32 t = from + i / 64, c = left + i % 64, r = top + i % 64;
            const float *token = x + u64(t) * cols + first;
            across[i] = t < tokens && c < width ? token[c] : 0.0f;
            down[i] = t < tokens && r < width ? token[r] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (u32 t = 0; t < 8; t++) {
#pragma unroll
            for (u32 i = 0; i < 16; i++) {
                tile[i] = fmaf(down[t * 64 + row - top + i / 4], across[t * 64 + col - left + i % 4], tile[i]);
            }
        }
        // Before the next tokens are written there.
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        u32 r = row + i / 4, c = col + i % 4;
        if (r < width && c < width) {
            sums[u64(r) * width + c] = tile[i];
            if (left != top) {
                sums[u64(c) * width + r] = tile[i];
            }
        }
    }
}
