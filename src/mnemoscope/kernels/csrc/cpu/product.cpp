// The register tiles of the recurrent product and of the weights' gradients (product.h).
#include "product.h"

namespace mnemoscope {

struct TileStrides {
    int64_t panel;  // from one row of the panel to the next
    int64_t next_panel;  // from one panel to the next
    int64_t a_row, a_column;  // from one row or column of a to the next
    int64_t c;  // from one row of c to the next
};
// c (R rows, P V vectors) = or += a (R, depth) times P panels (depth, V vectors), in registers. The
// order of additions depends neither on R nor on P: a row's result does not depend on the rows
// beside it.
template <class T, int R, int P, int V, bool accumulate>
void tile(const T* panel, int64_t depth, const T* a, T* c, const TileStrides& stride) {
    Vec<T> sum[R][P * V] = {};
    MNEMOSCOPE_UNROLL(4)
    for (int64_t k = 0; k < depth; ++k, panel += stride.panel, a += stride.a_column) {
        Vec<T> w[P * V];
        for (int v = 0; v < P * V; ++v)
            w[v] = load(panel + v / V * stride.next_panel + v % V * lanes<T>);
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < P * V; ++v) sum[r][v] += a[r * stride.a_row] * w[v];
    }
    MNEMOSCOPE_UNROLL(8)
    for (int r = 0; r < R; ++r) {
        MNEMOSCOPE_UNROLL(6)
        for (int v = 0; v < P * V; ++v) {
            T* to = c + r * stride.c + v * lanes<T>;
            store(to, accumulate ? load(to) + sum[r][v] : sum[r][v]);
        }
    }
}
// The same for sizes known at run time: rows <= R and vectors <= tile_vectors.
template <class T, int R, int P, bool accumulate>
void tile(int rows, int vectors, const T* panel, int64_t depth, const T* a, T* c,
          const TileStrides& stride) {
    if constexpr (R > 1)
        if (rows < R)
            return tile<T, R - 1, P, accumulate>(rows, vectors, panel, depth, a, c, stride);
    if constexpr (tile_vectors > 3)
        if (vectors == 4) tile<T, R, P, 4, accumulate>(panel, depth, a, c, stride);
    if (vectors == 3) tile<T, R, P, 3, accumulate>(panel, depth, a, c, stride);
    if (vectors == 2) tile<T, R, P, 2, accumulate>(panel, depth, a, c, stride);
    if (vectors == 1) tile<T, R, P, 1, accumulate>(panel, depth, a, c, stride);
}

// Panels that one row goes through at a time. A panel of three vectors has so few sums that each
// addition waits for the one before it; two panels have twice as many. Four sums do not wait, and
// one stream of weights comes faster from the second-level cache than two.
constexpr int panels_of_one_row = tile_vectors < 4 ? 2 : 1;

template <class T>
void Packed<T>::times(const T* a, int64_t a_stride, int rows, T* c, int64_t c_stride) const {
    int64_t first = 0;
    while (first < vectors) {
        const int v = panel_vectors(vectors, first);
        const T* panel = panels.get() + first * lanes<T> * depth;
        T* to = c + first * lanes<T>;
        const TileStrides stride{v * lanes<T>, v * lanes<T> * depth, a_stride, 1, c_stride};
        first += v;
        if constexpr (panels_of_one_row == 2)
            if (rows == 1 && first < vectors && panel_vectors(vectors, first) == v) {
                tile<T, 1, 2, false>(1, v, panel, depth, a, to, stride);
                first += v;
                continue;
            }
        for (int r = 0; r < rows; r += tile_rows)
            tile<T, tile_rows, 1, false>(std::min(rows - r, tile_rows), v, panel, depth,
                                         a + r * a_stride, to + r * c_stride, stride);
    }
}

template <class T>
void WeightGradient<T>::flush() {
    if (!pending) return;
    const int64_t vectors = rounded_up(width, lanes<T>) / lanes<T>;
    const TileStrides stride{inputs.stride, 0, 1, grads.stride, sum.stride};
    for (int64_t first = 0; first < vectors; first += panel_vectors(vectors, first))
        for (int64_t j = 0; j < height; j += tile_rows)
            tile<T, tile_rows, 1, true>(static_cast<int>(std::min<int64_t>(height - j, tile_rows)),
                                        panel_vectors(vectors, first), inputs[0] + first * lanes<T>,
                                        pending, grads[0] + j, sum[j] + first * lanes<T>, stride);
    pending = 0;
}

template class Packed<float>;
template class Packed<double>;
template class WeightGradient<float>;
template class WeightGradient<double>;

}  // namespace mnemoscope
