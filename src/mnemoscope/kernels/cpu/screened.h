// Relevancy screening (Kerg et al. 2020): slots 0..nu-1 are S, the last nu states as a ring, slots nu..nu+rho-1 are R.
#pragma once

#include <vector>

#include "attention.h"
#include "attentive.h"

namespace mnemoscope {

// The memory of a block of rows on the way forward: what each slot holds, and its value and key beside it.
template <class T>
class ScreenedForward {
    const AttentiveForward<T>& a;
    std::int64_t capacity, width;
    Rows<T> values, keys, logits;
    Buffer<T> relevance;
    Buffer<std::int64_t> held;  // index into [carried | new], -1 for an empty slot
    Buffer<std::int64_t> clocks, filled;

    std::int64_t slot(std::int64_t r, std::int64_t j) const { return r * capacity + j; }

    void put(std::int64_t to, std::int64_t index, const T* value, const T* key, T worth) {
        held[to] = index;
        relevance[to] = worth;
        copy(value, values[to], a.n);
        copy(key, keys[to], a.n);
    }

    // A state that leaves S enters R if there is room or if it is worth strictly more than R's least member.
    void judge(std::int64_t r, std::int64_t index, const T* value, const T* key, T worth) {
        std::int64_t least = -1;
        for (std::int64_t j = a.buffer; j < capacity; ++j) {
            const std::int64_t k = slot(r, j);
            if (held[k] < 0) return put(k, index, value, key, worth);
            if (least < 0 || relevance[k] < relevance[least]) least = k;
        }
        if (least >= 0 && worth > relevance[least]) put(least, index, value, key, worth);
    }

public:
    ScreenedForward(const AttentiveForward<T>& a, std::int64_t rows)
        : a(a), capacity(a.capacity()), width(rounded_up(a.n, lanes<T>)), values(rows * capacity, a.n),
          keys(rows * capacity, a.n), logits(1, capacity), relevance(rows * capacity), held(rows * capacity),
          clocks(rows), filled(capacity) {}

    void begin(std::int64_t r, std::int64_t b) {
        clocks[r] = a.clock0[b];
        for (std::int64_t j = 0; j < capacity; ++j) {
            const std::int64_t from = b * capacity + j, to = slot(r, j);
            held[to] = a.origin0[from] < 0 ? -1 : j;
            relevance[to] = a.relevance0[from];
            copy(a.values0 + from * a.n, values[to], a.n);
            double_exponentials(a.keys0 + from * a.n, keys[to], a.n);
        }
    }

    // h_t enters S and the oldest of a full S leaves it; without an S, h_t is judged as it is made.
    void insert(std::int64_t r, std::int64_t t, const T* value, const T* key) {
        if (a.decay < 1)
            for (std::int64_t j = a.buffer; j < capacity; ++j) relevance[slot(r, j)] *= static_cast<T>(a.decay);
        const std::int64_t index = a.carried + t, clock = clocks[r]++;
        if (a.buffer == 0) return judge(r, index, value, key, T(0));
        const std::int64_t place = slot(r, clock % a.buffer);
        if (held[place] >= 0) judge(r, held[place], values[place], keys[place], relevance[place]);
        put(place, index, value, key, T(0));
    }

    // c = the attention of this query over S and R, at `at` = t * batch + b.
    void attend(std::int64_t r, std::int64_t at, const T* query, const T* v, T* c) {
        std::int64_t count = 0;
        for (std::int64_t j = 0; j < capacity; ++j)
            if (held[slot(r, j)] >= 0) filled[count++] = j;
        T* weights = logits[0];
        score(count, [&](std::int64_t i) { return keys[slot(r, filled[i])]; }, query, v, width, weights);
        if (count) soften(count, weights);
        blend(count, [&](std::int64_t i) { return values[slot(r, filled[i])]; }, weights, width, c);
        for (std::int64_t i = 0; i < count; ++i)
            if (a.refresh || filled[i] < a.buffer) relevance[slot(r, filled[i])] += weights[i];
        if (a.save) record(r, at, count, weights);
    }

    void record(std::int64_t r, std::int64_t at, std::int64_t count, const T* weights) {
        fill_zero(a.attention + at * capacity, capacity);
        for (std::int64_t i = 0; i < count; ++i) a.attention[at * capacity + filled[i]] = weights[i];
        for (std::int64_t j = 0; j < capacity; ++j)
            a.slots[at * capacity + j] = static_cast<std::int32_t>(held[slot(r, j)]);
    }

    void finish(std::int64_t r, std::int64_t b) {
        for (std::int64_t j = 0; j < capacity; ++j) {
            a.final_slots[b * capacity + j] = held[slot(r, j)];
            a.final_relevance[b * capacity + j] = relevance[slot(r, j)];
        }
    }
};

// The same memory on the way back. Gradients of a state's value and key gather in its slot until the step that made it.
template <class T>
class ScreenedBackward {
    const AttentiveBackward<T>& a;
    std::int64_t capacity, width;
    Rows<T> values, keys, d_values, d_keys, weights, d_weights, factor;
    Buffer<std::int64_t> held, filled;

    std::int64_t slot(std::int64_t r, std::int64_t j) const { return r * capacity + j; }

    std::int64_t held_at(std::int64_t t, std::int64_t b, std::int64_t j) const {
        if (t >= 0) return a.slots[(t * a.batch + b) * capacity + j];
        return a.origin0[b * capacity + j] < 0 ? -1 : j;
    }

    void fetch(std::int64_t to, std::int64_t b, std::int64_t index) {
        fill_zero(d_values[to], a.n);
        fill_zero(d_keys[to], a.n);
        if (index < 0) return;
        const std::int64_t old = (b * a.carried + index) * a.n, made = ((index - a.carried) * a.batch + b) * a.n;
        copy(index < a.carried ? a.values0 + old : a.h + made, values[to], a.n);
        double_exponentials(index < a.carried ? a.keys0 + old : a.dk + made, keys[to], a.n);
    }

    void move(std::int64_t from, std::int64_t to) {
        for (const Rows<T>* rows : {&values, &keys, &d_values, &d_keys}) copy((*rows)[from], (*rows)[to], a.n);
    }

public:
    ScreenedBackward(const AttentiveBackward<T>& a, std::int64_t rows)
        : a(a), capacity(a.capacity()), width(rounded_up(a.n, lanes<T>)), values(rows * capacity, a.n),
          keys(rows * capacity, a.n), d_values(rows * capacity, a.n), d_keys(rows * capacity, a.n),
          weights(1, capacity), d_weights(1, capacity), factor(1, a.n), held(rows * capacity), filled(capacity) {
        for (std::int64_t j = 0; j < a.n; ++j) factor[0][j] = T(4) * a.v[j];
    }

    // The memory as it stands after step t, the row's last.
    void begin(std::int64_t r, std::int64_t b, std::int64_t t) {
        for (std::int64_t j = 0; j < capacity; ++j) {
            held[slot(r, j)] = held_at(t, b, j);
            fetch(slot(r, j), b, held[slot(r, j)]);
        }
    }

    // Through the attention of step t: dc is its result's gradient; d_query lacks the factor 4 v.
    void attend_back(std::int64_t r, std::int64_t at, const T* query, const T* dc, T* d_query, T* d_v) {
        std::int64_t count = 0;
        for (std::int64_t j = 0; j < capacity; ++j) {
            if (held[slot(r, j)] < 0) continue;
            weights[0][count] = a.attention[at * capacity + j];
            filled[count++] = j;
        }
        const auto value = [&](std::int64_t i) { return values[slot(r, filled[i])]; };
        const auto key = [&](std::int64_t i) { return keys[slot(r, filled[i])]; };
        const auto d_value = [&](std::int64_t i) { return d_values[slot(r, filled[i])]; };
        const auto d_key = [&](std::int64_t i) { return d_keys[slot(r, filled[i])]; };
        blend_back(count, value, d_value, weights[0], dc, width, d_weights[0]);
        soften_back(count, weights[0], d_weights[0]);
        score_back(count, key, d_key, d_weights[0], query, width, d_query, d_v);
    }

    // What has gathered for h_t: its value's gradient is added to dh, its key's is written to dk.
    void claim(std::int64_t r, std::int64_t t, T* dh, T* dk) {
        fill_zero(dk, a.n);
        for (std::int64_t j = 0; j < capacity; ++j) {
            const std::int64_t k = slot(r, j);
            if (held[k] != a.carried + t) continue;
            for (std::int64_t i = 0; i < width; i += lanes<T>) {
                store(dh + i, load(dh + i) + load(d_values[k] + i));
                store(dk + i, load(d_keys[k] + i) * load(factor[0] + i));
            }
        }
    }

    // The memory as it stood before step t. A state that moved from S to R in this step moves back; what it displaced
    // returns. S comes before R, so that it has moved before its place is filled.
    void undo(std::int64_t r, std::int64_t b, std::int64_t t) {
        for (std::int64_t j = 0; j < capacity; ++j) {
            const std::int64_t to = slot(r, j), index = held_at(t - 1, b, j);
            if (held[to] == index) continue;
            std::int64_t from = j + 1;
            while (from < capacity && (index < 0 || held[slot(r, from)] != index)) ++from;
            if (from < capacity)
                move(slot(r, from), to);
            else
                fetch(to, b, index);
            held[to] = index;
        }
    }

    void finish(std::int64_t r, std::int64_t b) {
        for (std::int64_t j = 0; j < capacity; ++j) {
            const std::int64_t to = (b * capacity + j) * a.n, k = slot(r, j);
            copy(d_values[k], a.dvalues0 + to, a.n);
            for (std::int64_t i = 0; i < a.n; ++i) a.dkeys0[to + i] = d_keys[k][i] * factor[0][i];
        }
    }
};

}  // namespace mnemoscope
