// The memory of full attention: all carried states, then every state of this run, in order.
//
// Layout: row r of a block has its states in rows r * most .. of `values` and `keys`; keys hold
// e^{2k} (attention.h). Empty carried slots are left out.
#pragma once

#include "arguments.h"
#include "attention.h"

namespace mnemoscope {

// Few rows at a time, so that `copies` arrays of all their states stay in a core's own cache.
template <class T>
int64_t full_rows(int64_t states, int64_t n, int64_t copies) {
    const int64_t bytes = states * n * copies * static_cast<int64_t>(sizeof(T));
    return std::clamp<int64_t>((1 << 20) / std::max<int64_t>(bytes, 1), 1, 8);
}

// The carried slots of one sequence that hold a state.
struct FilledSlots {
    int64_t count = 0;
    Buffer<int64_t> slots;  // the carried slot of each of the first `count` states
    explicit FilledSlots(int64_t carried) : slots(carried) {}
    void read(const int64_t* origin, int64_t carried) {
        count = 0;
        for (int64_t j = 0; j < carried; ++j)
            if (origin[j] >= 0) slots[count++] = j;
    }
};

template <class T>
class FullForward {
    const AttentiveForward<T>& a;
    int64_t most, width;  // states of a row at most; n padded to whole vectors
    Rows<T> values, keys, logits;
    Buffer<int64_t> counts;
    FilledSlots filled;
    T sum_v = 0;

public:
    FullForward(const AttentiveForward<T>& a, int64_t rows)
        : a(a), most(a.carried + a.steps), width(rounded_up(a.n, lanes<T>)),
          values(rows * most, a.n), keys(rows * most, a.n), logits(1, most), counts(rows),
          filled(a.carried) {
        for (int64_t j = 0; j < a.n; ++j) sum_v += a.v[j];
    }

    // The carried memory of sequence b enters row r.
    void begin(int64_t r, int64_t b, T* magnitude) {
        copy(a.values0 + b * a.carried * a.n, a.values_T + b * most * a.n, a.carried * a.n);
        copy(a.keys0 + b * a.carried * a.n, a.keys_T + b * most * a.n, a.carried * a.n);
        filled.read(a.origin0 + b * a.carried, a.carried);
        counts[r] = filled.count;
        for (int64_t i = 0; i < filled.count; ++i) {
            const int64_t from = (b * a.carried + filled.slots[i]) * a.n;
            copy(a.values0 + from, values[r * most + i], a.n);
            double_exponentials(a.keys0 + from, keys[r * most + i], a.n, magnitude);
        }
    }

    // The state of step t and its key go into the returned memory.
    void write_final(int64_t b, int64_t t, const T* value, const T* key) {
        const int64_t to = (b * most + a.carried + t) * a.n;
        copy(value, a.values_T + to, a.n);
        copy(key, a.keys_T + to, a.n);
    }
    // Step t is past the end of sequence b.
    void write_final_zeros(int64_t b, int64_t t) {
        const int64_t to = (b * most + a.carried + t) * a.n;
        fill_zero(a.values_T + to, a.n);
        fill_zero(a.keys_T + to, a.n);
    }

    void insert(int64_t r, int64_t, const T* value, const T* key) {
        const int64_t to = r * most + counts[r]++;
        copy(value, values[to], a.n);
        copy(key, keys[to], a.n);
    }

    // The log of the softmax's sum is all that the backward pass needs (attention_backward).
    void attend(int64_t r, int64_t row, const T* query, const T* v, T* context) {
        const auto key = [&](int64_t i) { return keys[r * most + i]; };
        const auto value = [&](int64_t i) { return values[r * most + i]; };
        T* weights = logits[0];
        score(counts[r], key, query, v, width, weights);
        const T shift = largest(counts[r], weights);
        const T sum = softmax_inplace(counts[r], weights, shift);
        weighted_sum(counts[r], value, weights, width, context);
        if (a.save) a.attention[row] = shift + std::log(sum) + sum_v;
    }

    void finish(int64_t, int64_t, const Packed<T>&) {}
};

// The same memory in the backward pass: the newest state leaves after each step.
template <class T>
class FullBackward {
    const AttentiveBackward<T>& a;
    int64_t most, width;
    Rows<T> values, keys, d_values, d_keys, r_scratch, v;
    DeferredValueGradients<T> deferred;
    Buffer<int64_t> counts;
    FilledSlots filled;
    T sum_v = 0;

    // Adds what is deferred to the gradients of states first .. end - 1 of row r.
    void flush(int64_t r, int64_t first, int64_t end) {
        for (int64_t i = first; i < end; ++i) deferred.flush(r, i, d_values[r * most + i], width);
    }

public:
    FullBackward(const AttentiveBackward<T>& a, int64_t rows)
        : a(a), most(a.carried + a.steps), width(rounded_up(a.n, lanes<T>)),
          values(rows * most, a.n), keys(rows * most, a.n), d_values(rows * most, a.n),
          d_keys(rows * most, a.n), r_scratch(keys_per_group, a.n), v(1, a.n),
          deferred(rows, most, a.n), counts(rows), filled(a.carried) {
        for (int64_t j = 0; j < a.n; ++j) sum_v += v[0][j] = a.v[j];
    }

    // Everything that each row attends at its last step.
    void begin(const Block& block, const Lengths& lengths) {
        for (int64_t b = block.first; b < block.end; ++b)
            begin(b - block.first, b, lengths.length(b));
    }
    void begin(int64_t r, int64_t b, int64_t length) {
        filled.read(a.origin0 + b * a.carried, a.carried);
        counts[r] = filled.count + length;
        deferred.clear(r);
        for (int64_t i = 0; i < counts[r]; ++i) {
            const int64_t to = r * most + i, t = i - filled.count;
            if (t < 0) {
                const int64_t from = (b * a.carried + filled.slots[i]) * a.n;
                copy(a.values0 + from, values[to], a.n);
                double_exponentials(a.keys0 + from, keys[to], a.n);
            } else {
                const int64_t from = t * a.batch + b;
                copy(a.h + from * a.n, values[to], a.n);
                copy(a.activations_of(from).key(), keys[to], a.n);
            }
            fill_zero(d_values[to], a.n);
            fill_zero(d_keys[to], a.n);
        }
    }

    // Asks for what step p reads; the memory itself is already here.
    MNEMOSCOPE_INLINE void prefetch_step(const Position& p) const {
        prefetch(a.h + p.row * a.n, a.n);
    }

    // Where the caller writes d_context of a step before `attend_backward`.
    T* context(int64_t r) const { return deferred.context(r); }
    void attend_backward(int64_t r, int64_t row, const T* query, const T* d_context, T* d_query,
                         T* d_v) {
        // mean = d_context . c_t, where c_t = s_t - h_t, or 2 s_t - h_t under mix = mean.
        const T *h = a.h + row * a.n, *s = a.s + row * a.n;
        const T scale = a.mix == Mix::mean ? T(2) : T(1);
        Vec<T> mean = splat(T(0));
        for_each_vector<T>(a.n, [&](int64_t j, int count) {
            mean += load(d_context + j) * (scale * load(s + j, count) - load(h + j, count));
        });
        const int64_t base = r * most;
        const auto key = [&](int64_t i) { return keys[base + i]; };
        const auto value = [&](int64_t i) { return values[base + i]; };
        const auto d_key = [&](int64_t i) { return d_keys[base + i]; };
        attention_backward(counts[r], key, value, d_key, a.attention[row] - sum_v,
                           horizontal_sum<T>(mean), query, v[0], d_context, width, r_scratch,
                           deferred.add(r), d_query, d_v);
    }

    // h_t is the newest state and its gradients are complete: its value's is added to dh, its key's
    // is written to dk, and it leaves the memory.
    void take_gradient(int64_t r, int64_t, T* dh, T* dk) {
        const int64_t i = --counts[r], k = r * most + i;
        flush(r, i, i + 1);
        for (int64_t j = 0; j < width; j += lanes<T>) {
            store(dh + j, load(dh + j) + load(d_values[k] + j));
            store(dk + j, T(4) * load(v[0] + j) * load(d_keys[k] + j));
        }
        if (!deferred.full(r)) return;
        flush(r, 0, i);
        deferred.clear(r);
    }

    void rewind(const Block&, const Lengths&, int64_t) {}

    // Gradients of the carried memory; those of empty slots are zero.
    void finish(int64_t r, int64_t b) {
        filled.read(a.origin0 + b * a.carried, a.carried);
        flush(r, 0, filled.count);
        fill_zero(a.dvalues0 + b * a.carried * a.n, a.carried * a.n);
        fill_zero(a.dkeys0 + b * a.carried * a.n, a.carried * a.n);
        for (int64_t i = 0; i < filled.count; ++i) {
            const int64_t to = (b * a.carried + filled.slots[i]) * a.n, k = r * most + i;
            copy(d_values[k], a.dvalues0 + to, a.n);
            for (int64_t j = 0; j < a.n; ++j) a.dkeys0[to + j] = T(4) * v[0][j] * d_keys[k][j];
        }
    }
};

}  // namespace mnemoscope
