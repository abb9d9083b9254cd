// What works on each number alone; the bits are those of cpu.
//
//   add      x += y                                    Backend::add
//   bias     y += bias, in every row                   cpu::elementwise::add_bias
//   clamp    to -limit..=limit                         Backend::clamp
//   gate     x *= sigmoid(gate[i / shared])            Backend::gate
//   swiglu   gate = silu(gate) * up                    Backend::swiglu
//   rows     out[i][c] = x[rows[i]][c]                 Backend::rows
//   columns  out[r][i] = x[r][columns[i]]              Backend::columns
//   fp8_kept out = what e4m3 codes times scales[i % width / part] keep of x
//                                                      cpu::elementwise::round_to_fp8
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
extern "C" __global__ void __launch_bounds__(256, 2)
    fp8_kept(const float *x, const float *scales, u32 width, u32 part, u64 n, float *out) {
    u64 i = number();
    if (i < n) {
        float v = x[i], scale = scales[i % width / part], size = to_e4m3(v / scale).size * scale;
        float kept = __uint_as_float(__float_as_uint(size) | (__float_as_uint(v) & 0x80000000u));
        out[i] = (__float_as_uint(v) & 0x7fffffffu) > 0x7f800000u ? v : kept;
    }
}
