// The recurrent product: a few rows of states times a weight matrix packed once for the sequence,
// and the gradient of such a matrix.
//
// Layout: Rows pads each row with zeros to whole vectors. Packed stores a matrix as panels of up to
// `tile_vectors` vectors of columns, each panel row after row: the product reads it front to back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include "simd.h"

namespace mnemoscope {

inline int64_t rounded_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Zeroed memory that starts on a cache line.
template <class T>
class Buffer {
    std::unique_ptr<T[]> memory;
    T* start = nullptr;

public:
    Buffer() = default;
    explicit Buffer(int64_t size)
        : memory(new T[static_cast<std::size_t>(size) + 64 / sizeof(T)]()) {
        const auto address = reinterpret_cast<std::uintptr_t>(memory.get());
        start = memory.get() + (64 - address % 64) % 64 / sizeof(T);
    }
    T* get() const { return start; }
    T& operator[](int64_t i) const { return start[i]; }
};

// Rows of `width` numbers, each padded with zeros to whole vectors.
template <class T>
struct Rows {
    int64_t stride = 0;
    Buffer<T> buffer;
    Rows() = default;
    Rows(int64_t rows, int64_t width)
        : stride(rounded_up(width, lanes<T>)), buffer(rows * stride) {}
    T* operator[](int64_t row) const { return buffer.get() + row * stride; }
};

// A tile of the product is held in registers: `tile_rows` rows by `tile_vectors` vectors.
#if defined(__AVX512F__)
constexpr int tile_rows = 4, tile_vectors = 4;
#elif defined(__aarch64__)
constexpr int tile_rows = 8, tile_vectors = 3;
#elif defined(__AVX2__)
constexpr int tile_rows = 4, tile_vectors = 3;
#else  // a product and its addition are two instructions, with a register between them
constexpr int tile_rows = 2, tile_vectors = 3;
#endif

// The number of vectors in the panel that starts at vector `first` of `vectors`.
inline int panel_vectors(int64_t vectors, int64_t first) {
    const int64_t left = vectors - first;
    if (left == tile_vectors + 1) return tile_vectors - 1;  // 3 + 2 rather than 4 + 1
    return static_cast<int>(std::min<int64_t>(left, tile_vectors));
}

// A (depth, width) matrix in panels of at most `tile_vectors` vectors of columns.
template <class T>
class Packed {
    int64_t depth, vectors;
    Buffer<T> panels;

public:
    // All zeros.
    Packed(int64_t depth, int64_t width)
        : depth(depth), vectors(rounded_up(width, lanes<T>) / lanes<T>),
          panels(depth * vectors * lanes<T>) {}
    // Element (k, j) is source[k * row_stride + j * column_stride].
    Packed(const T* source, int64_t depth, int64_t width, int64_t row_stride, int64_t column_stride)
        : Packed(depth, width) {
        fill(0, 0, depth, width, source, row_stride, column_stride);
    }

    // Writes `width` columns from `left` on of `count` rows from `top` on.
    void fill(int64_t top, int64_t left, int64_t count, int64_t width, const T* source,
              int64_t row_stride, int64_t column_stride) {
        for (int64_t first = 0; first < vectors; first += panel_vectors(vectors, first)) {
            const int64_t columns = panel_vectors(vectors, first) * lanes<T>;
            const int64_t start = std::max(first * lanes<T>, left);
            const int64_t filled = std::min(first * lanes<T> + columns, left + width) - start;
            if (filled <= 0) continue;
            const T* from = source + (start - left) * column_stride;
            T* panel = panels.get() + first * lanes<T> * depth + top * columns;
            panel += start - first * lanes<T>;
            if (column_stride == 1) {
                for (int64_t k = 0; k < count; ++k)
                    std::copy_n(from + k * row_stride, filled, panel + k * columns);
                continue;
            }
            for (int64_t j = 0; j < filled; ++j)
                for (int64_t k = 0; k < count; ++k)
                    panel[k * columns + j] = from[k * row_stride + j * column_stride];
        }
    }

    // c (rows, width) = a (rows, depth) times the matrix. c is written in whole vectors.
    void times(const T* a, int64_t a_stride, int rows, T* c, int64_t c_stride) const;
    void times(const Rows<T>& a, int rows, const Rows<T>& c) const {
        times(a[0], a.stride, rows, c[0], c.stride);
    }
};

// The gradient of a weight matrix: the sum of grad_r input_r^T over many rows r. Rows of several
// steps are collected until one product with all of them is worth a pass over the sum, which stays
// in a core's own cache. The caller writes the gradient rows in place.
template <class T>
class WeightGradient {
    static constexpr int64_t rows_per_product = 96;
    int64_t height, width, rows, capacity, pending = 0;
    Rows<T> grads, inputs, sum;

    // Row stride is an odd number of cache lines, to avoid set conflicts.
    static int64_t padded(int64_t count) {
        constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(T));
        return (rounded_up(count, line) / line | 1) * line;
    }

    // Adds the pending rows' product to the sum.
    void flush();

public:
    // At most `rows` rows are added at a time. With width 0 nothing is summed and the gradient rows
    // are scratch.
    WeightGradient(int64_t height, int64_t width, int64_t rows)
        : height(height), width(width), rows(rows),
          capacity(width ? std::max(rows_per_product, rows) : rows),
          grads(capacity, padded(height)), inputs(width ? capacity : 0, padded(width)),
          sum(width ? height : 0, width) {}

    // The rows being added; r counts from the last call of `advance`.
    T* grad_row(int64_t r) const { return grads[pending + r]; }
    int64_t grad_stride() const { return grads.stride; }
    T* input_row(int64_t r) const { return inputs[pending + r]; }
    // Inactive row: its gradient is zero.
    void zero_input_row(int64_t r) {
        if (width) fill_zero(inputs[pending + r], width);
    }
    void advance(int64_t added) {
        if (!width) return;
        pending += added;
        if (pending + rows > capacity) flush();
    }

    // Adds `columns` columns from `left` on of the sum's rows top .. end - 1 to a matrix.
    void add_to(T* to, int64_t top, int64_t end, int64_t left, int64_t columns) {
        flush();
        for (int64_t j = top; j < end; ++j)
            for (int64_t k = 0; k < columns; ++k) to[(j - top) * columns + k] += sum[j][left + k];
    }
    void add_to(T* to) {
        if (width) add_to(to, 0, height, 0, width);
    }
};

// The weights of a cell that projects its inputs, [V, U, b] (gates, n + n_inputs): V alone is all
// of them, or U and the biases are apart.
template <class T>
struct CellWeights {
    const T* V;
    int64_t gates, n, n_inputs;
    const T *U, *b_ih, *b_hh;

    // Packed for the forward pass, (n + n_inputs, gates).
    Packed<T> transposed() const {
        const int64_t depth = n + n_inputs;
        if (!U) return Packed<T>(V, depth, gates, 1, depth);
        Packed<T> packed(depth, gates);
        const int64_t given = n_inputs - (b_ih ? 1 : 0);
        packed.fill(0, 0, n, gates, V, 1, n);
        packed.fill(n, 0, given, gates, U, 1, given);
        if (!b_ih) return packed;
        const Buffer<T> bias(gates);
        for (int64_t j = 0; j < gates; ++j) bias[j] = b_ih[j] + b_hh[j];
        packed.fill(depth - 1, 0, 1, gates, bias.get(), gates, 1);
        return packed;
    }

    // For the backward pass, into the first rows of a matrix of `width` columns: those of V, and of
    // the inputs unless width = n.
    void fill(Packed<T>& packed, int64_t width) const {
        if (!U) return packed.fill(0, 0, gates, width, V, n + n_inputs, 1);
        packed.fill(0, 0, gates, n, V, n, 1);
        packed.fill(0, n, gates, width - n, U, width - n, 1);
    }
};

// Where the gradients of these weights go.
template <class T>
struct CellGradients {
    T* dV;
    int64_t n, n_inputs;
    T *dU, *db_ih, *db_hh;

    // From the first `gates` rows of a sum. dV is zero before.
    void take(WeightGradient<T>& sum, int64_t gates) const {
        if (!dU) return sum.add_to(dV, 0, gates, 0, n + n_inputs);
        const int64_t given = n_inputs - (db_ih ? 1 : 0);
        sum.add_to(dV, 0, gates, 0, n);
        sum.add_to(dU, 0, gates, n, given);
        if (!db_ih) return;
        sum.add_to(db_ih, 0, gates, n + given, 1);
        sum.add_to(db_hh, 0, gates, n + given, 1);
    }
};

}  // namespace mnemoscope
