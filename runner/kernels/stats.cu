// What calibration keeps of a linear layer's inputs.
//
//   sums[c] += |x[0][c]| + |x[1][c]| + … in the order of the tokens;   tops[c] = largest |x[t][c]| so far
//
// A thread for each column, grid (ceil(cols / 256)): the sums do not depend on how the tokens were cut into batches.
#include "device.cuh"

extern "C" __global__ void __launch_bounds__(256, 2)
    column_stats(const float *x, u32 tokens, u32 cols, float *sums, float *tops) {
    u32 col = blockIdx.x * 256 + threadIdx.x;
    if (col >= cols) {
        return;
    }
    float sum = sums[col], top = tops[col];
    for (u32 t = 0; t < tokens; t++) {
        float a = fabsf(x[u64(t) * cols + col]);
        sum += a;
        top = a > top ? a : top;
    }
    sums[col] = sum;
    tops[col] = top;
}

// sums[c] = y[0][c]^2 + y[1][c]^2 + ... in double precision, in the order of the rows: with y turned, the squared size of
// every token as quant::awq adds it up. A thread for each column, grid (ceil(cols / 256)).
extern "C" __global__ void __launch_bounds__(256, 2) column_squares(const float *y, u32 rows, u32 cols, double *sums) {
    u32 col = blockIdx.x * 256 + threadIdx.x;
    if (col >= cols) {
        return;
    }
    double sum = 0.0;
    for (u32 r = 0; r < rows; r++) {
        double v = double(y[u64(r) * cols + col]);
        sum += v * v;
    }
    sums[col] = sum;
}
