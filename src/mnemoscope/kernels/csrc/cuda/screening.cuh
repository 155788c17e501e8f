// Relevancy screening: which states are in the slots of a memory of constant size.
//
// Slots 0 .. BUFFER - 1 are S, a ring of the last BUFFER states; the next RELEVANT slots are R.
//
// Sizes that the host passes: BUFFER, RELEVANT; MIX_MEAN: s = (h + c) / 2 instead of h + c.
#pragma once
#include "device.cuh"

constexpr int SLOTS = BUFFER + RELEVANT;
// A warp keeps something of every slot: lane i of slots i, i + 32 and so on.
constexpr int SLOTS_OF_LANE = SLOTS > 32 ? (SLOTS + 31) / 32 : 1;
constexpr int SLOT_ROW = 32 * SLOTS_OF_LANE;  // of numbers in shared memory, one per slot
constexpr float MIX = MIX_MEAN ? .5f : 1.f;

// What the lane of `slot` keeps of it.
template <class X>
DEVICE X of_slot(const X (&x)[SLOTS_OF_LANE], int slot) {
    if constexpr (SLOTS_OF_LANE == 1) return shuffle(x[0], slot);
    X found = shuffle(x[0], slot % 32);
#pragma unroll
    for (int i = 1; i < SLOTS_OF_LANE; ++i) {
        const X other = shuffle(x[i], slot % 32);
        found = slot / 32 == i ? other : found;
    }
    return found;
}

// The first slot of which its lane says so; -1: none.
DEVICE int first_slot(const bool (&chosen)[SLOTS_OF_LANE]) {
    int found = first_bit(warp_ballot(chosen[0]));
#pragma unroll
    for (int i = 1; i < SLOTS_OF_LANE; ++i) {
        const int other = first_bit(warp_ballot(chosen[i]));
        if (found < 0 && other >= 0) found = 32 * i + other;
    }
    return found;
}

// An integer with the order of the float with these bits; its own inverse.
DEVICE int sortable_bits(int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }
DEVICE int sortable(float x) { return sortable_bits(float_bits(x)); }
DEVICE float from_sortable(int x) { return bits_float(sortable_bits(x)); }

// The largest of all slots' logits.
DEVICE float largest_logit(const float (&logit)[SLOTS_OF_LANE]) {
    int largest = sortable(logit[0]);
#pragma unroll
    for (int i = 1; i < SLOTS_OF_LANE; ++i)
        largest = sortable(logit[i]) > largest ? sortable(logit[i]) : largest;
    return from_sortable(warp_max(largest));
}

// Which state is in which slot, every warp the same. A lane has the record of its slots.
struct SlotTable {
    int state[SLOTS_OF_LANE];  // index into [carried memory | new states]; -1: empty
    float relevance[SLOTS_OF_LANE] = {};  // attention received while the state was in S
    int next_slot = 0;  // the slot of S that the next state takes

    DEVICE SlotTable() {
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i) state[i] = -1;
    }

    // Make room for the state `newest`. Returns its slot (-1: none). `promoted` is the slot of R
    // that the state which leaves S moves to (-1: none).
    DEVICE int admit(int lane, int newest, float decay, int& promoted) {
        promoted = -1;
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i)
            if (lane + 32 * i >= BUFFER) relevance[i] *= decay;
        if constexpr (RELEVANT > 0) {
            const int leaving = BUFFER > 0 ? of_slot(state, next_slot) : newest;
            const float leaving_relevance = BUFFER > 0 ? of_slot(relevance, next_slot) : 0.f;
            if (leaving >= 0) {
                // It replaces the least relevant state of R (an empty slot first) if it has more.
                bool is_least[SLOTS_OF_LANE];
                int order[SLOTS_OF_LANE], least = 0x7fffffff;
#pragma unroll
                for (int i = 0; i < SLOTS_OF_LANE; ++i) {
                    order[i] = sortable(state[i] >= 0 ? relevance[i] : NEGATIVE_INFINITY);
                    is_least[i] = lane + 32 * i >= BUFFER && lane + 32 * i < SLOTS;  // it is in R
                    least = is_least[i] && order[i] < least ? order[i] : least;
                }
                least = warp_min(least);
#pragma unroll
                for (int i = 0; i < SLOTS_OF_LANE; ++i)
                    is_least[i] = is_least[i] && order[i] == least;
                const int candidate = first_slot(is_least);
                if (leaving_relevance > from_sortable(least)) promoted = candidate;
#pragma unroll
                for (int i = 0; i < SLOTS_OF_LANE; ++i)
                    if (lane + 32 * i == promoted)
                        state[i] = leaving, relevance[i] = leaving_relevance;
            }
        }
        const int slot = BUFFER > 0 ? next_slot : promoted;
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i)
            if (lane + 32 * i == slot) state[i] = newest, relevance[i] = 0.f;
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
    // before: the states in the lane's slots at steps t and t - 1.
    DEVICE void find(int lane, int newest_slot, const int (&after)[SLOTS_OF_LANE],
                     const int (&before)[SLOTS_OF_LANE]) {
        // The state that the newest one replaced moved to R, replacing another one, or left.
        const int replaced = newest_slot >= 0 ? of_slot(before, newest_slot) : -1;
        bool is_there[SLOTS_OF_LANE];
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i)
            is_there[i] = lane + 32 * i < SLOTS && replaced >= 0 && after[i] == replaced;
        const int now = first_slot(is_there);
        moved_to = now;
        moved_from = now >= 0 ? newest_slot : -1;
        evicted_from = now >= 0 ? now : newest_slot;
        evicted = evicted_from >= 0 ? of_slot(before, evicted_from) : -1;
        if (evicted < 0) evicted_from = -1;
    }
};

// The slot of one state, -1 if it has none. states: those in the lane's slots.
DEVICE int slot_of(int lane, const int (&states)[SLOTS_OF_LANE], int state) {
    bool is_there[SLOTS_OF_LANE];
#pragma unroll
    for (int i = 0; i < SLOTS_OF_LANE; ++i)
        is_there[i] = lane + 32 * i < SLOTS && states[i] == state;
    return first_slot(is_there);
}
