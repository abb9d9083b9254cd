// AutoAWQ's `gemm` layout to that of the int4 kernels: rows of outputs, codes in plain order. Exact.
//
//   from  qweight [cols, rows / 8]: nibble j of word [c][i] is the code of output 8 i + ORDER[j], input c
//         qzeros  [cols / group, rows / 8]: likewise; scales [cols / group, rows], 16 bit
//   to    codes [rows, stride]: the low half of a byte is the even input; filled with zeros (made before)
//         zeros [rows / 8, cols / group]: nibble j is output 8 i + j; scales [rows, cols / group]
//                                                     weights::Awq and weights::Int4 stand for the same numbers
//
// A thread for each word of eight inputs of an output, grid (ceil(ceil(cols / 8) / 32), rows / 8), block (32, 8): the
// eight outputs of a word are read together.
#include "device.cuh"

// Nibble of output 8 i + r.
PREP_FN u32 place(u32 r) { return r / 2 + r % 2 * 4; }

extern "C" __global__ void __launch_bounds__(256, 2)
    awq_codes(const u32 *qweight, u32 rows, u32 cols, u32 stride, u8 *codes) {
    u32 first = (blockIdx.x * 32 + threadIdx.x) * 8, r = threadIdx.y;
    if (first >= cols) {
        return;
    }
    u32 word = 0;
    for (u32 i = 0; i < 8 && first + i < cols; i++) {
        u32 from = qweight[u64(first + i) * (rows / 8) + blockIdx.y];
        word |= (from >> 4 * place(r) & 15) << 4 * i;
    }
    *reinterpret_cast<u32 *>(codes + u64(blockIdx.y * 8 + r) * stride + first / 2) = word;
}

// A thread for each word of zeros, grid (ceil(groups * rows / 8 / 256)).
extern "C" __global__ void __launch_bounds__(256, 2)
    awq_zeros(const u32 *qzeros, const u16 *scales, u32 rows, u32 groups, u32 *zeros, u16 *out_scales) {
    u32 at = blockIdx.x * 256 + threadIdx.x, words = rows / 8;
    if (at >= words * groups) {
        return;
    }
    u32 group = at / words, i = at % words, from = qzeros[at], word = 0;
    for (u32 r = 0; r < 8; r++) {
        word |= (from >> 4 * place(r) & 15) << 4 * r;
        out_scales[u64(8 * i + r) * groups + group] = scales[u64(group) * rows + 8 * i + r];
    }
    zeros[u64(i) * groups + group] = word;
}
