// What a self-attentive recurrence is given and gives back, and the rows that one thread works on.
#pragma once

#include "cells.h"
#include "product.h"
#include "sequence.h"
#include "team.h"

namespace mnemoscope {

enum class Cell : std::int64_t { rnn = 0, lstm = 1 };

template <class T>
struct AttentiveForward {
    std::int64_t steps, batch, n, extra, carried, buffer, relevant;
    const T *x, *weights, *U_a, *v, *b, *s0, *c0;  // weights = [V; W_a], ((G + 1) n, n + extra)
    const T *values0, *keys0;
    const std::int64_t* origin0;
    const T* relevance0;
    const std::int64_t *clock0, *lengths;
    T *h, *s, *c_T;
    std::int64_t* final_slots;
    T *final_relevance, *cells, *gates;
    std::int32_t* slots;
    T* attention;
    Cell cell;
    Phi phi;
    double decay;
    std::int64_t refresh, mean, save;
    Team team;

    std::int64_t capacity() const { return buffer + relevant; }
    std::int64_t gate_width() const { return cell == Cell::lstm ? 4 * n : n; }
    std::int64_t depth() const { return n + extra; }
};

template <class T>
struct AttentiveBackward {
    std::int64_t steps, batch, n, extra, carried, buffer, relevant;
    const T *dh, *ds, *dc_T, *x, *weights, *U_a, *v, *s0, *c0;
    const T *values0, *keys0;
    const std::int64_t *origin0, *lengths;
    const T *h, *s, *cells, *gates;
    const std::int32_t* slots;
    const T* attention;
    T *dx, *dq, *dk;  // without extra inputs dx is dz, and weights' gradients are made outside; with them dx may be null
    T *d_weights, *dU_a, *dv, *ds0, *dc0, *dvalues0, *dkeys0;  // dv (B, n) is one row a sequence, summed outside
    Cell cell;
    Phi phi;
    std::int64_t mean;
    Team team;

    std::int64_t capacity() const { return buffer + relevant; }
    std::int64_t gate_width() const { return cell == Cell::lstm ? 4 * n : n; }
    std::int64_t depth() const { return n + extra; }
};

}  // namespace mnemoscope
