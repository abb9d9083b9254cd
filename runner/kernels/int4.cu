// Weights to 4-bit codes, and what AWQ's search needs besides the linear layers themselves.
//
// int4_quantize, for every group of columns of w * s (s where there is one):
//   lo, hi = smallest and largest, and 0
//   rule 0, zero in the middle:  scale = max(hi, -lo) / 7.5,        zero = 8
//   rule 1, stored:              scale = (hi - lo) / 15,            zero = clamp(rne(-8 - lo / scale), -8, 7) + 8
//   rule 2, of AutoAWQ:          scale = max(hi - lo, 1e-5) / 15,   zero = clamp(-rne(lo / scale), 0, 15)
//   the scale is rounded to its type; rules 0 and 1: smallest epsilon of the type and zero 8 where that is next to nothing
//   code = clamp(rne(w s / scale + zero - 8), -8, 7) + 8;  rule 2: clamp(rne(w s / scale) + zero, 0, 15)
//   back = (code - zero) * scale / s
//   faults: 1 where a weight is not finite, 2 where 15 scales are infinite
//                                                     verify::codec::int4: quantize and round, exact
// A warp for each group, block (32, 8), grid (ceil(groups / 8), rows).
#include "math.cuh"
#include "warp.cuh"

PREP_FN float smallest(u32 kind) { return kind == 1 ? 9.5367431640625e-7f : 1.17549435e-38f; }

template <class T>
PREP_FN void quantize(const typename T::Type *w, const float *s, u32 cols, u32 group, u32 rule, u32 scale_kind, u8 *codes,
                      float *scales, u8 *zeros, u32 *faults, float *back) {
    u32 lane = threadIdx.x, number = blockIdx.x * 8 + threadIdx.y, groups = cols / group;
    if (number >= groups) {
        return;
    }
    u64 first = u64(blockIdx.y) * cols + number * group, at = u64(blockIdx.y) * groups + number;
    float low = 0.0f, high = 0.0f;
    u32 magnitude = 0;
    for (u32 i = lane; i < group; i += 32) {
        float v = T::read(w + first + i) * (s == nullptr ? 1.0f : s[number * group + i]);
        low = v < low ? v : low;
        high = v > high ? v : high;
        u32 bits = __float_as_uint(v) & 0x7fffffffu;
        magnitude = magnitude > bits ? magnitude : bits;
    }
    low = -warp_max(-low);
    high = warp_max(high);
    magnitude = warp_max(magnitude);
    float width = high - low;
    float exact = rule == 0 ? fmaxf(high, -low) / 7.5f : (rule == 1 ? width : fmaxf(width, 1e-5f)) / 15.0f;
    float scale = stored(exact, scale_kind), zero;
    u32 fault = magnitude >= 0x7f800000u ? 1 : (scale * 15.0f >= __uint_as_float(0x7f800000u) ? 2 : 0);
    if (rule != 2 && scale < smallest(scale_kind)) {
        scale = epsilon(scale_kind);
        zero = 8.0f;
    } else if (rule == 0) {
        zero = 8.0f;
    } else if (rule == 1) {
        zero = within(rintf(-8.0f - low / exact), -8.0f, 7.0f) + 8.0f;
    } else {
        zero = within(-rintf(low / exact), 0.0f, 15.0f);
    }
    if (lane == 0) {
        scales[at] = scale;
        zeros[at] = u8(zero);
        faults[at] = fault;
    }
    float before = rule == 2 ? 0.0f : zero - 8.0f, after = rule == 2 ? zero : 8.0f;
    float least_code = rule == 2 ? 0.0f : -8.0f, most = rule == 2 ? 15.0f : 7.0f;
    for (u32 i = lane; i < group; i += 32) {
        float factor = s == nullptr ? 1.0f : s[number * group + i];
        float whole = nearest(T::read(w + first + i) * factor / scale + before);
        // Rule 2 adds the zero before it clamps.
        whole = rule == 2 ? within(whole + after, least_code, most) : within(whole, least_code, most) + after;
        if (fault == 0) {
            codes[first + i] = u8(whole);
        }
        if (back != nullptr) {
            back[first + i] = (whole - zero) * scale / factor;
        }
    }
}

// How much of its group's largest weight each weight is, summed over `length` rows:
//   parts[i][c] = sum over rows r of stretch i of |w[r][c]| * (1 / (largest |w[r][..]| of c's group + 1e-6)), in the order
//   of r
// A thread for each column of a group: block (group rounded up to whole warps), grid (groups, stretches).
template <class T>
PREP_FN void shares(const typename T::Type *w, u32 rows, u32 cols, u32 group, u32 length, float *parts) {
    u32 col = blockIdx.x * group + threadIdx.x, first = blockIdx.y * length, end = least(first + length, rows);
    bool inside = threadIdx.x < group;
    float sum = 0.0f;
    for (u32 r = first; r < end; r++) {
        float a = inside ? fabsf(T::read(w + u64(r) * cols + col)) : 0.0f;
        float top = __uint_as_float(block_max(__float_as_uint(a)));
        sum += a * (1.0f / (top + 1e-6f));
    }
    if (inside) {
        parts[u64(blockIdx.y) * cols + col] = sum;
    }
}

// parts[i] = sum of (a - b)^2 over stretch i of 65536 numbers. Block 256, grid (ceil(n / 65536)).
extern "C" __global__ void __launch_bounds__(256, 2) squared_difference(const float *a, const float *b, u64 n, double *parts) {
    u64 first = u64(blockIdx.x) * 65536, end = first + 65536 < n ? first + 65536 : n;
    double sum = 0.0;
    for (u64 i = first + threadIdx.x; i < end; i += 256) {
        double off = double(a[i]) - double(b[i]);
        sum += off * off;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = sum;
    }
}

#define INT4(T, name)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                               \
        int4_quantize_##name(const T::Type *w, const float *s, u32 cols, u32 group, u32 rule, u32 scale_kind,          \
                             u8 *codes, float *scales, u8 *zeros, u32 *faults, float *back) {                          \
        quantize<T>(w, s, cols, group, rule, scale_kind, codes, scales, zeros, faults, back);                          \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(1024, 1)                                                              \
        weight_shares_##name(const T::Type *w, u32 rows, u32 cols, u32 group, u32 length, float *parts) {              \
        shares<T>(w, rows, cols, group, length, parts);                                                                \
    }
INT4(PlainF32, f32)
INT4(PlainF16, f16)
INT4(PlainBf16, bf16)
