// Attention over at most 32 slots in shared memory (screened, sab): what both passes share.
//
// A constant in all logits leaves the softmax as it is: of v . tanh(q + k) = v . (1 - 2 r) the
// kernels compute -2 v . r.
//
// Sizes are those of tile.cuh and screening.cuh.
#pragma once
#include "equations.cuh"
#include "tile.cuh"

// A unit is a column of slots, and all of its lanes share them. The padding lets these lanes read
// their slots from different shared-memory banks.
constexpr int SLOT_LANES = LANES_PER_UNIT;
constexpr int SLOT_STRIDE = UNITS_PER_BLOCK + UNITS_PER_WARP;
#include "slots.cuh"
static_assert(SLOTS_PER_LANE <= UNITS_PER_WARP,
              "the sums of a lane's slots are scattered over units");

DEVICE SlotColumn slot_column(const ThreadPosition& pos) { return {pos.block_unit, pos.unit_lane}; }

// Shared memory of sum_over_units: the sums of the warps (WARPS, 32), then of the blocks
// (CLUSTER_BLOCKS, 32).
constexpr int UNIT_SUM_FLOATS = 32 * (WARPS + CLUSTER_BLOCKS);

// Sum over the units of the block of each slot's part; lane i of every warp has the sum of slot i.
DEVICE float sum_over_block(const ThreadPosition& pos, float (&part)[SLOTS_PER_LANE][1],
                            float* warp_sums) {
    // Over the units of the warp: each lane is left with one of its slots.
    const int k = reduce_scatter<SLOTS_PER_LANE, 16, LANES_PER_UNIT, 1>(part, pos.lane);
    const int slot = pos.unit_lane + LANES_PER_UNIT * k;
    if (k < SLOTS_PER_LANE) warp_sums[pos.warp * 32 + slot] = part[0][0];
    sync_block();

    // Over the warps of the block; lane i has slot i from here on.
    float sum = 0.f;
    if (pos.lane < PADDED_SLOTS)
        for (int w = 0; w < WARPS; ++w) sum += warp_sums[w * 32 + pos.lane];
    return sum;
}
DEVICE float sum_over_blocks(const ThreadPosition& pos, const float* block_sums) {
    float sum = 0.f;
    if (pos.lane < PADDED_SLOTS)
        for (int rank = 0; rank < CLUSTER_BLOCKS; ++rank) sum += block_sums[rank * 32 + pos.lane];
    return sum;
}

// Sum over all units of each slot's part; returns, in lane i of every warp, the sum of slot i.
// Two barriers if the units are spread over a cluster, one otherwise.
DEVICE float sum_over_units(const ThreadPosition& pos, float (&part)[SLOTS_PER_LANE][1],
                            float* scratch) {
    float* block_sums = scratch + 32 * WARPS;
    const float sum = sum_over_block(pos, part, scratch);
    if constexpr (!IS_CLUSTER) return sum;
    // The warps of a block share the stores into the others.
    for (int rank = pos.warp; rank < CLUSTER_BLOCKS; rank += WARPS)
        if (pos.lane < PADDED_SLOTS)
            store_in_block(block_sums + pos.rank * 32 + pos.lane, rank, sum);
    sync_cluster();
    return sum_over_blocks(pos, block_sums);
}

// The same by an exchange of UNIT_SUM_BYTES, in two halves: between them is time for other work.
// What send_sums returns is for receive_sums. The sums of the warps have two buffers, which take
// turns with the steps: between two uses of one lies the block's barrier of the other.
constexpr int SUM_QUADS = (PADDED_SLOTS + 3) / 4;
constexpr int UNIT_SUM_BYTES = 16 * SUM_QUADS * CLUSTER_BLOCKS;
constexpr int SENT_SUM_FLOATS = UNIT_SUM_FLOATS + 32 * WARPS;
DEVICE float send_sums(const ThreadPosition& pos, int t, float (&part)[SLOTS_PER_LANE][1],
                       float* scratch, const Exchange& exchange) {
    const float sum = sum_over_block(pos, part, scratch + (t & 1) * 32 * WARPS);
    if constexpr (IS_CLUSTER) {
        // Four slots a lane; the warps of a block share what is sent to the others.
        float* block_sums = scratch + 64 * WARPS;
        const int source = 4 * pos.lane;
        const float4 four = {shuffle(sum, source), shuffle(sum, source + 1),
                             shuffle(sum, source + 2), shuffle(sum, source + 3)};
#pragma unroll
        for (int first = 0; first < CLUSTER_BLOCKS; first += WARPS)
            if (first + pos.warp < CLUSTER_BLOCKS && pos.lane < SUM_QUADS)
                send_to_block(block_sums + pos.rank * 32 + source,
                              (pos.rank + first + pos.warp) % CLUSTER_BLOCKS, four,
                              exchange.barrier);
    }
    return sum;
}
DEVICE float receive_sums(const ThreadPosition& pos, float sum, const float* scratch,
                          Exchange& exchange) {
    if constexpr (!IS_CLUSTER) return sum;
    receive(exchange);
    return sum_over_blocks(pos, scratch + 64 * WARPS);
}

// Sum over the lanes of a unit, the same in each of them.
DEVICE float sum_over_unit_lanes(float x) {
#pragma unroll
    for (int offset = LANES_PER_UNIT / 2; offset > 0; offset /= 2) x += shuffle_xor(x, offset);
    return x;
}
