// The slots of a memory in shared memory: which thread has which, and where their numbers are.
//
// A column is what has slots of its own in a block: a unit, or a pair (unit, sequence) where
// sequences share a cluster. SLOT_LANES lanes share a column: slot i belongs to lane
// i % SLOT_LANES of it.
//
// A file that includes this defines SLOT_LANES, and SLOT_STRIDE: the numbers from slot to slot, at
// least one per column of the block. Sizes are those of screening.cuh.
#pragma once
#include "screening.cuh"

constexpr int SLOTS_PER_LANE = SLOTS > 0 ? (SLOTS + SLOT_LANES - 1) / SLOT_LANES : 1;
constexpr int PADDED_SLOTS = SLOTS_PER_LANE * SLOT_LANES;
constexpr int FIELD_STRIDE = PADDED_SLOTS * SLOT_STRIDE;

// What a warp keeps of slot number k of a column's lane.
template <class X>
DEVICE X of_lane_slot(const X (&x)[SLOTS_OF_LANE], int column_lane, int k) {
    const int slot = column_lane + SLOT_LANES * k;
    if constexpr (SLOTS_OF_LANE == 1) return shuffle(x[0], slot);
    return shuffle(x[SLOT_LANES * k / 32], slot % 32);
}

// Numbers per slot and column in shared memory: (field, slot, column).
struct SlotFields {
    float* base;
    DEVICE float& operator()(int field, int slot, int column) const {
        return base[field * FIELD_STRIDE + slot * SLOT_STRIDE + column];
    }
};

// The column of this thread. Only its lanes touch its fields: a warp's barrier protects them.
struct SlotColumn {
    int index;  // within the block
    int lane;  // which of the column's lanes
};
