// Which experts a token goes to, and with which weights.
//
//   p = softmax(logits) over all experts; the `chosen` largest, of equal ones the lower number; weights p, or p divided
//   by their sum where `divide` is not 0                                     cpu::experts::choose
//
// ids [tokens, chosen] come out in rising order, so that sums over them have the CPU's order. A warp for each token,
// grid (tokens), shared memory for the experts' p; at most 32 chosen.
#include "math.cuh"
#include "warp.cuh"

extern "C" __global__ void __launch_bounds__(32, 8)
    router(const float *logits, u32 experts, u32 chosen, u32 divide, u32 *ids, float *weights) {
    PREP_DYN_SHARED(float, p);
    u32 lane = threadIdx.x;
    logits += u64(blockIdx.x) * experts;
    float top = __uint_as_float(0xff800000u);
    for (u32 e = lane; e < experts; e += 32) {
        top = fmaxf(top, logits[e]);
    }
    top = warp_max(top);
    float all = 0.0f;
    for (u32 e = lane; e < experts; e += 32) {
        p[e] = exp_of(logits[e] - top);
        all += p[e];
    }
    float scale = 1.0f / warp_sum(all);
    for (u32 e = lane; e < experts; e += 32) {
        p[e] *= scale;
    }
    // Lane j keeps the choice number j. Every lane reads only its own p.
    u32 id = 0;
    float weight = 0.0f, sum = 0.0f;
    for (u32 j = 0; j < chosen; j++) {
        float best = -1.0f;
        u32 at = experts;
        for (u32 e = lane; e < experts; e += 32) {
            if (p[e] > best) {
                best = p[e];
                at = e;
            }
        }
        for (u32 step = 16; step > 0; step /= 2) {
            float other = __shfl_xor_sync(ALL_LANES, best, step);
            u32 there = __shfl_xor_sync(ALL_LANES, at, step);
            if (other > best || (other == best && there < at)) {
                best = other;
                at = there;
            }
        }
        if (at % 32 == lane) {
            p[at] = -2.0f;
        }
        sum += best;
        if (lane == j) {
            id = at;
            weight = best;
        }
    }
    u32 rank = 0;
    for (u32 j = 0; j < chosen; j++) {
        rank += __shfl_sync(ALL_LANES, id, j) < id ? 1 : 0;
    }
    if (lane < chosen) {
        ids[blockIdx.x * chosen + rank] = id;
        weights[blockIdx.x * chosen + rank] = divide ? weight / sum : weight;
    }
}
