// The gated orthogonal recurrent unit (Jing et al. 2017) over a whole sequence, there and back, with W = [W_r; W_g; Q]:
//     r = sigmoid(xp_r + W_r h), g = sigmoid(xp_g + W_g h), c = modReLU(r (Q h) + xp_c, b), h' = g h + (1 - g) c.
#include "arguments.h"
#include "cells.h"
#include "product.h"
#include "sequence.h"
#include "team.h"

namespace mnemoscope {

template <class T>
struct GoruRows {
    Rows<T> narrow, wide, kept;  // n, 3n; what of h_{t-1}'s gradient does not pass through W
};

template <class T>
void cell(const GoruForward<T>& a, const T* product, const T* xp, T* state, T* out, T* gates) {
    sweep<T>(a.n, [&](std::int64_t j, int count) {
        const auto added = [&](int k) { return load(product + k * a.n + j, count) + load(xp + k * a.n + j, count); };
        const Vec<T> r = sigmoid<T>(added(0)), g = sigmoid<T>(added(1)), u = load(product + 2 * a.n + j, count);
        const Vec<T> c = modrelu<T>(r * u + load(xp + 2 * a.n + j, count), load(a.b + j, count));
        const Vec<T> h = g * load(state + j) + (T(1) - g) * c;
        store(state + j, h, count);
        store(out + j, h, count);
        if (!gates) return;
        store(gates + j, r, count);
        store(gates + a.n + j, g, count);
        store(gates + 2 * a.n + j, c, count);
        store(gates + 3 * a.n + j, u, count);
    });
}

template <class T>
void walk(const GoruForward<T>& a, const Packed<T>& W, const Block& block, GoruRows<T>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    for (std::int64_t b = block.first; b < block.end; ++b) copy(a.h0 + b * a.n, local.narrow[b - block.first], a.n);
    for (std::int64_t t = 0; t < span.longest(block); ++t) {
        W.times(local.narrow[0], local.narrow.stride, block.rows(), local.wide[0], local.wide.stride);
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first, at = span.row(t, b);
            T* gates = a.save ? a.gates + 4 * at : nullptr;
            if (span.alive(t, b)) {
                cell(a, local.wide[r], a.xp + 3 * at, local.narrow[r], a.h + at, gates);
            } else {
                fill_zero(a.h + at, a.n);
                if (gates) fill_zero(gates, 4 * a.n);
            }
        }
    }
    span.zero_rest(block, a.h);
    if (a.save) span.zero_rest(block, a.gates, 4 * a.n);
}

// d is the gradient of h_t; local = [dz_r, dz_g, du] goes through W, `kept` past it.
template <class T>
void cell_back(const GoruBackward<T>& a, const T* dh, const T* carry, const T* before, const T* gates, T* kept,
               T* local, T* dxp, T* du) {
    sweep<T>(a.n, [&](std::int64_t j, int count) {
        const Vec<T> r = load(gates + j, count), g = load(gates + a.n + j, count);
        const Vec<T> c = load(gates + 2 * a.n + j, count), u = load(gates + 3 * a.n + j, count);
        const Vec<T> d = load(dh + j, count) + load(carry + j) + load(kept + j);
        const Vec<T> dz_c = pull_back<T, Phi::modrelu>(d * (T(1) - g), c);
        const Vec<T> dz_g = d * (load(before + j, count) - c) * g * (T(1) - g), dz_r = dz_c * u * r * (T(1) - r);
        store(kept + j, d * g, count);
        const Vec<T> inner[3] = {dz_r, dz_g, dz_c};
        for (int k = 0; k < 3; ++k) {
            store(dxp + k * a.n + j, inner[k], count);
            store(local + k * a.n + j, k < 2 ? inner[k] : dz_c * r, count);
        }
        store(du + j, dz_c * r, count);
    });
}

template <class T>
void walk(const GoruBackward<T>& a, const Packed<T>& W, const Block& block, GoruRows<T>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    span.zero_rest(block, a.dxp, 3 * a.n);
    span.zero_rest(block, a.du);
    for (int r = 0; r < block.rows(); ++r) fill_zero(local.narrow[r], a.n), fill_zero(local.kept[r], a.n);
    for (std::int64_t t = span.longest(block) - 1; t >= 0; --t) {
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first, at = span.row(t, b);
            const T* before = t ? a.h + span.row(t - 1, b) : a.h0 + b * a.n;
            if (span.alive(t, b)) {
                cell_back(a, a.dh + at, local.narrow[r], before, a.gates + 4 * at, local.kept[r], local.wide[r],
                          a.dxp + 3 * at, a.du + at);
            } else {
                fill_zero(a.dxp + 3 * at, 3 * a.n);
                fill_zero(a.du + at, a.n);
                fill_zero(local.wide[r], 3 * a.n);
            }
        }
        W.times(local.wide[0], local.wide.stride, block.rows(), local.narrow[0], local.narrow.stride);
    }
    for (std::int64_t b = block.first; b < block.end; ++b)
        for (std::int64_t j = 0; j < a.n; ++j)
            a.dh0[b * a.n + j] = local.narrow[b - block.first][j] + local.kept[b - block.first][j];
}

template <class T, class Arguments>
void run(const Arguments& a, const Packed<T>& W) {
    over_rows<GoruRows<T>>(
        a.threads, a.batch, most_rows<T>(3 * a.n * a.n),
        [&](std::int64_t rows) { return GoruRows<T>{{rows, a.n}, {rows, 3 * a.n}, {rows, a.n}}; },
        [&](const Block& block, auto& local) { walk(a, W, block, local); });
}

template <class T>
int run(const GoruForward<T>& a) {
    return guarded([&] { run(a, Packed<T>(a.W, a.n, 3 * a.n, 1, a.n)); });
}
template <class T>
int run(const GoruBackward<T>& a) {
    return guarded([&] { run(a, Packed<T>(a.W, 3 * a.n, a.n, a.n, 1)); });
}

}  // namespace mnemoscope

MNEMOSCOPE_API int goru_forward_float(const mnemoscope::GoruForward<float>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int goru_forward_double(const mnemoscope::GoruForward<double>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int goru_backward_float(const mnemoscope::GoruBackward<float>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int goru_backward_double(const mnemoscope::GoruBackward<double>* a) { return mnemoscope::run(*a); }
