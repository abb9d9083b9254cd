// Weights to FP8 codes, bit for bit as verify::codec::fp8.
//
//   amax  = largest |w| under a scale, as bits: of infinity or above where there is a NaN or infinite weight
//   scale = amax / 448, at least the smallest normal, 1 for zeros; rounded to bf16 where wanted   fp8::scale_of
//   code  = e4m3(w / scale), true division, ties to even, clamped                                 e4m3::round
//   loss  = for each of 16 lanes, elements i, i + 16, … of each row of the block in turn: sum of the squared errors, of
//           the squared quotients, largest error, in units of the scale                           fp8::Sums
//
// A block of 256 threads for each scale, grid (scales beside each other, scales below each other). A scale has
// block_rows x block_cols weights, less at the right and lower edge. Where `given` is there it is the only scale.
#include "math.cuh"
#include "warp.cuh"

PREP_FN float scale_of(u32 amax, u32 bf16_scale) {
    float scale = 1.0f;
    if (amax != 0) {
        scale = __uint_as_float(amax) / 448.0f;
        scale = scale < 1.17549435e-38f ? 1.17549435e-38f : scale;
    }
    return bf16_scale ? from_bf16(to_bf16(scale)) : scale;
}

template <class T>
PREP_FN void quantize(const typename T::Type *w, u32 rows, u32 cols, u32 block_rows, u32 block_cols, u32 bf16_scale,
                      const float *given, u8 *codes, float *scales, u32 *amaxes, float *loss) {
    u32 top = blockIdx.y * block_rows, left = blockIdx.x * block_cols, thread = threadIdx.x;
    u32 height = least(block_rows, rows - top), width = least(block_cols, cols - left);
    u64 at = u64(blockIdx.y) * gridDim.x + blockIdx.x;
    w += u64(top) * cols + left;
    codes += u64(top) * cols + left;
    u64 count = u64(height) * width;
    u32 largest = 0;
    for (u64 i = thread; i < count; i += 256) {
        u32 bits = __float_as_uint(T::read(w + i / width * cols + i % width)) & 0x7fffffffu;
        largest = largest > bits ? largest : bits;
    }
    u32 amax = block_max(largest);
    float scale = given != nullptr ? given[0] : scale_of(amax, bf16_scale);
    if (thread == 0) {
        scales[at] = scale;
        amaxes[at] = amax;
    }
    for (u64 i = thread; i < count; i += 256) {
        u64 place = i / width * cols + i % width;
        codes[place] = u8(to_e4m3(T::read(w + place) / scale).code);
    }
    if (thread < 16) {
        float errors = 0.0f, squares = 0.0f, worst = 0.0f;
        for (u32 r = 0; r < height; r++) {
            for (u32 first = 0; first < width; first += 16) {
                // Lanes beyond the end hold zeros on the CPU, too.
                u32 c = first + thread;
                float quotient = (c < width ? T::read(w + u64(r) * cols + c) : 0.0f) / scale;
                float error = to_e4m3(quotient).error;
                errors += error * error;
                squares += quotient * quotient;
                worst = error > worst ? error : worst;
            }
        }
        loss[at * 48 + thread] = errors;
        loss[at * 48 + 16 + thread] = squares;
        loss[at * 48 + 32 + thread] = worst;
    }
}

// The largest |w| of each stretch of 65536, as bits: verify::codec::fp8::amax is the largest of these. Block 256, grid
// (ceil(n / 65536)).
template <class T> PREP_FN void amax(const typename T::Type *w, u64 n, u32 *amaxes) {
    u64 first = u64(blockIdx.x) * 65536, end = first + 65536 < n ? first + 65536 : n;
    u32 largest = 0;
    for (u64 i = first + threadIdx.x; i < end; i += 256) {
        u32 bits = __float_as_uint(T::read(w + i)) & 0x7fffffffu;
        largest = largest > bits ? largest : bits;
    }
    largest = block_max(largest);
    if (threadIdx.x == 0) {
        amaxes[blockIdx.x] = largest;
    }
}

#define FP8(T, name)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                               \
        fp8_quantize_##name(const T::Type *w, u32 rows, u32 cols, u32 block_rows, u32 block_cols, u32 bf16_scale,      \
                            const float *given, u8 *codes, float *scales, u32 *amaxes, float *loss) {                  \
        quantize<T>(w, rows, cols, block_rows, block_cols, bf16_scale, given, codes, scales, amaxes, loss);            \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2) fp8_amax_##name(const T::Type *w, u64 n, u32 *amaxes) {       \
        amax<T>(w, n, amaxes);                                                                                         \
    }
FP8(PlainF32, f32)
FP8(PlainF16, f16)
FP8(PlainBf16, bf16)
