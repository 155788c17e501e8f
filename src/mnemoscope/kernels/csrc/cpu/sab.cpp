// Sparse attentive backtracking: an LSTM with h_t = h^_t + attended_t, where h^_t is its output.
//
// A stored state's score w . tanh(m_i) does not depend on the step that attends it. So what is
// attended changes only when a state is stored: each row keeps its `top` states so far, and one
// attended vector until the next state is stored.
//
// States are indexed as [carried | new]: a carried slot, or `carried` plus the step that made it.
#include <cmath>

#include "arguments.h"
#include "attention.h"
#include "recurrence.h"

namespace mnemoscope {

#define SAB_OPTIONS(FIELD)           \
    FIELD(std::int64_t, store_every) \
    FIELD(std::int64_t, top)         \
    FIELD(std::int64_t, truncation)  \
    FIELD(std::int64_t, detach_scores)

#define SAB_FORWARD(FIELD)              \
    SIZES(FIELD)                        \
    FIELD(std::int64_t, carried)        \
    FIELD(const T*, xp)                 \
    FIELD(const T*, V)                  \
    FIELD(const T*, w)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, c0)                 \
    CARRIED_MEMORY(FIELD)               \
    SAB_OPTIONS(FIELD)                  \
    FIELD(const std::int64_t*, lengths) \
    FIELD(std::int64_t, save)           \
    FIELD(T*, h)                        \
    FIELD(T*, attended)                 \
    FIELD(T*, c_T)                      \
    FIELD(T*, cells)                    \
    FIELD(T*, gates)                    \
    FIELD(std::int32_t*, slots)         \
    FIELD(T*, attention)                \
    FIELD(ThreadPool, threads)

// dscores and dscores0 come in as zeros.
#define SAB_BACKWARD(FIELD)             \
    SIZES(FIELD)                        \
    FIELD(std::int64_t, carried)        \
    FIELD(const T*, dh)                 \
    FIELD(const T*, dattended)          \
    FIELD(const T*, dc_T)               \
    FIELD(const T*, V)                  \
    FIELD(const T*, w)                  \
    FIELD(const T*, c0)                 \
    CARRIED_MEMORY(FIELD)               \
    SAB_OPTIONS(FIELD)                  \
    FIELD(const T*, h)                  \
    FIELD(const T*, cells)              \
    FIELD(const T*, gates)              \
    FIELD(const std::int32_t*, slots)   \
    FIELD(const T*, attention)          \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, dxp)                      \
    FIELD(T*, dh0)                      \
    FIELD(T*, dc0)                      \
    FIELD(T*, dvalues0)                 \
    FIELD(T*, dscores)                  \
    FIELD(T*, dscores0)                 \
    FIELD(ThreadPool, threads)

MNEMOSCOPE_STRUCTURE(SabForward, SAB_FORWARD)
MNEMOSCOPE_STRUCTURE(SabBackward, SAB_BACKWARD)

template <class T>
constexpr T margin = T(1e-7);

// The `top` states of one row with the largest scores, largest first. `stored` counts all states
// ever offered.
template <class T>
struct TopStates {
    int64_t stored = 0, count = 0;
    Buffer<int64_t> index;
    Buffer<T> score, weight;
    explicit TopStates(int64_t top)
        : index(top), score(rounded_up(top, lanes<T>)), weight(rounded_up(top, lanes<T>)) {}

    void offer(int64_t candidate, T its_score, int64_t top) {
        ++stored;
        int64_t rank = count;
        while (rank > 0 && its_score > score[rank - 1]) --rank;
        if (rank == top) return;
        count = std::min(count + 1, top);
        for (int64_t i = count - 1; i > rank; --i) {
            index[i] = index[i - 1];
            score[i] = score[i - 1];
        }
        index[rank] = candidate;
        score[rank] = its_score;
    }

    // Sets the attention weights. While all stored states are attended they are a softmax, and 0 is
    // returned. After that they are sparse: the excess over the last score, divided by its sum,
    // which is returned.
    T set_weights(int64_t top) {
        std::copy(score.get(), score.get() + count, weight.get());
        if (stored <= top) {
            if (count) softmax_inplace(count, weight.get(), largest(count, weight.get()));
            return T(0);
        }
        T sum = margin<T>;
        for (int64_t i = 0; i < count; ++i) {
            weight[i] = std::max(T(0), score[i] - score[top - 1] - margin<T>);
            sum += weight[i];
        }
        for (int64_t i = 0; i < count; ++i) weight[i] /= sum;
        return sum;
    }

    // From the gradients of the weights to those of the scores, in place. `divisor` is what
    // set_weights returned.
    void weights_backward(T divisor, int64_t top, T* d) const {
        T mean = 0, rest = 0;
        for (int64_t i = 0; i < count; ++i) mean += weight[i] * d[i];
        for (int64_t i = 0; i < count; ++i) {
            T slope = weight[i];
            if (divisor > 0) slope = weight[i] > 0 ? 1 / divisor : T(0);
            d[i] = slope * (d[i] - mean);
            rest += d[i];
        }
        if (divisor > 0) d[top - 1] -= rest;  // the last score was subtracted from every one
    }
};

// w . key, or w . tanh(key): carried keys are stored as tanh(m), new states as they are.
template <class T, bool is_tanh>
T score_of(const T* w, const T* key, int64_t n) {
    Vec<T> sum = splat(T(0));
    for_each_vector<T>(n, [&](int64_t j, int count) {
        const Vec<T> k = load(key + j, count);
        sum += load(w + j, count) * (is_tanh ? k : hyperbolic_tangent<T>(k));
    });
    return horizontal_sum<T>(sum);
}

// The value of a state of sequence b.
template <class T, class Arguments>
const T* state_value(const Arguments& a, int64_t b, int64_t index) {
    if (index < a.carried) return a.values0 + (b * a.carried + index) * a.n;
    return a.h + ((index - a.carried) * a.batch + b) * a.n;
}

// How many states sequence b stores in its steps 0 .. t. One is stored where clock + 1 is a
// multiple of store_every.
template <class Arguments>
int64_t stored_until(const Arguments& a, int64_t b, int64_t t) {
    return (floor_mod(a.clock0[b], a.store_every) + t + 1) / a.store_every;
}
template <class Arguments>
bool stores_at(const Arguments& a, int64_t b, int64_t t) {
    return (floor_mod(a.clock0[b], a.store_every) + t + 1) % a.store_every == 0;
}

template <class T>
struct SabForwardCell {
    const SabForward<T>& a;
    Rows<T> c, h_lstm, attended;
    std::vector<TopStates<T>> top_states;

    SabForwardCell(const SabForward<T>& a, int64_t rows)
        : a(a), c(rows, a.n), h_lstm(rows, a.n), attended(rows, a.n) {
        for (int64_t r = 0; r < rows; ++r) top_states.emplace_back(a.top);
    }

    void begin(int64_t b, int64_t r) {
        copy(a.c0 + b * a.n, c[r], a.n);
        TopStates<T>& top = top_of(r);
        top.stored = top.count = 0;
        for (int64_t i = 0; i < a.carried; ++i) {
            const int64_t slot = b * a.carried + i;
            if (a.origin0[slot] < 0) continue;
            top.offer(i, score_of<T, true>(a.w, a.keys0 + slot * a.n, a.n), a.top);
        }
        attend(b, r);
    }

    void step(const Position& p, const T* product, const T* xp, T* state) {
        const int64_t n = a.n;
        T* h = a.h + p.row * n;
        T* cells = a.save ? a.cells + p.row * n : nullptr;
        T* gates = a.save ? a.gates + p.row * 4 * n : nullptr;
        lstm_cell(n, product, xp, c[p.r], h_lstm[p.r], h, cells, gates);
        for_each_vector<T>(n, [&](int64_t j, int count) {
            const Vec<T> added = load(attended[p.r] + j), sum = load(h_lstm[p.r] + j) + added;
            store(state + j, sum, count);
            store(h + j, sum, count);
            store(a.attended + p.row * n + j, added, count);
        });
        TopStates<T>& top = top_of(p.r);
        for (int64_t i = 0; a.save && i < a.top; ++i) {
            const bool used = i < top.count;
            a.slots[p.row * a.top + i] = used ? static_cast<int32_t>(top.index[i]) : -1;
            a.attention[p.row * a.top + i] = used ? top.weight[i] : T(0);
        }
        if (!stores_at(a, p.b, p.t)) return;
        top.offer(a.carried + p.t, score_of<T, false>(a.w, h, n), a.top);
        attend(p.b, p.r);
    }

    void skip(const Position& p) {
        fill_zero(a.h + p.row * a.n, a.n);
        fill_zero(a.attended + p.row * a.n, a.n);
        if (!a.save) return;
        fill_zero(a.cells + p.row * a.n, a.n);
        fill_zero(a.gates + p.row * 4 * a.n, 4 * a.n);
        fill_zero(a.slots + p.row * a.top, a.top);
        fill_zero(a.attention + p.row * a.top, a.top);
    }

    void finish(int64_t b, int64_t r) { copy(c[r], a.c_T + b * a.n, a.n); }

private:
    TopStates<T>& top_of(int64_t r) { return top_states[static_cast<std::size_t>(r)]; }

    // The attended vector of row r, from now on.
    void attend(int64_t b, int64_t r) {
        TopStates<T>& top = top_of(r);
        top.set_weights(a.top);
        T* sum = attended[r];
        fill_zero(sum, a.n);
        for (int64_t i = 0; i < top.count; ++i) {
            const T* value = state_value<T>(a, b, top.index[i]);
            for_each_vector<T>(a.n, [&](int64_t j, int count) {
                store(sum + j, load(sum + j) + top.weight[i] * load(value + j, count), count);
            });
        }
    }
};

// The gradient of the attended vector gathers until the step that stored a state, and is then
// passed on to the states that were attended from that step on.
template <class T>
struct SabBackwardCell {
    const SabBackward<T>& a;
    Lengths lengths;
    int64_t states;  // carried slots, and the most states that a row can store
    Rows<T> dc, dh, d_attended, d_values;
    TopStates<T> top;  // scratch
    Buffer<int64_t> stored;  // states stored in each row so far

    SabBackwardCell(const SabBackward<T>& a, int64_t rows)
        : a(a), lengths{a.steps, a.batch, a.lengths},
          states(a.carried + a.steps / a.store_every + 1), dc(rows, a.n), dh(rows, a.n),
          d_attended(rows, a.n), d_values(rows * states, a.n), top(a.top), stored(rows) {}

    void begin(int64_t b, int64_t r) {
        fill_zero(dc[r], a.n);
        fill_zero(d_attended[r], a.n);
        if (a.dc_T) copy(a.dc_T + b * a.n, dc[r], a.n);
        for (int64_t i = 0; i < states; ++i) fill_zero(d_values[r * states + i], a.n);
        stored[r] = stored_until(a, b, lengths.length(b) - 1);
        for (int64_t i = 0; i < a.carried; ++i) stored[r] += a.origin0[b * a.carried + i] >= 0;
    }

    void step(const Position& p, T* carry, T* grad_row, T* dxp) {
        const int64_t n = a.n, length = lengths.length(p.b);
        if (p.t + 1 < length) truncate(p.b, p.t + 1, carry, p.r);

        // A state stored at this step was attended from step t + 1 on.
        const bool stores = stores_at(a, p.b, p.t);
        if (stores) {
            if (p.t + 1 < length) attend_backward(p.b, p.r, p.row + a.batch);
            --stored[p.r];
        }

        // The gradient of h_t = h^_t + attended_t.
        const T* d_value = stores ? d_value_of(p.b, p.r, a.carried + p.t) : nullptr;
        for_each_vector<T>(n, [&](int64_t j, int count) {
            Vec<T> d = load(carry + j);
            if (a.dh) d += load(a.dh + p.row * n + j, count);
            if (d_value) d += load(d_value + j);
            store(dh[p.r] + j, d, count);
            Vec<T> gathered = load(d_attended[p.r] + j) + d;
            if (a.dattended) gathered += load(a.dattended + p.row * n + j, count);
            store(d_attended[p.r] + j, gathered, count);
        });
        fill_zero(carry, n);
        const T* c_before = p.t ? a.cells + p.previous * n : a.c0 + p.b * n;
        lstm_cell_backward(n, dh[p.r], carry, dc[p.r], c_before, a.cells + p.row * n,
                           a.gates + p.row * 4 * n, grad_row, dxp);
    }

    void skip(const Position&) {}

    void finish(int64_t b, int64_t r, T* carry) {
        if (lengths.length(b) > 0) {
            truncate(b, 0, carry, r);
            attend_backward(b, r, b);  // before the first stored state, the carried ones
        }
        copy(carry, a.dh0 + b * a.n, a.n);
        copy(dc[r], a.dc0 + b * a.n, a.n);
        for (int64_t i = 0; i < a.carried; ++i)
            copy(d_values[r * states + i], a.dvalues0 + (b * a.carried + i) * a.n, a.n);
    }

private:
    // Where the gradient of a state gathers: carried states first, then the stored ones, in order.
    T* d_value_of(int64_t b, int64_t r, int64_t index) const {
        if (index < a.carried) return d_values[r * states + index];
        const int64_t before = std::max<int64_t>(stored_until(a, b, index - a.carried) - 1, 0);
        return d_values[r * states + a.carried + before];
    }

    // Cuts the gradient that step t passes back through the recurrence, every `truncation` steps.
    void truncate(int64_t b, int64_t t, T* carry, int64_t r) {
        const int64_t clock0 = a.clock0[b];  // cut where clock0 + t > 0 is a multiple
        if (clock0 <= -t || (floor_mod(clock0, a.truncation) + t) % a.truncation) return;
        fill_zero(carry, a.n);
        fill_zero(dc[r], a.n);
    }

    // The top states as they were at a step. Scores are computed again: a sparse weight does not
    // tell its divisor. A saved tensor may come back changed: an index is kept within the states.
    void restore_top(int64_t b, int64_t r, int64_t row) {
        top.stored = stored[r];
        top.count = std::min(stored[r], a.top);
        for (int64_t i = 0; i < top.count; ++i) {
            const int64_t saved = a.slots[row * a.top + i];
            const int64_t k = std::clamp<int64_t>(saved, 0, a.carried + a.steps - 1);
            top.index[i] = k;
            if (k < a.carried)
                top.score[i] = score_of<T, true>(a.w, a.keys0 + (b * a.carried + k) * a.n, a.n);
            else
                top.score[i] = score_of<T, false>(a.w, state_value<T>(a, b, k), a.n);
        }
    }

    // Through the attention of the steps from `row` on, up to the next stored state.
    void attend_backward(int64_t b, int64_t r, int64_t row) {
        restore_top(b, r, row);
        const T divisor = top.set_weights(a.top);

        // Gradients of the weights, then of the scores.
        T* d = top.score.get();
        for (int64_t i = 0; i < top.count; ++i) {
            const T* value = state_value<T>(a, b, top.index[i]);
            Vec<T> sum = splat(T(0));
            for_each_vector<T>(a.n, [&](int64_t j, int count) {
                sum += load(d_attended[r] + j) * load(value + j, count);
            });
            d[i] = horizontal_sum<T>(sum);
        }
        top.weights_backward(divisor, a.top, d);

        // Gradients of the states: as values, and new ones also as keys if the scores pass any on.
        // Carried keys belong to the caller.
        for (int64_t i = 0; i < top.count; ++i) {
            const int64_t k = top.index[i];
            const bool is_carried = k < a.carried;
            if (is_carried)
                a.dscores0[b * a.carried + k] += d[i];
            else
                a.dscores[(k - a.carried) * a.batch + b] += d[i];
            const T* value = state_value<T>(a, b, k);
            T* d_value = d_value_of(b, r, k);
            for_each_vector<T>(a.n, [&](int64_t j, int count) {
                Vec<T> sum = load(d_value + j) + top.weight[i] * load(d_attended[r] + j);
                if (!is_carried && !a.detach_scores) {
                    const Vec<T> key = hyperbolic_tangent<T>(load(value + j, count));
                    sum += d[i] * load(a.w + j, count) * (T(1) - key * key);
                }
                store(d_value + j, sum, count);
            });
        }
        fill_zero(d_attended[r], a.n);
    }
};

template <class T>
int run(const SabForward<T>& a) {
    return guarded(a.threads, [&] {
        const ForwardLoop<T> loop(a, a.V, 4 * a.n);
        loop.template run<SabForwardCell<T>>(a);
    });
}
template <class T>
int run(const SabBackward<T>& a) {
    return guarded(a.threads, [&] {
        const BackwardLoop<T> loop(a, a.V, 4 * a.n);
        loop.template run<SabBackwardCell<T>>(a);
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_EXPORT(sab_forward, SabForward, SAB_FORWARD)
MNEMOSCOPE_EXPORT(sab_backward, SabBackward, SAB_BACKWARD)
