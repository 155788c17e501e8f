// Sums over the lanes of a warp.
#pragma once
#include "device.cuh"

// Sum over the whole warp, the same in every lane.
DEVICE float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += shuffle_xor(x, offset);
    return x;
}

constexpr int NO_SUM = 1 << 20;

// Reduce-scatter: sums acc[0..COUNT) (R numbers each) over the lanes that differ in the bits
// OFFSET, OFFSET / 2 .. LAST, and leaves each lane with one of the COUNT sums in acc[0]. Returns
// which one; an odd COUNT leaves some lanes with NO_SUM.
// Each exchange halves the sums that a lane still works on, so that all of them take about
// COUNT + log2(lanes) shuffles, not COUNT * log2(lanes).
template <int COUNT, int OFFSET, int LAST, int R>
DEVICE int reduce_scatter(float (*acc)[R], int lane) {
    if constexpr (OFFSET < LAST) {
        return 0;
    } else if constexpr (COUNT == 1) {
#pragma unroll
        for (int r = 0; r < R; ++r) acc[0][r] += shuffle_xor(acc[0][r], OFFSET);
        return reduce_scatter<1, OFFSET / 2, LAST, R>(acc, lane);
    } else {
        // The upper lanes keep the upper half of the sums and send the lower half, and vice versa.
        constexpr int HALF = (COUNT + 1) / 2;
        const bool upper = lane & OFFSET;
#pragma unroll
        for (int i = 0; i < HALF; ++i)
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const float high = i + HALF < COUNT ? acc[i + HALF < COUNT ? i + HALF : 0][r] : 0.f;
                const float sent = upper ? acc[i][r] : high;
                const float kept = upper ? high : acc[i][r];
                acc[i][r] = kept + shuffle_xor(sent, OFFSET);
            }
        const int which = reduce_scatter<HALF, OFFSET / 2, LAST, R>(acc, lane);
        if (!upper) return which;
        return which < COUNT - HALF ? HALF + which : NO_SUM;
    }
}
