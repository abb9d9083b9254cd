// Numbers: the exponential of the CPU path, and the conversions between floats. Every function gives the bits of its
// namesake in Rust. Compile without contraction (--fmad=false): where a multiply-add is fused, fmaf says so.
#pragma once
#include "device.cuh"

// cpu::elementwise::exp: within 2 units in the last place; 0 below -87.3, infinite above 88.3.
PREP_FN float exp_of(float x) {
    // Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits.
    const float ROUND = 12582912.0f;
    float shifted = fmaf(x, 1.44269504f, ROUND);
    float n = shifted - ROUND;
    float r = fmaf(n, -0.6933594f, x);
    r = fmaf(n, 2.1219444e-4f, r);
    float p = 1.9875691e-4f;
    p = fmaf(p, r, 1.3982e-3f);
    p = fmaf(p, r, 8.333452e-3f);
    p = fmaf(p, r, 4.1665796e-2f);
    p = fmaf(p, r, 1.6666665e-1f);
    p = fmaf(p, r, 0.5f);
    float y = fmaf(r * r, p, r) + 1.0f;
    float power = __uint_as_float((__float_as_uint(shifted) - __float_as_uint(ROUND) + 127u) << 23);
    y = y * power;
    if (x < -87.3f) {
        return 0.0f;
    }
    if (x > 88.3f) {
        return __uint_as_float(0x7f800000u);
    }
    return y;
}

PREP_FN float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }
PREP_FN float silu(float x) { return x * sigmoid(x); }

PREP_FN float from_bf16(u16 bits) { return __uint_as_float(u32(bits) << 16); }

// To nearest even, as half::bf16::from_f32.
PREP_FN u16 to_bf16(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return u16(bits >> 16 | 0x40);
    }
    return u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The two halves of a word, each an IEEE half float.
#ifdef __CUDACC__
PREP_FN float2 from_f16_pair(u32 pair) {
    float2 v;
    asm("{.reg .b16 low, high;\n"
        " mov.b32 {low, high}, %2;\n"
        " cvt.f32.f16 %0, low;\n"
        " cvt.f32.f16 %1, high;}"
        : "=f"(v.x), "=f"(v.y)
        : "r"(pair));
    return v;
}
#else
PREP_FN float from_f16_bits(u32 bits) {
    // Exponent and mantissa at their places in f32 give the number times 2^-112, subnormals too.
    float magnitude = __uint_as_float((bits & 0x7fff) << 13) * 5192296858534827628530496329220096.0f;
    u32 special = (bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    return __uint_as_float(__float_as_uint(magnitude) | special | (bits & 0x8000) << 16);
}
PREP_FN float2 from_f16_pair(u32 pair) { return {from_f16_bits(pair & 0xffff), from_f16_bits(pair >> 16)}; }
#endif

// To nearest even, as half::f16::from_f32.
#ifdef __CUDACC__
PREP_FN u16 to_f16(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#else
PREP_FN u16 to_f16(float x) {
    u32 bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, a = bits & 0x7fffffffu;
    if (a > 0x7f800000u) {
        return u16(sign | 0x7fff);
    }
    if (a >= 0x477ff000u) {
        return u16(sign | 0x7c00);
    }
    if (a < 0x38800000u) {
        // Subnormal: one unit in the last place of 0.5 is 2^-24.
        float shifted = __uint_as_float(a) + 0.5f;
        return u16(sign | (__float_as_uint(shifted) - 0x3f000000u));
    }
    return u16(sign | (((a + 0xfff + (a >> 13 & 1)) >> 13) - (112u << 10)));
}
#endif
PREP_FN float from_f16(u16 bits) { return from_f16_pair(bits).x; }

// The types that weights come in, for templates.
struct PlainF32 {
    typedef float Type;
    PREP_FN float read(const float *p) { return *p; }
};
struct PlainF16 {
    typedef u16 Type;
    PREP_FN float read(const u16 *p) { return from_f16(*p); }
};
struct PlainBf16 {
    typedef u16 Type;
    PREP_FN float read(const u16 *p) { return from_bf16(*p); }
};

// To the nearest whole number, ties to even, below 2^22.
PREP_FN float nearest(float x) {
    const float WHOLE = 12582912.0f;
    return x + WHOLE - WHOLE;
}
PREP_FN float within(float x, float low, float high) { return x < low ? low : (x > high ? high : x); }

// A scale as its type has it, of kind 0 f32, 1 f16, 2 bf16, and that type's epsilon.
PREP_FN float stored(float scale, u32 kind) {
    return kind == 0 ? scale : (kind == 1 ? from_f16(to_f16(scale)) : from_bf16(to_bf16(scale)));
}
PREP_FN float epsilon(u32 kind) { return kind == 0 ? 1.1920929e-7f : (kind == 1 ? 9.765625e-4f : 7.8125e-3f); }

// A float of kind 0 f32, 1 f16, 2 bf16.
PREP_FN float read_float(const void *p, u64 at, u32 kind) {
    if (kind == 0) {
        return reinterpret_cast<const float *>(p)[at];
    }
    u16 bits = reinterpret_cast<const u16 *>(p)[at];
    return kind == 1 ? from_f16(bits) : from_bf16(bits);
}

// What verify::codec::e4m3::round gives: the nearest code, ties to even, clamped to 448, the size that it stands for and
// how far off it is.
struct E4m3Rounded {
    u32 code;
    float size;
    float error;
};
PREP_FN E4m3Rounded to_e4m3(float x) {
    // One unit in the last place of 2^14 is 2^-9, the step of the subnormal codes: adding rounds to it.
    const float SHIFT = 16384.0f;
    u32 bits = __float_as_uint(x);
    u32 exact = bits & 0x7fffffffu;
    u32 a = exact < 0x43e00000u ? exact : 0x43e00000u;
    u32 normal = (a + 0x7ffff + (a >> 20 & 1)) >> 20;
    float shifted = __uint_as_float(a) + SHIFT;
    bool small = a < 0x3c800000u;
    u32 code = small ? __float_as_uint(shifted) - __float_as_uint(SHIFT) : normal - (120u << 3);
    float value = small ? shifted - SHIFT : __uint_as_float(normal << 20);
    E4m3Rounded r;
    r.code = (code | (bits >> 24 & 0x80)) & 0xff;
    r.size = value;
    r.error = fabsf(value - __uint_as_float(exact));
    return r;
}
