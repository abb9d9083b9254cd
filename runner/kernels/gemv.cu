// A linear layer of few tokens, or of one expert for each visit.
//
//   y[v][r] = sum over c of w[e][r][c] * x[v / per][c] + bias[r],   e = ids[v], 0 where there are none
//                                                     Backend::linear of cpu, up to the order of the sum
//
// A warp for each row, eight rows to a block, grid (ceil(rows / 8), visits). The block holds x in shared memory, TILE
// columns at a time.
#include "warp.cuh"
#include "weights.cuh"

template <class F>
PREP_FN void gemv(const Weights &w, const float *x, const u32 *ids, u32 per, const float *bias, float *y) {
    PREP_SHARED(float4, tile, TILE / 4);
    u32 visit = blockIdx.y, expert = ids == nullptr ? 0 : ids[visit];
    u32 row = blockIdx.x * 8 + threadIdx.y, thread = threadIdx.y * 32 + threadIdx.x;
    x += u64(visit / per) * w.cols;
    float sum = 0.0f;
    for (u32 first = 0; first < w.cols; first += TILE) {
        stage<F, TILE>(tile, x, first, w.cols, thread, 256);
        __syncthreads();
        if (row < w.rows) {
            sum += chunk_dot<F, TILE>(w, expert, row, tile, first, threadIdx.x);
        }
        __syncthreads();
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0 && row < w.rows) {
        y[u64(visit) * w.rows + row] = bias == nullptr ? sum : sum + bias[row];
    }
}

#define GEMV(F, name)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                               \
        gemv_##name(Weights w, const float *x, const u32 *ids, u32 per, const float *bias, float *y) {                 \
        gemv<F>(w, x, ids, per, bias, y);                                                                              \
    }
PREP_FORMATS(GEMV)
