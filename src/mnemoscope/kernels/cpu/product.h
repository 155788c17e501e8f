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

// A (depth x width) matrix in panels of at most `tile_vectors` vectors, so that the product reads it front to back.
template <class T>
class Packed {
    std::int64_t depth, vectors;
    Buffer<T> panels;

    int panel_vectors(std::int64_t first) const {
        const std::int64_t left = vectors - first;
        if (left == tile_vectors + 1) return tile_vectors - 1;  // 2 + 2 rather than 3 + 1
        return static_cast<int>(std::min<std::int64_t>(left, tile_vectors));
    }

    template <int R, int V>
    static void tile(const T* panel, std::int64_t depth, const T* a, std::int64_t a_stride, T* c,
                     std::int64_t c_stride) {
        Vec<T> sum[R][V] = {};
        for (std::int64_t k = 0; k < depth; ++k, panel += V * lanes<T>) {
            Vec<T> w[V];
            for (int v = 0; v < V; ++v) w[v] = load(panel + v * lanes<T>);
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < V; ++v) sum[r][v] += a[r * a_stride + k] * w[v];
        }
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) store(c + r * c_stride + v * lanes<T>, sum[r][v]);
    }

    template <int R>
    static void tile(int v, const T* panel, std::int64_t depth, const T* a, std::int64_t a_stride, T* c,
                     std::int64_t c_stride) {
        if (v == 3) tile<R, 3>(panel, depth, a, a_stride, c, c_stride);
        if (v == 2) tile<R, 2>(panel, depth, a, a_stride, c, c_stride);
        if (v == 1) tile<R, 1>(panel, depth, a, a_stride, c, c_stride);
    }

    template <int R>
    static void tiles(int rows, int v, const T* panel, std::int64_t depth, const T* a, std::int64_t a_stride, T* c,
                      std::int64_t c_stride) {
        if (rows == R)
            tile<R>(v, panel, depth, a, a_stride, c, c_stride);
        else if constexpr (R > 1)
            tiles<R - 1>(rows, v, panel, depth, a, a_stride, c, c_stride);
    }

public:
    // The element in row k and column j is source[k * row_step + j * column_step].
    Packed(const T* source, std::int64_t depth, std::int64_t width, std::int64_t row_step, std::int64_t column_step)
        : depth(depth), vectors(rounded_up(width, lanes<T>) / lanes<T>), panels(depth * vectors * lanes<T>) {
        for (std::int64_t first = 0; first < vectors; first += panel_vectors(first)) {
            const std::int64_t columns = panel_vectors(first) * lanes<T>, start = first * lanes<T>;
            T* panel = panels.get() + start * depth;
            for (std::int64_t j = 0; j < std::min(columns, width - start); ++j)
                for (std::int64_t k = 0; k < depth; ++k)
                    panel[k * columns + j] = source[k * row_step + (start + j) * column_step];
        }
    }

    // c (rows x width) = a (rows x depth) times the matrix; c is written in whole vectors.
    void times(const T* a, std::int64_t a_stride, int rows, T* c, std::int64_t c_stride) const {
        for (std::int64_t first = 0; first < vectors; first += panel_vectors(first)) {
            const int v = panel_vectors(first);
            const T* panel = panels.get() + first * lanes<T> * depth;
            for (int r = 0; r < rows; r += tile_rows)
                tiles<tile_rows>(std::min(rows - r, tile_rows), v, panel, depth, a + r * a_stride, a_stride,
                                 c + r * c_stride + first * lanes<T>, c_stride);
        }
    }
};

}  // namespace mnemoscope
