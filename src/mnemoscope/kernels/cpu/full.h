// Full attention: the memory is everything carried in and every state made since, in order.
#pragma once

#include "attention.h"
#include "attentive.h"

namespace mnemoscope {

// Few rows at a time, so that `copies` arrays of all their states stay in a core's own cache.
template <class T>
std::int64_t full_rows(std::int64_t states, std::int64_t n, std::int64_t copies) {
    const std::int64_t bytes = states * n * copies * static_cast<std::int64_t>(sizeof(T));
    return std::clamp<std::int64_t>((1 << 20) / std::max<std::int64_t>(bytes, 1), 1, 8);
}

// Which of a row's states exist: those carried slots that are filled, then every new one. Empty slots are left out.
struct Filled {
    std::int64_t count = 0;
    Buffer<std::int64_t> slots;  // which carried slot each of the first `count` states came from
    explicit Filled(std::int64_t carried) : slots(carried) {}
    void read(const std::int64_t* origin, std::int64_t carried) {
        count = 0;
        for (std::int64_t j = 0; j < carried; ++j)
            if (origin[j] >= 0) slots[count++] = j;
    }
};

template <class T>
class FullForward {
    const AttentiveForward<T>& a;
    std::int64_t most, width;
    Rows<T> values, keys, logits;
    Buffer<std::int64_t> counts;
    Filled filled;
    T sum_v = 0;

public:
    FullForward(const AttentiveForward<T>& a, std::int64_t rows)
        : a(a), most(a.carried + a.steps), width(rounded_up(a.n, lanes<T>)), values(rows * most, a.n),
          keys(rows * most, a.n), logits(1, most), counts(rows), filled(a.carried) {
        for (std::int64_t j = 0; j < a.n; ++j) sum_v += a.v[j];
    }

    void begin(std::int64_t r, std::int64_t b) {
        filled.read(a.origin0 + b * a.carried, a.carried);
        counts[r] = filled.count;
        for (std::int64_t i = 0; i < filled.count; ++i) {
            const std::int64_t from = (b * a.carried + filled.slots[i]) * a.n;
            copy(a.values0 + from, values[r * most + i], a.n);
            double_exponentials(a.keys0 + from, keys[r * most + i], a.n);
        }
    }

    void insert(std::int64_t r, std::int64_t, const T* value, const T* key) {
        const std::int64_t to = r * most + counts[r]++;
        copy(value, values[to], a.n);
        copy(key, keys[to], a.n);
    }

    void attend(std::int64_t r, std::int64_t at, const T* query, const T* v, T* c) {
        T* weights = logits[0];
        score(counts[r], [&](std::int64_t i) { return keys[r * most + i]; }, query, v, width, weights);
        const T log_sum = soften(counts[r], weights);
        blend(counts[r], [&](std::int64_t i) { return values[r * most + i]; }, weights, width, c);
        if (a.save) a.attention[at] = log_sum + sum_v;
    }

    void finish(std::int64_t, std::int64_t) {}
};

template <class T>
class FullBackward {
    const AttentiveBackward<T>& a;
    std::int64_t most, width;
    Rows<T> values, keys, d_values, d_keys, weights, d_weights, v;
    Buffer<std::int64_t> counts;
    Filled filled;
    T sum_v = 0;

public:
    FullBackward(const AttentiveBackward<T>& a, std::int64_t rows)
        : a(a), most(a.carried + a.steps), width(rounded_up(a.n, lanes<T>)), values(rows * most, a.n),
          keys(rows * most, a.n), d_values(rows * most, a.n), d_keys(rows * most, a.n), weights(1, most),
          d_weights(1, most), v(1, a.n), counts(rows), filled(a.carried) {
        for (std::int64_t j = 0; j < a.n; ++j) sum_v += v[0][j] = a.v[j];
    }

    void begin(std::int64_t r, std::int64_t b, std::int64_t last) {
        filled.read(a.origin0 + b * a.carried, a.carried);
        counts[r] = filled.count + last + 1;
        for (std::int64_t i = 0; i < counts[r]; ++i) {
            const std::int64_t to = r * most + i, made = ((i - filled.count) * a.batch + b) * a.n;
            const std::int64_t old = i < filled.count ? (b * a.carried + filled.slots[i]) * a.n : 0;
            copy(i < filled.count ? a.values0 + old : a.h + made, values[to], a.n);
            double_exponentials(i < filled.count ? a.keys0 + old : a.dk + made, keys[to], a.n);
            fill_zero(d_values[to], a.n);
            fill_zero(d_keys[to], a.n);
        }
    }

    void attend_back(std::int64_t r, std::int64_t at, const T* query, const T* dc, T* d_query, T* d_v) {
        const std::int64_t count = counts[r], base = r * most;
        const auto value = [&](std::int64_t i) { return values[base + i]; };
        const auto key = [&](std::int64_t i) { return keys[base + i]; };
        const auto d_key = [&](std::int64_t i) { return d_keys[base + i]; };
        const T log_sum = a.attention[at] - sum_v;
        score(count, key, query, v[0], width, weights[0]);
        sweep<T>(count, [&](std::int64_t i, int inside) {
            store(weights[0] + i, exponential<T>(load(weights[0] + i, inside) - log_sum), inside);
        });
        blend_back(count, value, dc, width, d_weights[0]);
        soften_back(count, weights[0], d_weights[0]);
        for (std::int64_t i = 0; i < count; ++i) {
            T* d_value = d_values[base + i];
            for (std::int64_t j = 0; j < width; j += lanes<T>)
                store(d_value + j, load(d_value + j) + weights[0][i] * load(dc + j));
        }
        score_back(count, key, d_key, d_weights[0], query, width, d_query, d_v);
    }

    // h_t is the newest state: what has gathered for it is final, and it leaves.
    void claim(std::int64_t r, std::int64_t, T* dh, T* dk) {
        const std::int64_t k = r * most + --counts[r];
        for (std::int64_t i = 0; i < width; i += lanes<T>) {
            store(dh + i, load(dh + i) + load(d_values[k] + i));
            store(dk + i, T(4) * load(v[0] + i) * load(d_keys[k] + i));
        }
    }

    void undo(std::int64_t, std::int64_t, std::int64_t) {}

    void finish(std::int64_t r, std::int64_t b) {
        filled.read(a.origin0 + b * a.carried, a.carried);
        fill_zero(a.dvalues0 + b * a.carried * a.n, a.carried * a.n);
        fill_zero(a.dkeys0 + b * a.carried * a.n, a.carried * a.n);
        for (std::int64_t i = 0; i < filled.count; ++i) {
            const std::int64_t to = (b * a.carried + filled.slots[i]) * a.n, k = r * most + i;
            copy(d_values[k], a.dvalues0 + to, a.n);
            for (std::int64_t j = 0; j < a.n; ++j) a.dkeys0[to + j] = T(4) * v[0][j] * d_keys[k][j];
        }
    }
};

}  // namespace mnemoscope
