// Where a row of a time-major tensor lies, and how long each row of the batch lasts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cells.h"
#include "team.h"

#if defined(_WIN32)
#define MNEMOSCOPE_API extern "C" __declspec(dllexport)
#else
#define MNEMOSCOPE_API extern "C" __attribute__((visibility("default")))
#endif

namespace mnemoscope {

struct Span {
    std::int64_t steps, batch, n;
    const std::int64_t* lengths;  // null: every row lasts for all steps

    Span(std::int64_t steps, std::int64_t batch, std::int64_t n, const std::int64_t* lengths)
        : steps(steps), batch(batch), n(n), lengths(lengths) {}

    std::int64_t row(std::int64_t t, std::int64_t b) const { return (t * batch + b) * n; }
    std::int64_t length(std::int64_t b) const { return lengths ? std::clamp<std::int64_t>(lengths[b], 0, steps) : steps; }
    bool alive(std::int64_t t, std::int64_t b) const { return t < length(b); }

    std::int64_t longest(const Block& block) const {
        std::int64_t most = 0;
        for (std::int64_t b = block.first; b < block.end; ++b) most = std::max(most, length(b));
        return most;
    }

    // Zeros in a tensor (T, B, width) from the end of the block's longest row on.
    template <class T>
    void zero_rest(const Block& block, T* tensor, std::int64_t width) const {
        for (std::int64_t t = longest(block); t < steps; ++t)
            fill_zero(tensor + (t * batch + block.first) * width, block.rows() * width);
    }
    template <class T>
    void zero_rest(const Block& block, T* tensor) const {
        zero_rest(block, tensor, n);
    }
};

// What a step reads beside its state. Either xp (T, B, width), which is added to the product of the state; or the inputs
// themselves, x (T, B, extra), which stand behind the state in its row and take part in the product.
template <class T>
struct Inputs {
    const T* x;
    std::int64_t extra, width;

    const T* added(std::int64_t at) const { return extra ? nullptr : x + at * width; }
    void put_behind(T* state, std::int64_t n, std::int64_t at) const { copy(x + at * extra, state + n, extra); }
    const T* behind(std::int64_t at) const { return extra ? x + at * extra : nullptr; }
};

// Weights that fit a core's own cache are read from it again by every few rows; larger ones want more rows at a time.
template <class T>
std::int64_t most_rows(std::int64_t weights) {
    return weights * static_cast<std::int64_t>(sizeof(T)) <= (1 << 20) ? 16 : 32;
}

}  // namespace mnemoscope
