// Additive attention of one query over some keys, forward and backward, without a transcendental
// function in the inner loop:
//     tanh(q + k) = 1 - 2 r,   r = 1 / (1 + e^{2q} e^{2k}),   1 - tanh^2 = 4 r (1 - r).
// e^{2k} is computed once per state and e^{2q} once per step. Queries and keys are clamped to 43
// (float) or 350 (double) in magnitude, beyond which e^{2k} would overflow.
//
// Layout: every row here is padded with zeros to whole vectors; `width` is the padded width.
// "query" and "key" rows hold e^{2q} and e^{2k}.
#pragma once

#include <algorithm>
#include <cmath>

#include "cells.h"
#include "product.h"

namespace mnemoscope {

// A sum over j uses `chunk` accumulators at a time, so that additions do not wait for one another.
constexpr int chunk = 4;

// out = e^{2k}
template <class T>
inline void double_exponentials(const T* k, T* out, int64_t n) {
    for_each_vector<T>(n, [&](int64_t j, int count) {
        store(out + j, exponential<T>(T(2) * load(k + j, count)), count);
    });
}
// The same, also written to `saved` unless that is null. `magnitude` (one vector) becomes the
// largest |k| so far, lane by lane; NaNs are skipped.
template <class T>
inline void double_exponentials(const T* k, T* out, int64_t n, T* magnitude, T* saved = nullptr) {
    Vec<T> most = load(magnitude);
    for_each_vector<T>(n, [&](int64_t j, int count) {
        const Vec<T> x = load(k + j, count), e = exponential<T>(T(2) * x);
        most = max(max(x, -x), most);
        store(out + j, e, count);
        if (saved) store(saved + j, e, count);
    });
    store(magnitude, most);
}

// r = (1 - tanh(q + k)) / 2
template <class T>
MNEMOSCOPE_INLINE Vec<T> half_one_minus_tanh(Vec<T> query, Vec<T> key) {
    return reciprocal<T>(min(splat(Limits<T>::huge), T(1) + query * key));
}

// Keys processed at the same time: as many as there are registers for their sums.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int keys_per_group = 8;
#else
constexpr int keys_per_group = 4;
#endif

// Calls f(first, K) for keys first .. first + K - 1: in full groups, then in fours, then one by
// one.
template <class F>
MNEMOSCOPE_INLINE void in_groups(int64_t count, F f) {
    int64_t i = 0;
    if constexpr (keys_per_group > 4)
        for (; i + keys_per_group <= count; i += keys_per_group)
            f(i, std::integral_constant<int, keys_per_group>{});
    for (; i + 4 <= count; i += 4) f(i, std::integral_constant<int, 4>{});
    for (; i < count; ++i) f(i, std::integral_constant<int, 1>{});
}
// Calls f(j, K) for the K vectors from j on: `chunk` at a time, then one by one.
template <class T, class F>
inline void in_chunks(int64_t width, F f) {
    int64_t j = 0;
    for (; j + chunk * lanes<T> <= width; j += chunk * lanes<T>)
        f(j, std::integral_constant<int, chunk>{});
    for (; j < width; j += lanes<T>) f(j, std::integral_constant<int, 1>{});
}

// logits[i] = -2 sum_j v_j r_ij = v . tanh(q + k_i) - sum_j v_j. The constant drops out of softmax.
template <class T, class Keys>
inline void score(int64_t count, const Keys& keys, const T* query, const T* v, int64_t width,
                  T* logits) {
    in_groups(count, [&](int64_t first, auto group) {
        constexpr int K = group;
        Vec<T> sum[K] = {};
        const T* key[K];
        for (int k = 0; k < K; ++k) key[k] = keys(first + k);
        for (int64_t j = 0; j < width; j += lanes<T>) {
            const Vec<T> q = load(query + j), weight = load(v + j);
            for (int k = 0; k < K; ++k)
                sum[k] += weight * half_one_minus_tanh<T>(q, load(key[k] + j));
        }
        for (int k = 0; k < K; ++k) logits[first + k] = T(-2) * horizontal_sum<T>(sum[k]);
    });
}

// Softmax in place; returns the sum of e^{logit - shift}. `shift` is the largest logit, or zero
// where all logits are small.
template <class T>
inline T softmax_inplace(int64_t count, T* logits, T shift) {
    Vec<T> sums = splat(T(0));
    for_each_vector<T>(count, [&](int64_t i, int inside) {
        store(logits + i, exponential<T>(load(logits + i, inside) - shift), inside);
        sums += load(logits + i, inside);
    });
    const T sum = horizontal_sum<T>(sums), inverse = T(1) / sum;
    for_each_vector<T>(count, [&](int64_t i, int inside) {
        store(logits + i, load(logits + i, inside) * inverse, inside);
    });
    return sum;
}
template <class T>
inline T largest(int64_t count, const T* logits) {
    return count ? *std::max_element(logits, logits + count) : T(0);
}

// out_j = sum_i weights_i value_ij
template <class T, class Values>
inline void weighted_sum(int64_t count, const Values& values, const T* weights, int64_t width,
                         T* out) {
    in_chunks<T>(width, [&](int64_t j, auto vectors) {
        constexpr int K = vectors;
        Vec<T> sum[K] = {};
        for (int64_t i = 0; i < count; ++i)
            for (int k = 0; k < K; ++k) sum[k] += weights[i] * load(values(i) + j + k * lanes<T>);
        for (int k = 0; k < K; ++k) store(out + j + k * lanes<T>, sum[k]);
    });
}

// d_weights[i] = d_context . value_i. The values' own gradients, weights_i d_context, are left to
// DeferredValueGradients.
template <class T, class Values>
inline void weighted_sum_backward(int64_t count, const Values& values, const T* d_context,
                                  int64_t width, T* d_weights) {
    in_groups(count, [&](int64_t first, auto group) {
        constexpr int K = group;
        Vec<T> sum[K] = {};
        const T* value[K];
        for (int k = 0; k < K; ++k) value[k] = values(first + k);
        for (int64_t j = 0; j < width; j += lanes<T>) {
            const Vec<T> d = load(d_context + j);
            for (int k = 0; k < K; ++k) sum[k] += d * load(value[k] + j);
        }
        for (int k = 0; k < K; ++k) d_weights[first + k] = horizontal_sum<T>(sum[k]);
    });
}

// The gradient of a state's value is the sum of weights_ti d_context_t over the steps t that
// attended it. That is a matrix product, so it is computed for several steps at once: the gradients
// of values are then read and written less often.
template <class T>
class DeferredValueGradients {
    static constexpr int most_steps = 8;
    Rows<T> weights, contexts;  // of each row's deferred steps
    Buffer<int64_t> steps;

public:
    DeferredValueGradients(int64_t rows, int64_t states, int64_t n)
        : weights(rows * most_steps, states), contexts(rows * most_steps, n), steps(rows) {}

    void clear(int64_t r) { steps[r] = 0; }
    bool full(int64_t r) const { return steps[r] == most_steps; }

    // The next step of row r: its d_context is written to `context`, then its attention weights,
    // one per state, to the row that `add` returns.
    T* context(int64_t r) const { return contexts[r * most_steps + steps[r]]; }
    T* add(int64_t r) { return weights[r * most_steps + steps[r]++]; }

    // Drops what is deferred for one state.
    void drop(int64_t r, int64_t state) {
        for (int64_t p = 0; p < steps[r]; ++p) weights[r * most_steps + p][state] = 0;
    }

    // Adds what is deferred for one state to the gradient of its value.
    void flush(int64_t r, int64_t state, T* d_value, int64_t width) const {
        in_chunks<T>(width, [&](int64_t j, auto vectors) {
            constexpr int K = vectors;
            Vec<T> sum[K];
            for (int k = 0; k < K; ++k) sum[k] = load(d_value + j + k * lanes<T>);
            for (int64_t p = r * most_steps; p < r * most_steps + steps[r]; ++p)
                for (int k = 0; k < K; ++k)
                    sum[k] += weights[p][state] * load(contexts[p] + j + k * lanes<T>);
            for (int k = 0; k < K; ++k) store(d_value + j + k * lanes<T>, sum[k]);
        });
    }
};

// d_logits_i = weights_i (d_weights_i - sum_k weights_k d_weights_k), in place.
template <class T>
inline void softmax_backward(int64_t count, const T* weights, T* d) {
    Vec<T> sums = splat(T(0));
    for_each_vector<T>(count, [&](int64_t i, int inside) {
        sums += load(weights + i, inside) * load(d + i, inside);
    });
    const T mean = horizontal_sum<T>(sums);
    for_each_vector<T>(count, [&](int64_t i, int inside) {
        store(d + i, load(weights + i, inside) * (load(d + i, inside) - mean), inside);
    });
}

// From the gradients d_i of the logits:
//     d_query_j = sum_i d_i r_ij (1 - r_ij),   d_v_j -= sum_i d_i r_ij,
//     d_key_ij += d_i r_ij (1 - r_ij).
// The caller applies the common factors: 4 v_j for queries and keys, 2 for v. The d_i sum to zero,
// so the constant part of tanh = 1 - 2 r is not needed.
template <class T, class Keys, class KeyGradients>
inline void score_backward(int64_t count, const Keys& keys, const KeyGradients& d_keys, const T* d,
                           const T* query, int64_t width, T* d_query, T* d_v) {
    in_chunks<T>(width, [&](int64_t j, auto vectors) {
        constexpr int K = vectors;
        Vec<T> q[K], sum_q[K] = {}, sum_v[K];
        for (int k = 0; k < K; ++k) {
            q[k] = load(query + j + k * lanes<T>);
            sum_v[k] = load(d_v + j + k * lanes<T>);
        }
        for (int64_t i = 0; i < count; ++i) {
            const T* key = keys(i) + j;
            T* d_key = d_keys(i) + j;
            for (int k = 0; k < K; ++k) {
                const Vec<T> r = half_one_minus_tanh<T>(q[k], load(key + k * lanes<T>));
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

// The whole backward pass of attention whose weights were not saved, only the log of their sum: the
// weights are computed again, in one pass over keys and values. `mean` = d_context . context is the
// sum of weights times their gradients. r (keys_per_group rows) is scratch.
template <class T, class Keys, class Values, class KeyGradients>
inline void attention_backward(int64_t count, const Keys& keys, const Values& values,
                               const KeyGradients& d_keys, T log_sum, T mean, const T* query,
                               const T* v, const T* d_context, int64_t width, const Rows<T>& r,
                               T* weights, T* d_query, T* d_v) {
    fill_zero(d_query, width);
    in_groups(count, [&](int64_t first, auto group) {
        constexpr int K = group;
        const T *key[K], *value[K];
        T *d_key[K], d[lanes<T> < K ? K : lanes<T>] = {};
        Vec<T> score[K] = {}, d_weight[K] = {};
        for (int k = 0; k < K; ++k) {
            key[k] = keys(first + k);
            value[k] = values(first + k);
            d_key[k] = d_keys(first + k);
        }
        // Scores, and the gradients of the weights.
        for (int64_t j = 0; j < width; j += lanes<T>) {
            const Vec<T> q = load(query + j), weight = load(v + j), d_c = load(d_context + j);
            for (int k = 0; k < K; ++k) {
                const Vec<T> r_k = half_one_minus_tanh<T>(q, load(key[k] + j));
                store(r[k] + j, r_k);
                score[k] += weight * r_k;
                d_weight[k] += d_c * load(value[k] + j);
            }
        }
        // Weights, and the gradients of the logits.
        for (int k = 0; k < K; ++k) d[k] = T(-2) * horizontal_sum<T>(score[k]) - log_sum;
        for (int k = 0; k < K; k += lanes<T>) store(d + k, exponential<T>(load(d + k)));
        for (int k = 0; k < K; ++k) {
            weights[first + k] = d[k];
            d[k] *= horizontal_sum<T>(d_weight[k]) - mean;
        }
        // Gradients of the query, v and the keys, as in score_backward.
        for (int64_t j = 0; j < width; j += lanes<T>) {
            Vec<T> sum_q = load(d_query + j), sum_v = load(d_v + j);
            for (int k = 0; k < K; ++k) {
                const Vec<T> r_k = load(r[k] + j), dr = d[k] * r_k, slope = dr - dr * r_k;
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
