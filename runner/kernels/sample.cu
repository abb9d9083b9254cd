// The next token of each sequence.
//
//   argmax   the largest logit, of equal ones the lower id                       sampling::largest
//   sample   repetition penalty, temperature, top-k, top-p, min-p, one draw      sampling::Sampler::next
//
// Tokens are ordered by falling logit, of equal ones the lower id first. Nothing is sorted: every limit keeps a first
// stretch of that order, and the end of a stretch is found by halving, bit by bit, from the count or the weight of what
// stands before a candidate. Sums have a fixed order, not that of the CPU: a draw differs where it falls within 1e-13
// of a boundary. A block for each sequence, grid (sequences).
#include "warp.cuh"

// Order of floats as order of whole numbers; -0 stands below 0 there, as in total_cmp.
PREP_FN u32 rank_of(float x) {
    u32 bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// x > best, as floats: NaN never wins.
extern "C" __global__ void __launch_bounds__(1024, 1) argmax(const float *logits, u32 vocab, u32 *ids) {
    PREP_SHARED(float, tops, 32);
    PREP_SHARED(u32, places, 32);
    logits += u64(blockIdx.x) * vocab;
    float best = __uint_as_float(0xff800000u);
    u32 at = 0xffffffffu;
    for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) {
        if (logits[i] > best) {
            best = logits[i];
            at = i;
        }
    }
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (u32 round = 0; round < 2; round++) {
        for (u32 step = 16; step > 0; step /= 2) {
            float other = __shfl_xor_sync(ALL_LANES, best, step);
            u32 there = __shfl_xor_sync(ALL_LANES, at, step);
            if (other > best || (other == best && there < at)) {
                best = other;
                at = there;
            }
        }
        if (round == 0) {
            if (lane == 0) {
                tops[warp] = best;
                places[warp] = at;
            }
            __syncthreads();
            best = lane < warps ? tops[lane] : __uint_as_float(0xff800000u);
            at = lane < warps ? places[lane] : 0xffffffffu;
        }
    }
    if (threadIdx.x == 0) {
        ids[blockIdx.x] = at == 0xffffffffu ? 0 : at;
    }
}

// A token's place in the order: those of larger rank come first, of equal ranks those of lower id.
struct Place {
    u32 rank, id;
};
PREP_FN bool comes_by(u32 rank, u32 id, Place p) { return rank > p.rank || (rank == p.rank && id <= p.id); }

struct Row {
    const u32 *ranks;
    const double *weights;
    u32 vocab;
};

// Tokens that come by `p`.
PREP_FN u32 count_by(const Row &r, Place p) {
    u32 n = 0;
    for (u32 i = threadIdx.x; i < r.vocab; i += blockDim.x) {
        n += comes_by(r.ranks[i], i, p) ? 1 : 0;
    }
    return block_sum(n);
}
// Their weight.
PREP_FN double weight_by(const Row &r, Place p) {
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < r.vocab; i += blockDim.x) {
        sum += comes_by(r.ranks[i], i, p) ? r.weights[i] : 0.0;
    }
    return block_sum(sum);
}

// The first place by which `enough` is reached; `enough` grows along the order and holds at its end.
template <class Enough> PREP_FN Place first_place(u32 vocab, Enough enough) {
    Place p = {0, 0xffffffffu};
    for (u32 bit = 0x80000000u; bit > 0; bit >>= 1) {
        p.rank |= bit;
        if (!enough(p)) {
            p.rank &= ~bit;
        }
    }
    // Among equal ranks, the lowest id that is enough.
    u32 low = 0, high = vocab - 1;
    while (low < high) {
        u32 middle = low + (high - low) / 2;
        Place q = {p.rank, middle};
        if (enough(q)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    p.id = low;
    return p;
}

// seen [sequences, vocab]: not 0 where the penalty holds. state: of the random numbers, moved on. ranks and weights are
// room, [sequences, vocab].
extern "C" __global__ void __launch_bounds__(1024, 1)
    sample(const float *logits, const u8 *seen, u32 vocab, float penalty, float temperature, u32 top_k, float top_p,
           float min_p, u64 *states, u32 *ranks, double *weights, u32 *ids) {
    PREP_SHARED(float, tops, 1);
    logits += u64(blockIdx.x) * vocab;
    ranks += u64(blockIdx.x) * vocab;
    weights += u64(blockIdx.x) * vocab;
    u32 highest = 0;
    for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) {
        float x = logits[i];
        if (seen != nullptr && seen[u64(blockIdx.x) * vocab + i]) {
            x = x > 0.0f ? x / penalty : x * penalty;
        }
        u32 rank = rank_of(x);
        ranks[i] = rank;
        highest = highest > rank ? highest : rank;
    }
    highest = block_max(highest);
    if (threadIdx.x == 0) {
        tops[0] = __uint_as_float(highest & 0x80000000u ? highest & 0x7fffffffu : ~highest);
    }
    __syncthreads();
    double top = double(tops[0]);
    Row row = {ranks, weights, vocab};
    Place last = {0, 0xffffffffu};
    if (top_k > 0 && top_k < vocab) {
        last = first_place(vocab, [&](Place p) { return count_by(row, p) >= top_k; });
    }
    // Each thread reads back the ranks that it wrote itself.
    for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) {
        u32 rank = ranks[i];
        float x = __uint_as_float(rank & 0x80000000u ? rank & 0x7fffffffu : ~rank);
        weights[i] = comes_by(rank, i, last) ? exp((double(x) - top) / double(temperature)) : 0.0;
    }
    Place end = {0, 0xffffffffu};
    if (top_p < 1.0f) {
        double wanted = double(top_p) * weight_by(row, end);
        end = first_place(vocab, [&](Place p) { return weight_by(row, p) >= wanted; });
    }
    for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) {
        if (!comes_by(ranks[i], i, end) || weights[i] < double(min_p)) {
            weights[i] = 0.0;
        }
    }
    // Steele et al. 2014, "Fast splittable pseudorandom number generators".
    u64 state = states[blockIdx.x] + 0x9e3779b97f4a7c15ull, z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    double unit = double((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
    Place whole = {0, 0xffffffffu};
    double drawn = unit * weight_by(row, whole);
    Place chosen = first_place(vocab, [&](Place p) { return weight_by(row, p) > drawn; });
    if (threadIdx.x == 0) {
        states[blockIdx.x] = state;
        ids[blockIdx.x] = chosen.id;
    }
}
