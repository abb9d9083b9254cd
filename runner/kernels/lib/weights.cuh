// Weights as they are stored, expanded in registers.
//
// A row begins at a multiple of sixteen bytes and is filled up with zeros to it. A format unpacks sixteen bytes, a
// chunk, to PER numbers (AT_ONCE chunks where there are registers for them), and gives the factor that the chunk's numbers still have to be multiplied with. For e4m3 and
// int4 the numbers are whole multiples of a power of two that bf16 holds exactly.
#pragma once
#include "math.cuh"

// One or more matrices [rows, cols] of one shape behind each other.
struct Weights {
    const u8 *codes;     // [experts, rows, stride]
    const void *scales;  // e4m3: f32 [experts, ceil(rows / block_rows), across]; int4: [experts, rows, across]
    const u32 *zeros;    // int4: [experts, rows / 8, across], nibble r % 8 belongs to row r; none where all are 8
    u64 expert_codes;    // bytes from one matrix to the next
    u32 rows, cols;
    u32 stride;          // bytes from one row to the next, a multiple of 16
    u32 block_rows;      // e4m3: rows under a scale
    u32 block_cols;      // columns under a scale
    u32 across;          // scales beside each other
    u32 expert_scales;   // scales from one matrix to the next
    u32 expert_zeros;    // words from one matrix to the next
    u32 scale_kind;      // int4: of the scales, 0 f32, 1 f16, 2 bf16
    u32 block_shift;     // log2 of block_cols, 32 where it is no power of two
};

PREP_FN const u8 *row_codes(const Weights &w, u32 expert, u32 row) {
    return w.codes + expert * w.expert_codes + u64(row) * w.stride;
}
// `a` or `b`; for threads that take either the compiler makes one piece of code, not two.
PREP_FN Weights choose(bool first, const Weights &a, const Weights &b) {
    Weights w;
    w.codes = first ? a.codes : b.codes;
    w.scales = first ? a.scales : b.scales;
    w.zeros = first ? a.zeros : b.zeros;
    w.expert_codes = first ? a.expert_codes : b.expert_codes;
    w.rows = first ? a.rows : b.rows;
    w.cols = first ? a.cols : b.cols;
    w.stride = first ? a.stride : b.stride;
    w.block_rows = first ? a.block_rows : b.block_rows;
    w.block_cols = first ? a.block_cols : b.block_cols;
    w.across = first ? a.across : b.across;
    w.expert_scales = first ? a.expert_scales : b.expert_scales;
    w.expert_zeros = first ? a.expert_zeros : b.expert_zeros;
    w.scale_kind = first ? a.scale_kind : b.scale_kind;
    w.block_shift = first ? a.block_shift : b.block_shift;
    return w;
}
PREP_FN u32 block_of(const Weights &w, u32 col) {
    return w.block_shift < 32 ? col >> w.block_shift : col / w.block_cols;
}

struct NoScales {};

struct F32 {
    static const u32 PER = 4;
    static const u32 AT_ONCE = 4;
    static const bool SCALED = false;
    typedef NoScales Row;
    PREP_FN Row row(const Weights &, u32, u32) { return Row(); }
    PREP_FN float unpack(const Weights &, const Row &, u32, uint4 b, float *v) {
        v[0] = __uint_as_float(b.x);
        v[1] = __uint_as_float(b.y);
        v[2] = __uint_as_float(b.z);
        v[3] = __uint_as_float(b.w);
        return 1.0f;
    }
};

struct F16 {
    static const u32 PER = 8;
    static const u32 AT_ONCE = 4;
    static const bool SCALED = false;
    typedef NoScales Row;
    PREP_FN Row row(const Weights &, u32, u32) { return Row(); }
    PREP_FN float unpack(const Weights &, const Row &, u32, uint4 b, float *v) {
        const u32 words[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float2 pair = from_f16_pair(words[i]);
            v[2 * i] = pair.x;
            v[2 * i + 1] = pair.y;
        }
        return 1.0f;
    }
};

struct Bf16 {
    static const u32 PER = 8;
    static const u32 AT_ONCE = 4;
    static const bool SCALED = false;
    typedef NoScales Row;
    PREP_FN Row row(const Weights &, u32, u32) { return Row(); }
    PREP_FN float unpack(const Weights &, const Row &, u32, uint4 b, float *v) {
        const u32 words[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            v[2 * i] = __uint_as_float(words[i] << 16);
            v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
        return 1.0f;
    }
};

// FP8 e4m3fn. Sign, exponent and mantissa moved to where an f16 has them give the code's value times 2^-8, subnormal
// codes too; the scale makes up for it.
struct E4m3 {
    static const u32 PER = 16;
    static const u32 AT_ONCE = 2;
    static const bool SCALED = true;
    struct Row {
        const float *scales;
    };
    PREP_FN Row row(const Weights &w, u32 expert, u32 row) {
        Row r;
        r.scales = reinterpret_cast<const float *>(w.scales) + u64(expert) * w.expert_scales +
                   u64(row / w.block_rows) * w.across;
        return r;
    }
    // Blocks are whole chunks, or there is one in a row.
    PREP_FN float unpack(const Weights &w, const Row &r, u32 col, uint4 b, float *v) {
        const u32 words[4] = {b.x, b.y, b.z, b.w};
        u32 nan = 0;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 even = words[i] << 8 & 0xff00ff00u, odd = words[i] & 0xff00ff00u;
            float2 e = from_f16_pair((even & 0x80008000u) | (even & 0x7f007f00u) >> 1);
            float2 o = from_f16_pair((odd & 0x80008000u) | (odd & 0x7f007f00u) >> 1);
            v[4 * i] = e.x;
            v[4 * i + 1] = o.x;
            v[4 * i + 2] = e.y;
            v[4 * i + 3] = o.y;
            nan |= (words[i] & 0x7f7f7f7fu) + 0x01010101u;
        }
        // 0x7F and 0xFF are NaN; the moved bits are not.
        float scale = r.scales[block_of(w, col)] * 256.0f;
        return nan & 0x80808080u ? __uint_as_float(0x7fc00000u) : scale;
    }
};

// Four bits, the low half of a byte first: (code - zero) * scale. Groups are whole words, or there is one in a row.
struct Int4 {
    static const u32 PER = 32;
    static const u32 AT_ONCE = 1;
    static const bool SCALED = true;
    struct Row {
        u64 first_scale;
        const u32 *zeros;
        u32 shift;
    };
    PREP_FN Row row(const Weights &w, u32 expert, u32 row) {
        Row r;
        r.first_scale = u64(expert) * w.expert_scales + u64(row) * w.across;
        r.zeros = w.zeros == nullptr ? nullptr : w.zeros + u64(expert) * w.expert_zeros + u64(row / 8) * w.across;
        r.shift = row % 8 * 4;
        return r;
    }
    PREP_FN float zero(const Row &r, u32 group) {
        return r.zeros == nullptr ? 8.0f : float(r.zeros[group] >> r.shift & 15);
    }
    PREP_FN float scale(const Weights &w, const Row &r, u32 group) {
        return read_float(w.scales, r.first_scale + group, w.scale_kind);
    }
    PREP_FN float unpack(const Weights &w, const Row &r, u32 col, uint4 b, float *v) {
        const u32 words[4] = {b.x, b.y, b.z, b.w};
        // A whole number in the low bits of 2^23.
        const float MAGIC = 8388608.0f;
        u32 group = block_of(w, col);
        float less = MAGIC + zero(r, group);
#pragma unroll
        for (u32 i = 0; i < 32; i++) {
            v[i] = __uint_as_float((words[i / 8] >> 4 * (i % 8) & 15) | 0x4b000000u) - less;
        }
        if (w.across == 1 || w.block_cols % PER == 0) {
            return scale(w, r, group);
        }
        // Groups that end inside a chunk, between words: rare.
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 g = least(block_of(w, col + 8 * i), w.across - 1);
            float more = zero(r, group) - zero(r, g), factor = scale(w, r, g);
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                v[8 * i + j] = (v[8 * i + j] + more) * factor;
            }
        }
        return 1.0f;
    }
};

#define PREP_FORMATS(M) M(F32, f32) M(F16, f16) M(Bf16, bf16) M(E4m3, e4m3) M(Int4, int4)

// Columns of the activations that a block holds in shared memory at a time.
static const u32 TILE = 2048;

// Puts columns first.. of x (cols numbers) where `chunk_dot` looks for them: number j of chunk c at
// (j / 4) * chunks + c, so that neighbouring lanes read neighbouring sixteen bytes. Zeros beyond the end.
template <class F, u32 SIZE> PREP_FN void stage(float4 *to, const float *x, u32 first, u32 cols, u32 thread, u32 threads) {
    u32 end = divided_up(least(cols - first, SIZE), F::PER) * F::PER;
    for (u32 at = 4 * thread; at < end; at += 4 * threads) {
        u32 col = first + at;
        float4 v;
        if (cols % 4 == 0 && col < cols) {
            v = load_float4(x + col);
        } else {
            v = make_float4(col < cols ? x[col] : 0.0f, col + 1 < cols ? x[col + 1] : 0.0f,
                            col + 2 < cols ? x[col + 2] : 0.0f, col + 3 < cols ? x[col + 3] : 0.0f);
        }
        to[at % F::PER / 4 * (SIZE / F::PER) + at / F::PER] = v;
    }
}

// This lane's share of the product of a row's columns first.. with what `stage` put down.
template <class F, u32 SIZE>
PREP_FN float chunk_dot(const Weights &w, u32 expert, u32 row, const float4 *x, u32 first, u32 lane) {
    typename F::Row r = F::row(w, expert, row);
    const u8 *codes = row_codes(w, expert, row) + u64(first / F::PER) * 16;
    u32 chunks = divided_up(least(w.cols - first, SIZE), F::PER);
    float sum = 0.0f;
#pragma unroll F::AT_ONCE
    for (u32 c = lane; c < chunks; c += 32) {
        float v[F::PER];
        float factor = F::unpack(w, r, first + c * F::PER, load16_once(codes + c * 16), v);
        float part = 0.0f;
#pragma unroll
        for (u32 j = 0; j < F::PER / 4; j++) {
            float4 q = x[j * (SIZE / F::PER) + c];
            part = fmaf(v[4 * j], q.x, part);
            part = fmaf(v[4 * j + 1], q.y, part);
            part = fmaf(v[4 * j + 2], q.z, part);
            part = fmaf(v[4 * j + 3], q.w, part);
        }
        sum = F::SCALED ? fmaf(factor, part, sum) : sum + part;
    }
    return sum;
}
