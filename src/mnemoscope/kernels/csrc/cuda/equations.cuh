// The equations of the cells: one unit, one step.
#pragma once
#include "device.cuh"

enum Nonlinearity { TANH, RELU, IDENTITY, MODRELU };

// fmaxf would give zero for NaN: a run that has diverged would look like one that has not.
DEVICE float relu(float z) { return z < 0.f ? 0.f : z; }

// phi(z); b is modReLU's bias: modReLU(z) = sign(z) relu(|z| + b).
DEVICE float phi(float z, float b) {
    if (PHI == TANH) return tanhf(z);
    if (PHI == RELU) return relu(z);
    if (PHI == IDENTITY) return z;
    const float magnitude = relu(fabsf(z) + b);
    if (z > 0.f) return magnitude;
    return z < 0.f ? -magnitude : z;  // zero or NaN
}

// phi'(z) as a function of h = phi(z).
DEVICE float phi_slope(float h) {
    if (PHI == TANH) return 1.f - h * h;
    if (PHI == RELU) return h > 0.f;
    if (PHI == IDENTITY) return 1.f;
    return h != 0.f;
}

DEVICE float sigmoid(float z) { return reciprocal(1.f + expf(-z)); }

// Additive attention: tanh(q + k) = 1 - 2 r with r = 1 / (1 + e^{2q+2k}) = (1 - tanh(q + k)) / 2.
// Queries and keys are stored times 2 log2(e), so that r is one power of two and one reciprocal.
// The product e^{2q} e^{2k} would leave float's range.
DEVICE float prescale(float x) { return 2.88539008178f * x; }
DEVICE float undo_prescale(float x) { return 0.34657359028f * x; }
DEVICE float half_one_minus_tanh(float q, float k) { return reciprocal(1.f + power_of_two(q + k)); }

// The gates of an LSTM after their non-linearities, in torch's order.
struct LSTMGates {
    float i, f, g, o;

    // z: the gates before their non-linearities; c: c_{t-1}, becomes c_t. Returns h_t.
    DEVICE float forward(const float* z, float& c) {
        i = sigmoid(z[0]);
        f = sigmoid(z[1]);
        g = tanhf(z[2]);
        o = sigmoid(z[3]);
        c = f * c + i * g;
        return o * tanhf(c);
    }

    // dh, dc: gradients of h_t and c_t; dc becomes that of c_{t-1}. dz: gradients of z.
    DEVICE void backward(float dh, float& dc, float c, float previous_c, float* dz) const {
        const float tanh_c = tanhf(c);
        dc += dh * o * (1.f - tanh_c * tanh_c);
        dz[0] = dc * g * i * (1.f - i);
        dz[1] = dc * previous_c * f * (1.f - f);
        dz[2] = dc * i * (1.f - g * g);
        dz[3] = dh * tanh_c * o * (1.f - o);
        dc *= f;
    }
};
