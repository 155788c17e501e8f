// Additive attention over at most 32 slots: what the forward and the backward pass share.
//
// A constant in all logits leaves the softmax as it is: of v . tanh(q + k) = v . (1 - 2 r) the kernels keep -2 v . r.
#pragma once
#include "cell.cuh"
#include "tile.cuh"

constexpr int KAPPA = NU + RHO;                          // slots: S, a ring of the last NU states, then R
constexpr int K = KAPPA > 0 ? (KAPPA + D - 1) / D : 1;   // slots a lane; slot i belongs to lane i % D of each unit
constexpr int SLOTS = K * D;
constexpr int STRIDE = NC + CW;                          // so that a unit's D lanes read their slots from different banks
constexpr float MIX = MEAN ? .5f : 1.f;                  // s = h + c, or their mean
constexpr int BANK_ROW = SLOTS * STRIDE;                  // one number a unit, for every slot
static_assert(KAPPA <= 32 && K <= CW, "one lane keeps the books of one slot");

// Integers in the order of floats; its own inverse.
DEVICE int ordered(int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

// Rows of one number a unit, for every slot: [row][slot][unit of the block].
struct Bank {
    float* at;
    DEVICE float& operator()(int row, int slot, int local) const { return at[row * BANK_ROW + slot * STRIDE + local]; }
};

// The sum over all units of each slot's part; afterwards lane i of every warp has that of slot i. Two barriers when
// the units are spread over a cluster, one otherwise. `partial` (NW, 32), `sums` (C, 32) in shared memory.
DEVICE float sum_over_units(const Place& p, float (&part)[K][1], float* partial, float* sums) {
    const int k = fold<K, 16, D, 1>(part, p.lane), slot = p.part + D * k;
    if (k < K) partial[p.warp * 32 + slot] = part[0][0];
    sync_block();
    float sum = 0.f;
    if (p.lane < SLOTS)
        for (int w = 0; w < NW; ++w) sum += partial[w * 32 + p.lane];
    if constexpr (C > 1) {
        for (int rank = p.warp; rank < C; rank += NW)
            if (p.lane < SLOTS) store_at(sums + p.rank * 32 + p.lane, rank, sum);
        sync_cluster();
        sum = 0.f;
        if (p.lane < SLOTS)
            for (int rank = 0; rank < C; ++rank) sum += sums[rank * 32 + p.lane];
    }
    return sum;
}

// Sum over the D lanes of a unit.
DEVICE float sum_over_parts(float x) {
#pragma unroll
    for (int offset = D / 2; offset > 0; offset /= 2) x += shuffle_xor(x, offset);
    return x;
}
