// The gated orthogonal recurrent unit (Jing et al. 2017), with W = [W_r; W_g; Q]:
//     r = sigmoid(xp_r + W_r h), g = sigmoid(xp_g + W_g h), u = Q h,
//     c = modReLU(r u + xp_c, b), h' = g h + (1 - g) c.
// Saved gates of a step: r, g, c, u.
#include "arguments.h"
#include "recurrence.h"

namespace mnemoscope {

#define GORU_FORWARD(FIELD)             \
    SIZES(FIELD)                        \
    FIELD(const T*, xp)                 \
    FIELD(const T*, W)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, b)                  \
    FIELD(const std::int64_t*, lengths) \
    FIELD(std::int64_t, save)           \
    FIELD(T*, h)                        \
    FIELD(T*, gates)                    \
    FIELD(ThreadPool, threads)

#define GORU_BACKWARD(FIELD)            \
    SIZES(FIELD)                        \
    FIELD(const T*, dh)                 \
    FIELD(const T*, W)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, h)                  \
    FIELD(const T*, gates)              \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, dxp)                      \
    FIELD(T*, du)                       \
    FIELD(T*, dh0)                      \
    FIELD(ThreadPool, threads)

MNEMOSCOPE_STRUCTURE(GoruForward, GORU_FORWARD)
MNEMOSCOPE_STRUCTURE(GoruBackward, GORU_BACKWARD)

template <class T>
struct GoruForwardCell {
    const GoruForward<T>& a;
    GoruForwardCell(const GoruForward<T>& a, int64_t) : a(a) {}

    void begin(int64_t, int64_t) {}
    MNEMOSCOPE_ROW void step(const Position& p, const T* product, const T* xp, T* state) {
        const int64_t n = a.n;
        T* out = a.h + p.row * n;
        T* gates = a.save ? a.gates + p.row * 4 * n : nullptr;
        for_each_vector<T>(n, [&](int64_t j, int count) {
            const auto sum = [&](int64_t k) {
                return load(product + k * n + j, count) + load(xp + k * n + j, count);
            };
            const Vec<T> r = sigmoid<T>(sum(0)), g = sigmoid<T>(sum(1));
            const Vec<T> u = load(product + 2 * n + j, count);
            const Vec<T> c = modrelu<T>(r * u + load(xp + 2 * n + j, count), load(a.b + j, count));
            const Vec<T> h = g * load(state + j) + (T(1) - g) * c;
            store(state + j, h, count);
            store(out + j, h, count);
            if (!gates) return;
            store(gates + j, r, count);
            store(gates + n + j, g, count);
            store(gates + 2 * n + j, c, count);
            store(gates + 3 * n + j, u, count);
        });
    }
    void skip(const Position& p) {
        fill_zero(a.h + p.row * a.n, a.n);
        if (a.save) fill_zero(a.gates + p.row * 4 * a.n, 4 * a.n);
    }
    void finish(int64_t, int64_t) {}
};

// grad_row = [dz_r, dz_g, du] goes through W; `direct` = g dh' is the gradient of h past W.
template <class T>
struct GoruBackwardCell {
    const GoruBackward<T>& a;
    Rows<T> direct;
    GoruBackwardCell(const GoruBackward<T>& a, int64_t rows) : a(a), direct(rows, a.n) {}

    void begin(int64_t, int64_t r) { fill_zero(direct[r], a.n); }
    MNEMOSCOPE_ROW void step(const Position& p, const T* carry, T* grad_row, T* dxp) {
        const int64_t n = a.n;
        const T *dh = a.dh + p.row * n, *gates = a.gates + p.row * 4 * n;
        const T* h_before = p.t ? a.h + p.previous * n : a.h0 + p.b * n;
        T *du_row = a.du + p.row * n, *direct_row = direct[p.r];
        for_each_vector<T>(n, [&](int64_t j, int count) {
            const Vec<T> r = load(gates + j, count), g = load(gates + n + j, count);
            const Vec<T> c = load(gates + 2 * n + j, count), u = load(gates + 3 * n + j, count);
            const Vec<T> d = load(dh + j, count) + load(carry + j) + load(direct_row + j);
            const Vec<T> dz_c = phi_backward<T, Phi::modrelu>(d * (T(1) - g), c);
            const Vec<T> dz_g = d * (load(h_before + j, count) - c) * g * (T(1) - g);
            const Vec<T> dz_r = dz_c * u * r * (T(1) - r);
            const Vec<T> du = dz_c * r;
            store(direct_row + j, d * g, count);
            store(dxp + j, dz_r, count);
            store(dxp + n + j, dz_g, count);
            store(dxp + 2 * n + j, dz_c, count);
            store(grad_row + j, dz_r, count);
            store(grad_row + n + j, dz_g, count);
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
int run(const GoruForward<T>& a) {
    return guarded([&] {
        const ForwardLoop<T> loop(a, a.W, 3 * a.n, 0);
        loop.template run<GoruForwardCell<T>>(a);
    });
}
template <class T>
int run(const GoruBackward<T>& a) {
    return guarded([&] {
        const BackwardLoop<T> loop(a, a.W, 3 * a.n);
        loop.template run<GoruBackwardCell<T>>(a);
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_EXPORT(goru_forward, GoruForward, GORU_FORWARD)
MNEMOSCOPE_EXPORT(goru_backward, GoruBackward, GORU_BACKWARD)
