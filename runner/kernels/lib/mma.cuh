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
    auto word = [](u32 from, u32 i) { return static_cast<const u32 *>(::prep::theirs(from))[i]; };
    auto half = [](u32 word, u32 odd) { return from_bf16(u16(odd ? word >> 16 : word)); };
    // Numbers of A and B by their row and column, wherever they lie.
    auto A = [&](u32 row, u32 k) { return half(word(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2), k % 2); };
    auto B = [&](u32 k, u32 col) { return half(word(col * 4 + k % 8 / 2, 4 + k / 8), k % 2); };
    for (u32 i = 0; i < 4; i++) {
        u32 row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
        float sum = d[i];
        for (u32 k = 0; k < 16; k++) {
            sum = fmaf(A(row, k), B(k, col), sum);
        }
        d[i] = sum;
    }
}
#endif
