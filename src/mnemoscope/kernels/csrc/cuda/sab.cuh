// Sparse attentive backtracking: what both passes share.
//
// A stored state's score is w . tanh([h; m_i]). The query's part shifts all scores alike and so
// changes no weight; the rest, w_m . tanh(m_i), never changes. So only the TOP states of the
// largest scores can ever be attended: a state that has left them does not come back.
#pragma once
#define BUFFER 0
#define RELEVANT TOP
#define MIX_MEAN 0
#include "attention.cuh"

static_assert(SLOTS_OF_LANE == 1, "a lane keeps one slot");

constexpr float MARGIN = 1e-7f;

// The TOP stored states of the largest scores: lane i has the record of slot i, every warp the
// same.
struct TopStates {
    int state = -1;  // index into [carried memory | new states]; -1: empty
    float score = 0.f;
    int stored = 0;  // states ever stored

    // True once more than TOP were stored: the weights are sparse then.
    DEVICE bool sparse() const { return stored > TOP; }
    // The smallest score, as a sortable integer.
    DEVICE int lowest() const { return warp_min(state >= 0 ? sortable(score) : 0x7fffffff); }

    // The weight of the lane's state: a softmax of the scores; or, if sparse, the score above the
    // smallest. `divisor` is what the weights were divided by to sum to one.
    DEVICE float weights(float& divisor) const {
        float weight = 0.f;
        if (sparse()) {
            const float least = from_sortable(lowest());
            if (state >= 0) weight = fmaxf(score - least - MARGIN, 0.f);
            divisor = warp_sum(weight) + MARGIN;
        } else {
            const int largest = warp_max(sortable(state >= 0 ? score : NEGATIVE_INFINITY));
            if (state >= 0) weight = expf(score - from_sortable(largest));
            divisor = warp_sum(weight);
        }
        return divisor > 0.f ? weight / divisor : 0.f;
    }

    // Store a state. Returns its slot, or -1 if its score is not among the TOP largest.
    DEVICE int store(int lane, int new_state, float new_score) {
        int slot = stored;
        if (stored++ >= TOP) {
            const int least = lowest();
            slot = first_bit(warp_ballot(state >= 0 && sortable(score) == least));
            if (!(new_score > from_sortable(least))) return -1;
        }
        if (lane == slot) state = new_state, score = new_score;
        return slot;
    }
};
