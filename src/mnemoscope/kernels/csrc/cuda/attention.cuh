// Attention over slots in shared memory (screened, sab): what both passes share.
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
// A sum over units has one number for each slot of a lane. Those of 32 neighboring slots, PART of a
// lane, are summed together: each lane of the warp is then left with one of the 32.
constexpr int PARTS = SLOTS_OF_LANE > 1 ? SLOTS_OF_LANE * UNITS_PER_WARP : SLOTS_PER_LANE;
constexpr int PART = PARTS / SLOTS_OF_LANE;
static_assert(PART <= UNITS_PER_WARP, "the sums of a lane's slots are scattered over units");

DEVICE SlotColumn slot_column(const ThreadPosition& pos) { return {pos.block_unit, pos.unit_lane}; }

// Shared memory of sum_over_units: the sums of the warps (WARPS, SLOT_ROW), then of the blocks
// (CLUSTER_BLOCKS, SLOT_ROW).
constexpr int WARP_SUM_FLOATS = SLOT_ROW * WARPS;
constexpr int UNIT_SUM_FLOATS = SLOT_ROW * (WARPS + CLUSTER_BLOCKS);

// Sum rows of numbers, one per slot; each lane has the sums of its slots.
template <int ROWS_SUMMED>
DEVICE void sum_rows(const ThreadPosition& pos, const float* rows, float (&sum)[SLOTS_OF_LANE]) {
#pragma unroll
    for (int i = 0; i < SLOTS_OF_LANE; ++i) {
        const int slot = pos.lane + 32 * i;
        sum[i] = 0.f;
        if (slot < PADDED_SLOTS)
            for (int row = 0; row < ROWS_SUMMED; ++row) sum[i] += rows[row * SLOT_ROW + slot];
    }
}

// Sum over the units of the block of each slot's part; in every warp, each lane has the sums of its
// slots.
DEVICE void sum_over_block(const ThreadPosition& pos, float (&part)[PARTS][1], float* warp_sums,
                           float (&sum)[SLOTS_OF_LANE]) {
    // Over the units of the warp: each lane is left with one slot of each 32.
#pragma unroll
    for (int i = 0; i < SLOTS_OF_LANE; ++i) {
        const int k = reduce_scatter<PART, 16, LANES_PER_UNIT, 1>(part + i * PART, pos.lane);
        const int slot = 32 * i + pos.unit_lane + LANES_PER_UNIT * k;
        if (k < PART) warp_sums[pos.warp * SLOT_ROW + slot] = part[i * PART][0];
    }
    sync_block();
    sum_rows<WARPS>(pos, warp_sums, sum);
}

// Sum over all units of each slot's part; in every warp, each lane has the sums of its slots. Two
// barriers if the units are spread over a cluster, one otherwise.
DEVICE void sum_over_units(const ThreadPosition& pos, float (&part)[PARTS][1], float* scratch,
                           float (&sum)[SLOTS_OF_LANE]) {
    float* block_sums = scratch + WARP_SUM_FLOATS;
    sum_over_block(pos, part, scratch, sum);
    if constexpr (IS_CLUSTER) {
        // The warps of a block share the stores into the others.
        for (int rank = pos.warp; rank < CLUSTER_BLOCKS; rank += WARPS)
#pragma unroll
            for (int i = 0; i < SLOTS_OF_LANE; ++i)
                if (pos.lane + 32 * i < PADDED_SLOTS)
                    store_in_block(block_sums + pos.rank * SLOT_ROW + pos.lane + 32 * i, rank,
                                   sum[i]);
        sync_cluster();
        sum_rows<CLUSTER_BLOCKS>(pos, block_sums, sum);
    }
}

// The same by an exchange of UNIT_SUM_BYTES, in two halves: between them is time for other work.
// What send_sums has found is for receive_sums. The sums of the warps have two buffers, which take
// turns with the steps: between two uses of one lies the block's barrier of the other.
constexpr int SUM_QUADS = (PADDED_SLOTS + 3) / 4;
static_assert(SUM_QUADS <= 32, "a lane sends the sums of four slots");
constexpr int UNIT_SUM_BYTES = 16 * SUM_QUADS * CLUSTER_BLOCKS;
constexpr int SENT_SUM_FLOATS = UNIT_SUM_FLOATS + WARP_SUM_FLOATS;
DEVICE void send_sums(const ThreadPosition& pos, int t, float (&part)[PARTS][1], float* scratch,
                      const Exchange& exchange, float (&sum)[SLOTS_OF_LANE]) {
    sum_over_block(pos, part, scratch + (t & 1) * WARP_SUM_FLOATS, sum);
    if constexpr (IS_CLUSTER) {
        // Four slots a lane; the warps of a block share what is sent to the others.
        float* block_sums = scratch + 2 * WARP_SUM_FLOATS;
        const int source = 4 * pos.lane;
        const float4 four = {of_slot(sum, source), of_slot(sum, source + 1),
                             of_slot(sum, source + 2), of_slot(sum, source + 3)};
#pragma unroll
        for (int first = 0; first < CLUSTER_BLOCKS; first += WARPS)
            if (first + pos.warp < CLUSTER_BLOCKS && pos.lane < SUM_QUADS)
                send_to_block(block_sums + pos.rank * SLOT_ROW + source,
                              (pos.rank + first + pos.warp) % CLUSTER_BLOCKS, four,
                              exchange.barrier);
    }
}
DEVICE void receive_sums(const ThreadPosition& pos, const float* scratch, Exchange& exchange,
                         float (&sum)[SLOTS_OF_LANE]) {
    if constexpr (IS_CLUSTER) {
        receive(exchange);
        sum_rows<CLUSTER_BLOCKS>(pos, scratch + 2 * WARP_SUM_FLOATS, sum);
    }
}

// Sum over the lanes of a unit, the same in each of them.
DEVICE float sum_over_unit_lanes(float x) {
#pragma unroll
    for (int offset = LANES_PER_UNIT / 2; offset > 0; offset /= 2) x += shuffle_xor(x, offset);
    return x;
}
