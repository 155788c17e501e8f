// What happens to one row after the recurrent product: the cells' non-linearities, there and back.
#pragma once

#include <algorithm>
#include <cstdint>

#include "simd.h"

namespace mnemoscope {

enum class Phi : std::int64_t { tanh = 0, relu = 1, modrelu = 2, identity = 3 };

// f(j, count) for every vector of a row of n numbers; count lanes of it lie inside the row.
template <class T, class F>
MNEMOSCOPE_INLINE void sweep(std::int64_t n, F f) {
    for (std::int64_t j = 0; j < n; j += lanes<T>) f(j, static_cast<int>(std::min<std::int64_t>(lanes<T>, n - j)));
}

// A row of n numbers that may be read in whole vectors: itself, or a copy in `padded`, which has zeros behind it.
template <class T>
inline const T* whole_vectors(const T* row, std::int64_t n, T* padded) {
    if (n % lanes<T> == 0) return row;
    copy(row, padded, n);
    return padded;
}

template <class T>
MNEMOSCOPE_INLINE Vec<T> signed_as(Vec<T> z, Vec<T> modulus) {
    return where_positive(z, modulus, where_positive(-z, -modulus, z));
}

// modReLU(z) = sign(z) relu(|z| + b)
template <class T>
MNEMOSCOPE_INLINE Vec<T> modrelu(Vec<T> z, Vec<T> b) {
    return signed_as<T>(z, larger(splat(T(0)), larger(z, -z) + b));
}

template <class T, Phi phi>
MNEMOSCOPE_INLINE Vec<T> apply(Vec<T> z, Vec<T> b) {
    if constexpr (phi == Phi::tanh) return hyperbolic_tangent<T>(z);
    if constexpr (phi == Phi::relu) return larger(splat(T(0)), z);
    if constexpr (phi == Phi::modrelu) return modrelu<T>(z, b);
    return z;
}

// d phi'(z), from h = phi(z) alone: modReLU is open exactly where h is not zero.
template <class T, Phi phi>
MNEMOSCOPE_INLINE Vec<T> pull_back(Vec<T> d, Vec<T> h) {
    const Vec<T> zero = splat(T(0));
    if constexpr (phi == Phi::tanh) return d * (T(1) - h * h);
    if constexpr (phi == Phi::relu) return where_positive(h, d, zero);
    if constexpr (phi == Phi::modrelu) return where_positive(h, d, where_positive(-h, d, zero));
    return d;
}

// h = phi(z + xp): z is a padded row, xp may be null; h goes to the padded row `state` and to the tensor's row `out`.
template <class T, Phi phi>
inline void rnn_cell(std::int64_t n, const T* z, const T* xp, const T* b, T* state, T* out) {
    sweep<T>(n, [&](std::int64_t j, int count) {
        const Vec<T> bias = b ? load(b + j, count) : splat(T(0));
        const Vec<T> h = apply<T, phi>(xp ? load(z + j) + load(xp + j, count) : load(z + j), bias);
        store(state + j, h, count);
        store(out + j, h, count);
    });
}

// dz = (dh + carry) phi'(z): to the padded row `local` and to the tensor's row `out`. dh and out may be null.
template <class T, Phi phi>
inline void rnn_cell_back(std::int64_t n, const T* dh, const T* carry, const T* h, T* local, T* out) {
    sweep<T>(n, [&](std::int64_t j, int count) {
        Vec<T> d = load(carry + j);
        if (dh) d += load(dh + j, count);
        const Vec<T> dz = pull_back<T, phi>(d, load(h + j, count));
        store(local + j, dz, count);
        if (out) store(out + j, dz, count);
    });
}

// c = f c + i g, h = o tanh(c); z (4n) a padded row in the order i, f, g, o. xp may be null, and gates: nobody will ask.
template <class T>
MNEMOSCOPE_FLATTEN void lstm_cell(std::int64_t n, const T* z, const T* xp, T* c, T* state, T* out, T* cells, T* gates) {
    sweep<T>(n, [&](std::int64_t j, int count) {
        const auto gate = [&](int k) {
            const Vec<T> own = load(z + k * n + j, count);
            return xp ? own + load(xp + k * n + j, count) : own;
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

// From the gradient of h (dh and carry) and of c (dc, in place): that of the four pre-activations. dh and out may be
// null.
template <class T>
MNEMOSCOPE_FLATTEN void lstm_cell_back(std::int64_t n, const T* dh, const T* carry, T* dc, const T* c_before,
                                       const T* c, const T* gates, T* local, T* out) {
    sweep<T>(n, [&](std::int64_t j, int count) {
        const Vec<T> i = load(gates + j, count), f = load(gates + n + j, count);
        const Vec<T> g = load(gates + 2 * n + j, count), o = load(gates + 3 * n + j, count);
        const Vec<T> tanh_c = hyperbolic_tangent<T>(load(c + j, count));
        Vec<T> d = load(carry + j);
        if (dh) d += load(dh + j, count);
        const Vec<T> d_c = load(dc + j) + d * o * (T(1) - tanh_c * tanh_c);
        const auto put = [&](int k, Vec<T> value) {
            store(local + k * n + j, value, count);
            if (out) store(out + k * n + j, value, count);
        };
        put(0, d_c * g * i * (T(1) - i));
        put(1, d_c * load(c_before + j, count) * f * (T(1) - f));
        put(2, d_c * i * (T(1) - g * g));
        put(3, d * tanh_c * o * (T(1) - o));
        store(dc + j, d_c * f, count);
    });
}

// Calls f with phi as a compile-time constant: f(std::integral_constant).
template <Phi phi>
struct Constant {
    static constexpr Phi value = phi;
};
template <class F>
inline void with_phi(Phi phi, F f) {
    switch (phi) {
        case Phi::tanh: return f(Constant<Phi::tanh>{});
        case Phi::relu: return f(Constant<Phi::relu>{});
        case Phi::modrelu: return f(Constant<Phi::modrelu>{});
        case Phi::identity: return f(Constant<Phi::identity>{});
    }
}

}  // namespace mnemoscope
