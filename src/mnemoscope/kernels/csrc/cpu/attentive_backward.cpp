// Self-attentive recurrences, backward. Gradients of a state gather in the memory (FullBackward or
// ScreenedBackward) until the step that made the state.
#include "arguments.h"
#include "memory_full.h"
#include "memory_screened.h"

namespace mnemoscope {

template <class T, class Memory>
struct BackwardScratch {
    Memory memory;
    Rows<T> ds, dc, dh;  // ds = [ds, dx] where dx is wanted
    Rows<T> dk_U;  // U_a^T dk
    Rows<T> query, factor, dv;
    WeightGradient<T> dV_W;  // of [V; W_a]; its gradient rows are [dz, dq]
    WeightGradient<T> dU_a;  // its gradient rows are dk

    BackwardScratch(const AttentiveBackward<T>& a, int64_t rows)
        : memory(a, rows), ds(rows, a.gradient_width()), dc(rows, a.n), dh(rows, a.n),
          dk_U(rows, a.n), query(1, a.n), factor(1, a.n), dv(rows, a.n),
          dV_W(a.gate_width() + a.n, a.n_inputs ? a.depth() : 0, rows),
          dU_a(a.n, a.n_inputs ? a.n : 0, rows) {
        for (int64_t j = 0; j < a.n; ++j) factor[0][j] = T(4) * a.v[j];
    }
};

template <class T>
struct BackwardMatrices {
    Packed<T> V_W, U_a;  // V_W = [V; W_a]; W_a has zeros in the columns of the inputs
    explicit BackwardMatrices(const AttentiveBackward<T>& a)
        : V_W(a.gate_width() + a.n, a.gradient_width()), U_a(a.U_a, a.n, a.n, a.n, 1) {
        const CellWeights<T> cell{a.V, a.gate_width(), a.n, a.n_inputs, a.U, nullptr, nullptr};
        cell.fill(V_W, a.gradient_width());
        V_W.fill(a.gate_width(), 0, a.n, a.n, a.W_a, a.n, 1);
    }
};

// Through s_t = h_t + c_t and the attention that made c_t.
template <class T, class Memory>
void attend_backward(const AttentiveBackward<T>& a, BackwardScratch<T, Memory>& local,
                     const Position& p) {
    const int64_t at = p.row * a.n;
    T *dh = local.dh[p.r], *ds = local.ds[p.r];
    T* d_context = local.memory.context(p.r);
    T* d_query = local.dk_U[p.r];  // unused until the product with U_a
    const T scale = a.mix == Mix::mean ? T(0.5) : T(1);
    for_each_vector<T>(a.n, [&](int64_t j, int count) {
        Vec<T> d = load(ds + j);
        if (a.ds) d += load(a.ds + at + j, count);
        d = scale * d;
        store(d_context + j, d, count);
        if (a.dh) d += load(a.dh + at + j, count);
        store(dh + j, d, count);
    });

    const T* query = whole_vectors(a.activations_of(p.row).query(), a.n, local.query[0]);
    T* dk = local.dU_a.grad_row(p.r);
    local.memory.attend_backward(p.r, p.row, query, d_context, d_query, local.dv[p.r]);
    local.memory.take_gradient(p.r, p.t, dh, dk);

    T* dq_row = local.dV_W.grad_row(p.r) + a.gate_width();
    for_each_vector<T>(a.n, [&](int64_t j, int count) {
        const Vec<T> dq = load(local.factor[0] + j) * load(d_query + j);
        store(dq_row + j, dq, count);
        if (a.n_inputs) return;
        store(a.dq + at + j, dq, count);
        store(a.dk + at + j, load(dk + j), count);
    });
}

// Through the cell that made h_t. h_t was also a key, which adds U_a^T dk to its gradient.
template <class T, class Memory>
void cell_backward(const AttentiveBackward<T>& a, BackwardScratch<T, Memory>& local,
                   const Position& p) {
    T* dz = a.dxp ? a.dxp + p.row * a.gate_width() : nullptr;
    T *dh = local.dh[p.r], *dk_U = local.dk_U[p.r], *grad_row = local.dV_W.grad_row(p.r);
    if (a.cell == Cell::lstm) {
        const auto saved = a.activations_of(p.row);
        const T* c_before = p.t ? a.activations_of(p.previous).cell() : a.c0 + p.b * a.n;
        return lstm_cell_backward(a.n, dh, dk_U, local.dc[p.r], c_before, saved.cell(),
                                  saved.gates(), grad_row, dz);
    }
    with_phi(a.phi, [&](auto phi) {
        rnn_cell_backward<T, phi.value>(a.n, dh, dk_U, a.h + p.row * a.n, grad_row, dz);
    });
}

// With a fused projection: the input rows of the weights' gradients, and dx. The cell read
// [s_{t-1}, x_t].
template <class T, class Memory>
void collect_inputs(const AttentiveBackward<T>& a, BackwardScratch<T, Memory>& local,
                    const Position& p) {
    const T* s_before = p.t ? a.s + p.previous * a.n : a.s0 + p.b * a.n;
    const Inputs<T> inputs = a.inputs();
    T* input_row = local.dV_W.input_row(p.r);
    copy(s_before, input_row, a.n);
    inputs.append_to(input_row, a.n, p.row);
    copy(a.h + p.row * a.n, local.dU_a.input_row(p.r), a.n);
    if (a.dx) copy(local.ds[p.r] + a.n, a.dx + p.row * inputs.given(), inputs.given());
}

// Asks for what step p reads: the processor foresees no walk backwards in time.
template <class T, class Memory>
MNEMOSCOPE_INLINE void prefetch_step(const AttentiveBackward<T>& a, const Memory& memory,
                                     const Position& p) {
    if (a.ds) prefetch(a.ds + p.row * a.n, a.n);
    if (a.dh) prefetch(a.dh + p.row * a.n, a.n);
    prefetch(a.activations_of(p.row).query(), a.n);
    if (p.t) prefetch(a.s + p.previous * a.n, a.n);
    memory.prefetch_step(p);
}

// Inactive step: its gradients are zero.
template <class T, class Memory>
void skip(const AttentiveBackward<T>& a, BackwardScratch<T, Memory>& local, const Position& p) {
    fill_zero(local.dU_a.grad_row(p.r), a.n);
    fill_zero(local.dV_W.grad_row(p.r), a.gate_width() + a.n);
    local.dV_W.zero_input_row(p.r);
    local.dU_a.zero_input_row(p.r);
    const int64_t given = a.inputs().given();
    if (a.dx) fill_zero(a.dx + p.row * given, given);
    if (a.n_inputs) return;
    fill_zero(a.dxp + p.row * a.gate_width(), a.gate_width());
    fill_zero(a.dq + p.row * a.n, a.n);
    fill_zero(a.dk + p.row * a.n, a.n);
}

template <class T, class Memory>
void begin(const AttentiveBackward<T>& a, BackwardScratch<T, Memory>& local, int64_t b, int64_t r) {
    fill_zero(local.ds[r], a.n);
    fill_zero(local.dv[r], a.n);
    fill_zero(local.dc[r], a.n);
    if (a.dc_T) copy(a.dc_T + b * a.n, local.dc[r], a.n);
}

template <class T, class Memory>
void finish(const AttentiveBackward<T>& a, BackwardScratch<T, Memory>& local, const Rows<T>& dv,
            int64_t b, int64_t r) {
    local.memory.finish(r, b);
    copy(local.ds[r], a.ds0 + b * a.n, a.n);
    if (a.cell == Cell::lstm) copy(local.dc[r], a.dc0 + b * a.n, a.n);
    copy(local.dv[r], dv[b], a.n);
}

template <class T, class Memory>
void run_backward(const AttentiveBackward<T>& a, const BackwardMatrices<T>& m, const Block& block,
                  BackwardScratch<T, Memory>& local, const Rows<T>& dv) {
    const Lengths lengths{a.steps, a.batch, a.lengths};
    const int rows = block.rows();
    for (int r = 0; r < rows; ++r) begin(a, local, block.first + r, r);
    local.memory.begin(block, lengths);

    const int64_t longest = lengths.longest(block);
    for (int64_t t = a.steps - 1; t >= longest; --t)
        for (int r = 0; r < rows; ++r) skip(a, local, lengths.position(t, block, r));
    for (int64_t t = longest - 1; t >= 0; --t) {
        stop_if_requested();
        for (int r = 0; r < rows; ++r) {
            const Position p = lengths.position(t, block, r);
            if (t) prefetch_step(a, local.memory, lengths.position(t - 1, block, r));
            if (lengths.active(t, p.b))
                attend_backward(a, local, p);
            else
                skip(a, local, p);
        }
        local.memory.rewind(block, lengths, t);
        m.U_a.times(local.dU_a.grad_row(0), local.dU_a.grad_stride(), rows, local.dk_U[0],
                    local.dk_U.stride);
        for (int r = 0; r < rows; ++r)
            if (lengths.active(t, block.first + r))
                cell_backward(a, local, lengths.position(t, block, r));
        m.V_W.times(local.dV_W.grad_row(0), local.dV_W.grad_stride(), rows, local.ds[0],
                    local.ds.stride);
        for (int r = 0; a.n_inputs && r < rows; ++r)
            if (lengths.active(t, block.first + r))
                collect_inputs(a, local, lengths.position(t, block, r));
        local.dV_W.advance(rows);
        local.dU_a.advance(rows);
    }

    for (int r = 0; r < rows; ++r) finish(a, local, dv, block.first + r, r);
}

template <class T, class Memory>
void run(const AttentiveBackward<T>& a, int64_t rows) {
    const BackwardMatrices<T> matrices(a);
    const Rows<T> dv(a.batch, a.n);  // of each sequence: their sum does not depend on the threads
    for_each_block<BackwardScratch<T, Memory>>(
        a.threads, a.batch, rows, [&](int64_t size) { return BackwardScratch<T, Memory>(a, size); },
        [&](const Block& block, auto& local) { run_backward(a, matrices, block, local, dv); },
        [&](auto& local) {
            if (!a.n_inputs) return;
            a.cell_gradients().take(local.dV_W, a.gate_width());
            local.dV_W.add_to(a.dW_a, a.gate_width(), a.gate_width() + a.n, 0, a.n);
            local.dU_a.add_to(a.dU_a);
        });
    fill_zero(a.dv, a.n);
    for (int64_t b = 0; b < a.batch; ++b)
        for (int64_t j = 0; j < a.n; ++j) a.dv[j] += T(2) * dv[b][j];
}

template <class T>
int run(const AttentiveBackward<T>& a) {
    return guarded(a.threads, [&] {
        if (a.buffer < 0)
            run<T, FullBackward<T>>(a, full_rows<T>(a.carried + a.steps, a.n, 4));
        else
            run<T, ScreenedBackward<T>>(a, screened_rows<T>(a));
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_EXPORT(attentive_backward, AttentiveBackward, ATTENTIVE_BACKWARD)
