// What each operator's loop is given by Python and gives back: one structure for each, field by field.
#pragma once

#include "cells.h"
#include "product.h"
#include "sequence.h"
#include "team.h"

namespace mnemoscope {

template <class T>
struct RnnForward {
    std::int64_t steps, batch, n, extra;
    const T *x, *V, *h0, *b;  // x (T, B, n) and V (n, n), or x (T, B, extra) and V (n, n + extra)
    const std::int64_t* lengths;
    T* h;
    Phi phi;
    Team team;
};

template <class T>
struct RnnBackward {
    std::int64_t steps, batch, n, extra;
    const T *dh, *x, *V, *h0, *h;
    const std::int64_t* lengths;
    T *dx, *dV, *dh0;  // without extra inputs dx is dz, and dV is made outside; with them dx may be null
    Phi phi;
    Team team;
};

template <class T>
struct LstmForward {
    std::int64_t steps, batch, n, extra;
    const T *x, *V, *h0, *c0;  // x (T, B, 4n) and V (4n, n), or x (T, B, extra) and V (4n, n + extra)
    const std::int64_t* lengths;
    T *h, *c_T, *cells, *gates;
    std::int64_t save;
    Team team;
};

template <class T>
struct LstmBackward {
    std::int64_t steps, batch, n, extra;
    const T *dh, *dc_T, *x, *V, *h0, *c0, *h, *cells, *gates;
    const std::int64_t* lengths;
    T *dx, *dV, *dh0, *dc0;  // without extra inputs dx is dz, and dV is made outside; with them dx may be null
    Team team;
};

template <class T>
struct RacForward {
    std::int64_t steps, batch, n;
    const T *xp, *V, *h0, *b;
    const std::int64_t* lengths;
    T* h;
    Team team;
};

template <class T>
struct RacBackward {
    std::int64_t steps, batch, n;
    const T *dh, *xp, *V, *u;  // u_t = V h_{t-1} + b
    const std::int64_t* lengths;
    T *dxp, *du, *dh0;
    Team team;
};

template <class T>
struct GoruForward {
    std::int64_t steps, batch, n;
    const T *xp, *W, *h0, *b;
    const std::int64_t* lengths;
    T *h, *gates;  // gates = r, g, c, Q h_{t-1}
    std::int64_t save;
    Team team;
};

template <class T>
struct GoruBackward {
    std::int64_t steps, batch, n;
    const T *dh, *W, *h0, *h, *gates;
    const std::int64_t* lengths;
    T *dxp, *du, *dh0;
    Team team;
};

template <class T>
struct SabForward {
    std::int64_t steps, batch, n, carried;
    const T *xp, *V, *w, *h0, *c0, *values0, *keys0;
    const std::int64_t *origin0, *clock0, *lengths;
    T *h, *attended, *c_T, *cells, *gates;
    std::int32_t* slots;
    T* attention;
    std::int64_t store_every, top, truncation, save;
    Team team;
};

template <class T>
struct SabBackward {
    std::int64_t steps, batch, n, carried;
    const T *dh, *dattended, *dc_T, *V, *w, *c0, *values0, *keys0;
    const std::int64_t *origin0, *clock0, *lengths;
    const T *h, *cells, *gates;
    const std::int32_t* slots;
    const T* attention;
    T *dxp, *dh0, *dc0, *dvalues0, *dscores, *dscores0;  // the scores' come in as zeros
    std::int64_t store_every, top, truncation;
    Team team;
};

enum class Cell : std::int64_t { rnn = 0, lstm = 1 };

// What is kept of one step of one row: the exponentials of its query and key, and the gates and the state of an LSTM.
template <class T>
struct Activations {
    T* start;
    std::int64_t n;
    T* query() const { return start; }  // e^{2q}
    T* key() const { return start + n; }  // e^{2k}
    T* gates() const { return start + 2 * n; }
    T* cell() const { return start + 6 * n; }
};

template <class T>
struct AttentiveForward {
    std::int64_t steps, batch, n, extra, carried, buffer, relevant, kept;  // kept: the activations' width
    const T *x, *V, *W_a, *U_a, *v, *b, *s0, *c0;
    const T *values0, *keys0;
    const std::int64_t* origin0;
    const T* relevance0;
    const std::int64_t *clock0, *lengths;
    T *h, *s, *c_T, *values_T, *keys_T;
    std::int64_t* final_slots;
    T *final_relevance, *activations;
    std::int32_t* slots;
    T *attention, *reach;  // reach (B,): the largest modulus of a row's queries and keys
    Cell cell;
    Phi phi;
    double decay;
    std::int64_t refresh, mean, save;
    Team team;

    std::int64_t capacity() const { return buffer + relevant; }
    std::int64_t gate_width() const { return cell == Cell::lstm ? 4 * n : n; }
    std::int64_t depth() const { return n + extra; }
    Activations<T> activations_of(std::int64_t at) const { return {activations + at * kept, n}; }
};

template <class T>
struct AttentiveBackward {
    std::int64_t steps, batch, n, extra, carried, buffer, relevant, kept;  // kept: the activations' width
    const T *dh, *ds, *dc_T, *x, *V, *W_a, *U_a, *v, *s0, *c0;
    const T *values0, *keys0;
    const std::int64_t *origin0, *lengths;
    const T *h, *s, *activations;
    const std::int32_t* slots;
    const T* attention;
    T *dx, *dq, *dk;  // without extra inputs dx is dz, and weights' gradients are made outside; with them dx may be null
    T *dV, *dW_a, *dU_a, *dv, *ds0, *dc0, *dvalues0, *dkeys0;  // dv (B, n) is one row a sequence, summed outside
    Cell cell;
    Phi phi;
    std::int64_t mean;
    Team team;

    std::int64_t capacity() const { return buffer + relevant; }
    std::int64_t gate_width() const { return cell == Cell::lstm ? 4 * n : n; }
    std::int64_t depth() const { return n + extra; }
    Activations<const T> activations_of(std::int64_t at) const { return {activations + at * kept, n}; }
};

}  // namespace mnemoscope
