// One unit of a recurrence: from what the matrices give to its new state, and back.
#pragma once
#include "device.cuh"

enum Nonlinearity { TANH, RELU, IDENTITY, MODRELU };

DEVICE float phi(float z, float b) {
    if (PHI == TANH) return tanhf(z);
    if (PHI == RELU) return fmaxf(z, 0.f);
    if (PHI == IDENTITY) return z;
    const float size = fmaxf(fabsf(z) + b, 0.f);  // modReLU(z) = sign(z) relu(|z| + b)
    return z > 0.f ? size : z < 0.f ? -size : 0.f;
}

// The derivative of each is a function of its value.
DEVICE float phi_slope(float h) {
    if (PHI == TANH) return 1.f - h * h;
    if (PHI == RELU) return h > 0.f;
    if (PHI == IDENTITY) return 1.f;
    return h != 0.f;
}

DEVICE float sigmoid(float z) { return reciprocal(1.f + expf(-z)); }

// Additive attention: tanh(q + k) = 1 - 2 r with r = 1 / (1 + e^{2q + 2k}). Queries and keys are kept times 2 log2(e), so
// that r is one power of two and one reciprocal; taken apart into e^{2q} e^{2k} it would leave float's range.
DEVICE float doubled(float x) { return 2.88539008178f * x; }
DEVICE float unbent(float q, float k) { return reciprocal(1.f + power_of_two(q + k)); }

struct LSTMUnit {
    float i, f, g, o;

    DEVICE float advance(const float* z, float& c) {
        i = sigmoid(z[0]), f = sigmoid(z[1]), g = tanhf(z[2]), o = sigmoid(z[3]);
        c = f * c + i * g;
        return o * tanhf(c);
    }

    // dh, dc: gradients of h_t and c_t; dc becomes that of c_{t-1}. z: gradients before the gates' non-linearities.
    DEVICE void back(float dh, float& dc, float c, float previous, float* z) const {
        const float squashed = tanhf(c);
        dc += dh * o * (1.f - squashed * squashed);
        z[0] = dc * g * i * (1.f - i);
        z[1] = dc * previous * f * (1.f - f);
        z[2] = dc * i * (1.f - g * g);
        z[3] = dh * squashed * o * (1.f - o);
        dc *= f;
    }
};
