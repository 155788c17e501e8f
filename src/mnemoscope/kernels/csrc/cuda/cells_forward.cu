// Recurrences without a memory (cells.cuh), forward. One cluster per sequence, one barrier a step.
//
// Sizes as in tile.cuh; CELL, PHI (equations.cuh); HAS_BIAS, HAS_LENGTHS: b and lengths are given;
// HAS_INPUT_BIAS: xp is without the biases b_ih and b_hh; SAVE: cells and saved are written.
#include "cells.cuh"
#include "tile.cuh"

struct SharedLayout {  // offsets in floats
    static constexpr int barriers = 0;
    static constexpr int h = barriers + TWO_BARRIERS;  // (2, PADDED_N): h_t is written while
                                                       // h_{t-1} is read
    static constexpr int size = h + 2 * PADDED_N;
};
CHECK_SHARED_MEMORY(SharedLayout);

// xp (T,B,ROWS*n), V (ROWS*n,n), h0, c0 (B,n), b (n), b_ih (ROWS*n), b_hh (b_hh_size), lengths (B)
// -> h (T,B,n), h_T (B,n) unless it is null, c_T (B,n), cells (T,B,n), saved (T,B,SAVED*n).
KERNEL cells_forward(const float* xp, const float* V, const float* h0, const float* c0,
                     const float* b, const float* b_ih, const float* b_hh, const long long* lengths,
                     float* h, float* h_T, float* c_T, float* cells, float* saved, int n, int T,
                     int B, int b_hh_size) {
    const ThreadPosition pos = thread_position();
    const int unit = pos.unit;
    const int steps = HAS_LENGTHS ? clamped_length(lengths[pos.sequence], T) : T;
    const bool in_range = unit < n;
    const bool writes = in_range && pos.unit_lane == 0;  // one lane of each unit
    float* shared_h = shared_memory() + SharedLayout::h;
    float* barriers = shared_memory() + SharedLayout::barriers;
    Exchange exchange = exchange_at(barriers, 0, UNIT_BYTES);
    Exchange next_exchange = exchange_at(barriers, 1, UNIT_BYTES);

    // The weights, into registers.
    WeightRows matrix;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) matrix.load(pos, r, V + (long long)r * n * n, n);

    // The state at the start, into every block of the cluster, and the first step's inputs.
    const long long first = (long long)pos.sequence * n + unit;
    const long long step_stride = (long long)B * n;
    const float bias = HAS_BIAS && in_range ? b[unit] : 0.f;
    float input_bias[4] = {};
    if (HAS_INPUT_BIAS && in_range)
        for (int r = 0; r < ROWS; ++r) {
            const int row = r * n + unit;
            input_bias[r] = b_ih[row] + (row < b_hh_size ? b_hh[row] : 0.f);
        }
    float h_t = in_range && h0 ? h0[first] : 0.f;
    float c_t = Cell::HAS_CELL_STATE && in_range && c0 ? c0[first] : 0.f;
    begin_exchanges(exchange, next_exchange);
    sync_cluster();  // before a block stores into another, that one must have begun
    send_unit(pos, h_t, shared_h, exchange);
    float x[4] = {}, next_x[4] = {};
    const float* input = xp + (long long)pos.sequence * ROWS * n + unit;
    if (in_range && steps)
        for (int r = 0; r < ROWS; ++r) x[r] = input[r * n];
    receive(exchange);
    take_turns(exchange, next_exchange);

    long long offset = first;  // of (t, sequence, unit) in a (T,B,n) tensor
#pragma unroll 2
    for (int t = 0; t < steps; ++t, offset += step_stride) {
        // Load the next step's inputs now; prefetch those of later steps.
        input += step_stride * ROWS;
        if (in_range && t + 1 < steps)
            for (int r = 0; r < ROWS; ++r) next_x[r] = input[r * n];
        if (in_range && t + PREFETCH_STEPS < steps)
            for (int r = 0; r < ROWS; ++r)
                prefetch(input + (PREFETCH_STEPS - 1) * step_stride * ROWS + r * n);

        // y = V h_{t-1}, then the cell. All lanes of a unit compute the same h_t.
        float y[4], to_save[4] = {};
        matrix.times(pos, shared_h + (t & 1) * PADDED_N, y);
        for (int r = 0; HAS_INPUT_BIAS && r < ROWS; ++r) x[r] += input_bias[r];
        Cell::forward(x, y, bias, h_t, c_t, to_save);

        // h_t to every block, in the half that is not read in this step. The barrier makes it
        // visible, and keeps a fast block from overwriting the half that a slow one still reads.
        send_unit(pos, in_range ? h_t : 0.f, shared_h + ((t + 1) & 1) * PADDED_N, exchange);
        for (int r = 0; r < ROWS; ++r) x[r] = next_x[r];
        receive(exchange);
        take_turns(exchange, next_exchange);

        // Outputs go to device memory after the barrier, which would otherwise wait for them.
        if (writes) {
            h[offset] = h_t;
            if (SAVE && Cell::HAS_CELL_STATE) cells[offset] = c_t;
            for (int r = 0; SAVE && r < Cell::SAVED; ++r)
                saved[Cell::SAVED * (offset - unit) + r * n + unit] = to_save[r];
        }
    }

    // The final state; zeros past the sequence's length.
    if (h_T && writes) h_T[first] = h_t;
    if (Cell::HAS_CELL_STATE && writes) c_T[first] = c_t;
    for (int t = steps; t < T; ++t, offset += step_stride)
        if (writes) {
            h[offset] = 0.f;
            if (SAVE && Cell::HAS_CELL_STATE) cells[offset] = 0.f;
            for (int r = 0; SAVE && r < Cell::SAVED; ++r)
                saved[Cell::SAVED * (offset - unit) + r * n + unit] = 0.f;
        }
    // A block that has received all of the last step may end: nothing more is sent to it.
}
