// One step of a self-attentive recurrence, without gradients: what a stream or an agent calls.
//
// Weights are read as torch stores them: to pack them, as for a sequence, takes longer than a step.
// The rows of the batch are the lanes of a vector: "columns" are (width, rows), padded with zeros
// to whole vectors of rows. A single row is not padded: its units are the lanes. The memory is
// updated where it lies; if `values` and its kin are other tensors than `values0`, it is copied
// there first. Keys are U_a h, not their exponentials: each is read once.
#include "arguments.h"
#include "attention.h"

namespace mnemoscope {

// `carried` slots a row are held before the step, `room` slots lie between two rows of the memory
// after it. Before it, rows follow each other. Full attention writes slot `carried`.
#define ATTENTIVE_STEP(FIELD)     \
    SIZES(FIELD)                  \
    FIELD(std::int64_t, n_inputs) \
    FIELD(std::int64_t, carried)  \
    FIELD(std::int64_t, room)     \
    FIELD(const T*, x)            \
    FIELD(const T*, U)            \
    FIELD(const T*, b_ih)         \
    FIELD(const T*, b_hh)         \
    ATTENTION_WEIGHTS(FIELD)      \
    ATTENTION_STATE(FIELD)        \
    CARRIED_MEMORY(FIELD)         \
    ATTENTION_OPTIONS(FIELD)      \
    FIELD(T*, h)                  \
    FIELD(T*, s)                  \
    FIELD(T*, c)                  \
    FIELD(T*, values)             \
    FIELD(T*, keys)               \
    FIELD(std::int64_t*, origin)  \
    FIELD(T*, relevance)          \
    FIELD(std::int64_t*, clock)   \
    FIELD(ThreadPool, threads)

MNEMOSCOPE_STRUCTURE(AttentiveStep, ATTENTIVE_STEP)

// A weight matrix (height, depth) and the columns (depth, rows) that it is multiplied with.
template <class T>
struct Factor {
    const T* weights;
    int64_t depth;
    const T* columns;
};

// R rows of the sum of all products, for V vectors of columns: out (R, stride).
template <class T, int R, int V, std::size_t N>
void product_tile(const Factor<T> (&factors)[N], int64_t row, int64_t column, int64_t stride,
                  T* out) {
    Vec<T> sum[R][V] = {};
    for (const Factor<T>& f : factors) {
        const T *w = f.weights + row * f.depth, *x = f.columns + column;
        for (int64_t k = 0; k < f.depth; ++k, ++w, x += stride) {
            Vec<T> lane[V];
            for (int v = 0; v < V; ++v) lane[v] = load(x + v * lanes<T>);
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < V; ++v) sum[r][v] += w[r * f.depth] * lane[v];
        }
    }
    MNEMOSCOPE_UNROLL(8)
    for (int r = 0; r < R; ++r) {
        MNEMOSCOPE_UNROLL(2)
        for (int v = 0; v < V; ++v) store(out + r * stride + column + v * lanes<T>, sum[r][v]);
    }
}

// The same for a single column, by R sums of products.
template <class T, int R, std::size_t N>
void dot_tile(const Factor<T> (&factors)[N], int64_t row, T* out) {
    Vec<T> sum[R] = {};
    for (const Factor<T>& f : factors) {
        const T* w = f.weights + row * f.depth;
        for_each_vector<T>(f.depth, [&](int64_t k, int count) {
            const Vec<T> x = load(f.columns + k, count);
            for (int r = 0; r < R; ++r) sum[r] += load(w + r * f.depth + k, count) * x;
        });
    }
    for (int r = 0; r < R; ++r) out[row + r] = horizontal_sum<T>(sum[r]);
}

// Rows of a tile here, which is two vectors wide: as many as there are registers for their sums.
constexpr int rows_in_tile = vector_bytes == 64 ? 8 : tile_rows;

// out (height, stride) = the sum of all products.
template <class T, std::size_t N>
void product(const Factor<T> (&factors)[N], int64_t height, int64_t stride, T* out) {
    int64_t row = 0;
    if (stride == 1) {
        for (; row + 4 <= height; row += 4) dot_tile<T, 4>(factors, row, out);
        for (; row < height; ++row) dot_tile<T, 1>(factors, row, out);
        return;
    }
    const auto tiles = [&](auto rows) {
        constexpr int R = rows;
        for (; row + R <= height; row += R) {
            int64_t column = 0;
            for (; column + 2 * lanes<T> <= stride; column += 2 * lanes<T>)
                product_tile<T, R, 2>(factors, row, column, stride, out + row * stride);
            if (column < stride)
                product_tile<T, R, 1>(factors, row, column, stride, out + row * stride);
        }
    };
    tiles(std::integral_constant<int, rows_in_tile>{});
    tiles(std::integral_constant<int, 1>{});
}

template <class T>
class Step {
    const AttentiveStep<T>& a;
    int64_t stride;  // of columns: the rows of a block, padded
    Buffer<T> x, s, c, h, gates, query, key;  // columns
    Rows<T> query_row, key_row, context, logits;
    Buffer<int64_t> filled;

    int64_t slots() const { return a.buffer < 0 ? a.carried + 1 : a.buffer + a.relevant; }

    // Rows (rows, width) as columns, and back.
    void to_columns(const T* from, int64_t width, int rows, T* columns) const {
        for (int64_t j = 0; j < width; ++j)
            for (int r = 0; r < rows; ++r) columns[j * stride + r] = from[r * width + j];
    }
    void from_columns(const T* columns, int64_t width, int rows, T* to, int64_t to_stride) const {
        for (int r = 0; r < rows; ++r)
            for (int64_t j = 0; j < width; ++j) to[r * to_stride + j] = columns[j * stride + r];
    }

    // Calls f(j, at, count) for the vectors at `at` of the columns, which belong to unit j; those
    // of a single row to units j .. j + count - 1.
    template <class F>
    MNEMOSCOPE_INLINE void for_each_unit(F f) const {
        if (stride == 1)
            return for_each_vector<T>(a.n, [&](int64_t j, int count) { f(j, j, count); });
        for (int64_t j = 0; j < a.n; ++j)
            for (int64_t at = j * stride; at < (j + 1) * stride; at += lanes<T>) f(j, at, lanes<T>);
    }
    // A bias of unit j, or of the units from j on; null is zero.
    MNEMOSCOPE_INLINE Vec<T> bias(const T* b, int64_t j, int count) const {
        if (!b) return splat(T(0));
        return stride == 1 ? load(b + j, count) : splat(b[j]);
    }
    MNEMOSCOPE_INLINE Vec<T> gate(int64_t k, int64_t j, int64_t at, int count) const {
        const int64_t unit = k * a.n + j;
        return load(gates.get() + k * a.n * stride + at, count) +
               (bias(a.b_ih, unit, count) + bias(a.b_hh, unit, count));
    }

    // h_t, and an LSTM's c_t, from the gates before their nonlinearities.
    MNEMOSCOPE_ROW void update_lstm() {
        for_each_unit([&](int64_t j, int64_t at, int count) {
            const Vec<T> i = sigmoid<T>(gate(0, j, at, count));
            const Vec<T> f = sigmoid<T>(gate(1, j, at, count));
            const Vec<T> g = hyperbolic_tangent<T>(gate(2, j, at, count));
            const Vec<T> o = sigmoid<T>(gate(3, j, at, count));
            const Vec<T> c_new = f * load(c.get() + at, count) + i * g;
            store(c.get() + at, c_new, count);
            store(h.get() + at, o * hyperbolic_tangent<T>(c_new), count);
        });
    }
    template <Phi phi>
    MNEMOSCOPE_ROW void update_rnn() {
        for_each_unit([&](int64_t j, int64_t at, int count) {
            const Vec<T> z = gate(0, j, at, count);
            store(h.get() + at, apply_phi<T, phi>(z, bias(a.b, j, count)), count);
        });
    }

    int64_t at(int64_t b, int64_t slot) const { return b * a.room + slot; }
    void put(int64_t slot, int64_t origin, T relevance, const T* value, const T* key) {
        a.origin[slot] = origin;
        a.relevance[slot] = relevance;
        copy(value, a.values + slot * a.n, a.n);
        copy(key, a.keys + slot * a.n, a.n);
    }

    // The memory of sequence b before the step, where it is to lie after it.
    void copy_memory(int64_t b) {
        if (a.values == a.values0) return;
        const int64_t from = b * a.carried, to = at(b, 0);
        copy(a.values0 + from * a.n, a.values + to * a.n, a.carried * a.n);
        copy(a.keys0 + from * a.n, a.keys + to * a.n, a.carried * a.n);
        copy(a.origin0 + from, a.origin + to, a.carried);
        copy(a.relevance0 + from, a.relevance + to, a.carried);
    }

    // The slot of R for a state of this relevance, -1 if there is none (ScreenedForward::admit).
    int64_t admit(int64_t b, T candidate) const {
        int64_t least = -1;
        for (int64_t k = at(b, a.buffer); k < at(b, a.buffer + a.relevant); ++k) {
            if (a.origin[k] < 0) return k;
            if (least < 0 || a.relevance[k] < a.relevance[least]) least = k;
        }
        return least >= 0 && candidate > a.relevance[least] ? least : -1;
    }

    // h_t enters the memory of sequence b (ScreenedForward::insert).
    void insert(int64_t b, const T* value, const T* key) {
        const int64_t clock = a.clock0[b];
        if (a.buffer < 0) return put(at(b, a.carried), clock, T(0), value, key);
        if (a.decay < 1)
            for (int64_t j = a.buffer; j < a.buffer + a.relevant; ++j)
                a.relevance[at(b, j)] *= static_cast<T>(a.decay);
        if (a.buffer == 0) {
            const int64_t to = admit(b, T(0));
            if (to >= 0) put(to, clock, T(0), value, key);
            return;
        }
        const int64_t oldest = at(b, floor_mod(clock, a.buffer));
        const int64_t to = a.origin[oldest] >= 0 ? admit(b, a.relevance[oldest]) : -1;
        if (to >= 0)
            put(to, a.origin[oldest], a.relevance[oldest], a.values + oldest * a.n,
                a.keys + oldest * a.n);
        put(oldest, clock, T(0), value, key);
    }

    // context = the attention of the query over the memory of sequence b, which is counted.
    MNEMOSCOPE_ROW void attend(int64_t b) {
        int64_t count = 0;
        for (int64_t j = 0; j < slots(); ++j) {
            filled[count] = at(b, j);
            count += a.origin[at(b, j)] >= 0;
        }
        T* weights = logits[0];
        in_groups(count, [&](int64_t first, auto group) {
            constexpr int K = group;
            Vec<T> sum[K] = {};
            for_each_vector<T>(a.n, [&](int64_t j, int inside) {
                const Vec<T> q = load(query_row[0] + j), v = load(a.v + j, inside);
                for (int k = 0; k < K; ++k)
                    sum[k] += v * hyperbolic_tangent<T>(
                                      q + load(a.keys + filled[first + k] * a.n + j, inside));
            });
            for (int k = 0; k < K; ++k) weights[first + k] = horizontal_sum<T>(sum[k]);
        });
        if (count) softmax_inplace(count, weights, largest(count, weights));
        for_each_vector<T>(a.n, [&](int64_t j, int inside) {
            Vec<T> sum = splat(T(0));
            for (int64_t i = 0; i < count; ++i)
                sum += weights[i] * load(a.values + filled[i] * a.n + j, inside);
            store(context[0] + j, sum);
        });
        if (a.buffer < 0) return;
        const int64_t end = at(b, a.refresh ? a.buffer + a.relevant : a.buffer);
        for (int64_t i = 0; i < count && filled[i] < end; ++i) a.relevance[filled[i]] += weights[i];
    }

public:
    Step(const AttentiveStep<T>& a, int64_t rows)
        : a(a), stride(rows == 1 ? 1 : rounded_up(rows, lanes<T>)), x(a.n_inputs * stride),
          s(a.n * stride), c(a.n * stride), h(a.n * stride), gates(gate_width() * stride),
          query(a.n * stride), key(a.n * stride), query_row(1, a.n), key_row(1, a.n),
          context(1, a.n), logits(1, slots()), filled(slots() + 1) {}

    int64_t gate_width() const { return a.cell == Cell::lstm ? 4 * a.n : a.n; }

    void run(const Block& block) {
        const int rows = block.rows();
        const int64_t first = block.first * a.n;
        to_columns(a.x + block.first * a.n_inputs, a.n_inputs, rows, x.get());
        to_columns(a.s0 + first, a.n, rows, s.get());
        product<T>({{a.U, a.n_inputs, x.get()}, {a.V, a.n, s.get()}}, gate_width(), stride,
                   gates.get());
        product<T>({{a.W_a, a.n, s.get()}}, a.n, stride, query.get());

        if (a.cell == Cell::lstm) {
            to_columns(a.c0 + first, a.n, rows, c.get());
            update_lstm();
            from_columns(c.get(), a.n, rows, a.c + first, a.n);
        } else {
            with_phi(a.phi, [&](auto phi) { this->template update_rnn<phi.value>(); });
        }
        product<T>({{a.U_a, a.n, h.get()}}, a.n, stride, key.get());
        from_columns(h.get(), a.n, rows, a.h + first, a.n);

        const T scale = a.mix == Mix::mean ? T(0.5) : T(1);
        for (int r = 0; r < rows; ++r) {
            const int64_t b = block.first + r;
            const T* state = a.h + b * a.n;
            from_columns(query.get() + r, a.n, 1, query_row[0], 0);
            from_columns(key.get() + r, a.n, 1, key_row[0], 0);
            copy_memory(b);
            insert(b, state, key_row[0]);
            attend(b);
            a.clock[b] = a.clock0[b] + 1;
            for_each_vector<T>(a.n, [&](int64_t j, int inside) {
                const Vec<T> sum = load(state + j, inside) + load(context[0] + j);
                store(a.s + b * a.n + j, scale * sum, inside);
            });
        }
    }
};

// Blocks are of whole vectors of rows; a thread for each as far as there are any.
template <class T>
int run(const AttentiveStep<T>& a) {
    return guarded(a.threads, [&] {
        constexpr int64_t most = 32;
        ThreadPool pool = a.threads;
        pool.count = std::clamp<int64_t>(a.batch / most, 1, pool.count);
        for_each_block<Step<T>>(
            pool, a.batch, most, [&](int64_t rows) { return Step<T>(a, rows); },
            [&](const Block& block, Step<T>& step) { step.run(block); });
    });
}

}  // namespace mnemoscope

MNEMOSCOPE_EXPORT(attentive_step, AttentiveStep, ATTENTIVE_STEP)
