// Recurrences without a memory (cells.cuh), forward, for layers that are too wide for one cluster:
// one step of all sequences, a thread for each unit of each.
//
// The host multiplies: before launch t, V h_{t-1} is one matrix product of the whole batch.
//
// Sizes: THREADS, ROWS; CELL, PHI (equations.cuh); HAS_BIAS, HAS_INPUT_BIAS, HAS_LENGTHS, SAVE as
// in cells_forward.cu.
#include "cells.cuh"

// products (B,ROWS*n) = V h_{t-1}. c_T (B,n) is carried from launch to launch, c0 before the first.
// The other names and shapes are those of cells_forward.cu.
KERNEL cells_step_forward(const float* xp, const float* products, const float* h0, const float* b,
                          const float* b_ih, const float* b_hh, const long long* lengths, float* h,
                          float* h_T, float* c_T, float* cells, float* saved, int n, int T, int B,
                          int b_hh_size, int t) {
    const long long size = (long long)B * n;
    const long long first = (long long)blockIdx.x * THREADS + threadIdx.x;  // of (sequence, unit)
    if (first >= size) return;
    const int sequence = (int)(first / n), unit = (int)(first % n);
    const int steps = HAS_LENGTHS ? clamped_length(lengths[sequence], T) : T;
    const long long now = t * size + first;
    const bool active = t < steps;  // zeros past the sequence's length

    float h_t = 0.f, c_t = 0.f, to_save[4] = {};
    if (active) {
        float x[4], y[4];
        for (int r = 0; r < ROWS; ++r) {
            const int row = r * n + unit;
            x[r] = xp[ROWS * (now - unit) + row];
            y[r] = products[ROWS * (first - unit) + row];
            if (HAS_INPUT_BIAS) x[r] += b_ih[row] + (row < b_hh_size ? b_hh[row] : 0.f);
        }
        if (t > 0)
            h_t = h[now - size];
        else
            h_t = h0 ? h0[first] : 0.f;
        if (Cell::HAS_CELL_STATE) c_t = c_T[first];
        Cell::forward(x, y, HAS_BIAS ? b[unit] : 0.f, h_t, c_t, to_save);
        if (Cell::HAS_CELL_STATE) c_T[first] = c_t;
    }
    h[now] = h_t;
    if (h_T && t == T - 1) h_T[first] = h_t;
    if (SAVE && Cell::HAS_CELL_STATE) cells[now] = c_t;
    for (int r = 0; SAVE && r < Cell::SAVED; ++r)
        saved[Cell::SAVED * (now - unit) + r * n + unit] = to_save[r];
}
