// The recurrent arithmetic circuit h_t = (V h_{t-1} + b) * xp_t over a whole sequence, there and back.
#include "arguments.h"
#include "cells.h"
#include "product.h"
#include "sequence.h"
#include "team.h"

namespace mnemoscope {

template <class T>
struct RacRows {
    Rows<T> state, product;
};

template <class T>
void walk(const RacForward<T>& a, const Packed<T>& V, const Block& block, RacRows<T>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    for (std::int64_t b = block.first; b < block.end; ++b) copy(a.h0 + b * a.n, local.state[b - block.first], a.n);
    for (std::int64_t t = 0; t < span.longest(block); ++t) {
        V.times(local.state[0], local.state.stride, block.rows(), local.product[0], local.product.stride);
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first, at = span.row(t, b);
            if (!span.alive(t, b)) {
                fill_zero(a.h + at, a.n);
                continue;
            }
            sweep<T>(a.n, [&](std::int64_t j, int count) {
                const Vec<T> bias = a.b ? load(a.b + j, count) : splat(T(0));
                const Vec<T> h = (load(local.product[r] + j) + bias) * load(a.xp + at + j, count);
                store(local.state[r] + j, h, count);
                store(a.h + at + j, h, count);
            });
        }
    }
    span.zero_rest(block, a.h);
}

template <class T>
void walk(const RacBackward<T>& a, const Packed<T>& V, const Block& block, RacRows<T>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    span.zero_rest(block, a.dxp);
    span.zero_rest(block, a.du);
    for (int r = 0; r < block.rows(); ++r) fill_zero(local.product[r], a.n);
    for (std::int64_t t = span.longest(block) - 1; t >= 0; --t) {
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first, at = span.row(t, b);
            const bool alive = span.alive(t, b);
            sweep<T>(a.n, [&](std::int64_t j, int count) {
                const Vec<T> dh = alive ? load(local.product[r] + j) + load(a.dh + at + j, count) : splat(T(0));
                const Vec<T> du = dh * load(a.xp + at + j, count);
                store(local.state[r] + j, du, count);
                store(a.du + at + j, du, count);
                store(a.dxp + at + j, dh * load(a.u + at + j, count), count);
            });
        }
        V.times(local.state[0], local.state.stride, block.rows(), local.product[0], local.product.stride);
    }
    for (std::int64_t b = block.first; b < block.end; ++b) copy(local.product[b - block.first], a.dh0 + b * a.n, a.n);
}

template <class T, class Arguments>
int run(const Arguments& a, std::int64_t row_step, std::int64_t column_step) {
    return guarded([&] {
        const Packed<T> V(a.V, a.n, a.n, row_step, column_step);
        over_rows<RacRows<T>>(
            a.threads, a.batch, most_rows<T>(a.n * a.n),
            [&](std::int64_t rows) { return RacRows<T>{{rows, a.n}, {rows, a.n}}; },
            [&](const Block& block, auto& local) { walk(a, V, block, local); });
    });
}

}  // namespace mnemoscope

#define MNEMOSCOPE_EXPORT(T)                                                                                        \
    MNEMOSCOPE_API int rac_forward_##T(const mnemoscope::RacForward<T>* a) { return mnemoscope::run<T>(*a, 1, a->n); } \
    MNEMOSCOPE_API int rac_backward_##T(const mnemoscope::RacBackward<T>* a) { return mnemoscope::run<T>(*a, a->n, 1); }
MNEMOSCOPE_EXPORT(float)
MNEMOSCOPE_EXPORT(double)
