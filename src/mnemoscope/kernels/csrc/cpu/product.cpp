// The register tiles of the recurrent product and of the weights' gradients (product.h).
#include "product.h"

namespace mnemoscope {

struct TileStrides {
    int64_t panel;  // from one row of the panel to the next
    int64_t a_row, a_column;  // from one row or column of a to the next
    int64_t c;  // from one row of c to the next
};
// c (R rows, V vectors) = or += a (R, depth) times panel (depth, V vectors), in registers. The
// order of additions does not depend on R: a row's result does not depend on the rows beside it.
template <class T, int R, int V, bool accumulate>
void tile(const T* panel, int64_t depth, const T* a, T* c, const TileStrides& stride) {
    Vec<T> sum[R][V] = {};
    MNEMOSCOPE_UNROLL(4)
    for (int64_t k = 0; k < depth; ++k, panel += stride.panel, a += stride.a_column) {
        Vec<T> w[V];
        for (int v = 0; v < V; ++v) w[v] = load(panel + v * lanes<T>);
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < V; ++v) sum[r][v] += a[r * stride.a_row] * w[v];
    }
    MNEMOSCOPE_UNROLL(8)
    for (int r = 0; r < R; ++r) {
        MNEMOSCOPE_UNROLL(3)
        for (int v = 0; v < V; ++v) {
            T* to = c + r * stride.c + v * lanes<T>;
            store(to, accumulate ? load(to) + sum[r][v] : sum[r][v]);
        }
    }
}
// The same for sizes known at run time: rows <= R and vectors <= tile_vectors.
template <class T, int R, bool accumulate>
void tile(int rows, int vectors, const T* panel, int64_t depth, const T* a, T* c,
          const TileStrides& stride) {
    if constexpr (R > 1)
        if (rows < R) return tile<T, R - 1, accumulate>(rows, vectors, panel, depth, a, c, stride);
    if (vectors == 3) tile<T, R, 3, accumulate>(panel, depth, a, c, stride);
    if (vectors == 2) tile<T, R, 2, accumulate>(panel, depth, a, c, stride);
    if (vectors == 1) tile<T, R, 1, accumulate>(panel, depth, a, c, stride);
}
template <class T>
void Packed<T>::times(const T* a, int64_t a_stride, int rows, T* c, int64_t c_stride) const {
    for (int64_t first = 0; first < vectors; first += panel_vectors(vectors, first)) {
        const int v = panel_vectors(vectors, first);
        const T* panel = panels.get() + first * lanes<T> * depth;
        const TileStrides stride{v * lanes<T>, a_stride, 1, c_stride};
        for (int r = 0; r < rows; r += tile_rows)
            tile<T, tile_rows, false>(std::min(rows - r, tile_rows), v, panel, depth,
                                      a + r * a_stride, c + r * c_stride + first * lanes<T>,
                                      stride);
    }
}

template <class T>
void WeightGradient<T>::flush() {
    if (!pending) return;
    const int64_t vectors = rounded_up(width, lanes<T>) / lanes<T>;
    const TileStrides stride{inputs.stride, 1, grads.stride, sum.stride};
    for (int64_t first = 0; first < vectors; first += panel_vectors(vectors, first))
        for (int64_t j = 0; j < height; j += tile_rows)
            tile<T, tile_rows, true>(static_cast<int>(std::min<int64_t>(height - j, tile_rows)),
                                     panel_vectors(vectors, first), inputs[0] + first * lanes<T>,
                                     pending, grads[0] + j, sum[j] + first * lanes<T>, stride);
    pending = 0;
}

template class Packed<float>;
template class Packed<double>;
template class WeightGradient<float>;
template class WeightGradient<double>;

}  // namespace mnemoscope
