// What a self-attentive recurrence is given and gives back, and the rows that one thread works on.
#pragma once

#include "cells.h"
#include "product.h"
#include "sequence.h"
#include "team.h"

namespace mnemoscope {

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
