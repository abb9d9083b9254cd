// The second half of a mixture of experts, for few tokens.
//
//   out[t][r] = sum over j of weights[t][j] * (w[ids[t][j]][r] . inner[t * chosen + j])        in the order of j
//             + sigmoid(gate[t]) * (shared[r] . shared_inner[t])                               where there is a shared one
//                                                     Backend::experts of cpu; ids come sorted, see router.cu
//
// Four rows to a block, a warp for each expert: block (32, chosen, + 1 with a shared expert; at most 16), grid (ceil(rows / 4),
// tokens).
#include "warp.cuh"
#include "weights.cuh"

static const u32 ROWS = 4;
// Columns that a warp holds at a time.
static const u32 PART = 512;

// Products of ROWS rows with one input, by one warp.
template <class F>
PREP_FN void multiply(const Weights &w, u32 expert, const float *x, float4 *tile, float *products) {
    u32 lane = threadIdx.x;
    float sums[ROWS] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 first = 0; first < w.cols; first += PART) {
        stage<F, PART>(tile, x, first, w.cols, lane, 32);
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) {
            u32 row = blockIdx.x * ROWS + i;
            if (row < w.rows) {
                sums[i] += chunk_dot<F, PART>(w, expert, row, tile, first, lane);
            }
        }
        __syncwarp();
    }
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
        float sum = warp_sum(sums[i]);
        if (lane == 0) {
            products[i] = sum;
        }
    }
}

template <class F>
PREP_FN void down(const Weights &w, const float *inner, const u32 *ids, const float *weights, u32 chosen,
                  const Weights &shared, const float *shared_inner, const float *gate, float *out) {
    PREP_DYN_SHARED(float4, memory);
    u32 token = blockIdx.y, lane = threadIdx.x, warp = threadIdx.y, warps = blockDim.y;
    float4 *tile = memory + warp * (PART / 4);
    float *products = reinterpret_cast<float *>(memory + warps * (PART / 4)); // [warps, ROWS]
    bool routed = warp < chosen;
    Weights mine = choose(routed, w, shared);
    u32 visit = token * chosen + warp;
    const float *x = routed ? inner + u64(visit) * w.cols : shared_inner + u64(token) * shared.cols;
    multiply<F>(mine, routed ? ids[visit] : 0, x, tile, products + warp * ROWS);
    __syncthreads();
    u32 row = blockIdx.x * ROWS + lane;
    if (warp == 0 && lane < ROWS && row < w.rows) {
        float sum = 0.0f;
        for (u32 j = 0; j < chosen; j++) {
            sum += weights[token * chosen + j] * products[j * ROWS + lane];
        }
        if (warps > chosen) {
            sum += products[chosen * ROWS + lane] * sigmoid(gate[token]);
        }
        out[u64(token) * w.rows + row] = sum;
    }
}

#define DOWN(F, name)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(512, 1)                                                               \
        down_##name(Weights w, const float *inner, const u32 *ids, const float *weights, u32 chosen, Weights shared,   \
                    const float *shared_inner, const float *gate, float *out) {                                        \
        down<F>(w, inner, ids, weights, chosen, shared, shared_inner, gate, out);                                      \
    }
PREP_FORMATS(DOWN)
