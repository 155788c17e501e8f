// The recurrences without a memory, as cells that cells_forward.cu and cells_backward.cu loop over.
//
// A cell has these members. x are the unit's ROWS inputs of the step (xp), y its ROWS rows of V
// times h_{t-1}.
//   ROWS_PER_UNIT    rows of V per unit, and inputs per unit and step
//   SAVED            numbers per unit and step that the forward pass saves for the backward pass
//   HAS_CELL_STATE   true for a second state c
//   READS_XP, READS_H, READS_PREVIOUS_H, READS_B   what else the backward pass reads: xp_t, h_t,
//                    h_{t-1}, b
//   HAS_DU           true if the backward pass has one more output a unit and step, du
//   forward(x, y, b, h, c, saved)   h: h_{t-1}, becomes h_t; c likewise
//   backward(step, dh, c, dc, dx, dy, du)   dh: the gradient of h_t; dx, dy: those of x and y.
//                    Returns the part of the gradient of h_{t-1} that does not pass through V
//
// To add a cell: its struct here; `register_cuda_cell` names it beside its operators.
#pragma once
#include "equations.cuh"

// What the backward pass of a step reads from device memory; only what the cell asks for is set.
struct SavedStep {
    float dh = 0.f;  // the gradient of the output h_t
    float xp = 0.f, h = 0.f, previous_h = 0.f, previous_c = 0.f, b = 0.f;
    float saved[4] = {};
};

struct PlainCell {
    static constexpr int ROWS_PER_UNIT = 1, SAVED = 0;
    static constexpr bool HAS_CELL_STATE = false, READS_XP = false, READS_H = false;
    static constexpr bool READS_PREVIOUS_H = false, READS_B = false, HAS_DU = false;
};

// h_t = phi(x + V h_{t-1}).
struct RNN : PlainCell {
    static constexpr bool READS_H = true;

    static DEVICE void forward(const float* x, const float* y, float b, float& h, float&, float*) {
        h = phi(x[0] + y[0], b);
    }

    static DEVICE float backward(const SavedStep& step, float dh, float, float&, float* dx,
                                 float* dy, float&) {
        dx[0] = dy[0] = dh * phi_slope(step.h);
        return 0.f;
    }
};

// The recurrent arithmetic circuit, h_t = u * x with u = V h_{t-1} + b. `saved` is u.
struct RAC : PlainCell {
    static constexpr int SAVED = 1;
    static constexpr bool READS_XP = true, HAS_DU = true;

    static DEVICE void forward(const float* x, const float* y, float b, float& h, float&, float*) {
        h = (y[0] + b) * x[0];
    }

    static DEVICE float backward(const SavedStep& step, float dh, float, float&, float* dx,
                                 float* dy, float& du) {
        dx[0] = dh * step.saved[0];
        dy[0] = du = dh * step.xp;
        return 0.f;
    }
};

// GORU and GRU: h_t = z h_{t-1} + (1 - z) candidate, where the candidate reads r * u.
// `saved` is r, z, candidate, u.
struct GatedCell : PlainCell {
    static constexpr int ROWS_PER_UNIT = 3, SAVED = 4;
    static constexpr bool READS_PREVIOUS_H = true, HAS_DU = true;

    // slope: the derivative of the candidate's non-linearity.
    static DEVICE float gates_backward(const SavedStep& step, float dh, float slope, float* dx,
                                       float* dy, float& du) {
        const float r = step.saved[0], z = step.saved[1];
        const float candidate = step.saved[2], u = step.saved[3];
        dx[2] = dh * (1.f - z) * slope;
        dx[1] = dy[1] = dh * (step.previous_h - candidate) * z * (1.f - z);
        dx[0] = dy[0] = dx[2] * u * r * (1.f - r);
        dy[2] = du = dx[2] * r;
        return dh * z;
    }
};

// Gates r, g; u = Q h_{t-1}, candidate = phi(r u + x_c) with modReLU's bias b.
struct GORU : GatedCell {
    static DEVICE void forward(const float* x, const float* y, float b, float& h, float&,
                               float* saved) {
        const float r = sigmoid(x[0] + y[0]), g = sigmoid(x[1] + y[1]), u = y[2];
        const float candidate = phi(r * u + x[2], b);
        h = g * h + (1.f - g) * candidate;
        saved[0] = r, saved[1] = g, saved[2] = candidate, saved[3] = u;
    }

    static DEVICE float backward(const SavedStep& step, float dh, float, float&, float* dx,
                                 float* dy, float& du) {
        return gates_backward(step, dh, phi_slope(step.saved[2]), dx, dy, du);
    }
};

// torch's GRU: gates r, z; u = V_n h_{t-1} + b_hn, candidate n = tanh(x_n + r u).
struct GRU : GatedCell {
    static DEVICE void forward(const float* x, const float* y, float b_hn, float& h, float&,
                               float* saved) {
        const float r = sigmoid(x[0] + y[0]), z = sigmoid(x[1] + y[1]), u = y[2] + b_hn;
        const float candidate = tanhf(x[2] + r * u);
        h = (1.f - z) * candidate + z * h;
        saved[0] = r, saved[1] = z, saved[2] = candidate, saved[3] = u;
    }

    static DEVICE float backward(const SavedStep& step, float dh, float, float&, float* dx,
                                 float* dy, float& du) {
        const float candidate = step.saved[2];
        return gates_backward(step, dh, 1.f - candidate * candidate, dx, dy, du);
    }
};

// torch's LSTM. `saved` is the gates i, f, g, o.
struct LSTM : PlainCell {
    static constexpr int ROWS_PER_UNIT = 4, SAVED = 4;
    static constexpr bool HAS_CELL_STATE = true;

    static DEVICE void forward(const float* x, const float* y, float, float& h, float& c,
                               float* saved) {
        float z[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) z[r] = x[r] + y[r];
        LSTMGates gates;
        h = gates.forward(z, c);
        saved[0] = gates.i, saved[1] = gates.f, saved[2] = gates.g, saved[3] = gates.o;
    }

    static DEVICE float backward(const SavedStep& step, float dh, float c, float& dc, float* dx,
                                 float* dy, float&) {
        const float* saved = step.saved;
        const LSTMGates gates{saved[0], saved[1], saved[2], saved[3]};
        gates.backward(dh, dc, c, step.previous_c, dx);
#pragma unroll
        for (int r = 0; r < 4; ++r) dy[r] = dx[r];
        return 0.f;
    }
};

using Cell = CELL;
static_assert(Cell::ROWS_PER_UNIT == ROWS, "the kernel and its launch disagree on the cell's rows");

// A step is shorter than a read of device memory: rows of this many steps ahead are prefetched.
constexpr int PREFETCH_STEPS = 8;
