// The recurrent arithmetic circuit h_t = (V h_{t-1} + b) * xp_t.
#include "arguments.h"
#include "recurrence.h"

namespace mnemoscope {

#define RAC_FORWARD(FIELD)              \
    SIZES(FIELD)                        \
    FIELD(const T*, xp)                 \
    FIELD(const T*, V)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, b)                  \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, h)                        \
    FIELD(ThreadPool, threads)

#define RAC_BACKWARD(FIELD)             \
    SIZES(FIELD)                        \
    FIELD(const T*, dh)                 \
    FIELD(const T*, xp)                 \
    FIELD(const T*, V)                  \
    FIELD(const T*, u)                  \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, dxp)                      \
    FIELD(T*, du)                       \
    FIELD(T*, dh0)                      \
    FIELD(ThreadPool, threads)

MNEMOSCOPE_STRUCTURE(RacForward, RAC_FORWARD)
MNEMOSCOPE_STRUCTURE(RacBackward, RAC_BACKWARD)

template <class T>
struct RacForwardCell {
    const RacForward<T>& a;
    RacForwardCell(const RacForward<T>& a, int64_t) : a(a) {}

    void begin(int64_t, int64_t) {}
    MNEMOSCOPE_ROW void step(const Position& p, const T* product, const T* xp, T* state) {
        T* out = a.h + p.row * a.n;
        for_each_vector<T>(a.n, [&](int64_t j, int count) {
            const Vec<T> bias = a.b ? load(a.b + j, count) : splat(T(0));
            const Vec<T> h = (load(product + j) + bias) * load(xp + j, count);
            store(state + j, h, count);
            store(out + j, h, count);
        });
    }
    void skip(const Position& p) { fill_zero(a.h + p.row * a.n, a.n); }
    void finish(int64_t, int64_t) {}
};

// With u_t = V h_{t-1} + b: du_t = dh_t xp_t goes through V, and dxp_t = dh_t u_t.
template <class T>
struct RacBackwardCell {
    const RacBackward<T>& a;
    RacBackwardCell(const RacBackward<T>& a, int64_t) : a(a) {}

    void begin(int64_t, int64_t) {}
    MNEMOSCOPE_ROW void step(const Position& p, const T* carry, T* grad_row, T* dxp) {
        const int64_t at = p.row * a.n;
        for_each_vector<T>(a.n, [&](int64_t j, int count) {
            const Vec<T> dh = load(carry + j) + load(a.dh + at + j, count);
            const Vec<T> du = dh * load(a.xp + at + j, count);
            store(grad_row + j, du, count);
            store(a.du + at + j, du, count);
            store(dxp + j, dh * load(a.u + at + j, count), count);
        });
    }
    void skip(const Position& p) { fill_zero(a.du + p.row * a.n, a.n); }
    void finish(int64_t b, int64_t, const T* carry) { copy(carry, a.dh0 + b * a.n, a.n); }
};

template <class T>
int run(const RacForward<T>& a) {
    return guarded(a.threads, [&] {
        const ForwardLoop<T> loop(a, a.V, a.n);
        loop.template run<RacForwardCell<T>>(a);
    });
}
template <class T>
int run(const RacBackward<T>& a) {
    return guarded(a.threads, [&] {
        const BackwardLoop<T> loop(a, a.V, a.n);
        loop.template run<RacBackwardCell<T>>(a);
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_EXPORT(rac_forward, RacForward, RAC_FORWARD)
MNEMOSCOPE_EXPORT(rac_backward, RacBackward, RAC_BACKWARD)
