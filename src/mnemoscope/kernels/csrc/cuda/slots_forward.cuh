// The slots of RelRNN and RelLSTM in the forward pass (screened_forward.cu, and _batch, _tensor).
//
// Included behind a header that says who has which column (attention.cuh, batch.cuh, tensor.cuh).
#pragma once
#include "equations.cuh"
#include "slots.cuh"

constexpr int GATES = ROWS - 2;  // of the cell: 1, or 4 for an LSTM
// Fields of a slot: V h (GATES of them), W_a h, h, U_a h (prescaled).
constexpr int QUERY = GATES, VALUE = GATES + 1, KEY = GATES + 2, FIELDS = GATES + 3;

// Put a state into a slot: y = [V; W_a; U_a] h, value = h, key: prescaled. Field r is stored by
// lane r % SLOT_LANES, if the thread has a column at all.
DEVICE void put_state(const SlotFields& memory, const SlotColumn& column, int slot, const float* y,
                      float value, float key, bool has_column = true) {
#pragma unroll
    for (int r = 0; r < FIELDS; ++r)
        if (has_column && r % SLOT_LANES == column.lane)
            memory(r, slot, column.index) =
                r <= GATES ? y[r <= GATES ? r : 0] : (r == VALUE ? value : key);
}

// The state in `slot` of S also goes to slot `promoted` of R (-1: none), before it is replaced.
DEVICE void promote(const SlotFields& memory, const SlotColumn& column, int slot, int promoted) {
    if (BUFFER > 0 && promoted >= 0)
        for (int r = column.lane; r < FIELDS; r += SLOT_LANES)
            memory(r, promoted, column.index) = memory(r, slot, column.index);
}

// The record of a sequence's slots, in the lanes of a warp.
struct SequenceSlots {
    const long long* origin0;  // (B,SLOTS) of the carried memory; null: it is empty
    long long first_slot;  // of the sequence, in a (B,SLOTS) tensor
    long long clock;  // at the start

    // A lane begins with what was carried in its slots. `exists`: there is such a sequence.
    DEVICE void load(SlotTable& table, const float* relevance0, int lane, bool exists) const {
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i) {
            const int slot = lane + 32 * i;
            if (origin0 && exists && slot < SLOTS) {
                table.state[i] = origin0[first_slot + slot] >= 0 ? slot : -1;
                table.relevance[i] = relevance0[first_slot + slot];
            }
        }
        if (BUFFER > 0) table.next_slot = floor_mod(clock, BUFFER > 0 ? BUFFER : 1);
    }
    // The record of the final memory, of the lane's slots.
    DEVICE void write(const SlotTable& table, int lane, long long* slots_T, float* relevance_T,
                      long long* origin_T) const {
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i) {
            const int slot = lane + 32 * i, state = table.state[i];
            if (slot >= SLOTS) continue;
            slots_T[first_slot + slot] = state;
            relevance_T[first_slot + slot] = table.relevance[i];
            if (state >= SLOTS)
                origin_T[first_slot + slot] = clock + (state - SLOTS);
            else
                origin_T[first_slot + slot] = state < 0 ? -1 : origin0[first_slot + state];
        }
    }
};

// Unit `unit` of a slot of the final memory, of the sequence whose slots begin at `first_slot`.
// What was carried in is copied, so that it stays as it is however often it is carried on; an empty
// slot keeps what it held. (screened_batch_forward.cu has these lines itself, likewise.)
DEVICE void write_final_slot(const SlotFields& memory, const SlotColumn& column, int slot,
                             int state, long long first_slot, int n, int unit, const float* values0,
                             const float* keys0, float* values_T, float* keys_T) {
    const long long target = (first_slot + slot) * n + unit;
    const long long source = (first_slot + (state < 0 ? slot : state)) * n + unit;
    if (state >= SLOTS) {
        values_T[target] = memory(VALUE, slot, column.index);
        keys_T[target] = undo_prescale(memory(KEY, slot, column.index));
    } else {
        values_T[target] = values0 ? values0[source] : 0.f;
        keys_T[target] = keys0 ? keys0[source] : 0.f;
    }
}
