// The experts' outputs of many tokens, summed up.
//
//   out[t][c] = sum over j of weights[t][j] * y[positions[t * chosen + j]][c]     in the order of j
//             + sigmoid(gate[t]) * shared[t][c]                                  where there is a shared expert
//                                                     Backend::experts of cpu, exact
//
// A thread for each number, grid (ceil(n / 256)), n = tokens * width.
#include "math.cuh"

extern "C" __global__ void __launch_bounds__(256, 2)
    combine(const float *y, const u32 *positions, const float *weights, u32 chosen, const float *shared,
            const float *gate, u32 width, u64 n, float *out) {
    u64 i = u64(blockIdx.x) * 256 + threadIdx.x;
    if (i >= n) {
        return;
    }
    u64 token = i / width;
    u32 col = u32(i % width);
    float sum = 0.0f;
    for (u32 j = 0; j < chosen; j++) {
        u64 at = token * chosen + j;
        sum += weights[at] * y[u64(positions[at]) * width + col];
    }
    if (shared != nullptr) {
        sum += shared[i] * sigmoid(gate[token]);
    }
    out[i] = sum;
}
