// The loop over time of every recurrence without full or screened attention, over a cell policy.
//
// The loop computes the recurrent product of a block of rows, calls the cell for each active row,
// and skips the rows of sequences that have ended. A cell has the scratch memory of its rows:
//
//     Forward(arguments, rows)                     scratch for that many rows
//     begin(b, r)                                  sequence b starts in row r of the block
//     step(position, product, xp, state)           from V h_{t-1} and xp_t to h_t
//     skip(position)                               zeros into the outputs of an inactive step
//     finish(b, r)                                 final states
//
//     Backward(arguments, rows)
//     begin(b, r)
//     step(position, carry, grad_row, dxp)         from dL/dh_t (without dh) to dL/d(V h_{t-1})
//     skip(position)                               zeros into the cell's own outputs
//     finish(b, r, carry)                          carry is V^T grad_row of step 0
//
// Rows passed to the cell (product, state, carry, grad_row) are padded with zeros to whole vectors;
// rows of tensors are not. xp is null where the projection is fused (see Inputs), and so is dxp.
#pragma once

#include "product.h"
#include "sequence.h"

namespace mnemoscope {

template <class T>
struct ForwardLoop {
    Lengths lengths;
    int64_t n, gates;  // gates: rows of V
    Inputs<T> inputs;
    CellWeights<T> V;
    const T* h0;
    ThreadPool pool;
    T* h_T = nullptr;

    // Arguments of a cell whose product has `gates` numbers a row; V is (gates, n).
    template <class Arguments>
    ForwardLoop(const Arguments& a, const T* V, int64_t gates)
        : lengths{a.steps, a.batch, a.lengths}, n(a.n), gates(gates), inputs{a.xp, 0, gates},
          V{V, gates, a.n, 0, nullptr, nullptr, nullptr}, h0(a.h0), pool(a.threads) {}
    // The same of a cell that may project its inputs.
    template <class Arguments>
    ForwardLoop(const Arguments& a, const T* V, int64_t gates, int64_t n_inputs)
        : ForwardLoop(a, V, gates) {
        inputs = {a.xp, n_inputs, gates, a.U && a.b_ih};
        this->V = {V, gates, a.n, n_inputs, a.U, a.b_ih, a.b_hh};
        h_T = a.h_T;
    }

    template <class Cell, class Arguments>
    void run(const Arguments& a) const {
        struct Scratch {
            Rows<T> state, product;  // state = [h, x]
            Cell cell;
        };
        const int64_t depth = n + inputs.n_inputs;
        const Packed<T> weights = V.transposed();
        for_each_block<Scratch>(
            pool, lengths.batch, most_rows<T>(depth * gates),
            [&](int64_t rows) { return Scratch{{rows, depth}, {rows, gates}, Cell(a, rows)}; },
            [&](const Block& block, Scratch& local) { run_block(weights, block, local); });
    }

private:
    template <class Scratch>
    void run_block(const Packed<T>& weights, const Block& block, Scratch& local) const {
        const int rows = block.rows();
        for (int r = 0; r < rows; ++r) {
            copy(h0 + (block.first + r) * n, local.state[r], n);
            local.cell.begin(block.first + r, r);
        }

        const int64_t longest = lengths.longest(block);
        for (int64_t t = 0; t < longest; ++t) {
            stop_if_requested();
            for (int r = 0; r < rows; ++r)
                inputs.append_to(local.state[r], n, lengths.position(t, block, r).row);
            weights.times(local.state, rows, local.product);
            for (int r = 0; r < rows; ++r) {
                const Position p = lengths.position(t, block, r);
                if (lengths.active(t, p.b))
                    local.cell.step(p, local.product[r], inputs.projected(p.row), local.state[r]);
                else
                    local.cell.skip(p);
            }
        }

        for (int64_t t = longest; t < lengths.steps; ++t)
            for (int r = 0; r < rows; ++r) local.cell.skip(lengths.position(t, block, r));
        for (int r = 0; r < rows; ++r) {
            local.cell.finish(block.first + r, r);
            if (h_T) copy(local.state[r], h_T + (block.first + r) * n, n);
        }
    }
};

// The gradients of weights and inputs where the projection is fused.
template <class T>
struct FusedGradients {
    Inputs<T> inputs;
    const T *h0, *h, *U;
    T* dx;  // may be null
    CellGradients<T> weights;
};

template <class T>
struct BackwardLoop {
    Lengths lengths;
    int64_t n, gates, n_inputs = 0;
    const T* V;
    T* dxp;
    ThreadPool pool;
    FusedGradients<T> fused = {};

    // dxp is written and dV is left to the caller.
    template <class Arguments>
    BackwardLoop(const Arguments& a, const T* V, int64_t gates)
        : lengths{a.steps, a.batch, a.lengths}, n(a.n), gates(gates), V(V), dxp(a.dxp),
          pool(a.threads) {}
    // The same, or with n_inputs > 0 dV and dx are written.
    template <class Arguments>
    BackwardLoop(const Arguments& a, const T* V, int64_t gates, int64_t n_inputs)
        : BackwardLoop(a, V, gates) {
        this->n_inputs = n_inputs;
        if (!n_inputs) return;
        fused = {{a.x, n_inputs, gates, a.U && a.db_ih},       a.h0, a.h, a.U, a.dx,
                 {a.dV, a.n, n_inputs, a.dU, a.db_ih, a.db_hh}};
    }

    template <class Cell, class Arguments>
    void run(const Arguments& a) const {
        struct Scratch {
            Rows<T> product;  // V^T grad_row: the gradient of h_{t-1}, or of [h_{t-1}, x_t]
            WeightGradient<T> dV;
            Cell cell;
        };
        const int64_t depth = n + n_inputs, width = fused.dx ? n + fused.inputs.given() : n;
        Packed<T> weights(gates, width);
        CellWeights<T>{V, gates, n, n_inputs, fused.U, nullptr, nullptr}.fill(weights, width);
        for_each_block<Scratch>(
            pool, lengths.batch, most_rows<T>(depth * gates),
            [&](int64_t rows) {
                return Scratch{{rows, width}, {gates, n_inputs ? depth : 0, rows}, Cell(a, rows)};
            },
            [&](const Block& block, Scratch& local) { run_block(weights, block, local); },
            [&](Scratch& local) {
                if (n_inputs) fused.weights.take(local.dV, gates);
            });
    }

private:
    template <class Scratch>
    void run_block(const Packed<T>& weights, const Block& block, Scratch& local) const {
        const int rows = block.rows();
        for (int r = 0; r < rows; ++r) {
            fill_zero(local.product[r], n);
            local.cell.begin(block.first + r, r);
        }

        const int64_t longest = lengths.longest(block);
        for (int64_t t = lengths.steps - 1; t >= longest; --t)
            for (int r = 0; r < rows; ++r) skip(lengths.position(t, block, r), local);
        for (int64_t t = longest - 1; t >= 0; --t) {
            stop_if_requested();
            for (int r = 0; r < rows; ++r) {
                const Position p = lengths.position(t, block, r);
                if (lengths.active(t, p.b)) {
                    step(p, local);
                } else {
                    skip(p, local);
                    fill_zero(local.dV.grad_row(r), gates);
                    local.dV.zero_input_row(r);
                }
            }
            weights.times(local.dV.grad_row(0), local.dV.grad_stride(), rows, local.product[0],
                          local.product.stride);
            local.dV.advance(rows);
            for (int r = 0; fused.dx && r < rows; ++r) {
                const int64_t row = lengths.position(t, block, r).row;
                copy(local.product[r] + n, fused.dx + row * fused.inputs.given(),
                     fused.inputs.given());
            }
        }

        for (int r = 0; r < rows; ++r) local.cell.finish(block.first + r, r, local.product[r]);
    }

    template <class Scratch>
    void step(const Position& p, Scratch& local) const {
        T* out = n_inputs ? nullptr : dxp + p.row * gates;
        local.cell.step(p, local.product[p.r], local.dV.grad_row(p.r), out);
        if (!n_inputs) return;
        const T* h_before = p.t ? fused.h + p.previous * n : fused.h0 + p.b * n;
        copy(h_before, local.dV.input_row(p.r), n);
        fused.inputs.append_to(local.dV.input_row(p.r), n, p.row);
    }

    template <class Scratch>
    void skip(const Position& p, Scratch& local) const {
        if (!n_inputs) fill_zero(dxp + p.row * gates, gates);
        const int64_t given = fused.inputs.given();
        if (fused.dx) fill_zero(fused.dx + p.row * given, given);
        local.cell.skip(p);
    }
};

}  // namespace mnemoscope
