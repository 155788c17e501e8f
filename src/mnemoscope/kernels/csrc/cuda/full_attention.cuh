// Attention over the whole history, for MemRNN and MemLSTM: what both passes share.
//
// One cluster runs one sequence. The history has one row of PADDED_N floats per step, for its key
// and for its value. The warps of the cluster take turns, ROWS_AT_ONCE rows each; a new row is
// written by the block that will read it. The first groups of rows are in the shared memory of
// their block, the others in device memory: every step reads all of them, which takes longer than
// the arithmetic on them. The matrices are small beside the history and come from the cache: every
// block computes every product for itself.
//
// Sizes that the host passes (full_attention.ClusterLayout.defines, compiler.launch):
//   PADDED_N        the hidden size n rounded up to a multiple of 128; everything beyond n is zero
//   CLUSTER_BLOCKS  thread blocks per cluster
//   RESIDENT        groups of every warp in shared memory
//   GATES           of the cell: 1, or 4 for an LSTM
//   MIX_MEAN        s = (h + c) / 2 instead of h + c
//   THREADS, SHARED_FLOATS  of a block
#pragma once
#include "equations.cuh"
#include "exchange.cuh"
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

// Queries and keys are kept as powers: x = 2^z for a prescaled z. r is then 1 / (1 + x_q x_k),
// without a power of two for each pair. Beyond |z| = 126 a power leaves float's range, and z itself
// is kept, in a form that no power has: -z above, 1 / z below.
DEVICE bool has_power(float z) { return fabsf(z) <= 126.f; }  // false of NaN
DEVICE float as_power(float z) {
    if (z > 126.f) return -z;
    return z < -126.f ? reciprocal(z) : power_of_two(z);
}
DEVICE float exponent(float x) {
    if (float_bits(x) == 0) return 0.f;  // of a row that is none yet: minus infinity would give NaN
    if (x < -1.f) return -x;
    return x < 0.f ? reciprocal(x) : log_two(x);
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
    // Prescale, and keep powers; true if some of them are none.
    DEVICE bool make_powers() {
        bool beyond = false;
        const auto make = [&](float& x) {
            const float z = prescale(x);
            beyond |= !has_power(z);
            x = as_power(z);
        };
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            make(piece[i].x), make(piece[i].y);
            make(piece[i].z), make(piece[i].w);
        }
        return beyond;
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

// r of each unit, tanh(q + k) = 1 - 2 r. BEYOND: some of the numbers may have no power.
template <bool BEYOND>
DEVICE float half_one_minus_tanh_of_powers(float q, float k) {
    if constexpr (BEYOND) return half_one_minus_tanh(exponent(q), exponent(k));
    return reciprocal(1.f + q * k);
}
template <bool BEYOND>
DEVICE Row half_one_minus_tanh(const Row& query, const Row& key) {
    Row r;
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        const float4 &q = query.piece[i], &k = key.piece[i];
        r.piece[i] = float4{half_one_minus_tanh_of_powers<BEYOND>(q.x, k.x),
                            half_one_minus_tanh_of_powers<BEYOND>(q.y, k.y),
                            half_one_minus_tanh_of_powers<BEYOND>(q.z, k.z),
                            half_one_minus_tanh_of_powers<BEYOND>(q.w, k.w)};
    }
    return r;
}

// The rows of a warp: ROWS_AT_ONCE from first_row on, then every ROW_STRIDE rows.
constexpr int ROW_STRIDE = ROWS_AT_ONCE * WARPS * CLUSTER_BLOCKS;
DEVICE int first_row(int rank, int warp) { return ROWS_AT_ONCE * (rank * WARPS + warp); }
// The block of the cluster that has a row.
DEVICE int owner(int row) { return row / ROWS_AT_ONCE % (WARPS * CLUSTER_BLOCKS) / WARPS; }

// The keys and values of a sequence, for the block that has them: as many whole groups of
// ROWS_AT_ONCE rows as its rows take, zeros where there is no row yet.
constexpr int GROUP_FLOATS = ROWS_AT_ONCE * PADDED_N;
constexpr int RESIDENT_FLOATS = RESIDENT * WARPS * 2 * GROUP_FLOATS;
struct History {
    float *keys, *values;  // (rows, PADDED_N), in device memory
    float* resident;  // (RESIDENT, WARPS, 2, ROWS_AT_ONCE, PADDED_N), in shared memory

    // The keys of a row's group in shared memory, behind which are its values; null if they are
    // not there.
    DEVICE float* shared_group(int row) const {
        const int turn = row / ROW_STRIDE, warp = row / ROWS_AT_ONCE % WARPS;
        return turn < RESIDENT ? resident + (turn * WARPS + warp) * 2 * GROUP_FLOATS : nullptr;
    }
    DEVICE float* key(int row) const {
        float* group = shared_group(row);
        if (group) return group + row % ROWS_AT_ONCE * PADDED_N;
        return keys + (long long)row * PADDED_N;
    }
    DEVICE float* value(int row) const {
        float* group = shared_group(row);
        if (group) return group + (ROWS_AT_ONCE + row % ROWS_AT_ONCE) * PADDED_N;
        return values + (long long)row * PADDED_N;
    }
    // Before all else: no rows yet, in shared memory.
    DEVICE void clear() const {
        for (int i = threadIdx.x; i < RESIDENT_FLOATS; i += THREADS) resident[i] = 0.f;
    }
};

// The keys and values of a group, which begins at row `first`.
struct RowGroup {
    Row key[ROWS_AT_ONCE], value[ROWS_AT_ONCE];

    DEVICE void load(const History& history, int first, int lane) {
        const float *keys = history.key(first), *values = history.value(first);
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; ++i) {
            key[i].load(keys + i * PADDED_N, lane);
            value[i].load(values + i * PADDED_N, lane);
        }
    }
};

// `product` splits its inputs among groups of threads: fewer, the more outputs there are. `scratch`
// are the floats for their parts of the sums.
template <int OUTPUTS>
struct ProductSizes {
    static constexpr int splits = OUTPUTS <= 512    ? THREADS / 32
                                  : OUTPUTS <= 1024 ? 8
                                  : OUTPUTS <= 2048 ? 4
                                  : OUTPUTS <= 4096 ? 2
                                                    : 1;
    static constexpr int scratch = splits * OUTPUTS;
};
template <int A, int B>
constexpr int LARGER = A > B ? A : B;

// y[r] = sum_k matrix[k][r] x[k] for OUTPUTS outputs r and INPUTS inputs k, by the whole block;
// x, y and `scratch` in shared memory. Barriers: x must be complete before, y is complete after.
template <int INPUTS, int OUTPUTS>
DEVICE void product(const float* matrix, const float* x, float* y, float* scratch) {
    // The inputs are split among SPLITS groups of threads, the outputs among a group's threads.
    constexpr int SPLITS = ProductSizes<OUTPUTS>::splits;
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
