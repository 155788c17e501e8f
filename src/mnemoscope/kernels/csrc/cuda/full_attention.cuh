// Attention over everything that ever was, for MemRNN and MemLSTM: what both passes share.
//
// One cluster of C blocks walks one sequence. The history lies in device memory, one row of N floats a step, and is
// dealt out to the warps of the cluster PAIRS rows at a time; a row is only ever touched by the block that owns it. The
// matrices are small beside it and come from the cache, every block making every product for itself.
#pragma once
#include "cell.cuh"
#include "fold.cuh"

constexpr int Q = N / 128;                        // 16-byte pieces of a row a lane
constexpr int PAIRS = Q > 2 ? 1 : 4 / Q;          // rows that a warp reads at once
constexpr int NW = Q > 2 ? 8 : 16;
constexpr int THREADS = 32 * NW;
constexpr float MIX = MEAN ? .5f : 1.f;
static_assert(N % 128 == 0, "a row is whole pieces");

DEVICE float4 zero4() { return float4{0.f, 0.f, 0.f, 0.f}; }
DEVICE float total4(const float4& a) { return (a.x + a.y) + (a.z + a.w); }
DEVICE void add4(float4& a, float x, const float4& b) { a.x += x * b.x, a.y += x * b.y, a.z += x * b.z, a.w += x * b.w; }

// A row of N floats spread over a warp.
struct Row {
    float4 piece[Q];

    DEVICE void load(const float* row, int lane) {
#pragma unroll
        for (int i = 0; i < Q; ++i) piece[i] = reinterpret_cast<const float4*>(row)[lane + 32 * i];
    }
    DEVICE void store(float* row, int lane) const {
#pragma unroll
        for (int i = 0; i < Q; ++i) reinterpret_cast<float4*>(row)[lane + 32 * i] = piece[i];
    }
    DEVICE void fill(float x) {
#pragma unroll
        for (int i = 0; i < Q; ++i) piece[i] = float4{x, x, x, x};
    }
    DEVICE void clear() { fill(0.f); }
    DEVICE void add(float x, const Row& other) {
#pragma unroll
        for (int i = 0; i < Q; ++i) add4(piece[i], x, other.piece[i]);
    }
    DEVICE float dot(const Row& other) const {
        float4 sum = zero4();
#pragma unroll
        for (int i = 0; i < Q; ++i) {
            const float4 &a = piece[i], &b = other.piece[i];
            sum.x += a.x * b.x, sum.y += a.y * b.y, sum.z += a.z * b.z, sum.w += a.w * b.w;
        }
        return total4(sum);
    }
};

// r of each unit, tanh(q + k) = 1 - 2 r, for queries and keys doubled.
DEVICE Row score(const Row& query, const Row& key) {
    Row r;
#pragma unroll
    for (int i = 0; i < Q; ++i) {
        const float4 &a = query.piece[i], &b = key.piece[i];
        r.piece[i] = float4{unbent(a.x, b.x), unbent(a.y, b.y), unbent(a.z, b.z), unbent(a.w, b.w)};
    }
    return r;
}

// Which rows a warp has: PAIRS at a time, in turn with all the warps of the cluster.
DEVICE int first_row(int rank, int warp) { return PAIRS * (rank * NW + warp); }
constexpr int NEXT_ROWS = PAIRS * NW * C;
DEVICE int owner(int row) { return row / PAIRS % (NW * C) / NW; }

// y[r] = sum_k matrix[k][r] x[k] for R outputs of K inputs; x, y and `scratch` (at least PRODUCT_SCRATCH) in shared memory.
template <int K, int R>
DEVICE void product(const float* matrix, const float* x, float* y, float* scratch) {
    constexpr int SPLITS = R <= 512 ? THREADS / 32 : R <= 1024 ? 8 : R <= 2048 ? 4 : R <= 4096 ? 2 : 1;
    constexpr int WIDTH = THREADS / SPLITS, STEPS = K / SPLITS;
    const int column = threadIdx.x % WIDTH, split = threadIdx.x / WIDTH;
    const float4* weights = reinterpret_cast<const float4*>(matrix) + (long long)split * STEPS * (R / 4);
    for (int c = column; c < R / 4; c += WIDTH) {
        float4 sum = zero4();
#pragma unroll 8
        for (int k = 0; k < STEPS; ++k) add4(sum, x[split * STEPS + k], weights[k * (R / 4) + c]);
        reinterpret_cast<float4*>(scratch)[split * (R / 4) + c] = sum;
    }
    sync_block();
    for (int r = threadIdx.x; r < R; r += THREADS) {
        float sum = 0.f;
        for (int i = 0; i < SPLITS; ++i) sum += scratch[i * R + r];
        y[r] = sum;
    }
    sync_block();
}

// At most 16 parts of 512 outputs, or as many outputs as there are.
constexpr int PRODUCT_SCRATCH = (G + 1) * N > 8192 ? (G + 1) * N : 8192;

// Sum over a whole warp, the same in every lane.
DEVICE float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += shuffle_xor(x, offset);
    return x;
}
