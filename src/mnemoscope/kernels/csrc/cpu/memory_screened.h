// The memory of relevancy screening (Kerg et al. 2020): a short-term buffer S and a relevant set R.
//
// Layout: a row has capacity = nu + rho slots, carried ones as many. Slots 0 .. nu-1 are S, the
// last nu states as a ring; slots nu .. nu+rho-1 are R. Slot j of row r of a block is at r *
// capacity + j. Values and keys stay in place when a state moves to another slot: `storage` maps a
// slot to its row of values and keys. Keys hold e^{2k} (attention.h).
#pragma once

#include <utility>

#include "arguments.h"
#include "attention.h"

namespace mnemoscope {

// Half as many rows as without attention where the weights fit a core's own cache: the slots of all
// rows lie there, too, and a tile of the product has no more rows.
template <class T, class Arguments>
int64_t screened_rows(const Arguments& a) {
    const int64_t rows = most_rows<T>((a.gate_width() + 2 * a.n) * a.depth());
    return rows > 16 ? rows : 8;
}

template <class T>
struct Slots {
    int64_t capacity;
    Buffer<int32_t> state;  // index of the slot's state in [carried | new], -1 if the slot is empty
    Buffer<int64_t> storage, filled;
    Rows<T> values, keys;

    Slots(int64_t rows, int64_t capacity, int64_t n)
        : capacity(capacity), state(rows * capacity), storage(rows * capacity), filled(capacity),
          values(rows * capacity, n), keys(rows * capacity, n) {
        for (int64_t k = 0; k < rows * capacity; ++k) storage[k] = k;
    }
    int64_t at(int64_t r, int64_t j) const { return r * capacity + j; }

    // Lists the slots of row r that hold a state in `filled`, and returns their number.
    int64_t list_filled(int64_t r) const {
        int64_t count = 0;
        for (int64_t j = 0; j < capacity; ++j) {
            filled[count] = at(r, j);
            count += state[at(r, j)] >= 0;
        }
        return count;
    }
};

template <class T>
class ScreenedForward {
    const AttentiveForward<T>& a;
    int64_t capacity, width;  // width: n padded to whole vectors
    Slots<T> slots;
    Rows<T> logits, final_keys;
    Buffer<T> relevance;
    Buffer<int64_t> next;  // the slot of S that the next state of each row takes
    bool logits_bounded;  // softmax needs no shift: no e^{logit} can overflow

    void put(int64_t slot, int64_t index, const T* value, const T* key) {
        slots.state[slot] = static_cast<int32_t>(index);
        relevance[slot] = T(0);
        copy(value, slots.values[slots.storage[slot]], a.n);
        copy(key, slots.keys[slots.storage[slot]], a.n);
    }

    // The slot of R for a state of this relevance: an empty one, or that of R's least relevant
    // state if its relevance is strictly less; -1 if there is none.
    int64_t admit(int64_t r, T candidate) const {
        int64_t least = -1;
        for (int64_t k = slots.at(r, a.buffer); k < slots.at(r, capacity); ++k) {
            if (slots.state[k] < 0) return k;
            if (least < 0 || relevance[k] < relevance[least]) least = k;
        }
        return least >= 0 && candidate > relevance[least] ? least : -1;
    }

    // Without a carried memory, row r is empty.
    void begin_empty(int64_t r) {
        next[r] = 0;
        for (int64_t k = slots.at(r, 0); k < slots.at(r, capacity); ++k) {
            slots.state[k] = -1;
            relevance[k] = T(0);
            fill_zero(slots.values[slots.storage[k]], a.n);
        }
    }

    // The step at which a state was made, -1 for an empty slot.
    int64_t origin(int64_t b, int64_t index) const {
        if (index < 0) return -1;
        if (index < capacity) return a.origin0[b * capacity + index];
        // Wraps around as torch's sums do: a state from elsewhere may hold any clock.
        const std::uint64_t clock = a.clock0 ? a.clock0[b] : 0;
        return static_cast<int64_t>(clock + static_cast<std::uint64_t>(index - capacity));
    }

    // Slots and attention weights of one step, for the backward pass.
    void save(int64_t r, int64_t row, int64_t count, const T* weights) {
        T* attention = a.attention + row * capacity;
        copy(slots.state.get() + slots.at(r, 0), a.slots + row * capacity, capacity);
        if (count == capacity) return copy(weights, attention, capacity);
        fill_zero(attention, capacity);
        for (int64_t i = 0; i < count; ++i)
            attention[slots.filled[i] - slots.at(r, 0)] = weights[i];
    }

public:
    ScreenedForward(const AttentiveForward<T>& a, int64_t rows)
        : a(a), capacity(a.capacity()), width(rounded_up(a.n, lanes<T>)),
          slots(rows, capacity, a.n), logits(1, capacity), final_keys(capacity, a.n),
          relevance(rows * capacity), next(rows) {
        T sum = 0;
        for (int64_t j = 0; j < a.n; ++j) sum += std::abs(a.v[j]);
        logits_bounded = T(2) * sum < Limits<T>::exponent / 2;
    }

    // The carried memory of sequence b enters row r.
    void begin(int64_t r, int64_t b, T* magnitude) {
        if (!a.origin0) return begin_empty(r);
        next[r] = a.buffer ? floor_mod(a.clock0[b], a.buffer) : 0;
        for (int64_t j = 0; j < capacity; ++j) {
            const int64_t from = b * capacity + j, to = slots.at(r, j), at = slots.storage[to];
            slots.state[to] = a.origin0[from] < 0 ? -1 : static_cast<int32_t>(j);
            relevance[to] = a.relevance0[from];
            copy(a.values0 + from * a.n, slots.values[at], a.n);
            double_exponentials(a.keys0 + from * a.n, slots.keys[at], a.n, magnitude);
        }
    }

    // h_t enters S, and the oldest state of a full S leaves it and may enter R. Without an S
    // (nu = 0), h_t itself may enter R.
    void insert(int64_t r, int64_t t, const T* value, const T* key) {
        if (a.decay < 1)
            for (int64_t j = a.buffer; j < capacity; ++j)
                relevance[slots.at(r, j)] *= static_cast<T>(a.decay);
        const int64_t index = capacity + t;
        if (a.buffer == 0) {
            const int64_t to = admit(r, T(0));
            if (to >= 0) put(to, index, value, key);
            return;
        }
        const int64_t oldest = slots.at(r, next[r]);
        next[r] = next[r] + 1 == a.buffer ? 0 : next[r] + 1;
        const int64_t to = slots.state[oldest] >= 0 ? admit(r, relevance[oldest]) : -1;
        if (to >= 0) {
            slots.state[to] = slots.state[oldest];
            relevance[to] = relevance[oldest];
            std::swap(slots.storage[to], slots.storage[oldest]);
        }
        put(oldest, index, value, key);
    }

    // context = attention of this query over S and R. Adds the weights to the states' relevance:
    // those of S, and with `refresh` also those of R.
    void attend(int64_t r, int64_t row, const T* query, const T* v, T* context) {
        const int64_t count = slots.list_filled(r);
        const int64_t *filled = slots.filled.get(), *storage = slots.storage.get();
        const auto key = [&](int64_t i) { return slots.keys[storage[filled[i]]]; };
        const auto value = [&](int64_t i) { return slots.values[storage[filled[i]]]; };
        T* weights = logits[0];
        score(count, key, query, v, width, weights);
        if (count) softmax_inplace(count, weights, logits_bounded ? T(0) : largest(count, weights));
        weighted_sum(count, value, weights, width, context);
        const int64_t end = slots.at(r, a.refresh ? capacity : a.buffer);
        for (int64_t i = 0; i < count && filled[i] < end; ++i) relevance[filled[i]] += weights[i];
        if (a.save) save(r, row, count, weights);
    }

    // Only full attention returns the states of single steps.
    void write_final(int64_t, int64_t, const T*, const T*) {}
    void write_final_zeros(int64_t, int64_t) {}

    // The returned memory. Keys of new states are computed again, since `slots.keys` holds e^{2k}.
    void finish(int64_t r, int64_t b, const Packed<T>& U_a) {
        const int64_t start = slots.at(r, 0);
        U_a.times(slots.values[start], slots.values.stride, static_cast<int>(capacity),
                  final_keys[0], final_keys.stride);
        for (int64_t j = 0; j < capacity; ++j) {
            const int64_t index = slots.state[start + j], at = slots.storage[start + j];
            const int64_t to = b * capacity + j;
            a.slots_T[to] = index;
            a.origin_T[to] = origin(b, index);
            copy(slots.values[at], a.values_T + to * a.n, a.n);
            if (index >= capacity)
                copy(final_keys[at - start], a.keys_T + to * a.n, a.n);
            else if (a.keys0)
                copy(a.keys0 + (b * capacity + (index < 0 ? j : index)) * a.n, a.keys_T + to * a.n,
                     a.n);
            else
                fill_zero(a.keys_T + to * a.n, a.n);
        }
        copy(relevance.get() + slots.at(r, 0), a.relevance_T + b * capacity, capacity);
    }
};

// The same memory in the backward pass, step by step as it was. Gradients of a state's value and
// key gather beside it until the step that made it.
template <class T>
class ScreenedBackward {
    const AttentiveBackward<T>& a;
    int64_t capacity, width;
    Slots<T> slots;
    Rows<T> d_values, d_keys, weights, d_weights, factor;  // factor = 4 v (score_backward)
    DeferredValueGradients<T> deferred;  // states are counted by their storage in the row

    int64_t within_row(int64_t r, int64_t k) const { return k - slots.at(r, 0); }

    // The state in slot j of sequence b after step t; t = -1: in the carried memory. A saved
    // tensor may come back changed (torch's hooks): an index of no state is an empty slot.
    int64_t saved_state(int64_t t, int64_t b, int64_t j) const {
        if (t < 0) return a.origin0 && a.origin0[b * capacity + j] >= 0 ? j : -1;
        const int64_t index = a.slots[(t * a.batch + b) * capacity + j];
        const int64_t first = a.origin0 ? 0 : capacity;
        return index >= first && index < capacity + a.steps ? index : -1;
    }
    void flush(int64_t r) {
        for (int64_t k = 0; k < capacity; ++k)
            deferred.flush(r, k, d_values[slots.at(r, k)], width);
        deferred.clear(r);
    }

    // Loads the value and key of a state into a slot of row r; their gradients start at zero.
    void refill(int64_t r, int64_t b, int64_t slot, int64_t index) {
        const int64_t at = slots.storage[slot];
        fill_zero(d_values[at], a.n);
        fill_zero(d_keys[at], a.n);
        deferred.drop(r, within_row(r, at));
        if (index < 0) return;
        if (index < capacity) {
            const int64_t from = b * capacity + index;
            copy(a.values0 + from * a.n, slots.values[at], a.n);
            double_exponentials(a.keys0 + from * a.n, slots.keys[at], a.n);
        } else {
            const int64_t from = (index - capacity) * a.batch + b;
            copy(a.h + from * a.n, slots.values[at], a.n);
            copy(a.activations_of(from).key(), slots.keys[at], a.n);
        }
    }

public:
    ScreenedBackward(const AttentiveBackward<T>& a, int64_t rows)
        : a(a), capacity(a.capacity()), width(rounded_up(a.n, lanes<T>)),
          slots(rows, capacity, a.n), d_values(rows * capacity, a.n), d_keys(rows * capacity, a.n),
          weights(1, capacity), d_weights(1, capacity), factor(1, a.n),
          deferred(rows, capacity, a.n) {
        for (int64_t j = 0; j < a.n; ++j) factor[0][j] = T(4) * a.v[j];
    }

    // The memory after each row's last step.
    void begin(const Block& block, const Lengths& lengths) {
        for (int64_t b = block.first; b < block.end; ++b) {
            const int64_t r = b - block.first;
            deferred.clear(r);
            for (int64_t j = 0; j < capacity; ++j) {
                const int64_t to = slots.at(r, j), index = saved_state(lengths.length(b) - 1, b, j);
                slots.state[to] = static_cast<int32_t>(index);
                refill(r, b, to, index);
            }
        }
    }

    // Asks for what step p reads. `rewind` most often brings back the state that left S.
    MNEMOSCOPE_INLINE void prefetch_step(const Position& p) const {
        prefetch(a.attention + p.row * capacity, capacity);
        if (p.t) prefetch(a.slots + p.previous * capacity, capacity);
        if (p.t < a.buffer) return;
        const int64_t row = p.row - a.buffer * a.batch;
        prefetch(a.h + row * a.n, a.n);
        prefetch(a.activations_of(row).key(), a.n);
    }

    // Where the caller writes d_context of a step before `attend_backward`.
    T* context(int64_t r) const { return deferred.context(r); }
    // d_query lacks the factor 4 v.
    void attend_backward(int64_t r, int64_t row, const T* query, const T* d_context, T* d_query,
                         T* d_v) {
        const int64_t count = slots.list_filled(r);
        const int64_t *filled = slots.filled.get(), *storage = slots.storage.get();
        T* deferred_weights = deferred.add(r);
        fill_zero(deferred_weights, capacity);
        for (int64_t i = 0; i < count; ++i) {
            weights[0][i] = a.attention[row * capacity + within_row(r, filled[i])];
            deferred_weights[within_row(r, storage[filled[i]])] = weights[0][i];
        }
        const auto value = [&](int64_t i) { return slots.values[storage[filled[i]]]; };
        const auto key = [&](int64_t i) { return slots.keys[storage[filled[i]]]; };
        const auto d_key = [&](int64_t i) { return d_keys[storage[filled[i]]]; };
        weighted_sum_backward(count, value, d_context, width, d_weights[0]);
        softmax_backward(count, weights[0], d_weights[0]);
        score_backward(count, key, d_key, d_weights[0], query, width, d_query, d_v);
    }

    // The gradients of h_t as a state of the memory are complete: its value's is added to dh, its
    // key's is written to dk.
    void take_gradient(int64_t r, int64_t t, T* dh, T* dk) {
        if (deferred.full(r)) flush(r);
        int64_t j = 0;
        while (j < capacity && slots.state[slots.at(r, j)] != capacity + t) ++j;
        if (j == capacity) return fill_zero(dk, a.n);
        const int64_t at = slots.storage[slots.at(r, j)];
        deferred.flush(r, within_row(r, at), d_values[at], width);
        for (int64_t i = 0; i < width; i += lanes<T>) {
            store(dh + i, load(dh + i) + load(d_values[at] + i));
            store(dk + i, load(d_keys[at] + i) * load(factor[0] + i));
        }
    }

    // The memory before step t. A state that moved from S to R moves back, and the state that it
    // displaced returns. S comes before R, so that the slot it leaves is free by then.
    void rewind(const Block& block, const Lengths& lengths, int64_t t) {
        for (int64_t b = block.first; b < block.end; ++b)
            if (lengths.active(t, b)) rewind(b - block.first, b, t);
    }
    void rewind(int64_t r, int64_t b, int64_t t) {
        for (int64_t j = 0; j < capacity; ++j) {
            const int64_t to = slots.at(r, j), index = saved_state(t - 1, b, j);
            if (slots.state[to] == index) continue;
            const int64_t end = slots.at(r, capacity);
            int64_t from = to + 1;
            while (from < end && (index < 0 || slots.state[from] != index)) ++from;
            slots.state[to] = static_cast<int32_t>(index);
            if (from < end)
                std::swap(slots.storage[to], slots.storage[from]);
            else
                refill(r, b, to, index);
        }
    }

    // Gradients of the carried memory.
    void finish(int64_t r, int64_t b) {
        if (!a.dvalues0) return;
        flush(r);
        for (int64_t j = 0; j < capacity; ++j) {
            const int64_t to = (b * capacity + j) * a.n, at = slots.storage[slots.at(r, j)];
            copy(d_values[at], a.dvalues0 + to, a.n);
            for (int64_t i = 0; i < a.n; ++i) a.dkeys0[to + i] = d_keys[at][i] * factor[0][i];
        }
    }
};

}  // namespace mnemoscope
