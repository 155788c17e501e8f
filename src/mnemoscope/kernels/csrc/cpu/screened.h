// Relevancy screening (Kerg et al. 2020): slots 0..nu-1 are S, the last nu states as a ring, slots nu..nu+rho-1 are R.
#pragma once

#include <utility>

#include "arguments.h"
#include "attention.h"

namespace mnemoscope {

// What each slot of a block of rows holds. Values and keys stay where they are when a state changes its slot: a slot
// knows the place of its state in the bank.
template <class T>
struct Slots {
    std::int64_t capacity;
    Buffer<std::int32_t> held;  // index into [carried | new], -1 for an empty slot
    Buffer<std::int64_t> place, filled;
    Rows<T> values, keys;

    Slots(std::int64_t rows, std::int64_t capacity, std::int64_t n)
        : capacity(capacity), held(rows * capacity), place(rows * capacity), filled(capacity),
          values(rows * capacity, n), keys(rows * capacity, n) {
        for (std::int64_t k = 0; k < rows * capacity; ++k) place[k] = k;
    }
    std::int64_t at(std::int64_t r, std::int64_t j) const { return r * capacity + j; }

    // The slots of row r that hold a state, in `filled`; how many they are.
    std::int64_t list(std::int64_t r) const {
        std::int64_t count = 0;
        for (std::int64_t j = 0; j < capacity; ++j) {
            filled[count] = at(r, j);
            count += held[at(r, j)] >= 0;
        }
        return count;
    }
};

// The memory of a block of rows on the way forward.
template <class T>
class ScreenedForward {
    const AttentiveForward<T>& a;
    std::int64_t capacity, width;
    Slots<T> slots;
    Rows<T> logits, made;  // made: the keys of a row's states once more, which the memory that is returned has
    Buffer<T> relevance;
    Buffer<std::int64_t> clocks;
    bool tame;  // no logit is so large that its exponential needs the largest one subtracted

    void put(std::int64_t slot, std::int64_t index, const T* value, const T* key) {
        slots.held[slot] = static_cast<std::int32_t>(index);
        relevance[slot] = T(0);
        copy(value, slots.values[slots.place[slot]], a.n);
        copy(key, slots.keys[slots.place[slot]], a.n);
    }

    // The slot of R for a state of this worth: an empty one, or that of R's least member if its worth is strictly
    // less; -1 if there is none.
    std::int64_t admit(std::int64_t r, T worth) const {
        std::int64_t least = -1;
        for (std::int64_t k = slots.at(r, a.buffer); k < slots.at(r, capacity); ++k) {
            if (slots.held[k] < 0) return k;
            if (least < 0 || relevance[k] < relevance[least]) least = k;
        }
        return least >= 0 && worth > relevance[least] ? least : -1;
    }

public:
    ScreenedForward(const AttentiveForward<T>& a, std::int64_t rows)
        : a(a), capacity(a.capacity()), width(rounded_up(a.n, lanes<T>)), slots(rows, capacity, a.n),
          logits(1, capacity), made(capacity, a.n), relevance(rows * capacity), clocks(rows) {
        T sum = 0;
        for (std::int64_t j = 0; j < a.n; ++j) sum += std::abs(a.v[j]);
        tame = T(2) * sum < Limits<T>::exponent / 2;
    }

    void begin(std::int64_t r, std::int64_t b, T* reach) {
        clocks[r] = a.clock0[b];
        for (std::int64_t j = 0; j < capacity; ++j) {
            const std::int64_t from = b * capacity + j, to = slots.at(r, j), place = slots.place[to];
            slots.held[to] = a.origin0[from] < 0 ? -1 : static_cast<std::int32_t>(j);
            relevance[to] = a.relevance0[from];
            copy(a.values0 + from * a.n, slots.values[place], a.n);
            double_exponentials(a.keys0 + from * a.n, slots.keys[place], a.n, reach);
        }
    }

    // h_t enters S and the oldest of a full S leaves it; without an S, h_t is judged as it is made.
    void insert(std::int64_t r, std::int64_t t, const T* value, const T* key) {
        if (a.decay < 1)
            for (std::int64_t j = a.buffer; j < capacity; ++j) relevance[slots.at(r, j)] *= static_cast<T>(a.decay);
        const std::int64_t index = a.carried + t, clock = clocks[r]++;
        if (a.buffer == 0) {
            const std::int64_t to = admit(r, T(0));
            if (to >= 0) put(to, index, value, key);
            return;
        }
        const std::int64_t leaving = slots.at(r, clock % a.buffer);
        const std::int64_t to = slots.held[leaving] >= 0 ? admit(r, relevance[leaving]) : -1;
        if (to >= 0) {
            slots.held[to] = slots.held[leaving];
            relevance[to] = relevance[leaving];
            std::swap(slots.place[to], slots.place[leaving]);
        }
        put(leaving, index, value, key);
    }

    // c = the attention of this query over S and R, at `at` = t * batch + b.
    void attend(std::int64_t r, std::int64_t at, const T* query, const T* v, T* c) {
        const std::int64_t count = slots.list(r), *filled = slots.filled.get(), *place = slots.place.get();
        T* weights = logits[0];
        score(count, [&](std::int64_t i) { return slots.keys[place[filled[i]]]; }, query, v, width, weights);
        if (count) soften(count, weights, tame ? T(0) : largest(count, weights));
        blend(count, [&](std::int64_t i) { return slots.values[place[filled[i]]]; }, weights, width, c);
        const std::int64_t counted = slots.at(r, a.refresh ? capacity : a.buffer);
        for (std::int64_t i = 0; i < count && filled[i] < counted; ++i) relevance[filled[i]] += weights[i];
        if (a.save) record(r, at, count, weights);
    }

    void record(std::int64_t r, std::int64_t at, std::int64_t count, const T* weights) {
        T* attention = a.attention + at * capacity;
        copy(slots.held.get() + slots.at(r, 0), a.slots + at * capacity, capacity);
        if (count == capacity) return copy(weights, attention, capacity);
        fill_zero(attention, capacity);
        for (std::int64_t i = 0; i < count; ++i) attention[slots.filled[i] - slots.at(r, 0)] = weights[i];
    }

    void keep(std::int64_t, std::int64_t, const T*, const T*) {}

    void finish(std::int64_t r, std::int64_t b, const Packed<T>& U_a) {
        const std::int64_t start = slots.at(r, 0);
        U_a.times(slots.values[start], slots.values.stride, static_cast<int>(capacity), made[0], made.stride);
        for (std::int64_t j = 0; j < capacity; ++j) {
            const std::int64_t index = slots.held[start + j], place = slots.place[start + j], to = b * capacity + j;
            a.slots_T[to] = index;
            copy(slots.values[place], a.values_T + to * a.n, a.n);
            const std::int64_t from = b * capacity + (index < 0 ? j : index);  // of a carried state's key
            copy(index < a.carried ? a.keys0 + from * a.n : made[place - start], a.keys_T + to * a.n, a.n);
        }
        copy(relevance.get() + slots.at(r, 0), a.relevance_T + b * capacity, capacity);
    }
};

// The same memory on the way back. Gradients of a state's value and key gather beside it until the step that made it.
template <class T>
class ScreenedBackward {
    const AttentiveBackward<T>& a;
    std::int64_t capacity, width;
    Slots<T> slots;
    Rows<T> d_values, d_keys, weights, d_weights, factor;
    Pending<T> pending;  // by place

    std::int64_t local(std::int64_t r, std::int64_t place) const { return place - slots.at(r, 0); }
    std::int64_t held_at(std::int64_t t, std::int64_t b, std::int64_t j) const {
        if (t >= 0) return a.slots[(t * a.batch + b) * capacity + j];
        return a.origin0[b * capacity + j] < 0 ? -1 : j;
    }
    void settle(std::int64_t r) {
        for (std::int64_t k = 0; k < capacity; ++k) pending.settle(r, k, d_values[slots.at(r, k)], width);
        pending.clear(r);
    }

    // The state of this index comes to a slot of row r: its value and key, and no gradient yet.
    void refill(std::int64_t r, std::int64_t b, std::int64_t slot, std::int64_t index) {
        const std::int64_t place = slots.place[slot], made = index - a.carried;
        fill_zero(d_values[place], a.n);
        fill_zero(d_keys[place], a.n);
        pending.forget(r, local(r, place));
        if (index < 0) return;
        const std::int64_t from = made < 0 ? b * a.carried + index : made * a.batch + b;
        copy((made < 0 ? a.values0 : a.h) + from * a.n, slots.values[place], a.n);
        if (made < 0) double_exponentials(a.keys0 + from * a.n, slots.keys[place], a.n);
        if (made >= 0) copy(a.activations_of(from).key(), slots.keys[place], a.n);
    }

public:
    ScreenedBackward(const AttentiveBackward<T>& a, std::int64_t rows)
        : a(a), capacity(a.capacity()), width(rounded_up(a.n, lanes<T>)), slots(rows, capacity, a.n),
          d_values(rows * capacity, a.n), d_keys(rows * capacity, a.n), weights(1, capacity), d_weights(1, capacity),
          factor(1, a.n), pending(rows, capacity, a.n) {
        for (std::int64_t j = 0; j < a.n; ++j) factor[0][j] = T(4) * a.v[j];
    }

    // The memory as it stands after each row's last step.
    void begin(const Block& block, const Span& span) {
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first;
            pending.clear(r);
            for (std::int64_t j = 0; j < capacity; ++j) {
                const std::int64_t to = slots.at(r, j), index = held_at(span.length(b) - 1, b, j);
                slots.held[to] = static_cast<std::int32_t>(index);
                refill(r, b, to, index);
            }
        }
    }

    // Where the gradient dc of step t's attention is to be written; then the way through it. d_query lacks the factor 4 v.
    T* context(std::int64_t r) const { return pending.context(r); }
    void attend_back(std::int64_t r, std::int64_t at, const T* query, const T* dc, T* d_query, T* d_v) {
        const std::int64_t count = slots.list(r), *filled = slots.filled.get(), *place = slots.place.get();
        T* shares = pending.add(r);
        fill_zero(shares, capacity);
        for (std::int64_t i = 0; i < count; ++i)
            shares[local(r, place[filled[i]])] = weights[0][i] = a.attention[at * capacity + local(r, filled[i])];
        const auto value = [&](std::int64_t i) { return slots.values[place[filled[i]]]; };
        const auto key = [&](std::int64_t i) { return slots.keys[place[filled[i]]]; };
        const auto d_key = [&](std::int64_t i) { return d_keys[place[filled[i]]]; };
        blend_back(count, value, dc, width, d_weights[0]);
        soften_back(count, weights[0], d_weights[0]);
        score_back(count, key, d_key, d_weights[0], query, width, d_query, d_v);
    }

    // What has gathered for h_t: its value's gradient is added to dh, its key's is written to dk.
    void claim(std::int64_t r, std::int64_t t, T* dh, T* dk) {
        if (pending.full(r)) settle(r);
        std::int64_t j = 0;
        while (j < capacity && slots.held[slots.at(r, j)] != a.carried + t) ++j;
        if (j == capacity) return fill_zero(dk, a.n);
        const std::int64_t place = slots.place[slots.at(r, j)];
        pending.settle(r, local(r, place), d_values[place], width);
        for (std::int64_t i = 0; i < width; i += lanes<T>) {
            store(dh + i, load(dh + i) + load(d_values[place] + i));
            store(dk + i, load(d_keys[place] + i) * load(factor[0] + i));
        }
    }

    // The memory as it stood before step t. A state that moved from S to R moves back, and what it displaced returns. S
    // comes before R, so that the place it leaves is free by then.
    void undo(const Block& block, const Span& span, std::int64_t t) {
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first;
            for (std::int64_t j = 0; span.alive(t, b) && j < capacity; ++j) {
                const std::int64_t to = slots.at(r, j), index = held_at(t - 1, b, j);
                if (slots.held[to] == index) continue;
                std::int64_t from = to + 1;
                while (from < slots.at(r, capacity) && (index < 0 || slots.held[from] != index)) ++from;
                slots.held[to] = static_cast<std::int32_t>(index);
                if (from < slots.at(r, capacity))
                    std::swap(slots.place[to], slots.place[from]);
                else
                    refill(r, b, to, index);
            }
        }
    }

    void finish(std::int64_t r, std::int64_t b) {
        settle(r);
        for (std::int64_t j = 0; j < capacity; ++j) {
            const std::int64_t to = (b * capacity + j) * a.n, place = slots.place[slots.at(r, j)];
            copy(d_values[place], a.dvalues0 + to, a.n);
            for (std::int64_t i = 0; i < a.n; ++i) a.dkeys0[to + i] = d_keys[place][i] * factor[0][i];
        }
    }
};

}  // namespace mnemoscope
