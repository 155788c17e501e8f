// The recurrent product: a few rows of states times a weight matrix that was packed once for the whole sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include "simd.h"

namespace mnemoscope {

inline std::int64_t rounded_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

// Zeroed memory that starts on a cache line.
template <class T>
class Buffer {
    std::unique_ptr<T[]> memory;
    T* start = nullptr;

public:
    Buffer() = default;
    explicit Buffer(std::int64_t size) : memory(new T[static_cast<std::size_t>(size) + 64 / sizeof(T)]()) {
        const auto address = reinterpret_cast<std::uintptr_t>(memory.get());
        start = memory.get() + (64 - address % 64) % 64 / sizeof(T);
    }
    T* get() const { return start; }
    T& operator[](std::int64_t i) const { return start[i]; }
};

// Rows of `width` numbers, each padded with zeros to whole vectors.
template <class T>
struct Rows {
    std::int64_t stride = 0;
    Buffer<T> buffer;
    Rows() = default;
    Rows(std::int64_t rows, std::int64_t width) : stride(rounded_up(width, lanes<T>)), buffer(rows * stride) {}
    T* operator[](std::int64_t row) const { return buffer.get() + row * stride; }
};

// A tile of the product lives in registers: `tile_rows` rows by `tile_vectors` vectors.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int tile_rows = 8, tile_vectors = 3;
#else
constexpr int tile_rows = 4, tile_vectors = 3;
#endif

// c (R x V vectors) = or += the sum over k < depth of a's column k times the panel's row k, all of it in registers. Terms
// are added in the same order whatever R is: a row's result does not depend on the rows beside it.
struct Steps {
    std::int64_t panel, a_row, a_depth, c;  // from one row of the panel, row of a, column of a, row of c to the next
};
template <class T, int R, int V, bool onto>
void tile(const T* panel, std::int64_t depth, const T* a, T* c, const Steps& step) {
    Vec<T> sum[R][V] = {};
    MNEMOSCOPE_UNROLL(4)
    for (std::int64_t k = 0; k < depth; ++k, panel += step.panel, a += step.a_depth) {
        Vec<T> w[V];
        for (int v = 0; v < V; ++v) w[v] = load(panel + v * lanes<T>);
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) sum[r][v] += a[r * step.a_row] * w[v];
    }
    MNEMOSCOPE_UNROLL(8)
    for (int r = 0; r < R; ++r) {
        MNEMOSCOPE_UNROLL(3)
        for (int v = 0; v < V; ++v) {
            T* to = c + r * step.c + v * lanes<T>;
            store(to, onto ? load(to) + sum[r][v] : sum[r][v]);
        }
    }
}
// The same for sizes known at run time, rows <= R and vectors <= tile_vectors.
template <class T, int R, bool onto>
void tile(int rows, int vectors, const T* panel, std::int64_t depth, const T* a, T* c, const Steps& step) {
    if constexpr (R > 1)
        if (rows < R) return tile<T, R - 1, onto>(rows, vectors, panel, depth, a, c, step);
    if (vectors == 3) tile<T, R, 3, onto>(panel, depth, a, c, step);
    if (vectors == 2) tile<T, R, 2, onto>(panel, depth, a, c, step);
    if (vectors == 1) tile<T, R, 1, onto>(panel, depth, a, c, step);
}
// How many of a matrix's vectors go into the panel that starts at `first`.
inline int panel_vectors(std::int64_t vectors, std::int64_t first) {
    const std::int64_t left = vectors - first;
    if (left == tile_vectors + 1) return tile_vectors - 1;  // 2 + 2 rather than 3 + 1
    return static_cast<int>(std::min<std::int64_t>(left, tile_vectors));
}

// A (depth x width) matrix in panels of at most `tile_vectors` vectors, so that the product reads it front to back.
template <class T>
class Packed {
    std::int64_t depth, vectors;
    Buffer<T> panels;

public:
    // Of zeros.
    Packed(std::int64_t depth, std::int64_t width)
        : depth(depth), vectors(rounded_up(width, lanes<T>) / lanes<T>), panels(depth * vectors * lanes<T>) {}
    // The element in row k and column j is source[k * row_step + j * column_step].
    Packed(const T* source, std::int64_t depth, std::int64_t width, std::int64_t row_step, std::int64_t column_step)
        : Packed(depth, width) {
        fill(0, depth, width, source, row_step, column_step);
    }

    // The first `width` columns of `count` rows from row `top` on.
    void fill(std::int64_t top, std::int64_t count, std::int64_t width, const T* source, std::int64_t row_step,
              std::int64_t column_step) {
        for (std::int64_t first = 0; first * lanes<T> < width; first += panel_vectors(vectors, first)) {
            const std::int64_t columns = panel_vectors(vectors, first) * lanes<T>, start = first * lanes<T>;
            T* panel = panels.get() + start * depth + top * columns;
            const std::int64_t filled = std::min(columns, width - start);
            const T* from = source + start * column_step;
            if (column_step == 1)
                for (std::int64_t k = 0; k < count; ++k) std::copy_n(from + k * row_step, filled, panel + k * columns);
            else
                for (std::int64_t j = 0; j < filled; ++j)
                    for (std::int64_t k = 0; k < count; ++k)
                        panel[k * columns + j] = from[k * row_step + j * column_step];
        }
    }

    // c (rows x width) = a (rows x depth) times the matrix; c is written in whole vectors.
    void times(const T* a, std::int64_t a_stride, int rows, T* c, std::int64_t c_stride) const {
        for (std::int64_t first = 0; first < vectors; first += panel_vectors(vectors, first)) {
            const int v = panel_vectors(vectors, first);
            const T* panel = panels.get() + first * lanes<T> * depth;
            const Steps step{v * lanes<T>, a_stride, 1, c_stride};
            for (int r = 0; r < rows; r += tile_rows)
                tile<T, tile_rows, false>(std::min(rows - r, tile_rows), v, panel, depth, a + r * a_stride,
                                          c + r * c_stride + first * lanes<T>, step);
        }
    }
};

// A weight's gradient, the sum of left_r right_r^T over many rows r. The rows of some steps are gathered until there are
// enough for a product that is worth its way through the sum, which stays in a core's own cache. Whoever makes the left
// writes it to its place here.
template <class T>
class Outer {
    static constexpr std::int64_t enough = 96;
    std::int64_t height, width, rows, capacity, gathered = 0;
    Rows<T> lefts, rights, sum;

    // So many numbers from one row to the next: at an even number of cache lines many rows would want the same place.
    static std::int64_t apart(std::int64_t count) {
        constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
        return (rounded_up(count, line) / line | 1) * line;
    }

    void settle() {
        const std::int64_t vectors = rounded_up(width, lanes<T>) / lanes<T>;
        const Steps step{rights.stride, 1, lefts.stride, sum.stride};
        for (std::int64_t first = 0; first < vectors; first += panel_vectors(vectors, first))
            for (std::int64_t j = 0; j < height; j += tile_rows)
                tile<T, tile_rows, true>(static_cast<int>(std::min<std::int64_t>(height - j, tile_rows)),
                                         panel_vectors(vectors, first), rights[0] + first * lanes<T>, gathered,
                                         lefts[0] + j, sum[j] + first * lanes<T>, step);
        gathered = 0;
    }

public:
    // At most `rows` of them are added at a time. Without a width there is nothing to sum, and the left is scratch.
    Outer(std::int64_t height, std::int64_t width, std::int64_t rows)
        : height(height), width(width), rows(rows), capacity(width ? std::max(enough, rows) : rows),
          lefts(capacity, apart(height)), rights(width ? capacity : 0, apart(width)), sum(width ? height : 0, width) {}

    // The rows that are being made: r counts them from the last call of `next`.
    T* left(std::int64_t r) const { return lefts[gathered + r]; }
    std::int64_t stride() const { return lefts.stride; }
    // The right comes in two parts, `count` numbers and what is left of its width.
    void right(std::int64_t r, const T* first, std::int64_t count, const T* second = nullptr) {
        copy(first, rights[gathered + r], count);
        if (second) copy(second, rights[gathered + r] + count, width - count);
    }
    // Of a row that takes no part, and whose left is zero.
    void no_right(std::int64_t r) {
        if (width) fill_zero(rights[gathered + r], width);
    }
    void next(std::int64_t added) {
        if (!width) return;
        gathered += added;
        if (gathered + rows > capacity) settle();
    }

    // Adds the first `columns` of the sum's rows top .. end - 1 to a matrix.
    void give(T* to, std::int64_t top, std::int64_t end, std::int64_t columns) {
        settle();
        for (std::int64_t j = top; j < end; ++j)
            for (std::int64_t k = 0; k < columns; ++k) to[(j - top) * columns + k] += sum[j][k];
    }
    void give(T* to) {
        if (width) give(to, 0, height, width);
    }
};

}  // namespace mnemoscope
