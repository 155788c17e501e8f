// Relevancy screening: which states are in the slots of a memory of constant size.
//
// Slots 0 .. BUFFER - 1 are S, a ring of the last BUFFER states; the next RELEVANT slots are R.
//
// Sizes that the host passes: BUFFER, RELEVANT; MIX_MEAN: s = (h + c) / 2 instead of h + c.
#pragma once
#include "device.cuh"

constexpr int SLOTS = BUFFER + RELEVANT;
constexpr float MIX = MIX_MEAN ? .5f : 1.f;
static_assert(SLOTS <= 32, "lane i of a warp keeps the record of slot i");

// An integer with the order of the float with these bits; its own inverse.
DEVICE int sortable_bits(int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }
DEVICE int sortable(float x) { return sortable_bits(float_bits(x)); }
DEVICE float from_sortable(int x) { return bits_float(sortable_bits(x)); }

// Which state is in which slot: lane i has the record of slot i, every warp the same.
struct SlotTable {
    int state = -1;  // index into [carried memory | new states]; -1: empty
    float relevance = 0.f;  // attention received while the state was in S
    int next_slot = 0;  // the slot of S that the next state takes

    // Make room for the state `newest`. Returns its slot (-1: none). `promoted` is the slot of R
    // that the state which leaves S moves to (-1: none).
    DEVICE int admit(int lane, int newest, float decay, int& promoted) {
        promoted = -1;
        if (lane >= BUFFER) relevance *= decay;
        if constexpr (RELEVANT > 0) {
            const int leaving = BUFFER > 0 ? shuffle(state, next_slot) : newest;
            const float leaving_relevance = BUFFER > 0 ? shuffle(relevance, next_slot) : 0.f;
            if (leaving >= 0) {
                // It replaces the least relevant state of R (an empty slot first) if it has more.
                const bool in_R = lane >= BUFFER && lane < SLOTS;
                const int order = sortable(state >= 0 ? relevance : NEGATIVE_INFINITY);
                const int least = warp_min(in_R ? order : 0x7fffffff);
                const int candidate = first_bit(warp_ballot(in_R && order == least));
                if (leaving_relevance > from_sortable(least)) promoted = candidate;
                if (lane == promoted) state = leaving, relevance = leaving_relevance;
            }
        }
        const int slot = BUFFER > 0 ? next_slot : promoted;
        if (lane == slot) state = newest, relevance = 0.f;
        if (BUFFER > 0) next_slot = next_slot + 1 == BUFFER ? 0 : next_slot + 1;
        return slot;
    }
};

// What changed in the slots between steps t - 1 and t, to be undone: at most one state moved, and
// at most one left the memory.
struct SlotChange {
    int moved_to = -1, moved_from = -1;  // the state now in slot `moved_to` was in `moved_from`
    int evicted_from = -1, evicted = -1;  // and the state `evicted` was in slot `evicted_from`

    // newest_slot: the slot of step t's state, -1 if it has none: then nothing changed. after,
    // before: the state in the lane's slot at steps t and t - 1.
    DEVICE void find(int lane, int newest_slot, int after, int before) {
        // The state that the newest one replaced moved to R, replacing another one, or left.
        const bool in_slot = lane < SLOTS;
        const int replaced = newest_slot >= 0 ? shuffle(before, newest_slot) : -1;
        const int now = first_bit(warp_ballot(in_slot && replaced >= 0 && after == replaced));
        moved_to = now;
        moved_from = now >= 0 ? newest_slot : -1;
        evicted_from = now >= 0 ? now : newest_slot;
        evicted = evicted_from >= 0 ? shuffle(before, evicted_from) : -1;
        if (evicted < 0) evicted_from = -1;
    }
};
