// The RNN and LSTM cells for one row: what follows the recurrent product, forward and backward.
//
// Layout: "padded" rows are scratch memory padded with zeros to whole vectors (Rows); other rows
// belong to tensors and end with their last number. Gates lie one after the other, n numbers each.
#pragma once

#include <algorithm>
#include <cstdint>

#include "simd.h"

namespace mnemoscope {

enum class Phi : std::int64_t { tanh = 0, relu = 1, modrelu = 2, identity = 3 };

// Calls f(j, count) for the vector at j of a row of n numbers; `count` of its lanes are in the row.
template <class T, class F>
MNEMOSCOPE_INLINE void for_each_vector(int64_t n, F f) {
    for (int64_t j = 0; j < n; j += lanes<T>)
        f(j, static_cast<int>(std::min<int64_t>(lanes<T>, n - j)));
}

// The row itself if whole vectors can be read from it, else a copy in `padded`.
template <class T>
inline const T* whole_vectors(const T* row, int64_t n, T* padded) {
    if (n % lanes<T> == 0) return row;
    copy(row, padded, n);
    return padded;
}

template <class T>
MNEMOSCOPE_INLINE Vec<T> copy_sign(Vec<T> magnitude, Vec<T> z) {
    return where_positive(z, magnitude, where_positive(-z, -magnitude, z));
}

// modReLU(z) = sign(z) relu(|z| + b)
template <class T>
MNEMOSCOPE_INLINE Vec<T> modrelu(Vec<T> z, Vec<T> b) {
    return copy_sign<T>(max(splat(T(0)), max(z, -z) + b), z);
}

// phi(z); b is modReLU's bias.
template <class T, Phi phi>
MNEMOSCOPE_INLINE Vec<T> apply_phi(Vec<T> z, Vec<T> b) {
    if constexpr (phi == Phi::tanh) return hyperbolic_tangent<T>(z);
    if constexpr (phi == Phi::relu) return max(splat(T(0)), z);
    if constexpr (phi == Phi::modrelu) return modrelu<T>(z, b);
    return z;
}

// d phi'(z) from h = phi(z): modReLU has slope one where h is not zero.
template <class T, Phi phi>
MNEMOSCOPE_INLINE Vec<T> phi_backward(Vec<T> d, Vec<T> h) {
    const Vec<T> zero = splat(T(0));
    if constexpr (phi == Phi::tanh) return d * (T(1) - h * h);
    if constexpr (phi == Phi::relu) return where_positive(h, d, zero);
    if constexpr (phi == Phi::modrelu) return where_positive(h, d, where_positive(-h, d, zero));
    return d;
}

// h = phi(z + xp). z and `state` are padded rows; h is written to `state` and `out`. xp may be
// null.
template <class T, Phi phi>
inline void rnn_cell(int64_t n, const T* z, const T* xp, const T* b, T* state, T* out) {
    for_each_vector<T>(n, [&](int64_t j, int count) {
        const Vec<T> bias = b ? load(b + j, count) : splat(T(0));
        const Vec<T> sum = xp ? load(z + j) + load(xp + j, count) : load(z + j);
        const Vec<T> h = apply_phi<T, phi>(sum, bias);
        store(state + j, h, count);
        store(out + j, h, count);
    });
}

// dz = (dh + carry) phi'(z). carry and `grad_row` are padded rows; dz is written to `grad_row` and
// `out`. dh and out may be null.
template <class T, Phi phi>
inline void rnn_cell_backward(int64_t n, const T* dh, const T* carry, const T* h, T* grad_row,
                              T* out) {
    for_each_vector<T>(n, [&](int64_t j, int count) {
        Vec<T> d = load(carry + j);
        if (dh) d += load(dh + j, count);
        const Vec<T> dz = phi_backward<T, phi>(d, load(h + j, count));
        store(grad_row + j, dz, count);
        if (out) store(out + j, dz, count);
    });
}

// c = f c + i g, h = o tanh(c), with z (4n) in torch's gate order i, f, g, o. z, c and `state` are
// padded rows; h is written to `state` and `out`. xp and gates may be null (gates: no backward).
template <class T>
MNEMOSCOPE_FLATTEN void lstm_cell(int64_t n, const T* z, const T* xp, T* c, T* state, T* out,
                                  T* cells, T* gates) {
    for_each_vector<T>(n, [&](int64_t j, int count) {
        const auto gate = [&](int k) {
            const Vec<T> recurrent = load(z + k * n + j, count);
            return xp ? recurrent + load(xp + k * n + j, count) : recurrent;
        };
        const Vec<T> i = sigmoid<T>(gate(0)), f = sigmoid<T>(gate(1));
        const Vec<T> g = hyperbolic_tangent<T>(gate(2)), o = sigmoid<T>(gate(3));
        const Vec<T> c_new = f * load(c + j) + i * g;
        const Vec<T> h = o * hyperbolic_tangent<T>(c_new);
        store(c + j, c_new, count);
        store(state + j, h, count);
        store(out + j, h, count);
        if (!gates) return;
        store(cells + j, c_new, count);
        store(gates + j, i, count);
        store(gates + n + j, f, count);
        store(gates + 2 * n + j, g, count);
        store(gates + 3 * n + j, o, count);
    });
}

// Gradients of the four pre-activations, from those of h (dh + carry) and of c. dc, carry and
// `grad_row` are padded rows; dc becomes the gradient of c_{t-1}. dh and out may be null.
template <class T>
MNEMOSCOPE_FLATTEN void lstm_cell_backward(int64_t n, const T* dh, const T* carry, T* dc,
                                           const T* c_before, const T* c, const T* gates,
                                           T* grad_row, T* out) {
    for_each_vector<T>(n, [&](int64_t j, int count) {
        const Vec<T> i = load(gates + j, count), f = load(gates + n + j, count);
        const Vec<T> g = load(gates + 2 * n + j, count), o = load(gates + 3 * n + j, count);
        const Vec<T> tanh_c = hyperbolic_tangent<T>(load(c + j, count));
        Vec<T> d = load(carry + j);
        if (dh) d += load(dh + j, count);
        const Vec<T> d_c = load(dc + j) + d * o * (T(1) - tanh_c * tanh_c);
        const auto put = [&](int k, Vec<T> value) {
            store(grad_row + k * n + j, value, count);
            if (out) store(out + k * n + j, value, count);
        };
        put(0, d_c * g * i * (T(1) - i));
        put(1, d_c * load(c_before + j, count) * f * (T(1) - f));
        put(2, d_c * i * (T(1) - g * g));
        put(3, d * tanh_c * o * (T(1) - o));
        store(dc + j, d_c * f, count);
    });
}

// Calls f(PhiConstant<phi>{}), which makes phi a compile-time constant in f.
template <Phi phi>
struct PhiConstant {
    static constexpr Phi value = phi;
};
template <class F>
inline void with_phi(Phi phi, F f) {
    switch (phi) {
        case Phi::tanh: return f(PhiConstant<Phi::tanh>{});
        case Phi::relu: return f(PhiConstant<Phi::relu>{});
        case Phi::modrelu: return f(PhiConstant<Phi::modrelu>{});
        case Phi::identity: return f(PhiConstant<Phi::identity>{});
    }
}

}  // namespace mnemoscope
