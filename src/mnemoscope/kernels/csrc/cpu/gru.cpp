// The gated recurrent unit, with V = [V_r; V_z; V_n] in torch's gate order:
//     r = sigmoid(xp_r + V_r h), z = sigmoid(xp_z + V_z h), u = V_n h + b_hn,
//     n = tanh(xp_n + r u), h' = (1 - z) n + z h.
// Saved gates of a step: r, z, n, u.
#include "arguments.h"
#include "gated.h"

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
struct GruUnit {
    using V = Vec<T>;
    static V product(const GruForward<T>& a, V u, int64_t j, int count) {
        return a.b_hn ? u + load(a.b_hn + j, count) : u;
    }
    static V candidate(const GruForward<T>&, V r, V u, V x, int64_t, int) {
        return hyperbolic_tangent<T>(x + r * u);
    }
    static V candidate_backward(V d, V candidate) {
        return phi_backward<T, Phi::tanh>(d, candidate);
    }
    static V mix(V z, V candidate, V h) { return (T(1) - z) * candidate + z * h; }
};

template <class T>
int run(const GruForward<T>& a) {
    return guarded(a.threads, [&] {
        const ForwardLoop<T> loop(a, a.V, 3 * a.n);
        loop.template run<GatedForwardCell<T, GruForward<T>, GruUnit<T>>>(a);
    });
}
template <class T>
int run(const GruBackward<T>& a) {
    return guarded(a.threads, [&] {
        const BackwardLoop<T> loop(a, a.V, 3 * a.n);
        loop.template run<GatedBackwardCell<T, GruBackward<T>, GruUnit<T>>>(a);
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_EXPORT(gru_forward, GruForward, GRU_FORWARD)
MNEMOSCOPE_EXPORT(gru_backward, GruBackward, GRU_BACKWARD)
