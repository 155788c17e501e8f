// The gated recurrent unit, with V = [V_r; V_z; V_n] in torch's gate order:
//     r = sigmoid(xp_r + V_r h), z = sigmoid(xp_z + V_z h), u = V_n h + b_hn,
//     n = tanh(xp_n + r u), h' = (1 - z) n + z h.
// Saved gates of a step: r, z, n, u.
#include "arguments.h"
#include "recurrence.h"

namespace mnemoscope {

#define GRU_FORWARD(FIELD)              \
    SIZES(FIELD)                        \
    FIELD(const T*, xp)                 \
    FIELD(const T*, V)                  \
    FIELD(const T*, b_hn)               \
    FIELD(const T*, h0)                 \
    FIELD(const std::int64_t*, lengths) \
    FIELD(std::int64_t, save)           \
    FIELD(T*, h)                        \
    FIELD(T*, gates)                    \
    FIELD(ThreadPool, threads)

#define GRU_BACKWARD(FIELD)             \
    SIZES(FIELD)                        \
    FIELD(const T*, dh)                 \
    FIELD(const T*, V)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, h)                  \
    FIELD(const T*, gates)              \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, dxp)                      \
    FIELD(T*, du)                       \
    FIELD(T*, dh0)                      \
    FIELD(ThreadPool, threads)

MNEMOSCOPE_STRUCTURE(GruForward, GRU_FORWARD)
MNEMOSCOPE_STRUCTURE(GruBackward, GRU_BACKWARD)

template <class T>
struct GruForwardCell {
    const GruForward<T>& a;
    GruForwardCell(const GruForward<T>& a, int64_t) : a(a) {}

    void begin(int64_t, int64_t) {}
    MNEMOSCOPE_ROW void step(const Position& p, const T* product, const T* xp, T* state) {
        const int64_t n = a.n;
        T* out = a.h + p.row * n;
        T* gates = a.save ? a.gates + p.row * 4 * n : nullptr;
        for_each_vector<T>(n, [&](int64_t j, int count) {
            const auto sum = [&](int64_t k) {
                return load(product + k * n + j, count) + load(xp + k * n + j, count);
            };
            const Vec<T> r = sigmoid<T>(sum(0)), z = sigmoid<T>(sum(1));
            Vec<T> u = load(product + 2 * n + j, count);
            if (a.b_hn) u += load(a.b_hn + j, count);
            const Vec<T> candidate = hyperbolic_tangent<T>(load(xp + 2 * n + j, count) + r * u);
            const Vec<T> h = (T(1) - z) * candidate + z * load(state + j);
            store(state + j, h, count);
            store(out + j, h, count);
            if (!gates) return;
            store(gates + j, r, count);
            store(gates + n + j, z, count);
            store(gates + 2 * n + j, candidate, count);
            store(gates + 3 * n + j, u, count);
        });
    }
    void skip(const Position& p) {
        fill_zero(a.h + p.row * a.n, a.n);
        if (a.save) fill_zero(a.gates + p.row * 4 * a.n, 4 * a.n);
    }
    void finish(int64_t, int64_t) {}
};

// grad_row = [dz_r, dz_z, du] goes through V; `direct` = z dh' is the gradient of h past V.
template <class T>
struct GruBackwardCell {
    const GruBackward<T>& a;
    Rows<T> direct;
    GruBackwardCell(const GruBackward<T>& a, int64_t rows) : a(a), direct(rows, a.n) {}

    void begin(int64_t, int64_t r) { fill_zero(direct[r], a.n); }
    MNEMOSCOPE_ROW void step(const Position& p, const T* carry, T* grad_row, T* dxp) {
        const int64_t n = a.n;
        const T *dh = a.dh + p.row * n, *gates = a.gates + p.row * 4 * n;
        const T* h_before = p.t ? a.h + p.previous * n : a.h0 + p.b * n;
        T *du_row = a.du + p.row * n, *direct_row = direct[p.r];
        for_each_vector<T>(n, [&](int64_t j, int count) {
            const Vec<T> r = load(gates + j, count), z = load(gates + n + j, count);
            const Vec<T> candidate = load(gates + 2 * n + j, count);
            const Vec<T> u = load(gates + 3 * n + j, count);
            const Vec<T> d = load(dh + j, count) + load(carry + j) + load(direct_row + j);
            const Vec<T> dz_n = d * (T(1) - z) * (T(1) - candidate * candidate);
            const Vec<T> dz_z = d * (load(h_before + j, count) - candidate) * z * (T(1) - z);
            const Vec<T> dz_r = dz_n * u * r * (T(1) - r);
            const Vec<T> du = dz_n * r;
            store(direct_row + j, d * z, count);
            store(dxp + j, dz_r, count);
            store(dxp + n + j, dz_z, count);
            store(dxp + 2 * n + j, dz_n, count);
            store(grad_row + j, dz_r, count);
            store(grad_row + n + j, dz_z, count);
            store(grad_row + 2 * n + j, du, count);
            store(du_row + j, du, count);
        });
    }
    void skip(const Position& p) { fill_zero(a.du + p.row * a.n, a.n); }
    void finish(int64_t b, int64_t r, const T* carry) {
        for (int64_t j = 0; j < a.n; ++j) a.dh0[b * a.n + j] = carry[j] + direct[r][j];
    }
};

template <class T>
int run(const GruForward<T>& a) {
    return guarded([&] {
        const ForwardLoop<T> loop(a, a.V, 3 * a.n, 0);
        loop.template run<GruForwardCell<T>>(a);
    });
}
template <class T>
int run(const GruBackward<T>& a) {
    return guarded([&] {
        const BackwardLoop<T> loop(a, a.V, 3 * a.n);
        loop.template run<GruBackwardCell<T>>(a);
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_EXPORT(gru_forward, GruForward, GRU_FORWARD)
MNEMOSCOPE_EXPORT(gru_backward, GruBackward, GRU_BACKWARD)
