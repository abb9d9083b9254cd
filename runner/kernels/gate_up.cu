// The first half of a SwiGLU, for few tokens or one expert for each visit.
//
//   out[v][r] = silu(gate[e][r] . x[v / per]) * (up[e][r] . x[v / per]),   e = ids[v], 0 where there are none
//                                                     Backend::linear, then Backend::swiglu of cpu
//
// A warp for each row r of both, eight rows to a block, grid (ceil(rows / 8), visits).
#include "warp.cuh"
#include "weights.cuh"

template <class F>
PREP_FN void gate_up(const Weights &gate, const Weights &up, const float *x, const u32 *ids, u32 per, float *out) {
    PREP_SHARED(float4, tile, TILE / 4);
    u32 visit = blockIdx.y, expert = ids == nullptr ? 0 : ids[visit];
    u32 row = blockIdx.x * 8 + threadIdx.y, thread = threadIdx.y * 32 + threadIdx.x;
    x += u64(visit / per) * gate.cols;
    float g = 0.0f, u = 0.0f;
    for (u32 first = 0; first < gate.cols; first += TILE) {
        stage<F, TILE>(tile, x, first, gate.cols, thread, 256);
        __syncthreads();
        if (row < gate.rows) {
            g += chunk_dot<F, TILE>(gate, expert, row, tile, first, threadIdx.x);
            u += chunk_dot<F, TILE>(up, expert, row, tile, first, threadIdx.x);
        }
        __syncthreads();
    }
    g = warp_sum(g);
    u = warp_sum(u);
    if (threadIdx.x == 0 && row < gate.rows) {
        out[u64(visit) * gate.rows + row] = silu(g) * u;
    }
}

#define GATE_UP(F, name)                                                                                               \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                               \
        gate_up_##name(Weights gate, Weights up, const float *x, const u32 *ids, u32 per, float *out) {                \
        gate_up<F>(gate, up, x, ids, per, out);                                                                        \
    }
PREP_FORMATS(GATE_UP)
