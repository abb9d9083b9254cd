// The matrix unit of sm_80 and later: D = A B + C for 16 x 16 bf16 times 16 x 8 bf16 in f32, shared out over a warp.
//
// With g = lane / 4 and t = lane % 4, two neighbouring numbers to a word:
//   a[0] = A[g][2t..], a[1] = A[g+8][2t..], a[2] = A[g][2t+8..], a[3] = A[g+8][2t+8..]
//   b[0] = B[2t..][g], b[1] = B[2t+8..][g]
//   d[0], d[1] = D[g][2t], D[g][2t+1];  d[2], d[3] = D[g+8][2t], D[g+8][2t+1]
#pragma once
#include "math.cuh"

#ifdef __CUDACC__
PREP_FN void mma_16x8x16(float *d, const u32 *a, const u32 *b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
PREP_FN void mma_16x8x16(float *d, const u32 *a, const u32 *b, PREP_WHERE) {
    u32 sent[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    ::prep::warp_exchange(PREP_CALL("mma_16x8x16"), ALL_LANES, sent, sizeof sent);
    u32 lane = ::prep::lane();
    // Rows g and g + 8 of A, columns 2t and 2t + 1 of B, from the lanes that have parts of them.
    float rows[2][16], cols[2][16];
    auto put = [](float *to, u32 word) {
        to[0] = from_bf16(u16(word));
        to[1] = from_bf16(u16(word >> 16));
    };
    // Unrolled, so that the arrays are registers and no access of theirs has to be checked.
#pragma GCC unroll 4
    for (u32 q = 0; q < 4; q++) {
        auto *mine = static_cast<const u32 *>(::prep::theirs(lane / 4 * 4 + q));
#pragma GCC unroll 4
        for (u32 i = 0; i < 4; i++) {
            put(rows[i % 2] + i / 2 * 8 + 2 * q, mine[i]);
        }
#pragma GCC unroll 2
        for (u32 c = 0; c < 2; c++) {
            auto *other = static_cast<const u32 *>(::prep::theirs((lane % 4 * 2 + c) * 4 + q));
            put(cols[c] + 2 * q, other[4]);
            put(cols[c] + 8 + 2 * q, other[5]);
        }
    }
#pragma GCC unroll 4
    for (u32 i = 0; i < 4; i++) {
        float sum = d[i];
#pragma GCC unroll 16
        for (u32 k = 0; k < 16; k++) {
            sum = fmaf(rows[i / 2][k], cols[i % 2][k], sum);
        }
        d[i] = sum;
    }
}
#endif
