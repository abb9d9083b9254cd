// Gated DeltaNet.
//
//   conv        c[t][ch] = silu(sum over j of taps[ch][j] * m[t - count + 1 + j][ch]); the last count - 1 inputs are kept
//   unit_norm   x / sqrt(sum x^2 + 1e-6) * scale, in place, over heads of q and k
//   delta_gates beta = sigmoid(b), log_decay = rate * softplus(a + dt_bias)
//   delta_recurrent, for each value head n with key head n / (value_heads / key_heads):
//     S = decay S;   u = beta (v - S^T k);   S = S + k u^T;   y = S^T q
//   delta_chunked, the same for CHUNK tokens at a time; G the sum of the log decays inside the chunk:
//     (I + A) U = beta (V - exp(G) K S),  A = strictly lower part of beta_i (k_i . k_j) exp(G_i - G_j)
//     Y = exp(G) Q S + lower part with diagonal of ((q_i . k_j) exp(G_i - G_j)) U
//     S = exp(G_last) S + sum over j of k_j exp(G_last - G_j) u_j^T
//                                                     cpu::delta: convolved, push_unit, Update, recurrent, chunked
//
// Tokens come as spans of sequences: span i has tokens firsts[i] to firsts[i + 1]; what its sequence keeps begins
// states[i] numbers after `recent` and `state`.
#include "math.cuh"
#include "warp.cuh"

// A thread for each channel, grid (ceil(channels / 256), spans). recent [count - 1, channels], oldest first.
extern "C" __global__ void __launch_bounds__(256, 2)
    delta_conv(const float *m, const float *taps, u32 count, u32 channels, const u32 *firsts, const u64 *states,
               float *recent, float *out) {
    u32 channel = blockIdx.x * 256 + threadIdx.x, first = firsts[blockIdx.y], end = firsts[blockIdx.y + 1];
    if (channel >= channels) {
        return;
    }
    float *kept = recent + states[blockIdx.y] + channel;
    // Input number i of the span, the kept ones before it.
    for (u32 t = first; t < end; t++) {
        float sum = 0.0f;
        for (u32 j = 0; j < count; j++) {
            u32 at = t - first + j;
            float x = at < count - 1 ? kept[u64(at) * channels] : m[u64(first + at - (count - 1)) * channels + channel];
            sum = fmaf(taps[channel * count + j], x, sum);
        }
        out[u64(t) * channels + channel] = silu(sum);
    }
    // Rising: what is read stands at or after what is written.
    u32 tokens = end - first;
    for (u32 i = 0; i < count - 1; i++) {
        u32 at = tokens + i;
        kept[u64(i) * channels] =
            at < count - 1 ? kept[u64(at) * channels] : m[u64(first + at - (count - 1)) * channels + channel];
    }
}

// A warp for each head, block (32, 8), grid (ceil(tokens * heads / 8)); head h of token t begins at t * stride + h * dim.
extern "C" __global__ void __launch_bounds__(256, 2)
    unit_norm(float *x, u32 stride, u32 heads, u32 dim, u32 tokens, float scale) {
    u32 at = blockIdx.x * 8 + threadIdx.y, lane = threadIdx.x;
    if (at >= tokens * heads) {
        return;
    }
    x += u64(at / heads) * stride + at % heads * dim;
    float squares = 0.0f;
    for (u32 i = lane; i < dim; i += 32) {
        squares = fmaf(x[i], x[i], squares);
    }
    float factor = 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
    for (u32 i = lane; i < dim; i += 32) {
        x[i] = x[i] * factor * scale;
    }
}

// A thread for each number of b and a [tokens, heads]. The rate is -exp(A_log).
extern "C" __global__ void __launch_bounds__(256, 2)
    delta_gates(const float *b, const float *a, const float *rate, const float *dt_bias, u32 heads, u32 n, float *beta,
                float *log_decay) {
    u32 i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) {
        return;
    }
    float x = a[i] + dt_bias[i % heads];
    float softplus = x > 20.0f ? x : float(log1p(exp(double(x))));
    beta[i] = sigmoid(b[i]);
    log_decay[i] = rate[i % heads] * softplus;
}

static const u32 COLUMNS = 32;
static const u32 SLICES = 8;

// qkv [tokens, channels] after conv and unit_norm; state [value_heads, key_dim, value_dim]; out [tokens,
// value_heads, value_dim]. A block has 32 columns of one head's state in registers, in SLICES slices of its rows:
// block (32, 8), grid (ceil(value_dim / 32), value_heads, spans); key_dim at most SLICES * ROWS, which is at most 256.
template <u32 ROWS>
PREP_FN void recurrent(const float *qkv, const float *beta, const float *log_decay, const u32 *firsts,
                       const u64 *states, u32 key_heads, u32 value_heads, u32 key_dim, u32 value_dim, float *state, float *out) {
    PREP_SHARED(float, queries, SLICES * ROWS);
    PREP_SHARED(float, keys, SLICES * ROWS);
    PREP_SHARED(float, found_parts, SLICES * COLUMNS);
    PREP_SHARED(float, y_parts, SLICES * COLUMNS);
    u32 lane = threadIdx.x, slice = threadIdx.y, thread = slice * 32 + lane;
    u32 col = blockIdx.x * COLUMNS + lane, head = blockIdx.y;
    u32 key_head = head / (value_heads / key_heads), all_keys = key_heads * key_dim;
    u32 channels = 2 * all_keys + value_heads * value_dim;
    bool inside = col < value_dim;
    float *s = state + states[blockIdx.z] + u64(head) * key_dim * value_dim + col;
    float rows[ROWS];
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
        u32 d = slice + i * SLICES;
        rows[i] = inside && d < key_dim ? s[u64(d) * value_dim] : 0.0f;
    }
    for (u32 t = firsts[blockIdx.z]; t < firsts[blockIdx.z + 1]; t++) {
        const float *q = qkv + u64(t) * channels + key_head * key_dim, *k = q + all_keys;
        const float *v = qkv + u64(t) * channels + 2 * all_keys + head * value_dim;
        float forget = exp_of(log_decay[t * value_heads + head]), strength = beta[t * value_heads + head];
        // Rows beyond the head's are zero and stay so.
        if (thread < SLICES * ROWS) {
            queries[thread] = thread < key_dim ? q[thread] : 0.0f;
            keys[thread] = thread < key_dim ? k[thread] : 0.0f;
        }
        __syncthreads();
        float found = 0.0f;
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) {
            rows[i] *= forget;
            found = fmaf(keys[slice + i * SLICES], rows[i], found);
        }
        found_parts[slice * COLUMNS + lane] = found;
        __syncthreads();
        found = 0.0f;
#pragma unroll
        for (u32 i = 0; i < SLICES; i++) {
            found += found_parts[i * COLUMNS + lane];
        }
        float u = inside ? strength * (v[col] - found) : 0.0f;
        float y = 0.0f;
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) {
            rows[i] = fmaf(keys[slice + i * SLICES], u, rows[i]);
            y = fmaf(queries[slice + i * SLICES], rows[i], y);
        }
        y_parts[slice * COLUMNS + lane] = y;
        // The last one of a token: queries, keys and parts are free after it, but for slice 0, which the next token's
        // first barrier waits for.
        __syncthreads();
        if (slice == 0 && inside) {
            y = 0.0f;
#pragma unroll
            for (u32 i = 0; i < SLICES; i++) {
                y += y_parts[i * COLUMNS + lane];
            }
            out[(u64(t) * value_heads + head) * value_dim + col] = y;
        }
    }
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
        u32 d = slice + i * SLICES;
        if (inside && d < key_dim) {
            s[u64(d) * value_dim] = rows[i];
        }
    }
}

#define RECURRENT(rows, name)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256, 1)                                                               \
        delta_recurrent_##name(const float *qkv, const float *beta, const float *log_decay, const u32 *firsts,         \
                               const u64 *states, u32 key_heads, u32 value_heads, u32 key_dim, u32 value_dim,           \
                               float *state, float *out) {                                                             \
        recurrent<rows>(qkv, beta, log_decay, firsts, states, key_heads, value_heads, key_dim, value_dim, state, out);  \
    }
// For key heads of at most 128 and 256 entries.
RECURRENT(16, 128)
RECURRENT(32, 256)

static const u32 CHUNK = 16;

// As delta_recurrent, key_dim at most 128. Each column of the state goes through the chunk by itself, so a block takes
// COLUMNS of them; what the tokens have in common each block works out anew. Shared memory: state [key_dim, COLUMNS],
// keys and queries [CHUNK, key_dim + 1] each, then four small arrays.
extern "C" __global__ void __launch_bounds__(256, 2)
    delta_chunked(const float *qkv, const float *beta, const float *log_decay, const u32 *firsts, const u64 *states,
                  u32 key_heads, u32 value_heads, u32 key_dim, u32 value_dim, float *state, float *out) {
    PREP_DYN_SHARED(float, memory);
    u32 lane = threadIdx.x, slice = threadIdx.y, thread = slice * 32 + lane;
    u32 col = blockIdx.x * COLUMNS + lane, head = blockIdx.y, pitch = key_dim + 1;
    float *held = memory, *keys = held + key_dim * COLUMNS, *queries = keys + CHUNK * pitch;
    float *likeness = queries + CHUNK * pitch; // A with a minus, [CHUNK, CHUNK]
    float *answers = likeness + CHUNK * CHUNK; // (q_i . k_j) exp(G_i - G_j)
    float *u = answers + CHUNK * CHUNK;        // [CHUNK, COLUMNS]
    float *sums = u + CHUNK * COLUMNS;         // G
    u32 key_head = head / (value_heads / key_heads), all_keys = key_heads * key_dim;
    u32 channels = 2 * all_keys + value_heads * value_dim;
    bool inside = col < value_dim;
    float *s = state + states[blockIdx.z] + u64(head) * key_dim * value_dim + col;
    for (u32 d = slice; d < key_dim; d += SLICES) {
        held[d * COLUMNS + lane] = inside ? s[u64(d) * value_dim] : 0.0f;
    }
    u32 end = firsts[blockIdx.z + 1];
    for (u32 first = firsts[blockIdx.z]; first < end; first += CHUNK) {
        u32 count = least(CHUNK, end - first);
        for (u32 i = thread; i < count * key_dim; i += 256) {
            u32 t = i / key_dim, d = i % key_dim;
            const float *from = qkv + u64(first + t) * channels + key_head * key_dim + d;
            queries[t * pitch + d] = from[0];
            keys[t * pitch + d] = from[all_keys];
        }
        if (thread == 0) {
            float sum = 0.0f;
            for (u32 t = 0; t < count; t++) {
                sum += log_decay[(first + t) * value_heads + head];
                sums[t] = sum;
            }
        }
        __syncthreads();
        for (u32 i = thread; i < CHUNK * CHUNK; i += 256) {
            u32 t = i / CHUNK, j = i % CHUNK;
            float of_keys = 0.0f, of_queries = 0.0f;
            if (t < count && j <= t) {
                for (u32 d = 0; d < key_dim; d++) {
                    of_keys = fmaf(keys[t * pitch + d], keys[j * pitch + d], of_keys);
                    of_queries = fmaf(queries[t * pitch + d], keys[j * pitch + d], of_queries);
                }
                float decay = exp_of(sums[t] - sums[j]);
                of_keys *= -beta[(first + t) * value_heads + head] * decay;
                of_queries *= decay;
            }
            likeness[i] = of_keys;
            answers[i] = of_queries;
        }
        for (u32 t = slice; t < count; t += SLICES) {
            float found = 0.0f;
            for (u32 d = 0; d < key_dim; d++) {
                found = fmaf(keys[t * pitch + d], held[d * COLUMNS + lane], found);
            }
            float v = inside ? qkv[u64(first + t) * channels + 2 * all_keys + head * value_dim + col] : 0.0f;
            u[t * COLUMNS + lane] = beta[(first + t) * value_heads + head] * (v - exp_of(sums[t]) * found);
        }
        __syncthreads();
        // Forward substitution, a lane for each column.
        if (slice == 0) {
            for (u32 t = 1; t < count; t++) {
                float sum = u[t * COLUMNS + lane];
                for (u32 j = 0; j < t; j++) {
                    sum = fmaf(likeness[t * CHUNK + j], u[j * COLUMNS + lane], sum);
                }
                u[t * COLUMNS + lane] = sum;
            }
        }
        __syncthreads();
        for (u32 t = slice; t < count; t += SLICES) {
            float y = 0.0f;
            for (u32 d = 0; d < key_dim; d++) {
                y = fmaf(queries[t * pitch + d], held[d * COLUMNS + lane], y);
            }
            y *= exp_of(sums[t]);
            for (u32 j = 0; j <= t; j++) {
                y = fmaf(answers[t * CHUNK + j], u[j * COLUMNS + lane], y);
            }
            if (inside) {
                out[(u64(first + t) * value_heads + head) * value_dim + col] = y;
            }
        }
        __syncthreads();
        float last = sums[count - 1], decay = exp_of(last);
        for (u32 d = slice; d < key_dim; d += SLICES) {
            float sum = decay * held[d * COLUMNS + lane];
            for (u32 j = 0; j < count; j++) {
                sum = fmaf(keys[j * pitch + d] * exp_of(last - sums[j]), u[j * COLUMNS + lane], sum);
            }
            held[d * COLUMNS + lane] = sum;
        }
        __syncthreads();
    }
    for (u32 d = slice; d < key_dim && inside; d += SLICES) {
        s[u64(d) * value_dim] = held[d * COLUMNS + lane];
    }
}
