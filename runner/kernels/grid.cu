// Integer grids of AWQ, bit for bit as quant::awq::grid: a weight is (code - zero) * scale, codes 0 to `largest`.
//
//   lo, hi = smallest and largest of the group, and 0, times a ratio
//   symmetric:  width = 2 max(hi, -lo), zero = (largest + 1) / 2;   else width = hi - lo, zero = clamp(nearest(-lo / scale))
//   scale = width / largest, rounded to its type; the type's epsilon where that is 0
//   code = clamp(nearest(w / scale) + zero)
//
// A warp for each group of a row, block (32, 8), grid (ceil(rows * groups / 8)), where not said otherwise.
#include "math.cuh"
#include "warp.cuh"

struct Format {
    float largest;
    u32 symmetric, scale_kind, group;
};
struct Grid {
    float scale, zero;
};

PREP_FN Grid grid_of(float low, float high, const Format &f) {
    float width = f.symmetric ? 2.0f * fmaxf(high, -low) : high - low;
    Grid g;
    g.scale = stored(width / f.largest, f.scale_kind);
    g.scale = g.scale > 0.0f ? g.scale : epsilon(f.scale_kind);
    g.zero = f.symmetric ? (f.largest + 1.0f) * 0.5f : within(nearest(-low / g.scale), 0.0f, f.largest);
    return g;
}
// fmaxf and fminf: a NaN becomes 0, as on the CPU.
PREP_FN float code_of(float x, const Grid &g, float largest) {
    return fminf(fmaxf(nearest(x / g.scale) + g.zero, 0.0f), largest);
}
PREP_FN float back_of(float x, const Grid &g, float largest) { return (code_of(x, g, largest) - g.zero) * g.scale; }

struct Range {
    float low, high;
};
PREP_FN void widen(Range &r, float v) {
    r.low = v < r.low ? v : r.low;
    r.high = v > r.high ? v : r.high;
}
PREP_FN Range of_warp(Range r) {
    Range all = {-warp_max(-r.low), warp_max(r.high)};
    return all;
}

// How far off w is when its columns are scaled, rounded and scaled back:
//   errors = back(w * s) * (1 / s) - w                                                 quant::awq::weights::rounded
// n groups in all.
template <class T>
PREP_FN void grid_round(const typename T::Type *w, const float *s, u32 cols, u64 n, const Format &f, float *errors) {
    u64 number = u64(blockIdx.x) * 8 + threadIdx.y;
    if (number >= n) {
        return;
    }
    u32 groups = cols / f.group, lane = threadIdx.x;
    w += number * f.group;
    s += number % groups * f.group;
    Range range = {0.0f, 0.0f};
    for (u32 i = lane; i < f.group; i += 32) {
        widen(range, T::read(w + i) * s[i]);
    }
    range = of_warp(range);
    Grid g = grid_of(range.low, range.high, f);
    for (u32 i = lane; i < f.group; i += 32) {
        float v = T::read(w + i);
        errors[number * f.group + i] = back_of(v * s[i], g, f.largest) * (1.0f / s[i]) - v;
    }
}

// The grids of ranges narrowed by `ratio`, and what rounding to them changes, seen by the unscaled inputs:
//   off = (back(w) - w) * (1 / s)                                          quant::awq::clip::differences; off may be null
extern "C" __global__ void __launch_bounds__(256, 2)
    grid_try(const float *w, const float *s, u32 cols, u64 n, Format f, float ratio, float *scales, float *zeros, float *off) {
    u64 number = u64(blockIdx.x) * 8 + threadIdx.y;
    if (number >= n) {
        return;
    }
    u32 groups = cols / f.group, lane = threadIdx.x;
    w += number * f.group;
    s += number % groups * f.group;
    Range range = {0.0f, 0.0f};
    for (u32 i = lane; i < f.group; i += 32) {
        widen(range, w[i]);
    }
    range = of_warp(range);
    Grid g = grid_of(range.low * ratio, range.high * ratio, f);
    if (lane == 0) {
        scales[number] = g.scale;
        zeros[number] = g.zero;
    }
    if (off != nullptr) {
        for (u32 i = lane; i < f.group; i += 32) {
            off[number * f.group + i] = (back_of(w[i], g, f.largest) - w[i]) * (1.0f / s[i]);
        }
    }
}

// error = the sum of off * through of a group: 16 chains of fused additions, folded in halves.
// Where it is less than the least so far, the tried grid is kept; the whole range where the error is no number.
// Sixteen threads for each group, block 256, grid (ceil(n / 16)).                                 quant::awq::clip::of_group
extern "C" __global__ void __launch_bounds__(256, 2)
    grid_keep(const float *off, const float *through, u64 n, u32 group, const float *tried_scales, const float *tried_zeros,
              const float *whole_scales, const float *whole_zeros, float *errors, float *scales, float *zeros) {
    u64 number = u64(blockIdx.x) * 16 + threadIdx.x / 16;
    u32 lane = threadIdx.x % 16;
    // All lanes of a warp take part in its shuffles.
    u64 at = number < n ? number : n - 1;
    float sum = 0.0f;
    for (u32 i = lane; i < group; i += 16) {
        sum = fmaf(off[at * group + i], through[at * group + i], sum);
    }
    for (u32 step = 8; step > 0; step /= 2) {
        sum += __shfl_xor_sync(ALL_LANES, sum, step);
    }
    if (lane == 0 && number < n && sum < errors[at]) {
        bool finite = fabsf(sum) < __uint_as_float(0x7f800000u);
        errors[at] = sum;
        scales[at] = finite ? tried_scales[at] : whole_scales[at];
        zeros[at] = finite ? tried_zeros[at] : whole_zeros[at];
    }
}

// The codes of w [n]. A thread for each, block 256, grid (ceil(n / 256)).
extern "C" __global__ void __launch_bounds__(256, 2)
    grid_codes(const float *w, const float *scales, const float *zeros, u64 n, u32 group, float largest, u8 *codes) {
    u64 at = u64(blockIdx.x) * 256 + threadIdx.x;
    if (at < n) {
        Grid g = {scales[at / group], zeros[at / group]};
        codes[at] = u8(code_of(w[at], g, largest));
    }
}

#define GRID(T, name)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                               \
        grid_round_##name(const T::Type *w, const float *s, u32 cols, u64 n, Format f, float *errors) {                \
        grid_round<T>(w, s, cols, n, f, errors);                                                                       \
    }
GRID(PlainF32, f32)
GRID(PlainF16, f16)
GRID(PlainBf16, bf16)
