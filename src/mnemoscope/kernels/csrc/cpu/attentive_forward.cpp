// Self-attentive recurrences, forward: the cell reads s_{t-1}, and s_t = h_t + c_t, where c_t is
// the attention of the query W_a s_{t-1} over the states in memory, h_t included.
//
// The memory is FullForward or ScreenedForward. Query and key rows hold exponentials (attention.h).
#include "arguments.h"
#include "memory_full.h"
#include "memory_screened.h"

namespace mnemoscope {

template <class T, class Memory>
struct ForwardScratch {
    Memory memory;
    Rows<T> s;  // [s, x]
    Rows<T> c, h, product;  // an LSTM's c; h_t; V [s, x]
    Rows<T> raw_query, key, query;  // W_a s; U_a h, then e^{2 U_a h}; e^{2 W_a s}
    Rows<T> context, v, magnitude;  // magnitude: the largest |query| or |key| so far, by lane
    T largest = 0;  // of the sequences that have ended

    ForwardScratch(const AttentiveForward<T>& a, int64_t rows)
        : memory(a, rows), s(rows, a.depth()), c(rows, a.n), h(rows, a.n),
          product(rows, a.gate_width()), raw_query(rows, a.n), key(rows, a.n), query(1, a.n),
          context(1, a.n), v(1, a.n), magnitude(rows, lanes<T>) {
        copy(a.v, v[0], a.n);
    }
};

// W_a reads the state alone. Zero weights for the inputs would not do: the cell may squash an
// infinite input to 1, but infinity times zero is NaN.
template <class T>
struct ForwardMatrices {
    Packed<T> V, W_a, U_a;
    explicit ForwardMatrices(const AttentiveForward<T>& a)
        : V(a.cell_weights().transposed()), W_a(a.W_a, a.n, a.n, 1, a.n),
          U_a(a.U_a, a.n, a.n, 1, a.n) {}
};

// The cell: from V [s_{t-1}, x_t] to h_t.
template <class T, class Memory>
void update_cell(const AttentiveForward<T>& a, ForwardScratch<T, Memory>& local,
                 const Position& p) {
    const T* xp = a.inputs().projected(p.row);
    T *product = local.product[p.r], *h = local.h[p.r], *out = a.h + p.row * a.n;
    if (a.cell == Cell::lstm) {
        const auto saved = a.activations_of(p.row);
        T* cells = a.save ? saved.cell() : nullptr;
        T* gates = a.save ? saved.gates() : nullptr;
        return lstm_cell(a.n, product, xp, local.c[p.r], h, out, cells, gates);
    }
    with_phi(a.phi, [&](auto phi) { rnn_cell<T, phi.value>(a.n, product, xp, a.b, h, out); });
}

// h_t enters the memory, and the query attends it: from h_t to s_t.
template <class T, class Memory>
void attend(const AttentiveForward<T>& a, ForwardScratch<T, Memory>& local, const Position& p) {
    const auto saved = a.activations_of(p.row);
    T *h = local.h[p.r], *key = local.key[p.r], *magnitude = local.magnitude[p.r];
    local.memory.write_final(p.b, p.t, h, key);
    double_exponentials(key, key, a.n, magnitude, a.save ? saved.key() : nullptr);
    double_exponentials(local.raw_query[p.r], local.query[0], a.n, magnitude,
                        a.save ? saved.query() : nullptr);
    local.memory.insert(p.r, p.t, h, key);
    local.memory.attend(p.r, p.row, local.query[0], local.v[0], local.context[0]);
    const T scale = a.mix == Mix::mean ? T(0.5) : T(1);
    for_each_vector<T>(a.n, [&](int64_t j, int count) {
        const Vec<T> s = scale * (load(h + j) + load(local.context[0] + j));
        store(local.s[p.r] + j, s, count);
        store(a.s + p.row * a.n + j, s, count);
    });
}

// Zeros into the outputs of an inactive step.
template <class T, class Memory>
void skip(const AttentiveForward<T>& a, ForwardScratch<T, Memory>& local, const Position& p) {
    local.memory.write_final_zeros(p.b, p.t);
    fill_zero(a.h + p.row * a.n, a.n);
    fill_zero(a.s + p.row * a.n, a.n);
    if (!a.save) return;
    const int64_t saved_weights = a.buffer < 0 ? 1 : a.capacity();
    fill_zero(a.attention + p.row * saved_weights, saved_weights);
    if (a.buffer >= 0) fill_zero(a.slots + p.row * a.capacity(), a.capacity());
    fill_zero(a.activations + p.row * a.activation_width, a.activation_width);
}

template <class T, class Memory>
void begin(const AttentiveForward<T>& a, ForwardScratch<T, Memory>& local, int64_t b, int64_t r) {
    fill_zero(local.magnitude[r], lanes<T>);
    local.memory.begin(r, b, local.magnitude[r]);
    copy(a.s0 + b * a.n, local.s[r], a.n);
    if (a.cell == Cell::lstm) copy(a.c0 + b * a.n, local.c[r], a.n);
}

template <class T, class Memory>
void finish(const AttentiveForward<T>& a, ForwardScratch<T, Memory>& local, const Packed<T>& U_a,
            int64_t b, int64_t r) {
    local.memory.finish(r, b, U_a);
    const T* magnitude = local.magnitude[r];
    local.largest = std::max(local.largest, *std::max_element(magnitude, magnitude + lanes<T>));
    if (a.cell == Cell::lstm) copy(local.c[r], a.c_T + b * a.n, a.n);
    if (a.h_T) copy(local.h[r], a.h_T + b * a.n, a.n);
}

template <class T, class Memory>
void run_forward(const AttentiveForward<T>& a, const ForwardMatrices<T>& m, const Block& block,
                 ForwardScratch<T, Memory>& local) {
    const Lengths lengths{a.steps, a.batch, a.lengths};
    const Inputs<T> inputs = a.inputs();
    const int rows = block.rows();
    for (int r = 0; r < rows; ++r) begin(a, local, block.first + r, r);

    const int64_t longest = lengths.longest(block);
    for (int64_t t = 0; t < longest; ++t) {
        stop_if_requested();
        for (int r = 0; r < rows; ++r)
            inputs.append_to(local.s[r], a.n, lengths.position(t, block, r).row);
        m.V.times(local.s, rows, local.product);
        m.W_a.times(local.s, rows, local.raw_query);
        for (int r = 0; r < rows; ++r)
            if (lengths.active(t, block.first + r))
                update_cell(a, local, lengths.position(t, block, r));
        m.U_a.times(local.h, rows, local.key);
        for (int r = 0; r < rows; ++r) {
            const Position p = lengths.position(t, block, r);
            if (lengths.active(t, p.b))
                attend(a, local, p);
            else
                skip(a, local, p);
        }
    }

    for (int64_t t = longest; t < a.steps; ++t)
        for (int r = 0; r < rows; ++r) skip(a, local, lengths.position(t, block, r));
    for (int r = 0; r < rows; ++r) finish(a, local, m.U_a, block.first + r, r);
}

template <class T, class Memory>
void run(const AttentiveForward<T>& a, int64_t rows) {
    const ForwardMatrices<T> matrices(a);
    T largest = 0;
    for_each_block<ForwardScratch<T, Memory>>(
        a.threads, a.batch, rows, [&](int64_t size) { return ForwardScratch<T, Memory>(a, size); },
        [&](const Block& block, auto& local) { run_forward(a, matrices, block, local); },
        [&](auto& local) { largest = std::max(largest, local.largest); });
    *a.largest_magnitude = largest;
}

template <class T>
int run(const AttentiveForward<T>& a) {
    return guarded(a.threads, [&] {
        if (a.buffer < 0)
            run<T, FullForward<T>>(a, full_rows<T>(a.carried + a.steps, a.n, 2));
        else
            run<T, ScreenedForward<T>>(a, screened_rows<T>(a));
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_EXPORT(attentive_forward, AttentiveForward, ATTENTIVE_FORWARD)
