// Counting sort of visits by expert, stable.
//
//   offsets[e] = number of visits to experts below e, offsets[experts] = visits
//   order      = visits by expert, of one expert in their own order
//   positions  = where in `order` each visit stands
//                                                     the sort in cpu::experts::mix
//
// A warp for each expert: it counts what comes before, then collects its own visits with votes. No atomics: the order
// is the same every time. Grid (ceil(experts / 8)), block (32, 8).
#include "warp.cuh"

extern "C" __global__ void __launch_bounds__(256, 2)
    sort_visits(const u32 *ids, u32 visits, u32 experts, u32 *offsets, u32 *order, u32 *positions) {
    u32 lane = threadIdx.x, expert = blockIdx.x * 8 + threadIdx.y;
    if (expert >= experts) {
        return;
    }
    u32 before = 0;
    for (u32 v = lane; v < visits; v += 32) {
        before += ids[v] < expert ? 1 : 0;
    }
    u32 at = warp_sum(before);
    if (lane == 0) {
        offsets[expert] = at;
        if (expert == 0) {
            offsets[experts] = visits;
        }
    }
    for (u32 first = 0; first < visits; first += 32) {
        u32 v = first + lane;
        bool mine = v < visits && ids[v] == expert;
        u32 all = __ballot_sync(ALL_LANES, mine);
        if (mine) {
            u32 place = at + __popc(all & ((1u << lane) - 1));
            order[place] = v;
            positions[v] = place;
        }
        at += __popc(all);
    }
}
