// Products y = x W^T in the CPU's order of sums, bit for bit: what is decided on them is decided as on the CPU.
//
//   chain j of 32 adds entries j, j + 32, ... in order, fused:   c_j = fma(w[r][32 k + j], x[t][32 k + j], c_j)
//   columns are filled up with zeros to a multiple of 64
//   y[t][r] = the chains folded in halves: j + (j ^ 16), then ^8, ^4, ^2, ^1          cpu::product, floats of 16 or 32 bits
//
// Lane j of a warp has chain j of 8 rows times 8 tokens. Block (32, 8): 16 rows, 32 tokens; grid (ceil(rows / 16),
// ceil(tokens / 32), pieces). Piece z begins z steps further on in x, w and y: products of neighbouring groups of columns.
#include "math.cuh"

struct LanesShape {
    u32 tokens, rows, cols, x_step;
    u64 x_stride, w_stride, w_step, y_token, y_row, y_step;
};

// In lane l the sum of all lanes' v[l]: each step sends the half that the other lane keeps.
template <u32 STEP> PREP_FN void fold(float *v, u32 lane) {
    bool upper = (lane & STEP) != 0;
    for (u32 i = 0; i < STEP; i++) {
        float keep = upper ? v[i + STEP] : v[i], send = upper ? v[i] : v[i + STEP];
        v[i] = keep + __shfl_xor_sync(ALL_LANES, send, STEP);
    }
}

template <class T> PREP_FN void lanes_product(const float *x, const typename T::Type *w, float *y, const LanesShape &s) {
    u32 lane = threadIdx.x;
    u32 row = blockIdx.x * 16 + threadIdx.y % 2 * 8, token = blockIdx.y * 32 + threadIdx.y / 2 * 8;
    if (row >= s.rows || token >= s.tokens) {
        return;
    }
    x += u64(blockIdx.z) * s.x_step;
    w += blockIdx.z * s.w_step;
    y += blockIdx.z * s.y_step;
    float sums[64];
#pragma unroll
    for (u32 i = 0; i < 64; i++) {
        sums[i] = 0.0f;
    }
    for (u32 c = lane; c < divided_up(s.cols, 64) * 64; c += 32) {
        float a[8], b[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            // Beyond the last row and token the last one is read again; nothing of it is written.
            a[i] = c < s.cols ? T::read(w + least(row + i, s.rows - 1) * s.w_stride + c) : 0.0f;
            b[i] = c < s.cols ? x[least(token + i, s.tokens - 1) * s.x_stride + c] : 0.0f;
        }
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                sums[i * 8 + j] = fmaf(a[i], b[j], sums[i * 8 + j]);
            }
        }
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float *v = sums + half * 32;
        fold<16>(v, lane);
        fold<8>(v, lane);
        fold<4>(v, lane);
        fold<2>(v, lane);
        fold<1>(v, lane);
        u32 r = row + half * 4 + lane / 8, t = token + lane % 8;
        if (r < s.rows && t < s.tokens) {
            y[t * s.y_token + r * s.y_row] = v[0];
        }
    }
}

#define LANES(T, name)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                               \
        lanes_product_##name(const float *x, const T::Type *w, float *y, LanesShape shape) {                           \
        lanes_product<T>(x, w, y, shape);                                                                              \
    }
LANES(PlainF32, f32)
LANES(PlainF16, f16)
LANES(PlainBf16, bf16)
