// A self-attentive recurrence over a whole sequence: the cell reads s_{t-1}, then s_t = h_t + attention over h_i, i <= t.
#include "arguments.h"
#include "full.h"
#include "screened.h"

namespace mnemoscope {

template <class T, class Memory>
struct ForwardScratch {
    Memory memory;
    Rows<T> s, c, h, product, asked, key, query, context, v, reach;  // s = [s, x]; asked = W_a s, query its exponentials

    ForwardScratch(const AttentiveForward<T>& a, std::int64_t rows)
        : memory(a, rows), s(rows, a.depth()), c(rows, a.n), h(rows, a.n), product(rows, a.gate_width()),
          asked(rows, a.n), key(rows, a.n), query(1, a.n), context(1, a.n), v(1, a.n), reach(rows, lanes<T>) {
        copy(a.v, v[0], a.n);
    }
};

template <class T, class Memory>
void advance(const AttentiveForward<T>& a, ForwardScratch<T, Memory>& local, std::int64_t r, std::int64_t at) {
    const T* xp = Inputs<T>{a.xp, a.n_inputs, a.gate_width()}.added(at);
    T* out = a.h + at * a.n;
    if (a.cell == Cell::lstm) {
        const auto kept = a.activations_of(at);
        T *cell = a.save ? kept.cell() : nullptr, *gates = a.save ? kept.gates() : nullptr;
        return lstm_cell(a.n, local.product[r], xp, local.c[r], local.h[r], out, cell, gates);
    }
    with_phi(a.phi, [&](auto phi) { rnn_cell<T, phi.value>(a.n, local.product[r], xp, a.b, local.h[r], out); });
}

template <class T, class Memory>
void attend(const AttentiveForward<T>& a, ForwardScratch<T, Memory>& local, std::int64_t r, std::int64_t t,
            std::int64_t at) {
    const auto kept = a.activations_of(at);
    local.memory.keep(at % a.batch, t, local.h[r], local.key[r]);
    double_exponentials(local.key[r], local.key[r], a.n, local.reach[r], a.save ? kept.key() : nullptr);
    double_exponentials(local.asked[r], local.query[0], a.n, local.reach[r], a.save ? kept.query() : nullptr);
    local.memory.insert(r, t, local.h[r], local.key[r]);
    local.memory.attend(r, at, local.query[0], local.v[0], local.context[0]);
    const T share = a.mix == Mix::mean ? T(0.5) : T(1);
    sweep<T>(a.n, [&](std::int64_t j, int count) {
        const Vec<T> s = share * (load(local.h[r] + j) + load(local.context[0] + j));
        store(local.s[r] + j, s, count);
        store(a.s + at * a.n + j, s, count);
    });
}

template <class T>
void blank(const AttentiveForward<T>& a, std::int64_t at) {
    fill_zero(a.h + at * a.n, a.n);
    fill_zero(a.s + at * a.n, a.n);
    if (!a.save) return;
    fill_zero(a.attention + at * (a.buffer < 0 ? 1 : a.capacity()), a.buffer < 0 ? 1 : a.capacity());
    if (a.buffer >= 0) fill_zero(a.slots + at * a.capacity(), a.capacity());
    fill_zero(a.activations + at * a.activation_width, a.activation_width);
}

// W_a reads the state alone. A zero for each input would not do: an infinite one, which the cell bends to 1, times zero
// is no number.
template <class T>
struct ForwardMatrices {
    Packed<T> V, W_a, U_a;
    explicit ForwardMatrices(const AttentiveForward<T>& a)
        : V(a.V, a.depth(), a.gate_width(), 1, a.depth()), W_a(a.W_a, a.n, a.n, 1, a.n), U_a(a.U_a, a.n, a.n, 1, a.n) {}
};

template <class T, class Memory>
void walk(const AttentiveForward<T>& a, const ForwardMatrices<T>& m, const Block& block,
          ForwardScratch<T, Memory>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    const Inputs<T> inputs{a.xp, a.n_inputs, a.gate_width()};
    const int rows = block.rows();
    for (int r = 0; r < rows; ++r) {
        const std::int64_t b = block.first + r;
        fill_zero(local.reach[r], lanes<T>);
        local.memory.begin(r, b, local.reach[r]);
        copy(a.s0 + b * a.n, local.s[r], a.n);
        if (a.cell == Cell::lstm) copy(a.c0 + b * a.n, local.c[r], a.n);
    }
    for (std::int64_t t = 0; t < a.steps; ++t) {
        for (int r = 0; r < rows; ++r) inputs.put_behind(local.s[r], a.n, t * a.batch + block.first + r);
        if (t < span.longest(block)) {
            m.V.times(local.s[0], local.s.stride, rows, local.product[0], local.product.stride);
            m.W_a.times(local.s[0], local.s.stride, rows, local.asked[0], local.asked.stride);
        }
        for (int r = 0; r < rows; ++r)
            if (span.alive(t, block.first + r)) advance(a, local, r, t * a.batch + block.first + r);
        if (t < span.longest(block)) m.U_a.times(local.h[0], local.h.stride, rows, local.key[0], local.key.stride);
        for (int r = 0; r < rows; ++r) {
            const std::int64_t at = t * a.batch + block.first + r;
            if (span.alive(t, block.first + r)) {
                attend(a, local, r, t, at);
            } else {
                blank(a, at);
                local.memory.keep(block.first + r, t, nullptr, nullptr);
            }
        }
    }
    for (int r = 0; r < rows; ++r) {
        local.memory.finish(r, block.first + r, m.U_a);
        a.largest_magnitude[block.first + r] = *std::max_element(local.reach[r], local.reach[r] + lanes<T>);
        if (a.cell == Cell::lstm) copy(local.c[r], a.c_T + (block.first + r) * a.n, a.n);
    }
}

template <class T, class Memory>
void run(const AttentiveForward<T>& a, std::int64_t rows) {
    const ForwardMatrices<T> matrices(a);
    over_rows<ForwardScratch<T, Memory>>(
        a.threads, a.batch, rows, [&](std::int64_t size) { return ForwardScratch<T, Memory>(a, size); },
        [&](const Block& block, auto& local) { walk(a, matrices, block, local); });
}

template <class T>
int run(const AttentiveForward<T>& a) {
    return guarded([&] {
        if (a.buffer < 0)
            run<T, FullForward<T>>(a, full_rows<T>(a.carried + a.steps, a.n, 2));
        else
            run<T, ScreenedForward<T>>(a, most_rows<T>((a.gate_width() + 2 * a.n) * a.depth()));
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_API int attentive_forward_float(const mnemoscope::AttentiveForward<float>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int attentive_forward_double(const mnemoscope::AttentiveForward<double>* a) { return mnemoscope::run(*a); }
