// What both passes of the screened recurrences over single steps share (screened_step_*.cu).
#pragma once
#include "reduce.cuh"
#include "screening.cuh"

constexpr int GATES = ROWS - 2;  // of the cell: 1, or 4 for an LSTM
// Rows of a state's products: V h (GATES of them), W_a h, U_a h.
constexpr int QUERY = GATES, KEY = GATES + 1;
constexpr int WARPS = THREADS / 32;

struct SharedLayout {  // offsets in floats
    static constexpr int sums = 0;  // (WARPS, 32): of each warp, for each slot
    static constexpr int weights = sums + 32 * WARPS;  // (32)
    static constexpr int gradients = weights + 32;  // (32): of the logits
    static constexpr int states = gradients + 32;  // (32), as bits
    static constexpr int size = states + 32;
};
CHECK_SHARED_MEMORY(SharedLayout);

constexpr int MOST_SLOTS = SLOTS > 0 ? SLOTS : 1;

// The sums of the threads' parts over each warp, into sums (WARPS, 32).
DEVICE void sum_over_warps(const float (&part)[MOST_SLOTS], float* sums) {
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
        const float sum = warp_sum(part[slot]);
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32 * 32 + slot] = sum;
    }
}

// Where the products and the value of a state are, by its index: carried ones first, then new ones.
struct StateRows {
    const float *products, *products0, *h, *values0;
    int n, B, row;

    DEVICE const float* products_of(int state) const {
        if (state < SLOTS) return products0 + ((long long)row * SLOTS + state) * ROWS * n;
        return products + ((long long)(state - SLOTS) * B + row) * ROWS * n;
    }
    DEVICE const float* value_of(int state) const {
        if (state < SLOTS) return values0 + ((long long)row * SLOTS + state) * n;
        return h + ((long long)(state - SLOTS) * B + row) * n;
    }
};
