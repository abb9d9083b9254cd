// Rows of a table as f32.
//
//   out[t][c] = table[ids[t]][c]                      cpu::product::rows_of, exact
//
// A block for each row; ids are below the table's rows.
#include "weights.cuh"

template <class F> PREP_FN void embed(const Weights &table, const u32 *ids, float *out) {
    u32 row = ids[blockIdx.x];
    typename F::Row r = F::row(table, 0, row);
    const u8 *codes = row_codes(table, 0, row);
    out += u64(blockIdx.x) * table.cols;
    for (u32 col = threadIdx.x * F::PER; col < table.cols; col += blockDim.x * F::PER) {
        float v[F::PER];
        float factor = F::unpack(table, r, col, load16(codes + u64(col / F::PER) * 16), v);
        for (u32 i = 0; i < F::PER && col + i < table.cols; i++) {
            out[col + i] = F::SCALED ? v[i] * factor : v[i];
        }
    }
}

#define EMBED(F, name)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(128, 4) embed_##name(Weights table, const u32 *ids, float *out) {     \
        embed<F>(table, ids, out);                                                                                     \
    }
PREP_FORMATS(EMBED)
