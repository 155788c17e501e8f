// Recurrences without a memory (cells.cuh), backward, for layers that are too wide for one cluster:
// one step of all sequences, a thread for each unit of each.
//
// The host multiplies: before launch t, dh_product = dy_{t+1} V is one matrix product of the whole
// batch. The first launch is t = T - 1, the last t = 0.
//
// Sizes as in cells_step_forward.cu; HAS_DH: dh is given.
#include "cells.cuh"

// Carried from launch to launch: dy (B,ROWS*n), the gradient of V h_{t-1}; direct (B,n), the part
// of the gradient of h_{t-1} that does not pass through V, zero before the first launch, as
// dh_product is; dc0 (B,n), dc_T before the first. The other names and shapes are those of
// cells_backward.cu.
KERNEL cells_step_backward(const float* dh, const float* xp, const float* dh_product,
                           const float* h0, const float* c0, const float* h, const float* cells,
                           const float* saved, const float* b, const long long* lengths, float* dxp,
                           float* du, float* dy, float* direct, float* dc0, int n, int T, int B,
                           int t) {
    const long long size = (long long)B * n;
    const long long first = (long long)blockIdx.x * THREADS + threadIdx.x;  // of (sequence, unit)
    if (first >= size) return;
    const int sequence = (int)(first / n), unit = (int)(first % n);
    const int steps = HAS_LENGTHS ? clamped_length(lengths[sequence], T) : T;
    const long long now = t * size + first;

    // No gradient past the sequence's length: what is carried stays as it is.
    float dx[4] = {}, dy_t[4] = {}, du_t = 0.f;
    if (t < steps) {
        SavedStep step;
        if (HAS_DH) step.dh = dh[now];
        if (Cell::READS_B) step.b = b[unit];
        if (Cell::READS_XP) step.xp = xp[now];
        if (Cell::READS_H) step.h = h[now];
        if (Cell::READS_PREVIOUS_H)
            step.previous_h = t > 0 ? h[now - size] : (h0 ? h0[first] : 0.f);
        if (Cell::HAS_CELL_STATE)
            step.previous_c = t > 0 ? cells[now - size] : (c0 ? c0[first] : 0.f);
        for (int r = 0; r < Cell::SAVED; ++r)
            step.saved[r] = saved[Cell::SAVED * (now - unit) + r * n + unit];
        const float c_t = Cell::HAS_CELL_STATE ? cells[now] : 0.f;
        float dc = Cell::HAS_CELL_STATE ? dc0[first] : 0.f;
        const float dh_total = direct[first] + dh_product[first] + step.dh;
        direct[first] = Cell::backward(step, dh_total, c_t, dc, dx, dy_t, du_t);
        if (Cell::HAS_CELL_STATE) dc0[first] = dc;
    }
    for (int r = 0; r < ROWS; ++r) {
        dxp[ROWS * (now - unit) + r * n + unit] = dx[r];
        dy[ROWS * (first - unit) + r * n + unit] = dy_t[r];
    }
    if (Cell::HAS_DU) du[now] = du_t;
}
