// Sums over the lanes of a warp, several at once.
#pragma once
#include "device.cuh"

constexpr int NONE = 1 << 20;

// Sum acc[0..COUNT) over the lanes that differ in the bits OFFSET, OFFSET/2 .. LAST, and leave each lane with one of the
// sums in acc[0]. Returns which one: an odd COUNT leaves some lanes with NONE.
template <int COUNT, int OFFSET, int LAST, int R>
DEVICE int fold(float (*acc)[R], int lane) {
    if constexpr (OFFSET < LAST) {
        return 0;
    } else if constexpr (COUNT == 1) {
#pragma unroll
        for (int r = 0; r < R; ++r) acc[0][r] += shuffle_xor(acc[0][r], OFFSET);
        return fold<1, OFFSET / 2, LAST, R>(acc, lane);
    } else {
        constexpr int HALF = (COUNT + 1) / 2;
        const bool upper = lane & OFFSET;
#pragma unroll
        for (int i = 0; i < HALF; ++i)
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const float high = i + HALF < COUNT ? acc[i + HALF < COUNT ? i + HALF : 0][r] : 0.f;
                const float sent = upper ? acc[i][r] : high, kept = upper ? high : acc[i][r];
                acc[i][r] = kept + shuffle_xor(sent, OFFSET);
            }
        const int which = fold<HALF, OFFSET / 2, LAST, R>(acc, lane);
        return !upper ? which : which < COUNT - HALF ? HALF + which : NONE;
    }
}
