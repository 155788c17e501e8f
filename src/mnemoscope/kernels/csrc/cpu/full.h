// Full attention: the memory is everything carried in and every state made since, in order.
#pragma once

#include "arguments.h"
#include "attention.h"

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

    void begin(std::int64_t r, std::int64_t b, T* reach) {
        copy(a.values0 + b * a.carried * a.n, a.values_T + b * most * a.n, a.carried * a.n);
        copy(a.keys0 + b * a.carried * a.n, a.keys_T + b * most * a.n, a.carried * a.n);
        filled.read(a.origin0 + b * a.carried, a.carried);
        counts[r] = filled.count;
        for (std::int64_t i = 0; i < filled.count; ++i) {
            const std::int64_t from = (b * a.carried + filled.slots[i]) * a.n;
            copy(a.values0 + from, values[r * most + i], a.n);
            double_exponentials(a.keys0 + from, keys[r * most + i], a.n, reach);
        }
    }

    // The state of step t and its key go into the memory that is returned; of a row that has ended, which has none, zeros.
    void keep(std::int64_t b, std::int64_t t, const T* value, const T* key) {
        const std::int64_t to = (b * most + a.carried + t) * a.n;
        value ? copy(value, a.values_T + to, a.n) : fill_zero(a.values_T + to, a.n);
        key ? copy(key, a.keys_T + to, a.n) : fill_zero(a.keys_T + to, a.n);
    }

    void insert(std::int64_t r, std::int64_t, const T* value, const T* key) {
        const std::int64_t to = r * most + counts[r]++;
        copy(value, values[to], a.n);
        copy(key, keys[to], a.n);
    }

    void attend(std::int64_t r, std::int64_t at, const T* query, const T* v, T* c) {
        T* weights = logits[0];
        score(counts[r], [&](std::int64_t i) { return keys[r * most + i]; }, query, v, width, weights);
        const T most_of_all = largest(counts[r], weights), sum = soften(counts[r], weights, most_of_all);
        blend(counts[r], [&](std::int64_t i) { return values[r * most + i]; }, weights, width, c);
        if (a.save) a.attention[at] = most_of_all + std::log(sum) + sum_v;
    }

    void finish(std::int64_t, std::int64_t, const Packed<T>&) {}
};

template <class T>
class FullBackward {
    const AttentiveBackward<T>& a;
    std::int64_t most, width;
    Rows<T> values, keys, d_values, d_keys, shares, v;
    Pending<T> pending;
    Buffer<std::int64_t> counts;
    Filled filled;
    T sum_v = 0;

    // d_value_i for states first .. end - 1 of row r gains what is pending.
    void settle(std::int64_t r, std::int64_t first, std::int64_t end) {
        for (std::int64_t i = first; i < end; ++i) pending.settle(r, i, d_values[r * most + i], width);
    }

public:
    FullBackward(const AttentiveBackward<T>& a, std::int64_t rows)
        : a(a), most(a.carried + a.steps), width(rounded_up(a.n, lanes<T>)), values(rows * most, a.n),
          keys(rows * most, a.n), d_values(rows * most, a.n), d_keys(rows * most, a.n), shares(together, a.n), v(1, a.n),
          pending(rows, most, a.n), counts(rows), filled(a.carried) {
        for (std::int64_t j = 0; j < a.n; ++j) sum_v += v[0][j] = a.v[j];
    }

    // Everything that each row attends at its last step.
    void begin(const Block& block, const Span& span) {
        for (std::int64_t b = block.first; b < block.end; ++b) begin(b - block.first, b, span.length(b));
    }
    void begin(std::int64_t r, std::int64_t b, std::int64_t length) {
        filled.read(a.origin0 + b * a.carried, a.carried);
        counts[r] = filled.count + length;
        pending.clear(r);
        for (std::int64_t i = 0; i < counts[r]; ++i) {
            const std::int64_t to = r * most + i, step = i - filled.count;
            const std::int64_t from = step < 0 ? b * a.carried + filled.slots[i] : step * a.batch + b;
            copy((step < 0 ? a.values0 : a.h) + from * a.n, values[to], a.n);
            step < 0 ? double_exponentials(a.keys0 + from * a.n, keys[to], a.n) : copy(a.activations_of(from).key(), keys[to], a.n);
            fill_zero(d_values[to], a.n);
            fill_zero(d_keys[to], a.n);
        }
    }

    T* context(std::int64_t r) const { return pending.context(r); }
    void attend_back(std::int64_t r, std::int64_t at, const T* query, const T* dc, T* d_query, T* d_v) {
        const std::int64_t base = r * most;
        const T *h = a.h + at * a.n, *s = a.s + at * a.n, scale = a.mix == Mix::mean ? T(2) : T(1);
        Vec<T> product = splat(T(0));  // dc . c_t, and c_t = s_t - h_t
        sweep<T>(a.n, [&](std::int64_t j, int count) {
            product += load(dc + j) * (scale * load(s + j, count) - load(h + j, count));
        });
        attention_back(
            counts[r], [&](std::int64_t i) { return keys[base + i]; }, [&](std::int64_t i) { return values[base + i]; },
            [&](std::int64_t i) { return d_keys[base + i]; }, a.attention[at] - sum_v, total<T>(product), query, v[0],
            dc, width, shares, pending.add(r), d_query, d_v);
    }

    // h_t is the newest state: what has gathered for it is final, and it leaves.
    void claim(std::int64_t r, std::int64_t, T* dh, T* dk) {
        const std::int64_t i = --counts[r], k = r * most + i;
        settle(r, i, i + 1);
        for (std::int64_t j = 0; j < width; j += lanes<T>) {
            store(dh + j, load(dh + j) + load(d_values[k] + j));
            store(dk + j, T(4) * load(v[0] + j) * load(d_keys[k] + j));
        }
        if (!pending.full(r)) return;
        settle(r, 0, i);
        pending.clear(r);
    }

    void undo(const Block&, const Span&, std::int64_t) {}

    void finish(std::int64_t r, std::int64_t b) {
        filled.read(a.origin0 + b * a.carried, a.carried);
        settle(r, 0, filled.count);
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
