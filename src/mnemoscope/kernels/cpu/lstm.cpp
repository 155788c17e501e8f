// Long short-term memory over a whole sequence, there and back. Gates in torch's order i, f, g, o.
#include "cells.h"
#include "product.h"
#include "sequence.h"
#include "team.h"

namespace mnemoscope {

template <class T>
struct LstmForward {
    std::int64_t steps, batch, n;
    const T *xp, *V, *h0, *c0;
    const std::int64_t* lengths;
    T *h, *c_T, *cells, *gates;
    std::int64_t save;
    Team team;
};

template <class T>
struct LstmBackward {
    std::int64_t steps, batch, n;
    const T *dh, *dc_T, *V, *c0, *cells, *gates;
    const std::int64_t* lengths;
    T *dxp, *dh0, *dc0;
    Team team;
};

template <class T>
struct LstmRows {
    Rows<T> narrow, cell, wide;  // n, n and 4n
    LstmRows(std::int64_t rows, std::int64_t n) : narrow(rows, n), cell(rows, n), wide(rows, 4 * n) {}
};

template <class T>
void walk(const LstmForward<T>& a, const Packed<T>& V, const Block& block, LstmRows<T>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    for (std::int64_t b = block.first; b < block.end; ++b) {
        copy(a.h0 + b * a.n, local.narrow[b - block.first], a.n);
        copy(a.c0 + b * a.n, local.cell[b - block.first], a.n);
    }
    for (std::int64_t t = 0; t < span.longest(block); ++t) {
        V.times(local.narrow[0], local.narrow.stride, block.rows(), local.wide[0], local.wide.stride);
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first, at = span.row(t, b);
            T *cells = a.save ? a.cells + at : nullptr, *gates = a.save ? a.gates + 4 * at : nullptr;
            if (span.alive(t, b)) {
                lstm_cell(a.n, local.wide[r], a.xp + 4 * at, local.cell[r], local.narrow[r], a.h + at, cells, gates);
                continue;
            }
            fill_zero(a.h + at, a.n);
            if (a.save) fill_zero(cells, a.n), fill_zero(gates, 4 * a.n);
        }
    }
    span.zero_rest(block, a.h);
    if (a.save) span.zero_rest(block, a.cells), span.zero_rest(block, a.gates, 4 * a.n);
    for (std::int64_t b = block.first; b < block.end; ++b) copy(local.cell[b - block.first], a.c_T + b * a.n, a.n);
}

template <class T>
void walk(const LstmBackward<T>& a, const Packed<T>& V, const Block& block, LstmRows<T>& local) {
    const Span span(a.steps, a.batch, a.n, a.lengths);
    span.zero_rest(block, a.dxp, 4 * a.n);
    for (std::int64_t b = block.first; b < block.end; ++b) {
        fill_zero(local.narrow[b - block.first], a.n);
        fill_zero(local.cell[b - block.first], a.n);
        if (a.dc_T) copy(a.dc_T + b * a.n, local.cell[b - block.first], a.n);
    }
    for (std::int64_t t = span.longest(block) - 1; t >= 0; --t) {
        for (std::int64_t b = block.first; b < block.end; ++b) {
            const std::int64_t r = b - block.first, at = span.row(t, b);
            const T* before = t ? a.cells + span.row(t - 1, b) : a.c0 + b * a.n;
            if (span.alive(t, b)) {
                lstm_cell_back(a.n, a.dh ? a.dh + at : nullptr, local.narrow[r], local.cell[r], before, a.cells + at,
                               a.gates + 4 * at, local.wide[r], a.dxp + 4 * at);
            } else {
                fill_zero(a.dxp + 4 * at, 4 * a.n);
                fill_zero(local.wide[r], 4 * a.n);
            }
        }
        V.times(local.wide[0], local.wide.stride, block.rows(), local.narrow[0], local.narrow.stride);
    }
    for (std::int64_t b = block.first; b < block.end; ++b) {
        copy(local.narrow[b - block.first], a.dh0 + b * a.n, a.n);
        copy(local.cell[b - block.first], a.dc0 + b * a.n, a.n);
    }
}

template <class T, class Arguments>
void run(const Arguments& a, const Packed<T>& V) {
    over_rows<LstmRows<T>>(
        a.team, a.batch, most_rows<T>(4 * a.n * a.n), [&](std::int64_t rows) { return LstmRows<T>(rows, a.n); },
        [&](const Block& block, auto& local) { walk(a, V, block, local); });
}

template <class T>
int run(const LstmForward<T>& a) {
    return guarded([&] { run(a, Packed<T>(a.V, a.n, 4 * a.n, 1, a.n)); });
}
template <class T>
int run(const LstmBackward<T>& a) {
    return guarded([&] { run(a, Packed<T>(a.V, 4 * a.n, a.n, a.n, 1)); });
}

}  // namespace mnemoscope

MNEMOSCOPE_API int lstm_forward_float(const mnemoscope::LstmForward<float>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int lstm_forward_double(const mnemoscope::LstmForward<double>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int lstm_backward_float(const mnemoscope::LstmBackward<float>* a) { return mnemoscope::run(*a); }
MNEMOSCOPE_API int lstm_backward_double(const mnemoscope::LstmBackward<double>* a) { return mnemoscope::run(*a); }
