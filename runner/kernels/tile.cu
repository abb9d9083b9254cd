// Linear layers of many tokens on the matrix unit, all experts in one launch.
//
//   y[p][r] = sum over c of w[e][r][c] * x[order[p] / per][c] + bias[r],   offsets[e] <= p < offsets[e + 1]
//
// Without offsets there is one matrix and p runs to `count`; without an order it is p itself.
//                                                     Backend::linear of cpu, up to the rounding below
//
// A block of four warps computes 64 rows of y times 64 of w, in steps of 32 columns: grid (ceil(w.rows / 64), tiles).
// Numbers enter the matrix unit as sums of bf16 parts. Quantized codes and bf16 weights are one part, exactly; f16
// two; f32 three. Activations are `parts` parts, 8 bits each: with 3 they are as exact as f32; 1
// is what servers do. Scales multiply the sum of a step, in f32.
//
// The names end in the number of parts: tile_bf16_3.
#include "mma.cuh"
#include "weights.cuh"

static const u32 SIDE = 64;
static const u32 STEP = 32;
// Of a row in shared memory, in 16-bit numbers: neighbouring rows fall on other banks.
static const u32 PITCH = STEP + 8;
static const u32 THREADS = 128;

// Parts of a weight.
template <class F> struct Parts { static const u32 COUNT = 1; };
template <> struct Parts<F16> { static const u32 COUNT = 2; };
template <> struct Parts<F32> { static const u32 COUNT = 3; };

// The expert and rows of y that a tile has.
struct Segment {
    u32 expert, first, end;
};
PREP_FN Segment segment_of(u32 tile, const u32 *offsets, u32 experts, u32 count) {
    Segment s = {0, tile * SIDE, count};
    if (offsets == nullptr) {
        return s;
    }
    s.end = 0;
    for (u32 e = 0; e < experts; e++) {
        u32 from = offsets[e], to = offsets[e + 1], tiles = divided_up(to - from, SIDE);
        if (tile < tiles) {
            s.expert = e;
            s.first = from + tile * SIDE;
            s.end = to;
            return s;
        }
        tile -= tiles;
    }
    s.first = s.end;
    return s;
}

// `value` and its rest after each part, as bf16 numbers `apart` from each other.
template <u32 COUNT> PREP_FN void split(float value, u16 *to, u32 apart) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) {
        u16 part = to_bf16(value);
        to[i * apart] = part;
        value -= from_bf16(part);
    }
}

PREP_FN u32 word_at(const u16 *p) { return *reinterpret_cast<const u32 *>(p); }

template <class F, u32 XPARTS>
PREP_FN void tile(const Weights &w, const float *x, const u32 *order, const u32 *offsets, u32 experts, u32 per, u32 count,
                  const float *bias, float *y) {
    const u32 WPARTS = Parts<F>::COUNT, CHUNKS = STEP / F::PER;
    const u32 LOADS = (SIDE * CHUNKS + THREADS - 1) / THREADS;
    PREP_SHARED(u16, xs, XPARTS * SIDE * PITCH);
    PREP_SHARED(u16, ws, WPARTS * SIDE * PITCH);
    PREP_SHARED(float, factors, SIDE);
    Segment s = segment_of(blockIdx.y, offsets, experts, count);
    if (s.first >= s.end) {
        return;
    }
    u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
    u32 top = warp / 2 * 32, left = warp % 2 * 32, first_row = blockIdx.x * SIDE;
    float sums[2][4][4] = {};
    for (u32 step = 0; step < w.cols; step += STEP) {
        // Activations: eight threads to a row.
#pragma unroll
        for (u32 i = 0; i < SIDE * STEP / 4 / THREADS; i++) {
            u32 at = thread + i * THREADS, row = at / (STEP / 4), col = step + at % (STEP / 4) * 4, p = s.first + row;
            float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (p < s.end && col < w.cols) {
                const float *from = x + u64((order == nullptr ? p : order[p]) / per) * w.cols + col;
                if (w.cols % 4 == 0) {
                    float4 q = load_float4(from);
                    v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
                } else {
                    for (u32 j = 0; j < 4 && col + j < w.cols; j++) {
                        v[j] = from[j];
                    }
                }
            }
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                split<XPARTS>(v[j], xs + row * PITCH + at % (STEP / 4) * 4 + j, SIDE * PITCH);
            }
        }
        // Weights: a chunk to a thread.
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            u32 at = thread + i * THREADS, n = at / CHUNKS, chunk = at % CHUNKS, col = step + chunk * F::PER;
            if (at < SIDE * CHUNKS) {
                float v[F::PER];
                float factor = 0.0f;
                if (first_row + n < w.rows && col < w.cols) {
                    u32 row = first_row + n;
                    const u8 *codes = row_codes(w, s.expert, row) + u64(col / F::PER) * 16;
                    factor = F::unpack(w, F::row(w, s.expert, row), col, load16(codes), v);
                    // A NaN code of any chunk; the factor is kept of the first only.
                    v[0] = factor == factor ? v[0] : factor;
                } else {
#pragma unroll
                    for (u32 j = 0; j < F::PER; j++) {
                        v[j] = 0.0f;
                    }
                }
#pragma unroll
                for (u32 j = 0; j < F::PER; j++) {
                    split<WPARTS>(v[j], ws + n * PITCH + chunk * F::PER + j, SIDE * PITCH);
                }
                if (F::SCALED && chunk == 0) {
                    factors[n] = factor;
                }
            }
        }
        __syncthreads();
        float partial[2][4][4] = {};
        float(&to)[2][4][4] = F::SCALED ? partial : sums;
#pragma unroll
        for (u32 k = 0; k < STEP; k += 16) {
#pragma unroll
            for (u32 wp = 0; wp < WPARTS; wp++) {
                u32 b[4][2];
#pragma unroll
                for (u32 n = 0; n < 4; n++) {
                    const u16 *at = ws + wp * SIDE * PITCH + (left + n * 8 + g) * PITCH + k + 2 * t;
                    b[n][0] = word_at(at);
                    b[n][1] = word_at(at + 8);
                }
#pragma unroll
                for (u32 xp = 0; xp < XPARTS; xp++) {
                    // Products of small parts lie below what f32 holds of the sum.
                    if (wp + xp > 2) {
                        continue;
                    }
#pragma unroll
                    for (u32 m = 0; m < 2; m++) {
                        const u16 *at = xs + xp * SIDE * PITCH + (top + m * 16 + g) * PITCH + k + 2 * t;
                        u32 a[4] = {word_at(at), word_at(at + 8 * PITCH), word_at(at + 8), word_at(at + 8 * PITCH + 8)};
#pragma unroll
                        for (u32 n = 0; n < 4; n++) {
                            mma_16x8x16(to[m][n], a, b[n]);
                        }
                    }
                }
            }
        }
        if (F::SCALED) {
#pragma unroll
            for (u32 n = 0; n < 4; n++) {
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    float factor = factors[left + n * 8 + 2 * t + i % 2];
                    sums[0][n][i] = fmaf(factor, partial[0][n][i], sums[0][n][i]);
                    sums[1][n][i] = fmaf(factor, partial[1][n][i], sums[1][n][i]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 m = 0; m < 2; m++) {
#pragma unroll
        for (u32 n = 0; n < 4; n++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 p = s.first + top + m * 16 + i / 2 * 8 + g, row = first_row + left + n * 8 + 2 * t + i % 2;
                if (p < s.end && row < w.rows) {
                    y[u64(p) * w.rows + row] = bias == nullptr ? sums[m][n][i] : sums[m][n][i] + bias[row];
                }
            }
        }
    }
}

#define TILE_OF(F, name, parts)                                                                                        \
    extern "C" __global__ void __launch_bounds__(128, 2)                                                               \
        tile_##name##_##parts(Weights w, const float *x, const u32 *order, const u32 *offsets, u32 experts, u32 per,   \
                              u32 count, const float *bias, float *y) {                                                \
        tile<F, parts>(w, x, order, offsets, experts, per, count, bias, y);                                            \
    }
#define TILES(F, name) TILE_OF(F, name, 1) TILE_OF(F, name, 3)
PREP_FORMATS(TILES)
