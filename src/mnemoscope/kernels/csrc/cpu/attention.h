// Additive attention of one query over some keys, there and back, without a transcendental function in its inner loop:
//     tanh(q + k) = 1 - 2 r,   r = 1 / (1 + e^{2q} e^{2k}),   1 - tanh^2 = 4 r (1 - r).
// e^{2k} is made once a state and e^{2q} once a step. Queries and keys count as at most 43 (float) or 350 (double) in
// modulus, where e^{2k} would leave the range of its type. All rows here are padded with zeros to whole vectors.
#pragma once

#include <algorithm>
#include <cmath>

#include "cells.h"
#include "product.h"

namespace mnemoscope {

// A sum over j of many products is kept in `chunk` vectors at a time, so that they do not wait for one another.
constexpr int chunk = 4;

template <class T>
inline void double_exponentials(const T* k, T* out, std::int64_t n) {
    sweep<T>(n, [&](std::int64_t j, int count) {
        store(out + j, exponential<T>(T(2) * load(k + j, count)), count);
    });
}
// The same, also to `kept` unless that is null, and `reach` (one vector) grows to the largest modulus in each lane; what
// is no number is passed over.
template <class T>
inline void double_exponentials(const T* k, T* out, std::int64_t n, T* reach, T* kept = nullptr) {
    Vec<T> most = load(reach);
    sweep<T>(n, [&](std::int64_t j, int count) {
        const Vec<T> here = load(k + j, count), e = exponential<T>(T(2) * here);
        most = larger(larger(here, -here), most);
        store(out + j, e, count);
        if (kept) store(kept + j, e, count);
    });
    store(reach, most);
}

template <class T>
MNEMOSCOPE_INLINE Vec<T> share(Vec<T> query, Vec<T> key) {
    return reciprocal<T>(smaller(splat(Limits<T>::huge), T(1) + query * key));  // r
}

// So many keys are gone through together, as many as there are registers for their sums.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int together = 8;
#else
constexpr int together = 4;
#endif

// f(first, K) for keys first .. first + K - 1: `together` at a time, then by fours, then one by one.
template <class F>
MNEMOSCOPE_INLINE void in_groups(std::int64_t count, F f) {
    std::int64_t i = 0;
    if constexpr (together > 4)
        for (; i + together <= count; i += together) f(i, std::integral_constant<int, together>{});
    for (; i + 4 <= count; i += 4) f(i, std::integral_constant<int, 4>{});
    for (; i < count; ++i) f(i, std::integral_constant<int, 1>{});
}
// f(j, K) for vectors at j, j + lanes, ...: `chunk` at a time, then one by one. width is a whole number of vectors.
template <class T, class F>
inline void in_chunks(std::int64_t width, F f) {
    std::int64_t j = 0;
    for (; j + chunk * lanes<T> <= width; j += chunk * lanes<T>) f(j, std::integral_constant<int, chunk>{});
    for (; j < width; j += lanes<T>) f(j, std::integral_constant<int, 1>{});
}

// logits[i] = -2 sum_j v_j r_ij, which is v . tanh(q + k_i) less the sum of v, the same for every i.
template <class T, class Keys>
inline void score(std::int64_t count, const Keys& keys, const T* query, const T* v, std::int64_t width, T* logits) {
    in_groups(count, [&](std::int64_t first, auto group) {
        constexpr int K = group;
        Vec<T> sum[K] = {};
        const T* key[K];
        for (int k = 0; k < K; ++k) key[k] = keys(first + k);
        for (std::int64_t j = 0; j < width; j += lanes<T>) {
            const Vec<T> q = load(query + j), weight = load(v + j);
            for (int k = 0; k < K; ++k) sum[k] += weight * share<T>(q, load(key[k] + j));
        }
        for (int k = 0; k < K; ++k) logits[first + k] = T(-2) * total<T>(sum[k]);
    });
}

// Softmax in place, over rows whose memory is padded to whole vectors; returns the sum of exponentials after `most` has
// been taken off, which is the largest logit or, where all of them are small, zero.
template <class T>
inline T soften(std::int64_t count, T* logits, T most) {
    Vec<T> sums = splat(T(0));
    sweep<T>(count, [&](std::int64_t i, int inside) {
        store(logits + i, exponential<T>(load(logits + i, inside) - most), inside);
        sums += load(logits + i, inside);
    });
    const T sum = total<T>(sums), share = T(1) / sum;
    sweep<T>(count, [&](std::int64_t i, int inside) { store(logits + i, load(logits + i, inside) * share, inside); });
    return sum;
}
template <class T>
inline T largest(std::int64_t count, const T* logits) {
    return count ? *std::max_element(logits, logits + count) : T(0);
}

// out_j = sum_i weights_i value_ij
template <class T, class Values>
inline void blend(std::int64_t count, const Values& values, const T* weights, std::int64_t width, T* out) {
    in_chunks<T>(width, [&](std::int64_t j, auto vectors) {
        constexpr int K = vectors;
        Vec<T> sum[K] = {};
        for (std::int64_t i = 0; i < count; ++i)
            for (int k = 0; k < K; ++k) sum[k] += weights[i] * load(values(i) + j + k * lanes<T>);
        for (int k = 0; k < K; ++k) store(out + j + k * lanes<T>, sum[k]);
    });
}

// d_weights[i] = d_blend . value_i. Each value's own gradient, weights_i d_blend, is left to `Pending`.
template <class T, class Values>
inline void blend_back(std::int64_t count, const Values& values, const T* d_blend, std::int64_t width, T* d_weights) {
    in_groups(count, [&](std::int64_t first, auto group) {
        constexpr int K = group;
        Vec<T> sum[K] = {};
        const T* value[K];
        for (int k = 0; k < K; ++k) value[k] = values(first + k);
        for (std::int64_t j = 0; j < width; j += lanes<T>) {
            const Vec<T> d = load(d_blend + j);
            for (int k = 0; k < K; ++k) sum[k] += d * load(value[k] + j);
        }
        for (int k = 0; k < K; ++k) d_weights[first + k] = total<T>(sum[k]);
    });
}

// On the way back a state's value gathers weights_ti dc_t from every later step t. That is a product of matrices, so it
// is done for some steps at once: the gradients of values are then read and written that much less often.
template <class T>
class Pending {
    static constexpr int most = 8;  // steps
    Rows<T> shares, contexts;       // of each row's pending steps
    Buffer<std::int64_t> steps;

public:
    Pending(std::int64_t rows, std::int64_t states, std::int64_t n)
        : shares(rows * most, states), contexts(rows * most, n), steps(rows) {}

    void clear(std::int64_t r) { steps[r] = 0; }
    bool full(std::int64_t r) const { return steps[r] == most; }

    // Where the next step of row r writes dc; after that, `add` gives the row for its weights, one a state.
    T* context(std::int64_t r) const { return contexts[r * most + steps[r]]; }
    T* add(std::int64_t r) { return shares[r * most + steps[r]++]; }
    void forget(std::int64_t r, std::int64_t state) {
        for (std::int64_t p = 0; p < steps[r]; ++p) shares[r * most + p][state] = 0;
    }

    // The gradient of one state's value gains what is pending for it.
    void settle(std::int64_t r, std::int64_t state, T* d_value, std::int64_t width) const {
        in_chunks<T>(width, [&](std::int64_t j, auto vectors) {
            constexpr int K = vectors;
            Vec<T> sum[K];
            for (int k = 0; k < K; ++k) sum[k] = load(d_value + j + k * lanes<T>);
            for (std::int64_t p = r * most; p < r * most + steps[r]; ++p)
                for (int k = 0; k < K; ++k) sum[k] += shares[p][state] * load(contexts[p] + j + k * lanes<T>);
            for (int k = 0; k < K; ++k) store(d_value + j + k * lanes<T>, sum[k]);
        });
    }
};

// d_logits_i = weights_i (d_weights_i - sum_k weights_k d_weights_k), in place.
template <class T>
inline void soften_back(std::int64_t count, const T* weights, T* d) {
    Vec<T> sums = splat(T(0));
    sweep<T>(count, [&](std::int64_t i, int inside) { sums += load(weights + i, inside) * load(d + i, inside); });
    const T mean = total<T>(sums);
    sweep<T>(count, [&](std::int64_t i, int inside) {
        store(d + i, load(weights + i, inside) * (load(d + i, inside) - mean), inside);
    });
}

// From the logits' gradients d_i: sums over keys for the query (d_query_j = sum_i d_i r_ij (1 - r_ij)) and for v
// (d_v_j -= sum_i d_i r_ij), and each key's own d_key_ij += d_i r_ij (1 - r_ij). The common factors 4 v_j of queries and
// keys and 2 of v are left to the end. The d_i sum to zero, so the constant part of tanh = 1 - 2 r is not needed.
template <class T, class Keys, class KeyGradients>
inline void score_back(std::int64_t count, const Keys& keys, const KeyGradients& d_keys, const T* d, const T* query,
                       std::int64_t width, T* d_query, T* d_v) {
    in_chunks<T>(width, [&](std::int64_t j, auto vectors) {
        constexpr int K = vectors;
        Vec<T> q[K], sum_q[K] = {}, sum_v[K];
        for (int k = 0; k < K; ++k) {
            q[k] = load(query + j + k * lanes<T>);
            sum_v[k] = load(d_v + j + k * lanes<T>);
        }
        for (std::int64_t i = 0; i < count; ++i) {
            const T* key = keys(i) + j;
            T* d_key = d_keys(i) + j;
            for (int k = 0; k < K; ++k) {
                const Vec<T> r = share<T>(q[k], load(key + k * lanes<T>));
                const Vec<T> dr = d[i] * r, slope = dr - dr * r;
                sum_v[k] = sum_v[k] - dr;
                sum_q[k] += slope;
                store(d_key + k * lanes<T>, load(d_key + k * lanes<T>) + slope);
            }
        }
        for (int k = 0; k < K; ++k) {
            store(d_query + j + k * lanes<T>, sum_q[k]);
            store(d_v + j + k * lanes<T>, sum_v[k]);
        }
    });
}

// The whole way back through attention whose weights were not kept, only the log of their sum: one pass over the keys
// and values. `mean` is the sum of weights times their gradients, which is d_blend . blend. r (`together` rows) is scratch.
template <class T, class Keys, class Values, class KeyGradients>
inline void attention_back(std::int64_t count, const Keys& keys, const Values& values, const KeyGradients& d_keys,
                           T log_sum, T mean, const T* query, const T* v, const T* d_blend, std::int64_t width,
                           const Rows<T>& r, T* weights, T* d_query, T* d_v) {
    fill_zero(d_query, width);
    in_groups(count, [&](std::int64_t first, auto group) {
        constexpr int K = group;
        const T *key[K], *value[K];
        T *d_key[K], d[lanes<T> < K ? K : lanes<T>] = {};
        Vec<T> score[K] = {}, d_weight[K] = {};
        for (int k = 0; k < K; ++k) key[k] = keys(first + k), value[k] = values(first + k), d_key[k] = d_keys(first + k);
        for (std::int64_t j = 0; j < width; j += lanes<T>) {
            const Vec<T> q = load(query + j), weight = load(v + j), d_b = load(d_blend + j);
            for (int k = 0; k < K; ++k) {
                const Vec<T> share_k = share<T>(q, load(key[k] + j));
                store(r[k] + j, share_k);
                score[k] += weight * share_k;
                d_weight[k] += d_b * load(value[k] + j);
            }
        }
        for (int k = 0; k < K; ++k) d[k] = T(-2) * total<T>(score[k]) - log_sum;
        for (int k = 0; k < K; k += lanes<T>) store(d + k, exponential<T>(load(d + k)));
        for (int k = 0; k < K; ++k) {
            weights[first + k] = d[k];
            d[k] *= total<T>(d_weight[k]) - mean;
        }
        for (std::int64_t j = 0; j < width; j += lanes<T>) {
            Vec<T> sum_q = load(d_query + j), sum_v = load(d_v + j);
            for (int k = 0; k < K; ++k) {
                const Vec<T> share_k = load(r[k] + j), dr = d[k] * share_k, slope = dr - dr * share_k;
                sum_v = sum_v - dr;
                sum_q += slope;
                store(d_key[k] + j, load(d_key[k] + j) + slope);
            }
            store(d_query + j, sum_q);
            store(d_v + j, sum_v);
        }
    });
}

}  // namespace mnemoscope
