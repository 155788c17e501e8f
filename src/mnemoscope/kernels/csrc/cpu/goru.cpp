// The gated orthogonal recurrent unit (Jing et al. 2017), with W = [W_r; W_g; Q]:
//     r = sigmoid(xp_r + W_r h), g = sigmoid(xp_g + W_g h), u = Q h,
//     c = modReLU(r u + xp_c, b), h' = g h + (1 - g) c.
// Saved gates of a step: r, g, c, u.
#include "arguments.h"
#include "gated.h"

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
struct GoruUnit {
    using V = Vec<T>;
    static V product(const GoruForward<T>&, V u, int64_t, int) { return u; }
    static V candidate(const GoruForward<T>& a, V r, V u, V x, int64_t j, int count) {
        return modrelu<T>(r * u + x, load(a.b + j, count));
    }
    static V candidate_backward(V d, V candidate) {
        return phi_backward<T, Phi::modrelu>(d, candidate);
    }
    static V mix(V g, V candidate, V h) { return g * h + (T(1) - g) * candidate; }
};

template <class T>
int run(const GoruForward<T>& a) {
    return guarded(a.threads, [&] {
        const ForwardLoop<T> loop(a, a.W, 3 * a.n);
        loop.template run<GatedForwardCell<T, GoruForward<T>, GoruUnit<T>>>(a);
    });
}
template <class T>
int run(const GoruBackward<T>& a) {
    return guarded(a.threads, [&] {
        const BackwardLoop<T> loop(a, a.W, 3 * a.n);
        loop.template run<GatedBackwardCell<T, GoruBackward<T>, GoruUnit<T>>>(a);
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_EXPORT(goru_forward, GoruForward, GORU_FORWARD)
MNEMOSCOPE_EXPORT(goru_backward, GoruBackward, GORU_BACKWARD)
