// Attention over the whole history, for MemRNN and MemLSTM: what both passes share.
//
// One cluster runs one sequence. The history is in device memory, one row of PADDED_N floats per
// step. The warps of the cluster take turns, ROWS_AT_ONCE rows each; a new row is written by the
// block that will read it. The matrices are small beside the history and come from the cache: every
// block computes every product for itself.
//
// Sizes that the host passes (full_attention.ClusterLayout.defines, compiler.launch):
//   PADDED_N        the hidden size n rounded up to a multiple of 128; everything beyond n is zero
//   CLUSTER_BLOCKS  thread blocks per cluster
//   GATES           of the cell: 1, or 4 for an LSTM
//   MIX_MEAN        s = (h + c) / 2 instead of h + c
//   THREADS, SHARED_FLOATS  of a block
#pragma once
#include "equations.cuh"
#include "reduce.cuh"

constexpr int PIECES = PADDED_N / 128;  // float4 of a row per lane
constexpr int ROWS_AT_ONCE = PIECES > 2 ? 1 : 4 / PIECES;
constexpr int WARPS = PIECES > 2 ? 8 : 16;
constexpr float MIX = MIX_MEAN ? .5f : 1.f;
static_assert(PADDED_N % 128 == 0, "a row is whole float4 for every lane");
static_assert(32 * WARPS == THREADS, "the kernel and its launch disagree on the block's threads");

DEVICE float4 zero4() { return float4{0.f, 0.f, 0.f, 0.f}; }
DEVICE float sum4(const float4& a) { return (a.x + a.y) + (a.z + a.w); }
// a += x b
DEVICE void add4(float4& a, float x, const float4& b) {
    a.x += x * b.x;
    a.y += x * b.y;
    a.z += x * b.z;
    a.w += x * b.w;
}

// A row of PADDED_N floats, spread over the lanes of a warp.
struct Row {
    float4 piece[PIECES];

    DEVICE void load(const float* row, int lane) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
            piece[i] = reinterpret_cast<const float4*>(row)[lane + 32 * i];
    }
    DEVICE void store(float* row, int lane) const {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) reinterpret_cast<float4*>(row)[lane + 32 * i] = piece[i];
    }
    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) piece[i] = zero4();
    }
    // f(unit, value) of each of this lane's units.
    template <class F>
    DEVICE void visit(int lane, const F& f) const {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const int unit = 4 * (lane + 32 * i);
            f(unit, piece[i].x), f(unit + 1, piece[i].y);
            f(unit + 2, piece[i].z), f(unit + 3, piece[i].w);
        }
    }
    // this += x other
    DEVICE void add(float x, const Row& other) {
#pragma unroll
        for (int i = 0; i < PIECES; ++i) add4(piece[i], x, other.piece[i]);
    }
    // This lane's part of the inner product.
    DEVICE float dot(const Row& other) const {
        float4 sum = zero4();
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            const float4 &a = piece[i], &b = other.piece[i];
            sum.x += a.x * b.x;
            sum.y += a.y * b.y;
            sum.z += a.z * b.z;
            sum.w += a.w * b.w;
        }
        return sum4(sum);
    }
};

// r of each unit, tanh(q + k) = 1 - 2 r, for a prescaled query and key.
DEVICE Row half_one_minus_tanh(const Row& query, const Row& key) {
    Row r;
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        const float4 &q = query.piece[i], &k = key.piece[i];
        r.piece[i] = float4{half_one_minus_tanh(q.x, k.x), half_one_minus_tanh(q.y, k.y),
                            half_one_minus_tanh(q.z, k.z), half_one_minus_tanh(q.w, k.w)};
    }
    return r;
}

// The rows of a warp: ROWS_AT_ONCE from first_row on, then every ROW_STRIDE rows.
constexpr int ROW_STRIDE = ROWS_AT_ONCE * WARPS * CLUSTER_BLOCKS;
DEVICE int first_row(int rank, int warp) { return ROWS_AT_ONCE * (rank * WARPS + warp); }
// The block of the cluster that has a row.
DEVICE int owner(int row) { return row / ROWS_AT_ONCE % (WARPS * CLUSTER_BLOCKS) / WARPS; }

// Floats of scratch that `product` needs: 16 partial sums of up to 512 outputs, fewer of more.
constexpr int PRODUCT_SCRATCH = (GATES + 1) * PADDED_N > 8192 ? (GATES + 1) * PADDED_N : 8192;

// y[r] = sum_k matrix[k][r] x[k] for OUTPUTS outputs r and INPUTS inputs k, by the whole block;
// x, y and `scratch` in shared memory. Barriers: x must be complete before, y is complete after.
template <int INPUTS, int OUTPUTS>
DEVICE void product(const float* matrix, const float* x, float* y, float* scratch) {
    // The inputs are split among SPLITS groups of threads, the outputs among a group's threads.
    constexpr int SPLITS = OUTPUTS <= 512    ? THREADS / 32
                           : OUTPUTS <= 1024 ? 8
                           : OUTPUTS <= 2048 ? 4
                           : OUTPUTS <= 4096 ? 2
                                             : 1;
    static_assert(SPLITS * OUTPUTS <= PRODUCT_SCRATCH, "the partial sums do not fit the scratch");
    constexpr int GROUP = THREADS / SPLITS, STEPS = INPUTS / SPLITS;
    const int column = threadIdx.x % GROUP, split = threadIdx.x / GROUP;
    const float4* weights =
        reinterpret_cast<const float4*>(matrix) + (long long)split * STEPS * (OUTPUTS / 4);
    for (int c = column; c < OUTPUTS / 4; c += GROUP) {
        float4 sum = zero4();
#pragma unroll 8
        for (int k = 0; k < STEPS; ++k)
            add4(sum, x[split * STEPS + k], weights[k * (OUTPUTS / 4) + c]);
        reinterpret_cast<float4*>(scratch)[split * (OUTPUTS / 4) + c] = sum;
    }
    sync_block();

    // Sum over the groups.
    for (int r = threadIdx.x; r < OUTPUTS; r += THREADS) {
        float sum = 0.f;
        for (int i = 0; i < SPLITS; ++i) sum += scratch[i * OUTPUTS + r];
        y[r] = sum;
    }
    sync_block();
}
