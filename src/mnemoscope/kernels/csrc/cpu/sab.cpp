// Sparse attentive backtracking over a whole sequence, there and back: an LSTM with h_t = h^_t + attended_t.
//
// A stored state's score w . tanh(m_i) does not depend on the step that attends it, so what is attended changes only when
// a state is stored: each row keeps its `top` best so far, and one attended vector until the next.
#include <cmath>

#include "arguments.h"
#include "attention.h"
#include "cells.h"
#include "product.h"
#include "sequence.h"
#include "team.h"

namespace mnemoscope {

template <class T>
constexpr T margin = T(1e-7);

// The best states of one row, largest score first; `stored` counts all that were ever offered.
template <class T>
struct Best {
    std::int64_t stored = 0, count = 0;
    Buffer<std::int64_t> index;
    Buffer<T> score, weight;
    explicit Best(std::int64_t top) : index(top), score(rounded_up(top, lanes<T>)), weight(rounded_up(top, lanes<T>)) {}

    void offer(std::int64_t candidate, T worth, std::int64_t top) {
        ++stored;
        std::int64_t place = count;
        while (place > 0 && worth > score[place - 1]) --place;
        if (place == top) return;
        count = std::min(count + 1, top);
        for (std::int64_t i = count - 1; i > place; --i) index[i] = index[i - 1], score[i] = score[i - 1];
        index[place] = candidate;
        score[place] = worth;
    }

    // The weights of the best; returns what their excess over the least was divided by, where they are sparse.
    T weigh(std::int64_t top) {
        std::copy(score.get(), score.get() + count, weight.get());
        if (stored <= top) {
            if (count) soften(count, weight.get(), largest(count, weight.get()));
            return T(0);
        }
        T sum = margin<T>;
        for (std::int64_t i = 0; i < count; ++i) {
            weight[i] = std::max(T(0), score[i] - score[top - 1] - margin<T>);
            sum += weight[i];
        }
        for (std::int64_t i = 0; i < count; ++i) weight[i] /= sum;
        return sum;
    }
};

template <class T>
T score_of(const T* w, const T* key, std::int64_t n, bool bent) {
    Vec<T> sum = splat(T(0));
    sweep<T>(n, [&](std::int64_t j, int count) {
        const Vec<T> k = load(key + j, count);
        sum += load(w + j, count) * (bent ? k : hyperbolic_tangent<T>(k));
    });
    return total<T>(sum);
}

template <class T>
struct SabForwardRows {
    Rows<T> h, hat, c, product, attended;
    std::vector<Best<T>> best;
    SabForwardRows(const SabForward<T>& a, std::int64_t rows)
        : h(rows, a.n), hat(rows, a.n), c(rows, a.n), product(rows, 4 * a.n), attended(rows, a.n) {
        for (std::int64_t r = 0; r < rows; ++r) best.emplace_back(a.top);
    }
};

template <class T>
void attend(const SabForward<T>& a, SabForwardRows<T>& local, std::int64_t r, std::int64_t b) {
    Best<T>& best = local.best[static_cast<std::size_t>(r)];
    best.weigh(a.top);
    fill_zero(local.attended[r], a.n);
    for (std::int64_t i = 0; i < best.count; ++i) {
        const std::int64_t k = best.index[i];
        const T* value = k < a.carried ? a.values0 + (b * a.carried + k) * a.n : a.h + ((k - a.carried) * a.batch + b) * a.n;
        sweep<T>(a.n, [&](std::int64_t j, int count) {
            store(local.attended[r] + j, load(local.attended[r] + j) + best.weight[i] * load(value + j, count), count);
        });
    }
}

template <class T>
void begin(const SabForward<T>& a, SabForwardRows<T>& local, std::int64_t r, std::int64_t b) {
    copy(a.h0 + b * a.n, local.h[r], a.n);
    copy(a.c0 + b * a.n, local.c[r], a.n);
    Best<T>& best = local.best[static_cast<std::size_t>(r)];
    best.stored = best.count = 0;
    for (std::int64_t i = 0; i < a.carried; ++i)
        if (a.origin0[b * a.carried + i] >= 0)
            best.offer(i, score_of(a.w, a.keys0 + (b * a.carried + i) * a.n, a.n, true), a.top);
    attend(a, local, r, b);
}

template <class T>
void advance(const SabForward<T>& a, SabForwardRows<T>& local, std::int64_t r, std::int64_t t, std::int64_t b) {
    const std::int64_t at = t * a.batch + b;
    T *h = a.h + at * a.n, *cells = a.save ? a.cells + at * a.n : nullptr, *gates = a.save ? a.gates + at * 4 * a.n : nullptr;
    lstm_cell(a.n, local.product[r], a.xp + at * 4 * a.n, local.c[r], local.hat[r], h, cells, gates);
    sweep<T>(a.n, [&](std::int64_t j, int count) {
        const Vec<T> attended = load(local.attended[r] + j), sum = load(local.hat[r] + j) + attended;
        store(local.h[r] + j, sum, count);
        store(h + j, sum, count);
        store(a.attended + at * a.n + j, attended, count);
    });
    Best<T>& best = local.best[static_cast<std::size_t>(r)];
    for (std::int64_t i = 0; a.save && i < a.top; ++i) {
        a.slots[at * a.top + i] = i < best.count ? static_cast<std::int32_t>(best.index[i]) : -1;
        a.attention[at * a.top + i] = i < best.count ? best.weight[i] : T(0);
    }
    if ((a.clock0[b] + t + 1) % a.store_every) return;
    best.offer(a.carried + t, score_of(a.w, h, a.n, false), a.top);
    attend(a, local, r, b);
}

template <class T>
void blank(const SabForward<T>& a, std::int64_t at) {
    fill_zero(a.h + at * a.n, a.n);
    fill_zero(a.attended + at * a.n, a.n);
    if (!a.save) return;
    fill_zero(a.cells + at * a.n, a.n);
    fill_zero(a.gates + at * 4 * a.n, 4 * a.n);
    fill_zero(a.slots + at * a.top, a.top);
    fill_zero(a.attention + at * a.top, a.top);
}

template <class T>
void walk(const SabForward<T>& a, const Packed<T>& V, const Block& block, SabForwardRows<T>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    for (std::int64_t b = block.first; b < block.end; ++b) begin(a, local, b - block.first, b);
    for (std::int64_t t = 0; t < a.steps; ++t) {
        if (t < span.longest(block))
            V.times(local.h[0], local.h.stride, block.rows(), local.product[0], local.product.stride);
        for (std::int64_t b = block.first; b < block.end; ++b)
            span.alive(t, b) ? advance(a, local, b - block.first, t, b) : blank(a, t * a.batch + b);
    }
    for (std::int64_t b = block.first; b < block.end; ++b) copy(local.c[b - block.first], a.c_T + b * a.n, a.n);
}

// On the way back the gradient of what was attended gathers until the step that stored a state, and is then passed on.
template <class T>
struct SabBackwardRows {
    Rows<T> carry, dc, d, dh, d_attended, d_values;
    Best<T> best;
    Buffer<std::int64_t> stored;
    std::int64_t states;
    SabBackwardRows(const SabBackward<T>& a, std::int64_t rows)
        : carry(rows, a.n), dc(rows, a.n), d(rows, 4 * a.n), dh(rows, a.n), d_attended(rows, a.n),
          d_values(rows * (a.carried + a.steps / a.store_every + 1), a.n), best(a.top), stored(rows),
          states(a.carried + a.steps / a.store_every + 1) {}

    // Where the gradient of a state gathers: carried ones first, then those stored, in order.
    T* d_value(const SabBackward<T>& a, std::int64_t r, std::int64_t b, std::int64_t index) const {
        if (index < a.carried) return d_values[r * states + index];
        const std::int64_t before = (a.clock0[b] + index - a.carried + 1) / a.store_every - a.clock0[b] / a.store_every;
        return d_values[r * states + a.carried + before - 1];
    }
};

// The best as they stood at step `at`. Their scores are made again: a sparse weight does not say what it was divided by.
template <class T, class Value>
void recall(const SabBackward<T>& a, Best<T>& best, std::int64_t stored, std::int64_t b, std::int64_t at, Value value) {
    best.stored = stored;
    best.count = std::min(stored, a.top);
    for (std::int64_t i = 0; i < best.count; ++i) {
        const std::int64_t k = best.index[i] = a.slots[at * a.top + i];
        const bool old = k < a.carried;
        best.score[i] = score_of(a.w, old ? a.keys0 + (b * a.carried + k) * a.n : value(i), a.n, old);
    }
}

// From the gradients of the weights to those of the scores, in place.
template <class T>
void weigh_back(Best<T>& best, T divisor, std::int64_t top, T* d) {
    T mean = 0, rest = 0;
    for (std::int64_t i = 0; i < best.count; ++i) mean += best.weight[i] * d[i];
    for (std::int64_t i = 0; i < best.count; ++i) {
        const T slope = divisor > 0 ? (best.weight[i] > 0 ? 1 / divisor : T(0)) : best.weight[i];
        d[i] = slope * (d[i] - mean);
        rest += d[i];
    }
    if (divisor > 0) d[top - 1] -= rest;  // the least of the best was subtracted from every one
}

// Through the attention of the steps after the last stored state, at the first of which (`at`) it was recorded.
template <class T>
void attend_back(const SabBackward<T>& a, SabBackwardRows<T>& local, std::int64_t r, std::int64_t b, std::int64_t at) {
    Best<T>& best = local.best;
    const auto value = [&](std::int64_t i) {
        const std::int64_t k = best.index[i];
        return k < a.carried ? a.values0 + (b * a.carried + k) * a.n : a.h + ((k - a.carried) * a.batch + b) * a.n;
    };
    recall(a, best, local.stored[r], b, at, value);
    const T divisor = best.weigh(a.top);
    T* d = best.score.get();
    for (std::int64_t i = 0; i < best.count; ++i) {
        Vec<T> sum = splat(T(0));
        sweep<T>(a.n, [&](std::int64_t j, int count) { sum += load(local.d_attended[r] + j) * load(value(i) + j, count); });
        d[i] = total<T>(sum);
    }
    weigh_back(best, divisor, a.top, d);
    for (std::int64_t i = 0; i < best.count; ++i) {
        const std::int64_t k = best.index[i];
        const bool old = k < a.carried;
        (old ? a.dscores0[b * a.carried + k] : a.dscores[(k - a.carried) * a.batch + b]) += d[i];
        T* d_value = local.d_value(a, r, b, k);
        sweep<T>(a.n, [&](std::int64_t j, int count) {
            Vec<T> gained = load(d_value + j) + best.weight[i] * load(local.d_attended[r] + j);
            if (!old) {
                const Vec<T> key = hyperbolic_tangent<T>(load(value(i) + j, count));
                gained += d[i] * load(a.w + j, count) * (T(1) - key * key);
            }
            store(d_value + j, gained, count);
        });
    }
    fill_zero(local.d_attended[r], a.n);
}

template <class T>
void begin(const SabBackward<T>& a, SabBackwardRows<T>& local, std::int64_t r, std::int64_t b, std::int64_t length) {
    for (const Rows<T>* rows : {&local.carry, &local.dc, &local.d_attended}) fill_zero((*rows)[r], a.n);
    if (a.dc_T) copy(a.dc_T + b * a.n, local.dc[r], a.n);
    for (std::int64_t i = 0; i < local.states; ++i) fill_zero(local.d_values[r * local.states + i], a.n);
    local.stored[r] = 0;
    for (std::int64_t i = 0; i < a.carried; ++i) local.stored[r] += a.origin0[b * a.carried + i] >= 0;
    local.stored[r] += (a.clock0[b] + length) / a.store_every - a.clock0[b] / a.store_every;
}

template <class T>
void retreat(const SabBackward<T>& a, SabBackwardRows<T>& local, std::int64_t r, std::int64_t t, std::int64_t b,
             std::int64_t length) {
    const std::int64_t at = t * a.batch + b;
    const bool stores = (a.clock0[b] + t + 1) % a.store_every == 0;
    if (stores) {  // h_t was attended from step t + 1 on
        if (t + 1 < length) attend_back(a, local, r, b, at + a.batch);
        --local.stored[r];
    }
    const T* d_value = stores ? local.d_value(a, r, b, a.carried + t) : nullptr;
    sweep<T>(a.n, [&](std::int64_t j, int count) {
        Vec<T> d = load(local.carry[r] + j);
        if (a.dh) d += load(a.dh + at * a.n + j, count);
        if (d_value) d += load(d_value + j);
        store(local.dh[r] + j, d, count);
        Vec<T> gathered = load(local.d_attended[r] + j) + d;
        if (a.dattended) gathered += load(a.dattended + at * a.n + j, count);
        store(local.d_attended[r] + j, gathered, count);
    });
    fill_zero(local.carry[r], a.n);
    const T* before = t ? a.cells + (at - a.batch) * a.n : a.c0 + b * a.n;
    lstm_cell_back(a.n, local.dh[r], local.carry[r], local.dc[r], before, a.cells + at * a.n, a.gates + at * 4 * a.n,
                   local.d[r], a.dxp + at * 4 * a.n);
}

template <class T>
void finish(const SabBackward<T>& a, SabBackwardRows<T>& local, std::int64_t r, std::int64_t b, std::int64_t length) {
    if (length > 0) attend_back(a, local, r, b, b);  // the steps before the first stored state attended what was carried
    copy(local.carry[r], a.dh0 + b * a.n, a.n);
    copy(local.dc[r], a.dc0 + b * a.n, a.n);
    for (std::int64_t i = 0; i < a.carried; ++i)
        copy(local.d_values[r * local.states + i], a.dvalues0 + (b * a.carried + i) * a.n, a.n);
}

template <class T>
void walk(const SabBackward<T>& a, const Packed<T>& V, const Block& block, SabBackwardRows<T>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    for (std::int64_t b = block.first; b < block.end; ++b) begin(a, local, b - block.first, b, span.length(b));
    for (std::int64_t t = a.steps - 1; t >= 0; --t) {
        for (std::int64_t b = block.first; b < block.end; ++b) {
            if (span.alive(t, b)) {
                retreat(a, local, b - block.first, t, b, span.length(b));
            } else {
                fill_zero(a.dxp + (t * a.batch + b) * 4 * a.n, 4 * a.n);
                fill_zero(local.d[b - block.first], 4 * a.n);
            }
        }
        if (t >= span.longest(block)) continue;
        V.times(local.d[0], local.d.stride, block.rows(), local.carry[0], local.carry.stride);
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first, clock = a.clock0[b] + t;
            if (!span.alive(t, b) || clock == 0 || clock % a.truncation) continue;
            fill_zero(local.carry[r], a.n);  // the gradient is cut here
            fill_zero(local.dc[r], a.n);
        }
    }
    for (std::int64_t b = block.first; b < block.end; ++b) finish(a, local, b - block.first, b, span.length(b));
}

template <class T>
int run(const SabForward<T>& a) {
    return guarded([&] {
        const Packed<T> V(a.V, a.n, 4 * a.n, 1, a.n);
        over_rows<SabForwardRows<T>>(
            a.threads, a.batch, most_rows<T>(4 * a.n * a.n), [&](std::int64_t rows) { return SabForwardRows<T>(a, rows); },
            [&](const Block& block, auto& local) { walk(a, V, block, local); });
    });
}
template <class T>
int run(const SabBackward<T>& a) {
    return guarded([&] {
        const Packed<T> V(a.V, 4 * a.n, a.n, a.n, 1);
        over_rows<SabBackwardRows<T>>(
            a.threads, a.batch, most_rows<T>(4 * a.n * a.n), [&](std::int64_t rows) { return SabBackwardRows<T>(a, rows); },
            [&](const Block& block, auto& local) { walk(a, V, block, local); });
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_API int sab_forward_float(const mnemoscope::SabForward<float>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int sab_forward_double(const mnemoscope::SabForward<double>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int sab_backward_float(const mnemoscope::SabBackward<float>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int sab_backward_double(const mnemoscope::SabBackward<double>* a) { return mnemoscope::run(*a); }
