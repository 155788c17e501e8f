// How one recurrence is laid out over the threads of a cluster (cells, screened, sab).
//
// One cluster runs one sequence. The weights never leave the registers. Every unit of the state has
// ROWS rows of weights over PADDED_N inputs; a lane holds UNITS_PER_LANE units x ROWS rows x 16
// columns. The LANES_PER_ROW lanes that share rows sum their parts by reduce_scatter: each exchange
// halves the units that a lane works on, until every lane has one unit and LANES_PER_UNIT
// neighboring lanes have the same one. These lanes then share the work on it.
//
// Sizes that the host passes (layout.Tile.defines, compiler.launch):
//   PADDED_N        the hidden size n rounded up to 64, 128, 256 or 512; weights beyond n are zero
//   CLUSTER_BLOCKS  thread blocks per cluster
//   UNITS_PER_LANE  units whose weights one lane holds
//   ROWS            rows of weights per unit
//   THREADS, SHARED_FLOATS  of a block
#pragma once
#include "exchange.cuh"
#include "reduce.cuh"

constexpr int LANES_PER_ROW = PADDED_N / 16;
constexpr int LANES_PER_UNIT = LANES_PER_ROW / UNITS_PER_LANE;
constexpr int UNITS_PER_WARP = 32 / LANES_PER_UNIT;
constexpr int UNITS_PER_BLOCK = PADDED_N / CLUSTER_BLOCKS;
constexpr int WARPS = UNITS_PER_BLOCK / UNITS_PER_WARP;
static_assert(LANES_PER_UNIT * UNITS_PER_LANE * 16 == PADDED_N, "lanes do not cover a row");
static_assert(UNITS_PER_WARP * WARPS == UNITS_PER_BLOCK, "warps do not cover the block's units");
static_assert(32 * WARPS == THREADS, "the kernel and its launch disagree on the block's threads");

// What this thread works on.
struct ThreadPosition {
    int lane, warp;
    int rank;  // of its block in the cluster
    int sequence;  // batch index
    int unit;  // of the state; one of LANES_PER_UNIT lanes that have it
    int unit_lane;  // which of them
    int block_unit;  // the unit's index within the block
    int row_lane;  // which of the LANES_PER_ROW lanes along a row of weights
};

DEVICE ThreadPosition thread_position() {
    ThreadPosition pos;
    pos.lane = threadIdx.x % 32;
    pos.warp = threadIdx.x / 32;
    pos.rank = blockIdx.x % CLUSTER_BLOCKS;
    pos.sequence = blockIdx.x / CLUSTER_BLOCKS;
    pos.unit_lane = pos.lane % LANES_PER_UNIT;
    pos.row_lane = pos.lane % LANES_PER_ROW;
    pos.block_unit = pos.warp * UNITS_PER_WARP + pos.lane / LANES_PER_UNIT;
    pos.unit = pos.rank * UNITS_PER_BLOCK + pos.block_unit;
    return pos;
}

// The first of the UNITS_PER_LANE units, and the 16 inputs, whose weights this lane holds.
DEVICE int first_unit(const ThreadPosition& pos) {
    return pos.rank * UNITS_PER_BLOCK + pos.warp * UNITS_PER_WARP +
           pos.lane / LANES_PER_ROW * UNITS_PER_LANE;
}
DEVICE int input_index(const ThreadPosition& pos, int i) {
    return 4 * (pos.row_lane + LANES_PER_ROW * (i / 4)) + i % 4;
}

// y[r] = sum_k W[r, unit, k] x[k]; x (PADDED_N) in shared memory.
struct WeightRows {
    float w[UNITS_PER_LANE][ROWS][16];

    // Matrix r (n, n), row-major.
    DEVICE void load(const ThreadPosition& pos, int r, const float* matrix, int n) {
#pragma unroll
        for (int j = 0; j < UNITS_PER_LANE; ++j)
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const int row = first_unit(pos) + j;
                const int column = input_index(pos, i);
                const bool inside = row < n && column < n;
                w[j][r][i] = inside ? matrix[(long long)row * n + column] : 0.f;
            }
    }

    DEVICE void times(const ThreadPosition& pos, const float* x, float* y) const {
        float acc[UNITS_PER_LANE][ROWS] = {};
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            const float4 part =
                reinterpret_cast<const float4*>(x)[pos.row_lane + LANES_PER_ROW * m];
#pragma unroll
            for (int j = 0; j < UNITS_PER_LANE; ++j)
#pragma unroll
                for (int r = 0; r < ROWS; ++r) {
                    acc[j][r] += w[j][r][4 * m] * part.x;
                    acc[j][r] += w[j][r][4 * m + 1] * part.y;
                    acc[j][r] += w[j][r][4 * m + 2] * part.z;
                    acc[j][r] += w[j][r][4 * m + 3] * part.w;
                }
        }
        reduce_scatter<UNITS_PER_LANE, LANES_PER_ROW / 2, 1, ROWS>(acc, pos.lane);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) y[r] = acc[0][r];
    }
};

// y = sum_{r, k} W[r, k, unit] x[r, k], the transposed product; x in shared memory, (ROWS,
// PADDED_N) with `stride` numbers from row to row.
struct WeightColumns {
    float w[UNITS_PER_LANE][ROWS][16];

    // Matrix r (n, n), row-major.
    DEVICE void load(const ThreadPosition& pos, int r, const float* matrix, int n) {
#pragma unroll
        for (int j = 0; j < UNITS_PER_LANE; ++j)
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const int column = first_unit(pos) + j;
                const int row = input_index(pos, i);
                const bool inside = row < n && column < n;
                w[j][r][i] = inside ? matrix[(long long)row * n + column] : 0.f;
            }
    }

    DEVICE float times(const ThreadPosition& pos, const float* x, int stride = PADDED_N) const {
        // Four sums per unit keep the chains of dependent additions short.
        float quarter[UNITS_PER_LANE][4] = {};
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int m = 0; m < 4; ++m) {
                const float4 part = reinterpret_cast<const float4*>(
                    x + r * stride)[pos.row_lane + LANES_PER_ROW * m];
#pragma unroll
                for (int j = 0; j < UNITS_PER_LANE; ++j) {
                    quarter[j][0] += w[j][r][4 * m] * part.x;
                    quarter[j][1] += w[j][r][4 * m + 1] * part.y;
                    quarter[j][2] += w[j][r][4 * m + 2] * part.z;
                    quarter[j][3] += w[j][r][4 * m + 3] * part.w;
                }
            }
        float acc[UNITS_PER_LANE][1];
#pragma unroll
        for (int j = 0; j < UNITS_PER_LANE; ++j) {
            const float* q = quarter[j];
            acc[j][0] = (q[0] + q[1]) + (q[2] + q[3]);
        }
        reduce_scatter<UNITS_PER_LANE, LANES_PER_ROW / 2, 1, 1>(acc, pos.lane);
        return acc[0][0];
    }
};

// Store this unit's x at the same offset in every block of the cluster. The unit's lanes share the
// CLUSTER_BLOCKS stores.
DEVICE void store_in_cluster(const ThreadPosition& pos, float* address, float x) {
    for (int rank = pos.unit_lane; rank < CLUSTER_BLOCKS; rank += LANES_PER_UNIT)
        store_in_block(address, rank, x);
}

// Numbers of all units are sent to every block of a cluster (exchange.cuh).
constexpr int UNIT_BYTES = 4 * PADDED_N;  // of a round with one number per unit
constexpr int QUADS = UNITS_PER_WARP / 4;  // 16 bytes are sent at once
static_assert(4 * QUADS == UNITS_PER_WARP, "four numbers are sent at once");
static_assert(QUADS * CLUSTER_BLOCKS <= 32, "a warp sends one number per unit at once");

// Send this unit's x to its place in `row` (PADDED_N) of every block.
DEVICE void send_unit(const ThreadPosition& pos, float x, float* row, const Exchange& exchange) {
    if constexpr (IS_CLUSTER) {
        const int first = pos.rank * UNITS_PER_BLOCK + pos.warp * UNITS_PER_WARP;
        const int quad = pos.lane % QUADS, source = 4 * quad * LANES_PER_UNIT;
        const float4 four = {shuffle(x, source), shuffle(x, source + LANES_PER_UNIT),
                             shuffle(x, source + 2 * LANES_PER_UNIT),
                             shuffle(x, source + 3 * LANES_PER_UNIT)};
        if (pos.lane < QUADS * CLUSTER_BLOCKS)
            send_to_block(row + first + 4 * quad, (pos.rank + pos.lane / QUADS) % CLUSTER_BLOCKS,
                          four, exchange.barrier);
    } else {
        store_in_cluster(pos, row + pos.unit, x);
    }
}

// Send this unit's ROWS numbers x to their places in `rows` (ROWS, PADDED_N) of every block, from
// `outbox` in shared memory.
constexpr int OUTBOX_FLOATS = IS_CLUSTER ? ROWS * UNITS_PER_BLOCK : 0;
DEVICE void send_unit_rows(const ThreadPosition& pos, const float* x, float* outbox, float* rows,
                           const Exchange& exchange) {
    if constexpr (IS_CLUSTER) {
        const int thread = thread_index(), lane = thread % 32, warp = thread / 32;
        const int first = pos.rank * UNITS_PER_BLOCK + warp * UNITS_PER_WARP;
        float* own = outbox + warp * ROWS * UNITS_PER_WARP;
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (lane % LANES_PER_UNIT == 0) own[r * UNITS_PER_WARP + lane / LANES_PER_UNIT] = x[r];
        sync_warp();
        constexpr int COUNT = CLUSTER_BLOCKS * ROWS * QUADS;
#pragma unroll
        for (int k = 0; k < COUNT; k += 32) {
            const int i = k + lane, row = i / QUADS % ROWS, quad = i % QUADS;
            if (i >= COUNT) break;
            send_to_block(rows + row * PADDED_N + first + 4 * quad,
                          (pos.rank + i / (ROWS * QUADS)) % CLUSTER_BLOCKS,
                          reinterpret_cast<const float4*>(own)[i % (ROWS * QUADS)],
                          exchange.barrier);
        }
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) store_in_cluster(pos, rows + r * PADDED_N + pos.unit, x[r]);
    }
}
