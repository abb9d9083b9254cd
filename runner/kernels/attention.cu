// Causal attention of few tokens over the keys and values of their sequences, which are split among blocks.
//
//   out[t][h] = softmax over p <= position of (q[t][h] . k[p][h / group] / sqrt(dim)) times v[p][h / group]
//               times sigmoid(gate[t][h]) where there is a gate            Backend::attention, Backend::gate of cpu
//
// Keys and values are f32 or bf16; those of token t's sequence begin starts[t] numbers after `keys` and `values`,
// [positions, pairs, dim] with `stride` numbers from a position to the next. The token stands at positions[t], its own
// key and value are written (kv_write). All of a pair's query heads go through its keys together.
//
// attention_split: block 128, grid (splits, pairs, tokens); a split has `length` positions, a multiple of 32.
//   parts [tokens, queries, splits, dim + 2]: unscaled sums, then the largest score and the sum of exponentials.
// attention_combine: a warp for each head, block (32, 4), grid (ceil(queries / 4), tokens).
#include "math.cuh"
#include "warp.cuh"

static const u32 POSITIONS = 32;

struct OfF32 {
    typedef float Type;
    PREP_FN float read(const float *p) { return *p; }
    PREP_FN float write(float v) { return v; }
    PREP_FN float dot(const float *q, const float *k, u32 dim) {
        float sum = 0.0f;
        u32 d = 0;
        if (dim % 4 == 0) {
            for (; d < dim; d += 4) {
                float4 x = load_float4(k + d), y = load_float4(q + d);
                sum = fmaf(y.x, x.x, sum);
                sum = fmaf(y.y, x.y, sum);
                sum = fmaf(y.z, x.z, sum);
                sum = fmaf(y.w, x.w, sum);
            }
        }
        for (; d < dim; d++) {
            sum = fmaf(q[d], k[d], sum);
        }
        return sum;
    }
};
struct OfBf16 {
    typedef u16 Type;
    PREP_FN float read(const u16 *p) { return from_bf16(*p); }
    PREP_FN u16 write(float v) { return to_bf16(v); }
    PREP_FN float dot(const float *q, const u16 *k, u32 dim) {
        float sum = 0.0f;
        u32 d = 0;
        if (dim % 8 == 0) {
            for (; d < dim; d += 8) {
                uint4 b = load16(k + d);
                const u32 words[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    sum = fmaf(q[d + 2 * i], __uint_as_float(words[i] << 16), sum);
                    sum = fmaf(q[d + 2 * i + 1], __uint_as_float(words[i] & 0xffff0000u), sum);
                }
            }
        }
        for (; d < dim; d++) {
            sum = fmaf(q[d], from_bf16(k[d]), sum);
        }
        return sum;
    }
};

// k and v [tokens, width] to their places: cpu::attention::Kv::append. Grid (ceil(width / 256), tokens).
template <class T>
PREP_FN void kv_write(const float *k, const float *v, const u64 *starts, const u32 *positions, u32 width, u32 stride,
                      typename T::Type *keys, typename T::Type *values) {
    u32 i = blockIdx.x * 256 + threadIdx.x, token = blockIdx.y;
    if (i >= width) {
        return;
    }
    u64 to = starts[token] + u64(positions[token]) * stride + i, from = u64(token) * width + i;
    keys[to] = T::write(k[from]);
    values[to] = T::write(v[from]);
}

// Shared memory: q [group, dim], sums [group, dim], scores [group, 32], then for each head of the group the largest
// score, the sum of exponentials and the factor of the sums so far.
template <class T>
PREP_FN void split(const float *q, const typename T::Type *keys, const typename T::Type *values, const u64 *starts,
                   const u32 *positions, u32 stride, u32 queries, u32 pairs, u32 dim, u32 length, float *parts) {
    PREP_DYN_SHARED(float, memory);
    u32 group = queries / pairs, pair = blockIdx.y, token = blockIdx.z, splits = gridDim.x;
    u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    float *query = memory, *sums = query + group * dim, *scores = sums + group * dim;
    float *top = scores + group * POSITIONS, *all = top + group, *factor = all + group;
    const float NOTHING = __uint_as_float(0xff800000u);
    for (u32 i = thread; i < group * dim; i += 128) {
        query[i] = q[(u64(token) * queries + pair * group) * dim + i];
        sums[i] = 0.0f;
    }
    for (u32 h = thread; h < group; h += 128) {
        top[h] = NOTHING;
        all[h] = 0.0f;
    }
    __syncthreads();
    u32 count = positions[token] + 1, first = blockIdx.x * length, end = least(first + length, count);
    float scale = 1.0f / sqrtf(float(dim));
    keys += starts[token] + pair * dim;
    values += starts[token] + pair * dim;
    for (u32 from = first; from < end; from += POSITIONS) {
        u32 some = least(POSITIONS, end - from);
        // A warp for each head, a lane for each position.
        for (u32 h = warp; h < group; h += 4) {
            float score = NOTHING;
            if (lane < some) {
                score = T::dot(query + h * dim, keys + u64(from + lane) * stride, dim) * scale;
            }
            float before = top[h], now = fmaxf(before, warp_max(score));
            float e = exp_of(score - now), sum = warp_sum(e);
            scores[h * POSITIONS + lane] = e;
            // The shuffles came after every lane's reading.
            if (lane == 0) {
                factor[h] = exp_of(before - now);
                all[h] = all[h] * factor[h] + sum;
                top[h] = now;
            }
        }
        __syncthreads();
        // A thread for each head and entry.
        for (u32 i = thread; i < group * dim; i += 128) {
            u32 h = i / dim, d = i % dim;
            const typename T::Type *value = values + u64(from) * stride + d;
            float sum = sums[i] * factor[h];
            for (u32 p = 0; p < some; p++) {
                sum = fmaf(scores[h * POSITIONS + p], T::read(value + u64(p) * stride), sum);
            }
            sums[i] = sum;
        }
        __syncthreads();
    }
    for (u32 i = thread; i < group * dim; i += 128) {
        u64 head = u64(token) * queries + pair * group + i / dim;
        parts[(head * splits + blockIdx.x) * (dim + 2) + i % dim] = sums[i];
    }
    for (u32 h = thread; h < group; h += 128) {
        float *to = parts + ((u64(token) * queries + pair * group + h) * splits + blockIdx.x) * (dim + 2) + dim;
        to[0] = top[h];
        to[1] = all[h];
    }
}

// The gate of head h of token t begins at t * gate_stride + h * gate_head.
extern "C" __global__ void __launch_bounds__(128, 4)
    attention_combine(const float *parts, const float *gate, u32 gate_stride, u32 gate_head, u32 queries, u32 dim,
                      u32 splits, float *out) {
    u32 head = blockIdx.x * 4 + threadIdx.y, token = blockIdx.y, lane = threadIdx.x;
    if (head >= queries) {
        return;
    }
    parts += (u64(token) * queries + head) * splits * (dim + 2);
    float top = __uint_as_float(0xff800000u), all = 0.0f;
    for (u32 s = 0; s < splits; s++) {
        top = fmaxf(top, parts[s * (dim + 2) + dim]);
    }
    // A split beyond the token's position has no largest score: its factor is 0.
    for (u32 s = 0; s < splits; s++) {
        all = fmaf(parts[s * (dim + 2) + dim + 1], exp_of(parts[s * (dim + 2) + dim] - top), all);
    }
    for (u32 d = lane; d < dim; d += 32) {
        float sum = 0.0f;
        for (u32 s = 0; s < splits; s++) {
            sum = fmaf(parts[s * (dim + 2) + d], exp_of(parts[s * (dim + 2) + dim] - top), sum);
        }
        float value = sum / all;
        if (gate != nullptr) {
            value *= sigmoid(gate[u64(token) * gate_stride + u64(head) * gate_head + d]);
        }
        out[(u64(token) * queries + head) * dim + d] = value;
    }
}

#define ATTENTION(T, name)                                                                                             \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                               \
        kv_write_##name(const float *k, const float *v, const u64 *starts, const u32 *positions, u32 width,            \
                        u32 stride, T::Type *keys, T::Type *values) {                                                  \
        kv_write<T>(k, v, starts, positions, width, stride, keys, values);                                             \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128, 4)                                                               \
        attention_split_##name(const float *q, const T::Type *keys, const T::Type *values, const u64 *starts,          \
                               const u32 *positions, u32 stride, u32 queries, u32 pairs, u32 dim, u32 length,          \
                               float *parts) {                                                                         \
        split<T>(q, keys, values, starts, positions, stride, queries, pairs, dim, length, parts);                      \
    }
ATTENTION(OfF32, f32)
ATTENTION(OfBf16, bf16)
