// Recurrences without a memory (cells.cuh), backward. One cluster per sequence, one barrier a step.
//
// Sizes as in tile.cuh; CELL, PHI (equations.cuh); HAS_DH, HAS_DC, HAS_LENGTHS: dh, dc_T and
// lengths are given.
#include "cells.cuh"
#include "tile.cuh"

struct SharedLayout {  // offsets in floats
    static constexpr int barriers = 0;
    static constexpr int outbox = barriers + TWO_BARRIERS;
    static constexpr int dy = outbox + OUTBOX_FLOATS;  // (2, ROWS, PADDED_N): step t - 1 is written
                                                       // while step t is read
    static constexpr int size = dy + 2 * ROWS * PADDED_N;
};
CHECK_SHARED_MEMORY(SharedLayout);

// dh (T,B,n), dc_T (B,n), xp (T,B,ROWS*n), V (ROWS*n,n), h0, c0 (B,n), h, cells (T,B,n),
// saved (T,B,SAVED*n): the gates, or u of RAC; b (n), lengths (B). A cell reads some of these only.
// -> dxp (T,B,ROWS*n), du (T,B,n): one more gradient of the cell, dh0, dc0 (B,n).
KERNEL cells_backward(const float* dh, const float* dc_T, const float* xp, const float* V,
                      const float* h0, const float* c0, const float* h, const float* cells,
                      const float* saved, const float* b, const long long* lengths, float* dxp,
                      float* du, float* dh0, float* dc0, int n, int T, int B) {
    const ThreadPosition pos = thread_position();
    const int unit = pos.unit;
    const int steps = HAS_LENGTHS ? clamped_length(lengths[pos.sequence], T) : T;
    const bool in_range = unit < n;
    const bool writes = in_range && pos.unit_lane == 0;  // one lane of each unit
    float* shared_dy = shared_memory() + SharedLayout::dy;
    float* outbox = shared_memory() + SharedLayout::outbox;
    float* barriers = shared_memory() + SharedLayout::barriers;
    Exchange exchange = exchange_at(barriers, 0, ROWS * UNIT_BYTES);
    Exchange next_exchange = exchange_at(barriers, 1, ROWS * UNIT_BYTES);

    // The weights, into registers.
    WeightColumns matrix;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) matrix.load(pos, r, V + (long long)r * n * n, n);

    // No gradient past the sequence's length.
    const long long first = (long long)pos.sequence * n + unit;
    const long long step_stride = (long long)B * n;
    for (int t = T - 1; t >= steps; --t)
        if (writes) {
            const long long offset = first + t * step_stride;
            for (int r = 0; r < ROWS; ++r) dxp[ROWS * (offset - unit) + r * n + unit] = 0.f;
            if (Cell::HAS_DU) du[offset] = 0.f;
        }

    // Load what step t needs; prefetch what later iterations will load.
    SavedStep step;
    if (Cell::READS_B && in_range) step.b = b[unit];
    const auto load_step = [&](int t) {
        const long long offset = first + t * step_stride;
        if (!in_range || t < 0) return;
        if (HAS_DH) step.dh = dh[offset];
        if (Cell::READS_XP) step.xp = xp[offset];
        if (Cell::READS_H) step.h = h[offset];
        if (Cell::READS_PREVIOUS_H)
            step.previous_h = t > 0 ? h[offset - step_stride] : (h0 ? h0[first] : 0.f);
        if (Cell::HAS_CELL_STATE)
            step.previous_c = t > 0 ? cells[offset - step_stride] : (c0 ? c0[first] : 0.f);
        for (int r = 0; r < Cell::SAVED; ++r)
            step.saved[r] = saved[Cell::SAVED * (offset - unit) + r * n + unit];
        if (t < PREFETCH_STEPS) return;
        const long long ahead = offset - PREFETCH_STEPS * step_stride;
        if (HAS_DH) prefetch(dh + ahead);
        if (Cell::READS_XP) prefetch(xp + ahead);
        if (Cell::READS_H || Cell::READS_PREVIOUS_H) prefetch(h + ahead);
        if (Cell::HAS_CELL_STATE) prefetch(cells + ahead);
        for (int r = 0; r < Cell::SAVED; ++r)
            prefetch(saved + Cell::SAVED * (ahead - unit) + r * n + unit);
    };

    float carried = 0.f;  // the gradient of h_t from step t + 1
    float dc = Cell::HAS_CELL_STATE && HAS_DC && in_range ? dc_T[first] : 0.f;
    float c_t = 0.f;
    if (Cell::HAS_CELL_STATE && in_range && steps) c_t = cells[first + (steps - 1) * step_stride];
    load_step(steps - 1);
    begin_exchanges(exchange, next_exchange);
    sync_cluster();  // before a block stores into another, that one must have begun

    for (int t = steps - 1; t >= 0; --t) {
        // The cell: gradients of its inputs and of y = V h_{t-1}.
        const long long offset = first + t * step_stride;
        float dx[4], dy[4], du_t = 0.f;
        const float direct = Cell::backward(step, carried + step.dh, c_t, dc, dx, dy, du_t);
        if (Cell::HAS_CELL_STATE) c_t = step.previous_c;

        // dy to every block of the cluster. Two buffers in turn: the one barrier of a step makes dy
        // visible, and no block still reads the buffer that the next step writes.
        float* buffer = shared_dy + (t & 1) * ROWS * PADDED_N;
        for (int r = 0; r < ROWS; ++r) dy[r] = in_range ? dy[r] : 0.f;
        send_unit_rows(pos, dy, outbox, buffer, exchange);
        load_step(t - 1);
        receive(exchange);
        take_turns(exchange, next_exchange);

        // Outputs go to device memory after the barrier, which would otherwise wait for them.
        if (writes) {
            for (int r = 0; r < ROWS; ++r) dxp[ROWS * (offset - unit) + r * n + unit] = dx[r];
            if (Cell::HAS_DU) du[offset] = du_t;
        }
        carried = direct + matrix.times(pos, buffer);
    }

    if (writes) {
        dh0[first] = carried;
        if (Cell::HAS_CELL_STATE) dc0[first] = dc;
    }
    sync_cluster();  // no block ends before the others are done with its shared memory
}
