// Several sequences side by side in one cluster (screened_batch_*): what both passes share.
//
// Where a batch has more sequences than clusters fit on the device at once, a cluster takes
// SEQUENCES of them. The weights stay in the registers; the lanes that have the same unit divide
// the sequences among them, so that each pair (unit, sequence) has LANES_PER_PAIR lanes. Slots are
// kept for each pair, and warp q keeps the record of which state is in which slot of sequence q.
//
// Sizes are those of tile.cuh and screening.cuh, and SEQUENCES.
#pragma once
#include "equations.cuh"
#include "tile.cuh"

constexpr int LANES_PER_PAIR = LANES_PER_UNIT / SEQUENCES;
constexpr int PAIRS_PER_WARP = 32 / LANES_PER_PAIR;
// A pair is a column of slots. The padding lets its lanes read their slots from different
// shared-memory banks.
constexpr int SLOT_LANES = LANES_PER_PAIR;
constexpr int SLOT_STRIDE = UNITS_PER_BLOCK * SEQUENCES + PAIRS_PER_WARP;
#include "slots.cuh"
constexpr int SLOT_COLUMNS = (PADDED_SLOTS + 3) / 4 * 4;  // of a row with one number per slot
static_assert(SLOTS >= 1, "there is no slot");
static_assert(SLOTS_OF_LANE == 1, "a lane keeps one slot of a sequence");
static_assert(LANES_PER_PAIR * SEQUENCES == LANES_PER_UNIT, "lanes do not cover the sequences");
static_assert(SEQUENCES <= WARPS, "warp q has the slots of sequence q");
static_assert(UNITS_PER_WARP >= 4, "four units are stored at once");

// The sequence of this thread, and the pair (unit, sequence) that it works on.
struct PairPosition {
    int q;  // of the cluster's sequences
    int sequence;  // batch index; may be past the last one
    int pair;  // index within the block
    int pair_lane;  // which of the pair's lanes
};

DEVICE PairPosition pair_position(const ThreadPosition& pos) {
    PairPosition at;
    at.q = pos.unit_lane / LANES_PER_PAIR;
    at.sequence = pos.sequence * SEQUENCES + at.q;  // pos.sequence is the cluster's index
    at.pair = pos.block_unit * SEQUENCES + at.q;
    at.pair_lane = pos.unit_lane % LANES_PER_PAIR;
    return at;
}

DEVICE SlotColumn slot_column(const PairPosition& at) { return {at.pair, at.pair_lane}; }

// Send this pair's x to row q of a (SEQUENCES, PADDED_N) table of every block of the cluster. The
// lanes of four neighboring units divide the blocks among them and send four numbers at once.
DEVICE void send_pair(const ThreadPosition& pos, const PairPosition& at, float x, float* table,
                      const Exchange& exchange) {
    const int first = pos.lane / (4 * LANES_PER_UNIT) * (4 * LANES_PER_UNIT) + pos.unit_lane;
    const float4 four = {shuffle(x, first), shuffle(x, first + LANES_PER_UNIT),
                         shuffle(x, first + 2 * LANES_PER_UNIT),
                         shuffle(x, first + 3 * LANES_PER_UNIT)};
    float* address = table + at.q * PADDED_N + pos.unit / 4 * 4;
    const int turn = pos.lane / LANES_PER_UNIT % 4 * LANES_PER_PAIR + at.pair_lane;
    for (int rank = turn; rank < CLUSTER_BLOCKS; rank += 4 * LANES_PER_PAIR)
        if constexpr (IS_CLUSTER)
            send_to_block(address, (pos.rank + rank) % CLUSTER_BLOCKS, four, exchange.barrier);
        else
            store_in_block(address, rank, four);
}

// Shared memory of sum_over_units: the sums of the warps (WARPS, SEQUENCES, SLOT_COLUMNS), then of
// the blocks (CLUSTER_BLOCKS, SEQUENCES, SLOT_COLUMNS).
constexpr int SUM_ROW = SEQUENCES * SLOT_COLUMNS;
constexpr int UNIT_SUM_FLOATS = (WARPS + CLUSTER_BLOCKS) * SUM_ROW;
constexpr int UNIT_SUM_BYTES = 4 * CLUSTER_BLOCKS * SUM_ROW;

// Each exchange between the units of a warp halves the sums that a lane works on. SUMS_LEFT remain
// if all of them halve evenly, so that their number is rounded up to PARTS.
constexpr int SUMS_LEFT = (SLOTS_PER_LANE + UNITS_PER_WARP - 1) / UNITS_PER_WARP;
constexpr int PARTS = SUMS_LEFT * UNITS_PER_WARP;

// Sum over all units of each slot's part (zero past the lane's last slot); returns, in lane i of
// warp q, the sum of slot i of sequence q. Two barriers if the units are spread over a cluster, one
// otherwise.
DEVICE float sum_over_units(const ThreadPosition& pos, const PairPosition& at,
                            float (&part)[PARTS][1], float* scratch, Exchange& exchange) {
    float* warp_sums = scratch;
    float* block_sums = scratch + WARPS * SUM_ROW;

    // Over the units of the warp: each lane is left with some of its slots.
    const int first = reduce_scatter<PARTS, 16, LANES_PER_UNIT, 1>(part, pos.lane);
#pragma unroll
    for (int i = 0; i < SUMS_LEFT; ++i)
        if (first + i < SLOTS_PER_LANE)
            warp_sums[pos.warp * SUM_ROW + at.q * SLOT_COLUMNS + at.pair_lane +
                      LANES_PER_PAIR * (first + i)] = part[i][0];
    sync_block();

    // Over the warps, and over the blocks of the cluster. Four slots at once; the threads divide
    // what is sent to other blocks among them.
    const bool has_slot = pos.warp < SEQUENCES && pos.lane < PADDED_SLOTS;
    const int column = pos.warp * SLOT_COLUMNS + pos.lane;
    float sum = 0.f;
    if constexpr (CLUSTER_BLOCKS > 1) {
        constexpr int FOURS = SUM_ROW / 4;
        const int four = threadIdx.x % FOURS;
        float4 total = {0.f, 0.f, 0.f, 0.f};
        for (int w = 0; w < WARPS; ++w) {
            const float4 next = reinterpret_cast<const float4*>(warp_sums + w * SUM_ROW)[four];
            total.x += next.x, total.y += next.y, total.z += next.z, total.w += next.w;
        }
        constexpr int AT_ONCE = THREADS / FOURS;
        if (threadIdx.x < AT_ONCE * FOURS)
            for (int rank = threadIdx.x / FOURS; rank < CLUSTER_BLOCKS; rank += AT_ONCE)
                send_to_block(block_sums + pos.rank * SUM_ROW + 4 * four,
                              (pos.rank + rank) % CLUSTER_BLOCKS, total, exchange.barrier);
        sync_warp();
        receive(exchange);
        if (has_slot)
#pragma unroll
            for (int rank = 0; rank < CLUSTER_BLOCKS; ++rank)
                sum += block_sums[rank * SUM_ROW + column];
    } else if (has_slot) {
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += warp_sums[w * SUM_ROW + column];
    }
    return sum;
}

// Sum over the lanes of a pair, the same in each of them.
DEVICE float sum_over_pair_lanes(float x) {
#pragma unroll
    for (int offset = LANES_PER_PAIR / 2; offset > 0; offset /= 2) x += shuffle_xor(x, offset);
    return x;
}

// The steps of a sequence, and the most steps of the cluster's sequences.
DEVICE int sequence_steps(int sequence, const long long* lengths, int T, int B) {
    if (sequence >= B) return 0;
    return lengths ? clamped_length(lengths[sequence], T) : T;
}
DEVICE int most_steps(int cluster, const long long* lengths, int T, int B) {
    int most = 0;
    for (int q = 0; q < SEQUENCES; ++q) {
        const int steps = sequence_steps(cluster * SEQUENCES + q, lengths, T, B);
        most = steps > most ? steps : most;
    }
    return most;
}
