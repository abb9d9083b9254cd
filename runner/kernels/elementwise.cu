// What works on each number alone; the bits are those of cpu.
//
//   add      x += y                                    Backend::add
//   bias     y += bias, in every row                   cpu::elementwise::add_bias
//   clamp    to -limit..=limit                         Backend::clamp
//   gate     x *= sigmoid(gate[i / shared])            Backend::gate
//   swiglu   gate = silu(gate) * up                    Backend::swiglu
//   rows     out[i][c] = x[rows[i]][c]                 Backend::rows
//   columns  out[r][i] = x[r][columns[i]]              Backend::columns
//
// A thread for each number, grid (ceil(n / 256)).
#include "math.cuh"

PREP_FN u64 number() { return u64(blockIdx.x) * 256 + threadIdx.x; }

extern "C" __global__ void __launch_bounds__(256, 2) add(float *x, const float *y, u64 n) {
    u64 i = number();
    if (i < n) {
        x[i] += y[i];
    }
}
extern "C" __global__ void __launch_bounds__(256, 2) bias(float *y, const float *bias, u32 width, u64 n) {
    u64 i = number();
    if (i < n) {
        y[i] += bias[i % width];
    }
}
extern "C" __global__ void __launch_bounds__(256, 2) clamp(float *x, float limit, u64 n) {
    u64 i = number();
    if (i < n) {
        float v = x[i];
        x[i] = v < -limit ? -limit : (v > limit ? limit : v);
    }
}
extern "C" __global__ void __launch_bounds__(256, 2) gate(float *x, const float *gate, u32 shared, u64 n) {
    u64 i = number();
    if (i < n) {
        x[i] *= sigmoid(gate[i / shared]);
    }
}
extern "C" __global__ void __launch_bounds__(256, 2) swiglu(float *gate, const float *up, u64 n) {
    u64 i = number();
    if (i < n) {
        gate[i] = silu(gate[i]) * up[i];
    }
}
extern "C" __global__ void __launch_bounds__(256, 2)
    rows(const float *x, const u32 *rows, float *out, u32 width, u64 n) {
    u64 i = number();
    if (i < n) {
        out[i] = x[u64(rows[i / width]) * width + i % width];
    }
}
extern "C" __global__ void __launch_bounds__(256, 2)
    columns(const float *x, const u32 *columns, float *out, u32 width, u32 count, u64 n) {
    u64 i = number();
    if (i < n) {
        out[i] = x[i / count * width + columns[i % count]];
    }
}
