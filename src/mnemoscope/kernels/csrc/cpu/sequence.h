// Time-major sequences: where the row of a step lies, how long each sequence is, and what a step
// reads beside its state.
//
// Tensors are (T, B, width), contiguous. Step t of sequence b is row t * B + b.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cells.h"
#include "threads.h"

#if defined(_WIN32)
#define MNEMOSCOPE_API extern "C" __declspec(dllexport)
#else
#define MNEMOSCOPE_API extern "C" __attribute__((visibility("default")))
#endif

namespace mnemoscope {

// n modulo m, 0 .. m - 1, of negative n, too: what is indexed by it stays inside.
inline int64_t floor_mod(int64_t n, int64_t m) {
    const int64_t rest = n % m;
    return rest < 0 ? rest + m : rest;
}

// Step t of sequence b.
struct Position {
    int64_t t, b;
    int64_t row;  // t * batch + b, its row in tensors (T, B, width)
    int64_t previous;  // the row of step t - 1
    int64_t r;  // the row of b in its block, for scratch memory
};

// The length of each sequence of a batch.
struct Lengths {
    int64_t steps, batch;
    const int64_t* lengths;  // null: every sequence has all steps

    int64_t length(int64_t b) const {
        return lengths ? std::clamp<int64_t>(lengths[b], 0, steps) : steps;
    }
    bool active(int64_t t, int64_t b) const { return t < length(b); }

    int64_t longest(const Block& block) const {
        int64_t most = 0;
        for (int64_t b = block.first; b < block.end; ++b) most = std::max(most, length(b));
        return most;
    }

    Position position(int64_t t, const Block& block, int64_t r) const {
        const int64_t b = block.first + r;
        return {t, b, t * batch + b, (t - 1) * batch + b, r};
    }
};

// What a step reads beside its state. With n_inputs = 0 that is xp (T, B, gates), which is added to
// the product V h. Otherwise it is x (T, B, n_inputs), the inputs themselves: the state's row is
// then [h, x], and the product is V [h, x]. With `adds_one`, the last of the n_inputs is a 1, for
// the bias, that is not in x.
template <class T>
struct Inputs {
    const T* x;
    int64_t n_inputs, gates;
    bool adds_one = false;

    int64_t given() const { return n_inputs - adds_one; }  // the width of x
    const T* projected(int64_t row) const { return n_inputs ? nullptr : x + row * gates; }
    void append_to(T* state, int64_t n, int64_t row) const {
        copy(x + row * given(), state + n, given());
        if (adds_one) state[n + given()] = T(1);
    }
};

// Weights that fit a core's own cache are read from there for every few rows. Larger ones need more
// rows at a time.
template <class T>
int64_t most_rows(int64_t weights) {
    return weights * static_cast<int64_t>(sizeof(T)) <= (1 << 20) ? 16 : 32;
}

}  // namespace mnemoscope
