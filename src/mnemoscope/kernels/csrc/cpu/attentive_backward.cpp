// A self-attentive recurrence walked back: gradients of states gather in the memory until the step that made them.
#include "arguments.h"
#include "full.h"
#include "screened.h"

namespace mnemoscope {

template <class T, class Memory>
struct BackwardScratch {
    Memory memory;
    Rows<T> ds, dc, dh, dk_U, query, factor, dv;
    Outer<T> dV_W, dU_a;  // of [V; W_a] and U_a: their lefts are d = [dz, dq], d [V; W_a] = [ds, dx], and dk

    BackwardScratch(const AttentiveBackward<T>& a, std::int64_t rows)
        : memory(a, rows), ds(rows, a.dx ? a.depth() : a.n), dc(rows, a.n), dh(rows, a.n),
          dk_U(rows, a.n), query(1, a.n), factor(1, a.n), dv(rows, a.n),
          dV_W(a.gate_width() + a.n, a.n_inputs ? a.depth() : 0, rows), dU_a(a.n, a.n_inputs ? a.n : 0, rows) {
        for (std::int64_t j = 0; j < a.n; ++j) factor[0][j] = T(4) * a.v[j];
    }
};

// Through s_t = h_t + c_t and the attention that made c_t; at = t * batch + b.
template <class T, class Memory>
void attend_back(const AttentiveBackward<T>& a, BackwardScratch<T, Memory>& local, std::int64_t r, std::int64_t t,
                 std::int64_t at) {
    const T share = a.mix == Mix::mean ? T(0.5) : T(1);
    T *d_context = local.memory.context(r), *d_query = local.dk_U[r];  // dk_U is free until the product with U_a
    sweep<T>(a.n, [&](std::int64_t j, int count) {
        Vec<T> d = load(local.ds[r] + j);
        if (a.ds) d += load(a.ds + at * a.n + j, count);
        d = share * d;
        store(d_context + j, d, count);
        if (a.dh) d += load(a.dh + at * a.n + j, count);
        store(local.dh[r] + j, d, count);
    });
    const T* query = whole_vectors(a.activations_of(at).query(), a.n, local.query[0]);
    local.memory.attend_back(r, at, query, d_context, d_query, local.dv[r]);
    local.memory.claim(r, t, local.dh[r], local.dU_a.left(r));
    sweep<T>(a.n, [&](std::int64_t j, int count) {
        const Vec<T> dq = load(local.factor[0] + j) * load(d_query + j);
        store(local.dV_W.left(r) + a.gate_width() + j, dq, count);
        if (a.n_inputs) return;
        store(a.dq + at * a.n + j, dq, count);
        store(a.dk + at * a.n + j, load(local.dU_a.left(r) + j), count);
    });
}

// Through the cell that made h_t: h_t was also a key, whose gradient comes back as U_a^T dk.
template <class T, class Memory>
void advance_back(const AttentiveBackward<T>& a, BackwardScratch<T, Memory>& local, std::int64_t r, std::int64_t t,
                  std::int64_t at) {
    T* dz = a.dxp ? a.dxp + at * a.gate_width() : nullptr;
    if (a.cell == Cell::lstm) {
        const auto kept = a.activations_of(at);
        const T* before = t ? a.activations_of(at - a.batch).cell() : a.c0 + at * a.n;
        return lstm_cell_back(a.n, local.dh[r], local.dk_U[r], local.dc[r], before, kept.cell(), kept.gates(),
                              local.dV_W.left(r), dz);
    }
    with_phi(a.phi, [&](auto phi) {
        rnn_cell_back<T, phi.value>(a.n, local.dh[r], local.dk_U[r], a.h + at * a.n, local.dV_W.left(r), dz);
    });
}

// The gradients of weights and inputs that step t of row r adds, where they are made here. The cell read [s_{t-1}, x_t].
template <class T, class Memory>
void gather(const AttentiveBackward<T>& a, BackwardScratch<T, Memory>& local, std::int64_t r, std::int64_t t,
            std::int64_t at) {
    const T* before = t ? a.s + (at - a.batch) * a.n : a.s0 + at * a.n;
    local.dV_W.right(r, before, a.n, a.x + at * a.n_inputs);
    local.dU_a.right(r, a.h + at * a.n, a.n);
    if (a.dx) copy(local.ds[r] + a.n, a.dx + at * a.n_inputs, a.n_inputs);
}

template <class T, class Memory>
void blank(const AttentiveBackward<T>& a, BackwardScratch<T, Memory>& local, std::int64_t r, std::int64_t at) {
    fill_zero(local.dU_a.left(r), a.n);
    fill_zero(local.dV_W.left(r), a.gate_width() + a.n);
    local.dV_W.no_right(r);
    local.dU_a.no_right(r);
    if (a.dx) fill_zero(a.dx + at * a.n_inputs, a.n_inputs);
    if (a.n_inputs) return;
    fill_zero(a.dxp + at * a.gate_width(), a.gate_width());
    fill_zero(a.dq + at * a.n, a.n);
    fill_zero(a.dk + at * a.n, a.n);
}

template <class T, class Memory>
void begin(const AttentiveBackward<T>& a, BackwardScratch<T, Memory>& local, std::int64_t r, std::int64_t b) {
    fill_zero(local.ds[r], a.n);
    fill_zero(local.dv[r], a.n);
    fill_zero(local.dc[r], a.n);
    if (a.dc_T) copy(a.dc_T + b * a.n, local.dc[r], a.n);
}

template <class T, class Memory>
void finish(const AttentiveBackward<T>& a, BackwardScratch<T, Memory>& local, std::int64_t r, std::int64_t b) {
    local.memory.finish(r, b);
    copy(local.ds[r], a.ds0 + b * a.n, a.n);
    if (a.cell == Cell::lstm) copy(local.dc[r], a.dc0 + b * a.n, a.n);
    for (std::int64_t j = 0; j < a.n; ++j) a.dv_rows[b * a.n + j] = T(2) * local.dv[r][j];
}

template <class T>
struct Matrices {
    Packed<T> V_W, U_a;  // V_W = [V; W_a]; queries read the state alone, whatever V reads beside it
    explicit Matrices(const AttentiveBackward<T>& a)
        : V_W(a.gate_width() + a.n, read(a)), U_a(a.U_a, a.n, a.n, a.n, 1) {
        V_W.fill(0, a.gate_width(), read(a), a.V, a.depth(), 1);
        V_W.fill(a.gate_width(), a.n, a.n, a.W_a, a.n, 1);
    }
    static std::int64_t read(const AttentiveBackward<T>& a) { return a.dx ? a.depth() : a.n; }
};

template <class T, class Memory>
void walk(const AttentiveBackward<T>& a, const Matrices<T>& m, const Block& block, BackwardScratch<T, Memory>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    const int rows = block.rows();
    for (int r = 0; r < rows; ++r) begin(a, local, r, block.first + r);
    local.memory.begin(block, span);
    for (std::int64_t t = a.steps - 1; t >= 0; --t) {
        for (int r = 0; r < rows; ++r) {
            const std::int64_t at = t * a.batch + block.first + r;
            span.alive(t, block.first + r) ? attend_back(a, local, r, t, at) : blank(a, local, r, at);
        }
        if (t >= span.longest(block)) continue;
        local.memory.undo(block, span, t);
        m.U_a.times(local.dU_a.left(0), local.dU_a.stride(), rows, local.dk_U[0], local.dk_U.stride);
        for (int r = 0; r < rows; ++r)
            if (span.alive(t, block.first + r)) advance_back(a, local, r, t, t * a.batch + block.first + r);
        m.V_W.times(local.dV_W.left(0), local.dV_W.stride(), rows, local.ds[0], local.ds.stride);
        for (int r = 0; a.n_inputs && r < rows; ++r)
            if (span.alive(t, block.first + r)) gather(a, local, r, t, t * a.batch + block.first + r);
        local.dV_W.next(rows);
        local.dU_a.next(rows);
    }
    for (int r = 0; r < rows; ++r) finish(a, local, r, block.first + r);
}

template <class T, class Memory>
void run(const AttentiveBackward<T>& a, std::int64_t rows) {
    const Matrices<T> matrices(a);
    over_rows<BackwardScratch<T, Memory>>(
        a.threads, a.batch, rows, [&](std::int64_t size) { return BackwardScratch<T, Memory>(a, size); },
        [&](const Block& block, auto& local) { walk(a, matrices, block, local); },
        [&](auto& local) {
            if (!a.n_inputs) return;
            local.dV_W.give(a.dV, 0, a.gate_width(), a.depth());
            local.dV_W.give(a.dW_a, a.gate_width(), a.gate_width() + a.n, a.n);
            local.dU_a.give(a.dU_a);
        });
}

template <class T>
int run(const AttentiveBackward<T>& a) {
    return guarded([&] {
        if (a.buffer < 0)
            run<T, FullBackward<T>>(a, full_rows<T>(a.carried + a.steps, a.n, 4));
        else
            run<T, ScreenedBackward<T>>(a, most_rows<T>((a.gate_width() + 2 * a.n) * a.depth()));
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_API int attentive_backward_float(const mnemoscope::AttentiveBackward<float>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int attentive_backward_double(const mnemoscope::AttentiveBackward<double>* a) { return mnemoscope::run(*a); }
