// h_t = phi(xp_t + V h_{t-1}) over a whole sequence, there and back.
#include "cells.h"
#include "product.h"
#include "sequence.h"
#include "team.h"

namespace mnemoscope {

template <class T>
struct RnnForward {
    std::int64_t steps, batch, n;
    const T *xp, *V, *h0, *b;
    const std::int64_t* lengths;
    T* h;
    Phi phi;
    Team team;
};

template <class T>
struct RnnBackward {
    std::int64_t steps, batch, n;
    const T *dh, *V, *h;
    const std::int64_t* lengths;
    T *dz, *dh0;
    Phi phi;
    Team team;
};

template <class T>
struct TwoRows {
    Rows<T> state, product;
};

template <class T, Phi phi>
void walk(const RnnForward<T>& a, const Packed<T>& V, const Block& block, TwoRows<T>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    for (std::int64_t b = block.first; b < block.end; ++b) copy(a.h0 + b * a.n, local.state[b - block.first], a.n);
    for (std::int64_t t = 0; t < span.longest(block); ++t) {
        V.times(local.state[0], local.state.stride, block.rows(), local.product[0], local.product.stride);
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first, at = span.row(t, b);
            if (span.alive(t, b))
                rnn_cell<T, phi>(a.n, local.product[r], a.xp + at, a.b, local.state[r], a.h + at);
            else
                fill_zero(a.h + at, a.n);
        }
    }
    span.zero_rest(block, a.h);
}

template <class T, Phi phi>
void walk(const RnnBackward<T>& a, const Packed<T>& V, const Block& block, TwoRows<T>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    span.zero_rest(block, a.dz);
    for (int r = 0; r < block.rows(); ++r) fill_zero(local.product[r], a.n);
    for (std::int64_t t = span.longest(block) - 1; t >= 0; --t) {
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first, at = span.row(t, b);
            if (span.alive(t, b)) {
                rnn_cell_back<T, phi>(a.n, a.dh + at, local.product[r], a.h + at, local.state[r], a.dz + at);
            } else {
                fill_zero(a.dz + at, a.n);
                fill_zero(local.state[r], a.n);
            }
        }
        V.times(local.state[0], local.state.stride, block.rows(), local.product[0], local.product.stride);
    }
    for (std::int64_t b = block.first; b < block.end; ++b) copy(local.product[b - block.first], a.dh0 + b * a.n, a.n);
}

template <class T, class Arguments>
int run(const Arguments& a, std::int64_t row_step, std::int64_t column_step) {
    return guarded([&] {
        const Packed<T> V(a.V, a.n, a.n, row_step, column_step);
        const auto scratch = [&](std::int64_t rows) { return TwoRows<T>{{rows, a.n}, {rows, a.n}}; };
        with_phi(a.phi, [&](auto phi) {
            over_rows<TwoRows<T>>(a.team, a.batch, most_rows<T>(a.n * a.n), scratch,
                                  [&](const Block& block, auto& local) { walk<T, phi.value>(a, V, block, local); });
        });
    });
}

}  // namespace mnemoscope

#define MNEMOSCOPE_EXPORT(T)                                                                                        \
    MNEMOSCOPE_API int rnn_forward_##T(const mnemoscope::RnnForward<T>* a) { return mnemoscope::run<T>(*a, 1, a->n); } \
    MNEMOSCOPE_API int rnn_backward_##T(const mnemoscope::RnnBackward<T>* a) { return mnemoscope::run<T>(*a, a->n, 1); }
MNEMOSCOPE_EXPORT(float)
MNEMOSCOPE_EXPORT(double)
