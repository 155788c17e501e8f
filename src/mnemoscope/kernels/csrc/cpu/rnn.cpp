// h_t = phi(V h_{t-1} + xp_t), or phi(V [h_{t-1}, x_t]) with the projection fused.
#include "arguments.h"
#include "recurrence.h"

namespace mnemoscope {

#define RNN_FORWARD(FIELD)              \
    SIZES(FIELD)                        \
    FIELD(std::int64_t, n_inputs)       \
    FIELD(const T*, xp)                 \
    FIELD(const T*, V)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, b)                  \
    FIELD(Phi, phi)                     \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, h)                        \
    PROJECTION(FIELD)                   \
    FIELD(ThreadPool, threads)

#define RNN_BACKWARD(FIELD)             \
    SIZES(FIELD)                        \
    FIELD(std::int64_t, n_inputs)       \
    FIELD(const T*, dh)                 \
    FIELD(const T*, x)                  \
    FIELD(const T*, V)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, h)                  \
    FIELD(const std::int64_t*, lengths) \
    FIELD(Phi, phi)                     \
    FIELD(T*, dx)                       \
    FIELD(T*, dV)                       \
    FIELD(T*, dh0)                      \
    FIELD(T*, dxp)                      \
    PROJECTION_BACKWARD(FIELD)          \
    FIELD(ThreadPool, threads)

MNEMOSCOPE_STRUCTURE(RnnForward, RNN_FORWARD)
MNEMOSCOPE_STRUCTURE(RnnBackward, RNN_BACKWARD)

template <class T, Phi phi>
struct RnnForwardCell {
    const RnnForward<T>& a;
    RnnForwardCell(const RnnForward<T>& a, int64_t) : a(a) {}

    void begin(int64_t, int64_t) {}
    void step(const Position& p, const T* product, const T* xp, T* state) {
        rnn_cell<T, phi>(a.n, product, xp, a.b, state, a.h + p.row * a.n);
    }
    void skip(const Position& p) { fill_zero(a.h + p.row * a.n, a.n); }
    void finish(int64_t, int64_t) {}
};

template <class T, Phi phi>
struct RnnBackwardCell {
    const RnnBackward<T>& a;
    RnnBackwardCell(const RnnBackward<T>& a, int64_t) : a(a) {}

    void begin(int64_t, int64_t) {}
    void step(const Position& p, const T* carry, T* grad_row, T* dxp) {
        const int64_t at = p.row * a.n;
        rnn_cell_backward<T, phi>(a.n, a.dh + at, carry, a.h + at, grad_row, dxp);
    }
    void skip(const Position&) {}
    void finish(int64_t b, int64_t, const T* carry) { copy(carry, a.dh0 + b * a.n, a.n); }
};

template <class T>
int run(const RnnForward<T>& a) {
    return guarded(a.threads, [&] {
        const ForwardLoop<T> loop(a, a.V, a.n, a.n_inputs);
        with_phi(a.phi, [&](auto phi) { loop.template run<RnnForwardCell<T, phi.value>>(a); });
    });
}
template <class T>
int run(const RnnBackward<T>& a) {
    return guarded(a.threads, [&] {
        const BackwardLoop<T> loop(a, a.V, a.n, a.n_inputs);
        with_phi(a.phi, [&](auto phi) { loop.template run<RnnBackwardCell<T, phi.value>>(a); });
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_EXPORT(rnn_forward, RnnForward, RNN_FORWARD)
MNEMOSCOPE_EXPORT(rnn_backward, RnnBackward, RNN_BACKWARD)
