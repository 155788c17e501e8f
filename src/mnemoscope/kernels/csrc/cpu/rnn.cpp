// h_t = phi(V h_{t-1} + xp_t), or phi(V [h_{t-1}, x_t]), over a whole sequence, there and back.
#include "arguments.h"
#include "cells.h"
#include "product.h"
#include "sequence.h"
#include "team.h"

namespace mnemoscope {

template <class T>
struct TwoRows {
    Rows<T> state, product;
};

template <class T, Phi phi>
void walk(const RnnForward<T>& a, const Packed<T>& V, const Block& block, TwoRows<T>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    const Inputs<T> inputs{a.xp, a.n_inputs, a.n};
    for (std::int64_t b = block.first; b < block.end; ++b) copy(a.h0 + b * a.n, local.state[b - block.first], a.n);
    for (std::int64_t t = 0; t < span.longest(block); ++t) {
        for (int r = 0; r < block.rows(); ++r)
            inputs.put_behind(local.state[r], a.n, t * a.batch + block.first + r);
        V.times(local.state[0], local.state.stride, block.rows(), local.product[0], local.product.stride);
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first, at = t * a.batch + b;
            if (span.alive(t, b))
                rnn_cell<T, phi>(a.n, local.product[r], inputs.added(at), a.b, local.state[r], a.h + at * a.n);
            else
                fill_zero(a.h + at * a.n, a.n);
        }
    }
    span.zero_rest(block, a.h);
}

template <class T>
struct RnnGradients {
    Rows<T> product;  // [dh, dx]
    Outer<T> dV;      // its left is dz
};

template <class T, Phi phi>
void walk(const RnnBackward<T>& a, const Packed<T>& V, const Block& block, RnnGradients<T>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    const Inputs<T> inputs{a.x, a.n_inputs, a.n};
    if (a.dxp) span.zero_rest(block, a.dxp);
    if (a.dx) span.zero_rest(block, a.dx, a.n_inputs);
    for (int r = 0; r < block.rows(); ++r) fill_zero(local.product[r], a.n);
    for (std::int64_t t = span.longest(block) - 1; t >= 0; --t) {
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first, at = t * a.batch + b;
            T* out = a.dxp ? a.dxp + at * a.n : nullptr;
            if (span.alive(t, b)) {
                rnn_cell_back<T, phi>(a.n, a.dh + at * a.n, local.product[r], a.h + at * a.n, local.dV.left(r), out);
                const T* before = t ? a.h + span.row(t - 1, b) : a.h0 + b * a.n;
                if (a.n_inputs) local.dV.right(r, before, a.n, inputs.behind(at));
            } else {
                if (out) fill_zero(out, a.n);
                fill_zero(local.dV.left(r), a.n);
                local.dV.no_right(r);
            }
        }
        V.times(local.dV.left(0), local.dV.stride(), block.rows(), local.product[0], local.product.stride);
        local.dV.next(block.rows());
        for (int r = 0; a.dx && r < block.rows(); ++r)
            copy(local.product[r] + a.n, a.dx + (t * a.batch + block.first + r) * a.n_inputs, a.n_inputs);
    }
    for (std::int64_t b = block.first; b < block.end; ++b) copy(local.product[b - block.first], a.dh0 + b * a.n, a.n);
}

template <class T>
int run(const RnnForward<T>& a) {
    return guarded([&] {
        const std::int64_t depth = a.n + a.n_inputs;
        const Packed<T> V(a.V, depth, a.n, 1, depth);
        const auto scratch = [&](std::int64_t rows) { return TwoRows<T>{{rows, depth}, {rows, a.n}}; };
        with_phi(a.phi, [&](auto phi) {
            over_rows<TwoRows<T>>(a.threads, a.batch, most_rows<T>(depth * a.n), scratch,
                                  [&](const Block& block, auto& local) { walk<T, phi.value>(a, V, block, local); });
        });
    });
}
template <class T>
int run(const RnnBackward<T>& a) {
    return guarded([&] {
        const std::int64_t depth = a.n + a.n_inputs, width = a.dx ? depth : a.n;
        const Packed<T> V(a.V, a.n, width, depth, 1);
        const auto scratch = [&](std::int64_t rows) {
            return RnnGradients<T>{{rows, width}, {a.n, a.n_inputs ? depth : 0, rows}};
        };
        with_phi(a.phi, [&](auto phi) {
            over_rows<RnnGradients<T>>(
                a.threads, a.batch, most_rows<T>(depth * a.n), scratch,
                [&](const Block& block, auto& local) { walk<T, phi.value>(a, V, block, local); },
                [&](auto& local) { local.dV.give(a.dV); });
        });
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_API int rnn_forward_float(const mnemoscope::RnnForward<float>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int rnn_forward_double(const mnemoscope::RnnForward<double>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int rnn_backward_float(const mnemoscope::RnnBackward<float>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int rnn_backward_double(const mnemoscope::RnnBackward<double>* a) { return mnemoscope::run(*a); }
