// Attention over at most 32 slots in shared memory (screened, sab): what both passes share.
//
// Slot i belongs to lane i % LANES_PER_UNIT of each unit.
//
// A constant in all logits leaves the softmax as it is: of v . tanh(q + k) = v . (1 - 2 r) the
// kernels compute -2 v . r.
//
// Sizes are those of tile.cuh and screening.cuh.
#pragma once
#include "equations.cuh"
#include "screening.cuh"
#include "tile.cuh"

constexpr int SLOTS_PER_LANE = SLOTS > 0 ? (SLOTS + LANES_PER_UNIT - 1) / LANES_PER_UNIT : 1;
constexpr int PADDED_SLOTS = SLOTS_PER_LANE * LANES_PER_UNIT;
// The padding lets a unit's lanes read their slots from different shared-memory banks.
constexpr int SLOT_STRIDE = UNITS_PER_BLOCK + UNITS_PER_WARP;
constexpr int FIELD_STRIDE = PADDED_SLOTS * SLOT_STRIDE;
static_assert(SLOTS_PER_LANE <= UNITS_PER_WARP,
              "the sums of a lane's slots are scattered over units");

// Numbers per slot and unit in shared memory: (field, slot, unit of the block).
struct SlotFields {
    float* base;
    DEVICE float& operator()(int field, int slot, int block_unit) const {
        return base[field * FIELD_STRIDE + slot * SLOT_STRIDE + block_unit];
    }
};

// Shared memory of sum_over_units: the sums of the warps (WARPS, 32), then of the blocks
// (CLUSTER_BLOCKS, 32).
constexpr int UNIT_SUM_FLOATS = 32 * (WARPS + CLUSTER_BLOCKS);

// Sum over the units of each warp: each lane is left with one of its slots.
DEVICE void sum_over_warps(const ThreadPosition& pos, float (&part)[SLOTS_PER_LANE][1],
                           float* warp_sums) {
    const int k = reduce_scatter<SLOTS_PER_LANE, 16, LANES_PER_UNIT, 1>(part, pos.lane);
    const int slot = pos.unit_lane + LANES_PER_UNIT * k;
    if (k < SLOTS_PER_LANE) warp_sums[pos.warp * 32 + slot] = part[0][0];
    sync_block();
}

// Sum over all units of each slot's part; returns, in lane i of every warp, the sum of slot i.
// Two barriers if the units are spread over a cluster, one otherwise.
DEVICE float sum_over_units(const ThreadPosition& pos, float (&part)[SLOTS_PER_LANE][1],
                            float* scratch) {
    float* warp_sums = scratch;
    float* block_sums = scratch + 32 * WARPS;
    sum_over_warps(pos, part, warp_sums);

    // Over the warps of the block; lane i has slot i from here on.
    float sum = 0.f;
    if (pos.lane < PADDED_SLOTS)
        for (int w = 0; w < WARPS; ++w) sum += warp_sums[w * 32 + pos.lane];

    // Over the blocks of the cluster: the warps of a block share the stores into the others.
    if constexpr (CLUSTER_BLOCKS > 1) {
        for (int rank = pos.warp; rank < CLUSTER_BLOCKS; rank += WARPS)
            if (pos.lane < PADDED_SLOTS)
                store_in_block(block_sums + pos.rank * 32 + pos.lane, rank, sum);
        sync_cluster();
        sum = 0.f;
        if (pos.lane < PADDED_SLOTS)
            for (int rank = 0; rank < CLUSTER_BLOCKS; ++rank)
                sum += block_sums[rank * 32 + pos.lane];
    }
    return sum;
}

// The same by an exchange of UNIT_SUM_BYTES. Its barrier of data is waited for, and one of the
// block: what the block sends tells that all its warps have come this far.
constexpr int SUM_QUADS = (PADDED_SLOTS + 3) / 4;
constexpr int UNIT_SUM_BYTES = 16 * SUM_QUADS * CLUSTER_BLOCKS;
DEVICE float sum_over_units(const ThreadPosition& pos, float (&part)[SLOTS_PER_LANE][1],
                            float* scratch, Exchange& exchange) {
    if constexpr (!IS_CLUSTER) return sum_over_units(pos, part, scratch);
    float* warp_sums = scratch;
    float* block_sums = scratch + 32 * WARPS;
    sum_over_warps(pos, part, warp_sums);

    // Over the warps of the block, four slots a lane; each warp sends to other blocks.
    if (pos.warp < CLUSTER_BLOCKS && pos.lane < SUM_QUADS) {
        float4 sum = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float4 four = reinterpret_cast<const float4*>(warp_sums + w * 32)[pos.lane];
            sum.x += four.x, sum.y += four.y, sum.z += four.z, sum.w += four.w;
        }
        for (int i = pos.warp; i < CLUSTER_BLOCKS; i += WARPS)
            send_to_block(block_sums + pos.rank * 32 + 4 * pos.lane,
                          (pos.rank + i) % CLUSTER_BLOCKS, sum, exchange.barrier);
    }
    sync_warp();
    receive(exchange);

    // Over the blocks of the cluster; lane i has slot i from here on.
    float sum = 0.f;
    if (pos.lane < PADDED_SLOTS)
        for (int rank = 0; rank < CLUSTER_BLOCKS; ++rank) sum += block_sums[rank * 32 + pos.lane];
    return sum;
}

// Sum over the lanes of a unit, the same in each of them.
DEVICE float sum_over_unit_lanes(float x) {
#pragma unroll
    for (int offset = LANES_PER_UNIT / 2; offset > 0; offset /= 2) x += shuffle_xor(x, offset);
    return x;
}
