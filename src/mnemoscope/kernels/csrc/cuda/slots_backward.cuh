// The slots of RelRNN and RelLSTM in the backward pass (screened_backward.cu, and _batch, _tensor):
// they are taken back in time.
//
// Included behind a header that says who has which column (attention.cuh, batch.cuh, tensor.cuh).
#pragma once
#include "equations.cuh"
#include "slots.cuh"

constexpr int GATES = ROWS - 2;  // of the cell: 1, or 4 for an LSTM
// Fields of a slot: V h (GATES of them), W_a h, U_a h (prescaled), and h if s has a gradient of its
// own. As many fields again gather the gradients of these.
constexpr int QUERY = GATES, KEY = GATES + 1, VALUE = GATES + 2, FIELDS = GATES + 2 + HAS_DS;
// Field r belongs to lane r % SLOT_LANES of each column.
constexpr int FIELDS_PER_LANE = (FIELDS + SLOT_LANES - 1) / SLOT_LANES;

// Where the fields of the states are in device memory.
struct SavedStates {
    const float *projected,
        *projected0;  // (T,B,ROWS*n), and of the carried states (B,SLOTS,ROWS*n)
    const float *h, *values0;  // (T,B,n), (B,SLOTS,n)
    int sequence, unit, n, B;
    bool in_range;  // the sequence and the unit exist

    // Read this lane's fields of a state.
    DEVICE void load(const SlotColumn& column, int state, float (&fields)[FIELDS_PER_LANE]) const {
        const bool carried = state < SLOTS;
        const long long row = (carried ? (long long)sequence * SLOTS + state
                                       : (long long)(state - SLOTS) * B + sequence) *
                              n;
        const float* products = (carried ? projected0 : projected) + row * ROWS + unit;
        const float* value = (carried ? values0 : h) + row + unit;
#pragma unroll
        for (int i = 0; i < FIELDS_PER_LANE; ++i) {
            const int r = column.lane + SLOT_LANES * i;
            const bool exists = in_range && state >= 0 && r < FIELDS;
            fields[i] = !exists ? 0.f : (r == VALUE ? *value : products[r * n]);
        }
    }
};

// Put them into a slot that has received no gradient yet.
DEVICE void fill_slot(const SlotFields& memory, const SlotFields& gradients,
                      const SlotColumn& column, int slot, const float (&fields)[FIELDS_PER_LANE]) {
#pragma unroll
    for (int i = 0; i < FIELDS_PER_LANE; ++i) {
        const int r = column.lane + SLOT_LANES * i;
        if (r >= FIELDS) continue;
        memory(r, slot, column.index) = r == KEY ? prescale(fields[i]) : fields[i];
        gradients(r, slot, column.index) = 0.f;
    }
}
// A state moves back, with the gradient that it has received (moved_from < 0: none does).
DEVICE void move_back(const SlotFields& memory, const SlotFields& gradients,
                      const SlotColumn& column, int moved_to, int moved_from) {
    if (moved_from >= 0)
        for (int r = column.lane; r < FIELDS; r += SLOT_LANES) {
            memory(r, moved_from, column.index) = memory(r, moved_to, column.index);
            gradients(r, moved_from, column.index) = gradients(r, moved_to, column.index);
        }
}

// The record of a sequence's slots that the forward pass saved, in the lanes of a warp.
struct SavedSlots {
    const int* slots;  // (T,B,SLOTS)
    const float* attention;  // (T,B,SLOTS)
    const long long* origin0;  // (B,SLOTS) of the carried memory; null: it is empty
    int sequence, lane, T, B;
    bool exists;  // there is such a sequence

    // The states in the lane's slots at step t (-1: as carried in).
    DEVICE void states_at(int t, int (&states)[SLOTS_OF_LANE]) const {
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i) states[i] = state_at(t, lane + 32 * i);
    }
    DEVICE int state_at(int t, int slot) const {
        if (slot >= SLOTS || !exists) return -1;
        if (t >= 0) return slots[((long long)t * B + sequence) * SLOTS + slot];
        const bool carried = origin0 && origin0[(long long)sequence * SLOTS + slot] >= 0;
        return carried ? slot : -1;
    }
    // A saved tensor may come back changed (torch's hooks): an index of no state is an empty slot.
    // Checked when the loaded number is used, a step later: a check would wait for it.
    DEVICE void check(int (&states)[SLOTS_OF_LANE]) const {
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i) {
            const bool exists = states[i] < SLOTS + T && (origin0 || states[i] >= SLOTS);
            states[i] = exists ? states[i] : -1;
        }
    }
    // The attention that they received; zero where step t does not exist.
    DEVICE void attention_at(int t, float (&alpha)[SLOTS_OF_LANE], bool step_exists = true) const {
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i) {
            const int slot = lane + 32 * i;
            const bool received = slot < SLOTS && exists && t >= 0 && step_exists;
            alpha[i] = received ? attention[((long long)t * B + sequence) * SLOTS + slot] : 0.f;
        }
    }
};
