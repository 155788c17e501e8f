// Several sequences side by side in one cluster, with bfloat16 products on the tensor cores
// (screened_tensor_*): what both passes share.
//
// The products of all SEQUENCES states with the block's slice of the weights are one product of
// matrices. Its factors are bfloat16: the weights in registers, the states in the shared memory of
// every block. Its sums, and all else, are float32.
//
// Apart from the product, a warp works on one sequence and WARP_UNITS units of it. Each of these
// pairs (unit, sequence) has LANES_PER_PAIR lanes, which share its slots. Every warp of a sequence
// keeps the whole record of which state is in which slot: no warp waits for another one of its
// block but for the product.
//
// Sizes that the host passes (layout.TensorTile.defines, compiler.launch):
//   PADDED_N        the hidden size n rounded up; weights beyond n are zero
//   CLUSTER_BLOCKS  thread blocks per cluster
//   SEQUENCES       of a cluster, 1 .. 16
//   ROWS            rows of weights per unit
//   WARP_UNITS      units of a warp: 8, 16 or 32
//   ROW_GROUPS, COLUMN_GROUPS  warps along the rows and the columns of the weights
//   THREADS, SHARED_FLOATS  of a block
#pragma once
#include "equations.cuh"
#include "exchange.cuh"
#include "reduce.cuh"

constexpr int UNITS_PER_BLOCK = PADDED_N / CLUSTER_BLOCKS;
constexpr int LANES_PER_PAIR = 32 / WARP_UNITS;
constexpr int WARPS_PER_SEQUENCE = UNITS_PER_BLOCK / WARP_UNITS;
constexpr int PAIR_WARPS = SEQUENCES * WARPS_PER_SEQUENCE;
constexpr int PRODUCT_WARPS = ROW_GROUPS * COLUMN_GROUPS;
constexpr int WARPS = PAIR_WARPS > PRODUCT_WARPS ? PAIR_WARPS : PRODUCT_WARPS;
constexpr int PAIRS = SEQUENCES * UNITS_PER_BLOCK;
// A pair is a column of slots. The padding lets its lanes read their slots from different
// shared-memory banks.
constexpr int SLOT_LANES = LANES_PER_PAIR;
constexpr int SLOT_STRIDE = (PAIRS + 31) / 32 * 32 + WARP_UNITS % 32;
#include "slots.cuh"
constexpr int SLOT_COLUMNS = (PADDED_SLOTS + 3) / 4 * 4;  // of a row with one number per slot
static_assert(SLOTS >= 1, "there is no slot");
static_assert(SLOTS_OF_LANE == 1, "a lane keeps one slot of a sequence");
static_assert(WARPS_PER_SEQUENCE * WARP_UNITS * CLUSTER_BLOCKS == PADDED_N, "units are left over");
static_assert(WARP_UNITS >= 8 && WARP_UNITS <= 32, "eight numbers are stored at once");
static_assert(32 * WARPS == THREADS, "the kernel and its launch disagree on the block's threads");

// What this thread works on.
struct PairPosition {
    int lane, warp;
    int rank;  // of its block in the cluster
    int cluster;
    bool has_pair;  // some warps may be there for the product alone
    int q;  // of the cluster's sequences
    int sequence;  // batch index; may be past the last one
    int warp_part;  // which of the sequence's warps in this block
    int block_unit, unit;  // within the block, and of the state
    int pair;  // index within the block
    int pair_lane;  // which of the pair's lanes
};

DEVICE PairPosition pair_position() {
    PairPosition at;
    at.lane = threadIdx.x % 32;
    at.warp = threadIdx.x / 32;
    at.rank = blockIdx.x % CLUSTER_BLOCKS;
    at.cluster = blockIdx.x / CLUSTER_BLOCKS;
    at.has_pair = at.warp < PAIR_WARPS;
    at.q = at.warp / WARPS_PER_SEQUENCE;
    at.sequence = at.cluster * SEQUENCES + at.q;
    at.warp_part = at.warp % WARPS_PER_SEQUENCE;
    at.block_unit = at.warp_part * WARP_UNITS + at.lane % WARP_UNITS;
    at.unit = at.rank * UNITS_PER_BLOCK + at.block_unit;
    at.pair = at.q * UNITS_PER_BLOCK + at.block_unit;
    at.pair_lane = at.lane / WARP_UNITS;
    return at;
}

// The steps of a sequence, and the most steps of the cluster's sequences.
DEVICE int sequence_steps(const PairPosition& at, const long long* lengths, int T, int B) {
    if (!at.has_pair || at.sequence >= B) return 0;
    return lengths ? clamped_length(lengths[at.sequence], T) : T;
}
DEVICE int most_steps(int cluster, const long long* lengths, int T, int B) {
    if (!lengths) return T;
    int most = 0;
    for (int sequence = cluster * SEQUENCES; sequence < (cluster + 1) * SEQUENCES; ++sequence) {
        const int steps = sequence < B ? clamped_length(lengths[sequence], T) : 0;
        most = steps > most ? steps : most;
    }
    return most;
}

DEVICE SlotColumn slot_column(const PairPosition& at) { return {at.pair, at.pair_lane}; }

// Sum over the lanes of a pair, the same in each of them.
DEVICE float sum_over_pair_lanes(float x) {
#pragma unroll
    for (int offset = WARP_UNITS; offset < 32; offset *= 2) x += shuffle_xor(x, offset);
    return x;
}

// What the blocks of a cluster send to each other: the inputs of a product, and sums over units. A
// step sends either once. A barrier of data is behind each: who has the data of a round knows that
// everybody has read those of the round before.
//   The inputs of a step are sent by a warp that has the sums of its sequence. These came from
//   every block, and a block sends them behind its product, for which it has read the last inputs.
//   The sums of a sequence are sent by a warp that has all inputs. These came from all warps, and a
//   warp of this sequence sends them when it has read the last sums.
// Every warp sends in every step of the cluster, behind the end of its own sequence, too.
constexpr int BARRIER_FLOATS = (2 * (1 + SEQUENCES) + 3) / 4 * 4;

// Sums over all units, in two halves: (CLUSTER_BLOCKS, SEQUENCES, WARPS_PER_SEQUENCE, SLOT_COLUMNS)
// in shared memory.
constexpr int UNIT_SUM_FLOATS = CLUSTER_BLOCKS * PAIR_WARPS * SLOT_COLUMNS;
constexpr int UNIT_SUM_BYTES = 4 * CLUSTER_BLOCKS * WARPS_PER_SEQUENCE * SLOT_COLUMNS;

// Send the warp's sums of each slot's part to every block.
DEVICE void send_sums(const PairPosition& at, float (&part)[SLOTS_PER_LANE][1], float* row,
                      float* sums, const Exchange& exchange) {
    const int which = reduce_scatter<SLOTS_PER_LANE, WARP_UNITS / 2, 1, 1>(part, at.lane);
    if (which < SLOTS_PER_LANE) row[at.pair_lane + LANES_PER_PAIR * which] = part[0][0];
    sync_warp();
    exchange.send(at.rank, at.lane, row, sums + (at.rank * PAIR_WARPS + at.warp) * SLOT_COLUMNS,
                  SLOT_COLUMNS / 4);
}

// When all have come: lane i has the sum of slot i of the warp's sequence.
DEVICE float collect_sums(const PairPosition& at, const float* sums) {
    float sum = 0.f;
    if (at.lane >= SLOTS) return sum;
#pragma unroll
    for (int rank = 0; rank < CLUSTER_BLOCKS; ++rank)
#pragma unroll
        for (int part = 0; part < WARPS_PER_SEQUENCE; ++part)
            sum += sums[(rank * PAIR_WARPS + at.q * WARPS_PER_SEQUENCE + part) * SLOT_COLUMNS +
                        at.lane];
    return sum;
}

// The product of a (OUTPUTS, INPUTS) slice of weights with the states of all sequences.
//
// A tensor core multiplies 16 rows of weights, 16 inputs and 8 sequences. Which inputs these are
// does not matter as long as weights and states agree: a lane takes 8 neighboring inputs of a state
// by one load, for two of these products. Warp (i, j) has the rows of row group i and the columns
// of column group j; the sums of the column groups are added by who reads them.
struct alignas(16) FourWords {
    unsigned x, y, z, w;
};

template <int OUTPUTS, int INPUTS>
struct TensorWeights {
    static constexpr int ROW_TILES = OUTPUTS / 16 / ROW_GROUPS;  // of a warp
    static constexpr int COLUMN_TILES = INPUTS / 32 / COLUMN_GROUPS;
    static constexpr int SEQUENCE_TILES = (SEQUENCES + 7) / 8;
    static_assert(ROW_TILES * ROW_GROUPS * 16 == OUTPUTS, "rows are left over");
    static_assert(COLUMN_TILES * COLUMN_GROUPS * 32 == INPUTS, "columns are left over");
    // From sequence to sequence, of the states in bfloat16 numbers and of the sums in floats: the
    // lanes of a load or of a store meet different shared-memory banks.
    static constexpr int STATE_STRIDE = INPUTS % 64 ? INPUTS : INPUTS + 32;
    static constexpr int SUM_STRIDE = OUTPUTS + 4;
    static constexpr int STATE_FLOATS = SEQUENCES * STATE_STRIDE / 2;
    static constexpr int SUM_FLOATS = COLUMN_GROUPS * SEQUENCES * SUM_STRIDE;
    static constexpr int INPUT_BYTES = 2 * SEQUENCES * INPUTS;

    unsigned w[ROW_TILES][COLUMN_TILES][8];

    static DEVICE int row_tile(const PairPosition& at) {
        return at.warp / COLUMN_GROUPS * ROW_TILES;
    }
    static DEVICE int column_tile(const PairPosition& at) {
        return at.warp % COLUMN_GROUPS * COLUMN_TILES;
    }

    // packed: the words of all threads, as layout.TensorTile.pack puts them. Words 0 .. 3 are of
    // the first product: each of two inputs, of rows r, r + 8, r and r + 8.
    DEVICE void load(const PairPosition& at, const float* packed) {
        if (at.warp >= PRODUCT_WARPS) return;
        const FourWords* words = reinterpret_cast<const FourWords*>(packed) + at.lane;
        const int first = (at.rank * PRODUCT_WARPS + at.warp) * ROW_TILES * COLUMN_TILES;
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i)
#pragma unroll
            for (int j = 0; j < COLUMN_TILES; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int index = (first + i * COLUMN_TILES + j) * 2 + half;
                    const FourWords four = words[32 * index];
                    w[i][j][4 * half] = four.x, w[i][j][4 * half + 1] = four.y;
                    w[i][j][4 * half + 2] = four.z, w[i][j][4 * half + 3] = four.w;
                }
    }

    // The sums of this warp's columns, into shared memory.
    DEVICE void times(const PairPosition& at, const float* states, float* sums) const {
        if (at.warp >= PRODUCT_WARPS) return;
        float sum[ROW_TILES][SEQUENCE_TILES][4] = {};
#pragma unroll
        for (int j = 0; j < COLUMN_TILES; ++j) {
            const int input = 32 * (column_tile(at) + j) + at.lane % 4 * 8;
#pragma unroll
            for (int tile = 0; tile < SEQUENCE_TILES; ++tile) {
                // Past the last sequence the numbers do not matter.
                int q = 8 * tile + at.lane / 4;
                q = q < SEQUENCES ? q : SEQUENCES - 1;
                const FourWords x =
                    *reinterpret_cast<const FourWords*>(states + (q * STATE_STRIDE + input) / 2);
#pragma unroll
                for (int i = 0; i < ROW_TILES; ++i) {
                    multiply_tiles(sum[i][tile], w[i][j], x.x, x.y);
                    multiply_tiles(sum[i][tile], w[i][j] + 4, x.z, x.w);
                }
            }
        }
        float* group_sums = sums + at.warp % COLUMN_GROUPS * SEQUENCES * SUM_STRIDE;
#pragma unroll
        for (int i = 0; i < ROW_TILES; ++i)
#pragma unroll
            for (int tile = 0; tile < SEQUENCE_TILES; ++tile)
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    const int row = 16 * (row_tile(at) + i) + at.lane / 4 + k / 2 * 8;
                    const int q = 8 * tile + at.lane % 4 * 2 + k % 2;
                    if (q < SEQUENCES) group_sums[q * SUM_STRIDE + row] = sum[i][tile][k];
                }
    }

    // The product of row `row` with the state of the warp's sequence.
    static DEVICE float result(const PairPosition& at, const float* sums, int row) {
        float total = 0.f;
#pragma unroll
        for (int j = 0; j < COLUMN_GROUPS; ++j)
            total += sums[(j * SEQUENCES + at.q) * SUM_STRIDE + row];
        return total;
    }

    // Send numbers of the pair, x[i] as input i * PADDED_N + unit, to every block. `row` has room
    // for COUNT * WARP_UNITS / 2 floats.
    template <int COUNT>
    static DEVICE void send_inputs(const PairPosition& at, const float (&x)[COUNT], float* row,
                                   float* states, const Exchange& exchange) {
        constexpr int FLOATS = WARP_UNITS / 2;  // two numbers each
        unsigned short* halves = reinterpret_cast<unsigned short*>(row);
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (at.pair_lane == 0) halves[i * WARP_UNITS + at.lane] = bf16_bits(x[i]);
        sync_warp();
        const int first = at.unit - at.lane % WARP_UNITS;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            exchange.send(at.rank, at.lane, row + i * FLOATS,
                          states + (at.q * STATE_STRIDE + i * PADDED_N + first) / 2, FLOATS / 4);
    }
};
