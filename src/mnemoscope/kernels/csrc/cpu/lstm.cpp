// Long short-term memory. Gates in torch's order i, f, g, o.
#include "arguments.h"
#include "recurrence.h"

namespace mnemoscope {

#define LSTM_FORWARD(FIELD)             \
    SIZES(FIELD)                        \
    FIELD(std::int64_t, n_inputs)       \
    FIELD(const T*, xp)                 \
    FIELD(const T*, V)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, c0)                 \
    FIELD(const std::int64_t*, lengths) \
    FIELD(std::int64_t, save)           \
    FIELD(T*, h)                        \
    FIELD(T*, c_T)                      \
    FIELD(T*, cells)                    \
    FIELD(T*, gates)                    \
    PROJECTION(FIELD)                   \
    FIELD(ThreadPool, threads)

#define LSTM_BACKWARD(FIELD)            \
    SIZES(FIELD)                        \
    FIELD(std::int64_t, n_inputs)       \
    FIELD(const T*, dh)                 \
    FIELD(const T*, dc_T)               \
    FIELD(const T*, x)                  \
    FIELD(const T*, V)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, c0)                 \
    FIELD(const T*, h)                  \
    FIELD(const T*, cells)              \
    FIELD(const T*, gates)              \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, dx)                       \
    FIELD(T*, dV)                       \
    FIELD(T*, dh0)                      \
    FIELD(T*, dc0)                      \
    FIELD(T*, dxp)                      \
    PROJECTION_BACKWARD(FIELD)          \
    FIELD(ThreadPool, threads)

MNEMOSCOPE_STRUCTURE(LstmForward, LSTM_FORWARD)
MNEMOSCOPE_STRUCTURE(LstmBackward, LSTM_BACKWARD)

template <class T>
struct LstmForwardCell {
    const LstmForward<T>& a;
    Rows<T> c;
    LstmForwardCell(const LstmForward<T>& a, int64_t rows) : a(a), c(rows, a.n) {}

    void begin(int64_t b, int64_t r) { copy(a.c0 + b * a.n, c[r], a.n); }
    void step(const Position& p, const T* product, const T* xp, T* state) {
        T* cells = a.save ? a.cells + p.row * a.n : nullptr;
        T* gates = a.save ? a.gates + p.row * 4 * a.n : nullptr;
        lstm_cell(a.n, product, xp, c[p.r], state, a.h + p.row * a.n, cells, gates);
    }
    void skip(const Position& p) {
        fill_zero(a.h + p.row * a.n, a.n);
        if (!a.save) return;
        fill_zero(a.cells + p.row * a.n, a.n);
        fill_zero(a.gates + p.row * 4 * a.n, 4 * a.n);
    }
    void finish(int64_t b, int64_t r) { copy(c[r], a.c_T + b * a.n, a.n); }
};

template <class T>
struct LstmBackwardCell {
    const LstmBackward<T>& a;
    Rows<T> dc;
    LstmBackwardCell(const LstmBackward<T>& a, int64_t rows) : a(a), dc(rows, a.n) {}

    void begin(int64_t b, int64_t r) {
        fill_zero(dc[r], a.n);
        if (a.dc_T) copy(a.dc_T + b * a.n, dc[r], a.n);
    }
    void step(const Position& p, const T* carry, T* grad_row, T* dxp) {
        const int64_t at = p.row * a.n;
        const T* dh = a.dh ? a.dh + at : nullptr;
        const T* c_before = p.t ? a.cells + p.previous * a.n : a.c0 + p.b * a.n;
        lstm_cell_backward(a.n, dh, carry, dc[p.r], c_before, a.cells + at, a.gates + 4 * at,
                           grad_row, dxp);
    }
    void skip(const Position&) {}
    void finish(int64_t b, int64_t r, const T* carry) {
        copy(carry, a.dh0 + b * a.n, a.n);
        copy(dc[r], a.dc0 + b * a.n, a.n);
    }
};

template <class T>
int run(const LstmForward<T>& a) {
    return guarded(a.threads, [&] {
        const ForwardLoop<T> loop(a, a.V, 4 * a.n, a.n_inputs);
        loop.template run<LstmForwardCell<T>>(a);
    });
}
template <class T>
int run(const LstmBackward<T>& a) {
    return guarded(a.threads, [&] {
        const BackwardLoop<T> loop(a, a.V, 4 * a.n, a.n_inputs);
        loop.template run<LstmBackwardCell<T>>(a);
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_EXPORT(lstm_forward, LstmForward, LSTM_FORWARD)
MNEMOSCOPE_EXPORT(lstm_backward, LstmBackward, LSTM_BACKWARD)
