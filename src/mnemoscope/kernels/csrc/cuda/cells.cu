// Recurrences without a memory, fused over time: RNN, LSTM, GORU and the recurrent arithmetic circuit.
//
// One cluster a sequence; one barrier a step. Compiled for N, C, J (see tile.cuh), CELL, ROWS, PHI and the flags below.
#include "tile.cuh"
#include "cell.cuh"

enum Cell { RNN, RAC, GORU, LSTM };
constexpr int AHEAD = 8;  // a step is shorter than the way to device memory

// xp (T,B,ROWS*n), weights (ROWS*n,n), h0, c0 (B,n), bias (n): modReLU's, or of RAC's matrix -> h (T,B,n), c_T (B,n),
// cells (T,B,n), gates (T,B,4n).
KERNEL(THREADS) cells_forward(
    const float* xp, const float* weights, const float* h0, const float* c0, const float* bias, const long long* lengths,
    float* h_out, float* c_T, float* cells, float* gates, int n, int T, int B) {
    const Place p = place();
    const int unit = p.unit, steps = HAS_LENGTHS ? (int)lengths[p.sequence] : T;
    const bool mine = unit < n, writes = mine && p.part == 0;
    float* shared_h = shared_memory();  // (2, N): written for the next step while this one is read
    Rows matrix;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) matrix.load(p, r, weights + (long long)r * n * n, n);

    const float b = HAS_BIAS && mine ? bias[unit] : 0.f;
    float h = mine ? h0[(long long)p.sequence * n + unit] : 0.f;
    float c = CELL == LSTM && mine ? c0[(long long)p.sequence * n + unit] : 0.f;
    sync_cluster();  // no block may store into another's memory before that one has begun
    publish(p, shared_h + unit, h);
    float x[4] = {}, next[4] = {}, y[4], z[4];
    const float* input = xp + (long long)p.sequence * ROWS * n + unit;
    const long long stride = (long long)B * n;
    if (mine && steps)
        for (int r = 0; r < ROWS; ++r) x[r] = input[r * n];
    sync_cluster();

    long long at = (long long)p.sequence * n + unit;
#pragma unroll 2
    for (int t = 0; t < steps; ++t, at += stride) {
        input += stride * ROWS;
        if (mine && t + 1 < steps)
            for (int r = 0; r < ROWS; ++r) next[r] = input[r * n];
        if (mine && t + AHEAD < steps)
            for (int r = 0; r < ROWS; ++r) prefetch(input + (AHEAD - 1) * stride * ROWS + r * n);
        matrix.times(p, shared_h + (t & 1) * N, y);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) z[r] = x[r] + y[r];
        float kept[4] = {};
        if constexpr (CELL == RNN) {
            h = phi(z[0], b);
        } else if constexpr (CELL == RAC) {
            h = (y[0] + b) * x[0];
        } else if constexpr (CELL == GORU) {
            kept[0] = sigmoid(z[0]), kept[1] = sigmoid(z[1]), kept[3] = y[2];
            kept[2] = phi(kept[0] * y[2] + x[2], b);
            h = kept[1] * h + (1.f - kept[1]) * kept[2];
        } else {
            LSTMUnit unit_now;
            h = unit_now.advance(z, c);
            kept[0] = unit_now.i, kept[1] = unit_now.f, kept[2] = unit_now.g, kept[3] = unit_now.o;
        }
        publish(p, shared_h + ((t + 1) & 1) * N + unit, mine ? h : 0.f);
        for (int r = 0; r < ROWS; ++r) x[r] = next[r];
        sync_cluster();
        if (writes) {  // behind the barrier, which would wait for them
            h_out[at] = h;
            if (SAVE && CELL == LSTM) cells[at] = c;
            if (SAVE && CELL >= GORU)
                for (int r = 0; r < 4; ++r) gates[4 * (at - unit) + r * n + unit] = kept[r];
        }
    }
    if (CELL == LSTM && writes) c_T[(long long)p.sequence * n + unit] = c;
    for (int t = steps; t < T; ++t, at += stride)
        if (writes) {
            h_out[at] = 0.f;
            if (SAVE && CELL == LSTM) cells[at] = 0.f;
            if (SAVE && CELL >= GORU)
                for (int r = 0; r < 4; ++r) gates[4 * (at - unit) + r * n + unit] = 0.f;
        }
}

// -> dxp (T,B,ROWS*n), du (T,B,n): the gradient of V h + b (RAC) or of Q h (GORU), dh0, dc0 (B,n).
// `first` is h0 (GORU) or c0 (LSTM); `kept` u (RAC) or the gates; `states` h, or the cells (LSTM).
KERNEL(THREADS) cells_backward(
    const float* dh_out, const float* dc_T, const float* xp, const float* weights, const float* first,
    const float* states, const float* kept, const long long* lengths, float* dxp, float* du, float* dh0, float* dc0, int n,
    int T, int B) {
    const Place p = place();
    const int unit = p.unit, steps = HAS_LENGTHS ? (int)lengths[p.sequence] : T;
    const bool mine = unit < n, writes = mine && p.part == 0;
    constexpr int KEPT = CELL >= GORU ? 4 : 1;  // numbers a unit and step
    float* shared_x = shared_memory();  // (2, ROWS, N)
    Columns matrix;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) matrix.load(p, r, weights + (long long)r * n * n, n);

    const long long stride = (long long)B * n, start = (long long)p.sequence * n + unit;
    float carried = 0.f, dc = CELL == LSTM && HAS_DC && mine ? dc_T[start] : 0.f;
    for (int t = T - 1; t >= steps; --t)
        if (writes) {
            const long long at = start + t * stride;
            for (int r = 0; r < ROWS; ++r) dxp[ROWS * (at - unit) + r * n + unit] = 0.f;
            if (CELL == RAC || CELL == GORU) du[at] = 0.f;
        }

    float out = 0.f, state = 0.f, factor = 0.f, k[4] = {};
    const auto fetch = [&](int t) {  // what step t needs of device memory
        const long long at = start + t * stride;
        if (!mine || t < 0) return;
        if (HAS_DH) out = dh_out[at];
        if (CELL == RAC) factor = xp[at];
        if (CELL == RNN) state = states[at];
        if (CELL >= GORU) factor = t > 0 ? states[at - stride] : first[start];  // h_{t-1} or c_{t-1}
        if (CELL == RAC) k[0] = kept[at];
        if (CELL >= GORU)
            for (int r = 0; r < KEPT; ++r) k[r] = kept[4 * (at - unit) + r * n + unit];
        if (t < AHEAD) return;
        const long long later = at - AHEAD * stride;
        if (HAS_DH) prefetch(dh_out + later);
        if (CELL == RAC) prefetch(xp + later);
        if (CELL != RAC) prefetch(states + later);
        if (CELL == RAC) prefetch(kept + later);
        if (CELL >= GORU)
            for (int r = 0; r < KEPT; ++r) prefetch(kept + 4 * (later - unit) + r * n + unit);
    };
    if (CELL == LSTM && mine && steps) state = states[start + (steps - 1) * stride];
    fetch(steps - 1);
    sync_cluster();  // no block may store into another's memory before that one has begun
    for (int t = steps - 1; t >= 0; --t) {
        const long long at = start + t * stride;
        const float dh = carried + out;
        float x[4], direct = 0.f, dz[4];
        if constexpr (CELL == RNN) {
            x[0] = dz[0] = dh * phi_slope(state);
        } else if constexpr (CELL == RAC) {
            dz[0] = dh * k[0], x[0] = dh * factor;
        } else if constexpr (CELL == GORU) {
            const float r = k[0], g = k[1], candidate = k[2], rotated = k[3];
            direct = dh * g;
            dz[2] = dh * (1.f - g) * phi_slope(candidate);
            dz[1] = x[1] = dh * (factor - candidate) * g * (1.f - g);
            dz[0] = x[0] = dz[2] * rotated * r * (1.f - r);
            x[2] = dz[2] * r;
        } else {
            const LSTMUnit unit_now{k[0], k[1], k[2], k[3]};
            unit_now.back(dh, dc, state, factor, dz);
            state = factor;
            for (int r = 0; r < ROWS; ++r) x[r] = dz[r];
        }
        float* buffer = shared_x + (t & 1) * ROWS * N;
        for (int r = 0; r < ROWS; ++r) publish(p, buffer + r * N + unit, mine ? x[r] : 0.f);
        fetch(t - 1);
        sync_cluster();
        if (writes) {  // behind the barrier, which would wait for them
            for (int r = 0; r < ROWS; ++r) dxp[ROWS * (at - unit) + r * n + unit] = dz[r];
            if (CELL == RAC) du[at] = x[0];
            if (CELL == GORU) du[at] = x[ROWS - 1];
        }
        carried = direct + matrix.times(p, buffer);
    }
    if (writes) {
        dh0[start] = carried;
        if (CELL == LSTM) dc0[start] = dc;
    }
    sync_cluster();
}
