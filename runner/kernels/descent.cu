// Rounding that looks at what the inputs make of it: codes moved downhill in d^T G d, bit for bit as
// quant::awq::descent. One block of neighbouring columns first .. first + width at a time; w, codes [rows, cols], scales
// and zeros [rows, cols / group], s [cols], gram [width, width] damped, slope [rows, width].
#include "math.cuh"

// What rounding changed, seen by the unscaled inputs:
//   off[r][i] = ((code - zero) * scale - w) / s,   all of column first + i
// A thread for each number, grid (ceil(rows * width / 256)).
extern "C" __global__ void __launch_bounds__(256, 2)
    descent_off(const float *w, const float *s, const u8 *codes, const float *scales, const float *zeros, u32 cols,
                u32 group, u32 first, u32 width, u64 n, float *off) {
    u64 at = u64(blockIdx.x) * 256 + threadIdx.x;
    if (at >= n) {
        return;
    }
    u64 r = at / width;
    u32 c = first + u32(at % width);
    u64 grid = r * (cols / group) + c / group;
    off[at] = ((float(codes[r * cols + c]) - zeros[grid]) * scales[grid] - w[r * cols + c]) / s[c];
}

// Up to four times through the codes of a row in their order:
//   step = scale / s,   best = -slope[i] / (gram[i][i] * step)
//   where best is a number beyond half a step: code' = clamp(code + nearest(clamp(best))), and if that is another code
//   slope[j] = fma((code' - code) * step, gram[i][j], slope[j]) for all j
// A warp for each row: lanes look at 32 codes at once, the first that moves is moved, those behind it look again. Lane l
// alone reads and writes slope[l], slope[l + 32], ... Block (32, 4), grid (ceil(rows / 4)); width is a multiple of 32.
extern "C" __global__ void __launch_bounds__(128, 4)
    descent(const float *gram, const float *s, const float *scales, u32 rows, u32 cols, u32 group, u32 first, u32 width,
            float largest, float *slope, u8 *codes) {
    u32 lane = threadIdx.x, row = blockIdx.x * 4 + threadIdx.y;
    if (row >= rows) {
        return;
    }
    slope += u64(row) * width;
    codes += u64(row) * cols + first;
    scales += u64(row) * (cols / group);
    for (u32 sweep = 0; sweep < 4; sweep++) {
        bool moved = false;
        for (u32 left = 0; left < width; left += 32) {
            u32 i = left + lane;
            float step = scales[(first + i) / group] / s[first + i];
            float bend = gram[u64(i) * width + i] * step, old = float(codes[i]);
            for (u32 from = 0; from < 32;) {
                float best = -slope[i] / bend, changed = old;
                if (lane >= from && fabsf(best) > 0.5f && fabsf(best) < __uint_as_float(0x7f800000u)) {
                    changed = within(old + nearest(within(best, -largest, largest)), 0.0f, largest);
                }
                u32 movers = __ballot_sync(ALL_LANES, changed != old);
                if (movers == 0) {
                    break;
                }
                u32 mover = __ffs(int(movers)) - 1;
                float by = __shfl_sync(ALL_LANES, (changed - old) * step, mover);
                const float *line = gram + u64(left + mover) * width;
                for (u32 j = lane; j < width; j += 32) {
                    slope[j] = fmaf(by, line[j], slope[j]);
                }
                if (lane == mover) {
                    old = changed;
                    codes[i] = u8(changed);
                }
                moved = true;
                from = mover + 1;
            }
        }
        if (!moved) {
            break;
        }
    }
}
