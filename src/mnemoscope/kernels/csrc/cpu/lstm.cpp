// Long short-term memory over a whole sequence, there and back. Gates in torch's order i, f, g, o.
#include "arguments.h"
#include "cells.h"
#include "product.h"
#include "sequence.h"
#include "team.h"

namespace mnemoscope {

template <class T>
struct LstmRows {
    Rows<T> state, cell, product;
    LstmRows(std::int64_t rows, std::int64_t n, std::int64_t extra)
        : state(rows, n + extra), cell(rows, n), product(rows, 4 * n) {}
};

template <class T>
void walk(const LstmForward<T>& a, const Packed<T>& V, const Block& block, LstmRows<T>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    const Inputs<T> inputs{a.xp, a.n_inputs, 4 * a.n};
    for (std::int64_t b = block.first; b < block.end; ++b) {
        copy(a.h0 + b * a.n, local.state[b - block.first], a.n);
        copy(a.c0 + b * a.n, local.cell[b - block.first], a.n);
    }
    for (std::int64_t t = 0; t < span.longest(block); ++t) {
        for (int r = 0; r < block.rows(); ++r)
            inputs.put_behind(local.state[r], a.n, t * a.batch + block.first + r);
        V.times(local.state[0], local.state.stride, block.rows(), local.product[0], local.product.stride);
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first, at = t * a.batch + b;
            T *h = a.h + at * a.n, *cells = a.save ? a.cells + at * a.n : nullptr;
            T* gates = a.save ? a.gates + at * 4 * a.n : nullptr;
            if (span.alive(t, b)) {
                lstm_cell(a.n, local.product[r], inputs.added(at), local.cell[r], local.state[r], h, cells, gates);
                continue;
            }
            fill_zero(h, a.n);
            if (a.save) fill_zero(cells, a.n), fill_zero(gates, 4 * a.n);
        }
    }
    span.zero_rest(block, a.h);
    if (a.save) span.zero_rest(block, a.cells), span.zero_rest(block, a.gates, 4 * a.n);
    for (std::int64_t b = block.first; b < block.end; ++b) copy(local.cell[b - block.first], a.c_T + b * a.n, a.n);
}

template <class T>
struct LstmGradients {
    Rows<T> dc, product;  // product = [dh, dx]
    Outer<T> dV;          // its left is dz
};

template <class T>
void walk(const LstmBackward<T>& a, const Packed<T>& V, const Block& block, LstmGradients<T>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    const Inputs<T> inputs{a.x, a.n_inputs, 4 * a.n};
    if (a.dxp) span.zero_rest(block, a.dxp, 4 * a.n);
    if (a.dx) span.zero_rest(block, a.dx, a.n_inputs);
    for (std::int64_t b = block.first; b < block.end; ++b) {
        fill_zero(local.product[b - block.first], a.n);
        fill_zero(local.dc[b - block.first], a.n);
        if (a.dc_T) copy(a.dc_T + b * a.n, local.dc[b - block.first], a.n);
    }
    for (std::int64_t t = span.longest(block) - 1; t >= 0; --t) {
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first, at = t * a.batch + b, row = at * a.n, last = row - a.batch * a.n;
            T* out = a.dxp ? a.dxp + at * 4 * a.n : nullptr;
            if (span.alive(t, b)) {
                lstm_cell_back(a.n, a.dh ? a.dh + row : nullptr, local.product[r], local.dc[r],
                               t ? a.cells + last : a.c0 + b * a.n, a.cells + row, a.gates + 4 * row,
                               local.dV.left(r), out);
                if (a.n_inputs) local.dV.right(r, t ? a.h + last : a.h0 + b * a.n, a.n, inputs.behind(at));
            } else {
                if (out) fill_zero(out, 4 * a.n);
                fill_zero(local.dV.left(r), 4 * a.n);
                local.dV.no_right(r);
            }
        }
        V.times(local.dV.left(0), local.dV.stride(), block.rows(), local.product[0], local.product.stride);
        local.dV.next(block.rows());
        for (int r = 0; a.dx && r < block.rows(); ++r)
            copy(local.product[r] + a.n, a.dx + (t * a.batch + block.first + r) * a.n_inputs, a.n_inputs);
    }
    for (std::int64_t b = block.first; b < block.end; ++b) {
        copy(local.product[b - block.first], a.dh0 + b * a.n, a.n);
        copy(local.dc[b - block.first], a.dc0 + b * a.n, a.n);
    }
}

template <class T>
int run(const LstmForward<T>& a) {
    return guarded([&] {
        const std::int64_t depth = a.n + a.n_inputs;
        const Packed<T> V(a.V, depth, 4 * a.n, 1, depth);
        over_rows<LstmRows<T>>(
            a.threads, a.batch, most_rows<T>(4 * depth * a.n),
            [&](std::int64_t rows) { return LstmRows<T>(rows, a.n, a.n_inputs); },
            [&](const Block& block, auto& local) { walk(a, V, block, local); });
    });
}
template <class T>
int run(const LstmBackward<T>& a) {
    return guarded([&] {
        const std::int64_t depth = a.n + a.n_inputs, width = a.dx ? depth : a.n;
        const Packed<T> V(a.V, 4 * a.n, width, depth, 1);
        const auto scratch = [&](std::int64_t rows) {
            return LstmGradients<T>{{rows, a.n}, {rows, width}, {4 * a.n, a.n_inputs ? depth : 0, rows}};
        };
        over_rows<LstmGradients<T>>(
            a.threads, a.batch, most_rows<T>(4 * depth * a.n), scratch,
            [&](const Block& block, auto& local) { walk(a, V, block, local); },
            [&](auto& local) { local.dV.give(a.dV); });
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_API int lstm_forward_float(const mnemoscope::LstmForward<float>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int lstm_forward_double(const mnemoscope::LstmForward<double>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int lstm_backward_float(const mnemoscope::LstmBackward<float>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int lstm_backward_double(const mnemoscope::LstmBackward<double>* a) { return mnemoscope::run(*a); }
