// Norms over runs of `width` numbers. (Zero-centred weights come with their 1 added.)
//
//   rmsnorm         y = x / sqrt(mean(x^2) + eps) * weight                   cpu::elementwise::rms_norm
//   rmsnorm_add     x += add, then the same                                  Backend::add, then Backend::norm
//   rmsnorm_gated   y = y / sqrt(mean(y^2) + eps) * weight * act(z)          the end of Backend::delta_rule
//                   act is silu, or the sigmoid where `sigmoid_gate` is not 0
//
// A block for each run.
#include "math.cuh"
#include "warp.cuh"

PREP_FN float scale_of_run(float squares, u32 width, float eps) {
    return 1.0f / sqrtf(block_sum(squares) / float(width) + eps);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    rmsnorm(const float *x, const float *weight, float *y, u32 width, float eps) {
    x += u64(blockIdx.x) * width;
    y += u64(blockIdx.x) * width;
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        squares = fmaf(x[i], x[i], squares);
    }
    float scale = scale_of_run(squares, width, eps);
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        y[i] = x[i] * scale * weight[i];
    }
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    rmsnorm_add(float *x, const float *add, const float *weight, float *y, u32 width, float eps) {
    x += u64(blockIdx.x) * width;
    add += u64(blockIdx.x) * width;
    y += u64(blockIdx.x) * width;
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        float sum = x[i] + add[i];
        x[i] = sum;
        squares = fmaf(sum, sum, squares);
    }
    float scale = scale_of_run(squares, width, eps);
    // Each thread reads back what it wrote itself.
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        y[i] = x[i] * scale * weight[i];
    }
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    rmsnorm_gated(float *y, const float *z, const float *weight, u32 width, float eps, u32 sigmoid_gate) {
    y += u64(blockIdx.x) * width;
    z += u64(blockIdx.x) * width;
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        squares = fmaf(y[i], y[i], squares);
    }
    float scale = scale_of_run(squares, width, eps);
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        float gate = sigmoid_gate ? sigmoid(z[i]) : silu(z[i]);
        y[i] = y[i] * scale * weight[i] * gate;
    }
}
