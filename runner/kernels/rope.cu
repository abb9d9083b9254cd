// Queries or keys as the attention wants them: a norm over each head where there is a weight, then the rotary embedding
// of its first 2 * half entries.
//
//   out[t][h] = rotated(norm(x[t][h]))                Backend::norm, then Backend::rotate of cpu
//
// x[t][h] begins at t * token_stride + h * head_stride: projections that hold a gate behind each query are read in
// place. `angles` [rows, 2 * half] holds cosines, then sines; token t has row positions[t], or t where there are no
// positions. A warp for each head, eight to a block, grid (ceil(tokens * heads / 8)). `out` may be x where both lie
// alike.
#include "math.cuh"
#include "warp.cuh"

extern "C" __global__ void __launch_bounds__(256, 2)
    rope(const float *x, u32 token_stride, u32 head_stride, const float *weight, float eps, const float *angles,
         const u32 *positions, u32 half, u32 tokens, u32 heads, u32 dim, float *out) {
    u32 lane = threadIdx.x, at = blockIdx.x * 8 + threadIdx.y;
    if (at >= tokens * heads) {
        return;
    }
    u32 token = at / heads;
    x += u64(token) * token_stride + at % heads * head_stride;
    out += u64(at) * dim;
    const float *cos = angles + u64(positions == nullptr ? token : positions[token]) * 2 * half, *sin = cos + half;
    float scale = 1.0f;
    if (weight != nullptr) {
        float squares = 0.0f;
        for (u32 i = lane; i < dim; i += 32) {
            squares = fmaf(x[i], x[i], squares);
        }
        scale = 1.0f / sqrtf(warp_sum(squares) / float(dim) + eps);
    }
    for (u32 i = lane; i < half; i += 32) {
        float a = x[i], b = x[i + half];
        if (weight != nullptr) {
            a = a * scale * weight[i];
            b = b * scale * weight[i + half];
        }
        out[i] = a * cos[i] - b * sin[i];
        out[i + half] = b * cos[i] + a * sin[i];
    }
    for (u32 i = 2 * half + lane; i < dim; i += 32) {
        out[i] = weight != nullptr ? x[i] * scale * weight[i] : x[i];
    }
}
