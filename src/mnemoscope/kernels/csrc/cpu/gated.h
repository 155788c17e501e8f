// The cells of GRU and GORU: gates r and z of the state, a product u with the state that r
// multiplies, a candidate of it, and h' between the candidate and h, by z. A unit says the rest:
//
//     product(arguments, u, j, count)              u with what is added to it
//     candidate(arguments, r, u, x, j, count)      from r u and the input's part x
//     candidate_backward(d, candidate)             the gradient before the candidate's nonlinearity
//     mix(z, candidate, h)                         h' = (1 - z) candidate + z h
//
// Saved gates of a step: r, z, the candidate, u.
#pragma once

#include "recurrence.h"

namespace mnemoscope {

template <class T, class Arguments, class Unit>
struct GatedForwardCell {
    const Arguments& a;
    GatedForwardCell(const Arguments& a, int64_t) : a(a) {}

    void begin(int64_t, int64_t) {}
    MNEMOSCOPE_ROW void step(const Position& p, const T* product, const T* xp, T* state) {
        const int64_t n = a.n;
        T* out = a.h + p.row * n;
        T* gates = a.save ? a.gates + p.row * 4 * n : nullptr;
        for_each_vector<T>(n, [&](int64_t j, int count) {
            const auto sum = [&](int64_t k) {
                return load(product + k * n + j, count) + load(xp + k * n + j, count);
            };
            const Vec<T> r = sigmoid<T>(sum(0)), z = sigmoid<T>(sum(1));
            const Vec<T> u = Unit::product(a, load(product + 2 * n + j, count), j, count);
            const Vec<T> x = load(xp + 2 * n + j, count);
            const Vec<T> candidate = Unit::candidate(a, r, u, x, j, count);
            const Vec<T> h = Unit::mix(z, candidate, load(state + j));
            store(state + j, h, count);
            store(out + j, h, count);
            if (!gates) return;
            store(gates + j, r, count);
            store(gates + n + j, z, count);
            store(gates + 2 * n + j, candidate, count);
            store(gates + 3 * n + j, u, count);
        });
    }
    void skip(const Position& p) {
        fill_zero(a.h + p.row * a.n, a.n);
        if (a.save) fill_zero(a.gates + p.row * 4 * a.n, 4 * a.n);
    }
    void finish(int64_t, int64_t) {}
};

// grad_row = [dz_r, dz_z, du] goes through the weights; `direct` = z dh' is the gradient of h past
// them.
template <class T, class Arguments, class Unit>
struct GatedBackwardCell {
    const Arguments& a;
    Rows<T> direct;
    GatedBackwardCell(const Arguments& a, int64_t rows) : a(a), direct(rows, a.n) {}

    void begin(int64_t, int64_t r) { fill_zero(direct[r], a.n); }
    MNEMOSCOPE_ROW void step(const Position& p, const T* carry, T* grad_row, T* dxp) {
        const int64_t n = a.n;
        const T *dh = a.dh + p.row * n, *gates = a.gates + p.row * 4 * n;
        const T* h_before = p.t ? a.h + p.previous * n : a.h0 + p.b * n;
        T *du_row = a.du + p.row * n, *direct_row = direct[p.r];
        for_each_vector<T>(n, [&](int64_t j, int count) {
            const Vec<T> r = load(gates + j, count), z = load(gates + n + j, count);
            const Vec<T> candidate = load(gates + 2 * n + j, count);
            const Vec<T> u = load(gates + 3 * n + j, count);
            const Vec<T> d = load(dh + j, count) + load(carry + j) + load(direct_row + j);
            const Vec<T> dz_c = Unit::candidate_backward(d * (T(1) - z), candidate);
            const Vec<T> dz_z = d * (load(h_before + j, count) - candidate) * z * (T(1) - z);
            const Vec<T> dz_r = dz_c * u * r * (T(1) - r);
            const Vec<T> du = dz_c * r;
            store(direct_row + j, d * z, count);
            store(dxp + j, dz_r, count);
            store(dxp + n + j, dz_z, count);
            store(dxp + 2 * n + j, dz_c, count);
            store(grad_row + j, dz_r, count);
            store(grad_row + n + j, dz_z, count);
            store(grad_row + 2 * n + j, du, count);
            store(du_row + j, du, count);
        });
    }
    void skip(const Position& p) { fill_zero(a.du + p.row * a.n, a.n); }
    void finish(int64_t b, int64_t r, const T* carry) {
        for (int64_t j = 0; j < a.n; ++j) a.dh0[b * a.n + j] = carry[j] + direct[r][j];
    }
};

}  // namespace mnemoscope
