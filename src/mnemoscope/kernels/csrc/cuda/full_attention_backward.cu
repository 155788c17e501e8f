// MemRNN and MemLSTM, backward.
//
// Step t goes over every earlier state once (its row of the attention matrix: the gradient of its
// query) and over every later step once (its column: the gradients of its key and its value). Both
// recompute the attention weights of their pairs (query t', key i) and the gradients of these, so
// that no table of T x T weights is ever stored.
//
// The columns are made for COLUMN_CHUNK states at a time, as soon as all steps behind them are
// done: every warp holds STATES_PER_WARP of them and reads each step once for all of its states.
// Only the steps of the chunk itself are left to be added one by one.
//
// Sizes as in full_attention.cuh; PHI (equations.cuh); HAS_DH, HAS_DS, HAS_DC, HAS_LENGTHS: dh, ds,
// dc_T and lengths are given; COLUMN_CHUNK.
#include "full_attention.cuh"

constexpr int STATES_PER_WARP = PIECES > 2 ? 1 : 4 / PIECES;
constexpr bool LOADS_AHEAD = PIECES == 1;  // more pieces leave no registers for it
static_assert(STATES_PER_WARP * WARPS * CLUSTER_BLOCKS == COLUMN_CHUNK,
              "the kernel and its launch disagree on the states of a chunk");

// A query with a key: its attention weight, the gradient of its logit, and r of each unit.
struct Pair {
    float alpha, dlogit;
    Row r;
};

// Weights and logit gradients of up to ROWS_AT_ONCE pairs of a query with a key, rows `first` ..
// `end` - 1. One of the two is `fixed`, the others are in `rows`. In the same way, the gradient of
// a weight is the inner product of the gradient of s_t with the value: one of them is
// `fixed_factor`, the others are in `factors`. softmax_of(row, log_sum, mean) sets the softmax's
// log sum and mean weight gradient, and returns false if there is no such pair.
template <bool BEYOND, class SoftmaxOf>
DEVICE void score_pairs(Pair (&pairs)[ROWS_AT_ONCE], const Row& weight, const Row& fixed,
                        const Row& fixed_factor, const Row (&rows)[ROWS_AT_ONCE],
                        const Row (&factors)[ROWS_AT_ONCE], int first, int end, int lane,
                        const SoftmaxOf& softmax_of) {
    // v . r and the inner product with the factor, of every pair.
    float part[ROWS_AT_ONCE][2];
#pragma unroll
    for (int i = 0; i < ROWS_AT_ONCE; ++i) {
        pairs[i].r = half_one_minus_tanh<BEYOND>(fixed, rows[i]);
        part[i][0] = weight.dot(pairs[i].r);
        part[i][1] = fixed_factor.dot(factors[i]);
    }
    reduce_scatter<ROWS_AT_ONCE, 16, 1, 2>(part, lane);

    // alpha = exp(logit - log_sum), dlogit = alpha (dalpha - mean).
#pragma unroll
    for (int i = 0; i < ROWS_AT_ONCE; ++i) {
        const float logit = -2.f * shuffle(part[0][0], i * (32 / ROWS_AT_ONCE));
        const float dalpha = shuffle(part[0][1], i * (32 / ROWS_AT_ONCE));
        float log_sum, mean;
        const bool exists = first + i < end && softmax_of(first + i, log_sum, mean);
        pairs[i].alpha = exists ? expf(logit - log_sum) : 0.f;
        pairs[i].dlogit = exists ? pairs[i].alpha * (dalpha - mean) : 0.f;
    }
}

// sum += x tanh'(q + k) / 4; tanh' = 4 (r - r^2).
DEVICE void add_tanh_slope(Row& sum, float x, const Row& pair_r) {
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        const float4& r = pair_r.piece[i];
        add4(sum.piece[i], x,
             float4{r.x - r.x * r.x, r.y - r.y * r.y, r.z - r.z * r.z, r.w - r.w * r.w});
    }
}

// tanh(q + k) = 1 - 2 r.
DEVICE float4 tanh4(const float4& r) {
    return float4{1.f - 2.f * r.x, 1.f - 2.f * r.y, 1.f - 2.f * r.z, 1.f - 2.f * r.w};
}

// sum += x tanh^2(q + k). In a sum over gradients that sum to zero, the 1 of tanh' = 1 - tanh^2
// drops out, and would only cost precision.
DEVICE void add_tanh_squared(Row& sum, float x, const Row& pair_r) {
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
        const float4 a = tanh4(pair_r.piece[i]);
        add4(sum.piece[i], x, float4{a.x * a.x, a.y * a.y, a.z * a.z, a.w * a.w});
    }
}

// sum += x tanh(q + k).
DEVICE void add_tanh(Row& sum, float x, const Row& pair_r) {
#pragma unroll
    for (int i = 0; i < PIECES; ++i) add4(sum.piece[i], x, tanh4(pair_r.piece[i]));
}

// Sums of COUNT rows, and of a number, over all warps of all blocks of the cluster.
template <int COUNT>
struct ClusterSum {
    // Of a block: its rows, its number, and three that make it whole float4.
    static constexpr int SIZE = COUNT * PADDED_N + 4;
    static constexpr int BYTES = 4 * SIZE * CLUSTER_BLOCKS;
    static constexpr int HALF = WARPS / 2;
    static constexpr int SCRATCH = COUNT * HALF * PADDED_N + WARPS;

    float* scratch;  // (HALF, COUNT, PADDED_N), (WARPS)
    float* blocks;  // (CLUSTER_BLOCKS, SIZE)
    Exchange exchange;

    // Complete behind this.
    DEVICE void make(Row (&rows)[COUNT], float x, int rank, int warp, int lane) {
        float* numbers = scratch + COUNT * HALF * PADDED_N;
        if (lane == 0) numbers[warp] = x;
        // Half of the warps hand their rows to the others: so much shared memory is better used for
        // the history.
        float* own_rows = scratch + warp % HALF * COUNT * PADDED_N;
        if (warp >= HALF) store(rows, own_rows, lane);
        sync_block();
        if (warp < HALF) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                Row other;
                other.load(own_rows + i * PADDED_N, lane);
                rows[i].add(1.f, other);
            }
            store(rows, own_rows, lane);
        }
        sync_block();

        // Over the warps of a block, and to all blocks. A sum takes the place of the first of its
        // numbers, which nobody else reads.
        float* own = blocks + rank * SIZE;
        for (int j = threadIdx.x; j < COUNT * PADDED_N; j += THREADS) {
            float sum = 0.f;
            for (int w = 0; w < HALF; ++w) sum += scratch[w * COUNT * PADDED_N + j];
            if constexpr (IS_CLUSTER) {
                scratch[j] = sum;
                sync_warp();
                exchange.send(rank, lane, scratch + j - lane, own + j - lane, 32 / 4);
            } else {
                own[j] = sum;
            }
        }
        if (warp == WARPS - 1) {
            x = warp_sum(lane < WARPS ? numbers[lane] : 0.f);
            if (lane == 0) (IS_CLUSTER ? numbers : own + COUNT * PADDED_N)[0] = x;
            if constexpr (IS_CLUSTER) {
                sync_warp();
                exchange.send(rank, lane, numbers, own + COUNT * PADDED_N, 1);
            }
        }
        receive(exchange);
    }
    DEVICE static void store(const Row (&rows)[COUNT], float* place, int lane) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) rows[i].store(place + i * PADDED_N, lane);
    }
    // Unit j of row i; and the number.
    DEVICE float of(int i, int j) const { return number(i * PADDED_N + j); }
    DEVICE float number(int at = COUNT * PADDED_N) const {
        float sum = 0.f;
        for (int from = 0; from < CLUSTER_BLOCKS; ++from) sum += blocks[from * SIZE + at];
        return sum;
    }
};
typedef ClusterSum<4> RowSum;
typedef ClusterSum<2> ColumnSum;

struct SharedLayout {  // offsets in floats
    static constexpr int ds = 0;  // the gradient of s_t, times MIX
    static constexpr int context = ds + PADDED_N;
    static constexpr int carried = context + PADDED_N;  // the gradient of s_t from step t + 1
    static constexpr int dx = carried + PADDED_N;  // of [V; W_a] s_{t-1}
    static constexpr int dkey = dx + (GATES + 1) * PADDED_N;
    static constexpr int dh_from_key = dkey + PADDED_N;
    static constexpr int dc = dh_from_key + PADDED_N;
    static constexpr int dv = dc + PADDED_N;
    static constexpr int barriers = dv + PADDED_N;
    static constexpr int row_sums = barriers + TWO_BARRIERS;
    static constexpr int column_sums = row_sums + CLUSTER_BLOCKS * RowSum::SIZE;
    static constexpr int scratch = column_sums + CLUSTER_BLOCKS * ColumnSum::SIZE;
    // Of the sums, and of the products at other times.
    static constexpr int scratch_size = LARGER<RowSum::SCRATCH, ProductSizes<PADDED_N>::scratch>;
    static constexpr int resident = (scratch + scratch_size + 3) / 4 * 4;  // read as float4
    static constexpr int size = resident + RESIDENT_FLOATS;
};
CHECK_SHARED_MEMORY(SharedLayout);

// The attention matrix of one sequence, of queries and keys, as a warp goes over it.
struct AttentionMatrix {
    History history;
    const float *queries, *ds_rows;  // (T, PADDED_N)
    const float *log_sums, *means;  // of the softmax of step t: log_sums[t * B], means[t]
    const long long* origin0;  // of the m0 carried states
    int m0, T, B, steps, rank, warp, lane;
    Row weight;  // v

    // Add the row of step t to `sums`, this warp's part of it: sums of dlogit tanh^2 and alpha
    // tanh^2 for the query, of dlogit tanh and alpha tanh for v. Returns the sum of dlogit.
    template <bool BEYOND>
    DEVICE float add_row(int t, const Row& query, const Row& ds_t, float log_sum, float mean,
                         Row (&sums)[4]) const {
        float rest = 0.f;
        const auto softmax_of_t = [&](int state, float& its_log_sum, float& its_mean) {
            its_log_sum = log_sum;
            its_mean = mean;
            return state >= m0 || origin0[state] >= 0;
        };
        const int count = m0 + t + 1;
        for (int first = first_row(rank, warp); first < count; first += ROW_STRIDE) {
            RowGroup rows;
            rows.load(history, first, lane);
            Pair pairs[ROWS_AT_ONCE];
            score_pairs<BEYOND>(pairs, weight, query, ds_t, rows.key, rows.value, first, count,
                                lane, softmax_of_t);
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; ++i) {
                add_tanh_squared(sums[0], pairs[i].dlogit, pairs[i].r);
                add_tanh_squared(sums[1], pairs[i].alpha, pairs[i].r);
                add_tanh(sums[2], pairs[i].dlogit, pairs[i].r);
                add_tanh(sums[3], pairs[i].alpha, pairs[i].r);
                rest += pairs[i].dlogit;
            }
        }
        return rest;
    }

    // Add the column of one state within its chunk: the gradients of its key (less the factor 4 v)
    // and its value from the steps `start` .. `end` - 1, those of them that belong to this warp.
    template <bool BEYOND>
    DEVICE void add_column(int state, int start, int end, Row& dkey, Row& dvalue) const {
        Row key, value;
        key.load(history.keys + (long long)state * PADDED_N, lane);
        value.load(history.values + (long long)state * PADDED_N, lane);
        const auto softmax_of_step = [&](int t, float& log_sum, float& mean) {
            log_sum = log_sums[(long long)t * B];
            mean = means[t];
            return true;
        };
        const int lead = start / ROW_STRIDE * ROW_STRIDE + first_row(rank, warp);
        for (int first = lead; first < end; first += ROW_STRIDE) {
            if (first + ROWS_AT_ONCE <= start) continue;
            const int from = first < start ? start : first;
            const int rows_end = first + ROWS_AT_ONCE < end ? first + ROWS_AT_ONCE : end;
            Pair pairs[ROWS_AT_ONCE];
            Row query[ROWS_AT_ONCE], step_ds[ROWS_AT_ONCE];
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; ++i) {
                const long long step = from + i < rows_end ? from + i : from;
                query[i].load(queries + step * PADDED_N, lane);
                step_ds[i].load(ds_rows + step * PADDED_N, lane);
            }
            score_pairs<BEYOND>(pairs, weight, key, value, query, step_ds, from, rows_end, lane,
                                softmax_of_step);
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; ++i) {
                add_tanh_slope(dkey, pairs[i].dlogit, pairs[i].r);
                dvalue.add(pairs[i].alpha, step_ds[i]);
            }
        }
    }

    // The columns of this warp's states, from `state` on, over the steps from `start` on.
    template <bool BEYOND>
    DEVICE void make_columns(int state, int start, Row (&dkey)[STATES_PER_WARP],
                             Row (&dvalue)[STATES_PER_WARP]) const {
        Row key[STATES_PER_WARP], value[STATES_PER_WARP];
#pragma unroll
        for (int i = 0; i < STATES_PER_WARP; ++i) {
            const int row = state + i < m0 + T ? state + i : m0 + T - 1;
            key[i].load(history.keys + (long long)row * PADDED_N, lane);
            value[i].load(history.values + (long long)row * PADDED_N, lane);
            dkey[i].clear();
            dvalue[i].clear();
        }
        // The next step is on its way from device memory while this one is used (LOADS_AHEAD).
        Row next_query, next_ds;
        float next_log_sum, next_mean;
        const auto load_step = [&](int t) {
            next_query.load(queries + (long long)t * PADDED_N, lane);
            next_ds.load(ds_rows + (long long)t * PADDED_N, lane);
            next_log_sum = log_sums[(long long)t * B];
            next_mean = means[t];
        };
        if (LOADS_AHEAD && start < steps) load_step(start);
        for (int t = start; t < steps; ++t) {
            if (!LOADS_AHEAD) load_step(t);
            const Row query = next_query, ds_t = next_ds;
            const float log_sum = next_log_sum, mean = next_mean;
            if (LOADS_AHEAD && t + 1 < steps) load_step(t + 1);
            Row r[STATES_PER_WARP];
            float part[STATES_PER_WARP][2];
#pragma unroll
            for (int i = 0; i < STATES_PER_WARP; ++i) {
                r[i] = half_one_minus_tanh<BEYOND>(query, key[i]);
                part[i][0] = weight.dot(r[i]);
                part[i][1] = ds_t.dot(value[i]);
            }
            reduce_scatter<STATES_PER_WARP, 16, 1, 2>(part, lane);
#pragma unroll
            for (int i = 0; i < STATES_PER_WARP; ++i) {
                const float logit = -2.f * shuffle(part[0][0], i * (32 / STATES_PER_WARP));
                const float dalpha = shuffle(part[0][1], i * (32 / STATES_PER_WARP));
                const float alpha = expf(logit - log_sum);
                add_tanh_slope(dkey[i], alpha * (dalpha - mean), r[i]);
                dvalue[i].add(alpha, ds_t);
            }
        }
    }
};

// From the host, padded with zeros to PADDED_N: VW_a ((GATES+1)PADDED_N,PADDED_N) = [V; W_a], U_a
// (PADDED_N,PADDED_N), v, keys, values (B,rows,PADDED_N), queries (B,T,PADDED_N). keys and queries
// become powers. values and contexts c_t (T,B,n) less one row per sequence that is common to all.
// Written and read here: ds_rows (B,T,PADDED_N), the gradient of each s_t, and means
// (B,CLUSTER_BLOCKS,T), the mean gradient of its weights, for the columns of earlier steps (every
// block keeps the means for itself: they share cache lines); later_sums
// (B,COLUMN_CHUNK,2,PADDED_N), the gradients of a chunk's keys and values from the steps behind it.
// dv_rows (B,n). The other names and shapes are those of the operator attentive_backward.
KERNEL full_attention_backward(const float* dh, const float* ds, const float* dc_T,
                               const float* VW_a, const float* U_a, const float* v, float* keys,
                               float* values, float* queries, const long long* origin0,
                               const float* c0, const float* h, const float* contexts,
                               const float* activations, const float* log_sums,
                               const long long* lengths, float* ds_rows, float* means,
                               float* later_sums, float* dxp, float* dq, float* dk, float* dv_rows,
                               float* dc0, float* dvalues0, float* dkeys0, int n, int T, int B,
                               int m0, int rows) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int rank = blockIdx.x % CLUSTER_BLOCKS, sequence = blockIdx.x / CLUSTER_BLOCKS;
    const int steps = HAS_LENGTHS ? clamped_length(lengths[sequence], T) : T;
    float* shared = shared_memory();
    float* shared_ds = shared + SharedLayout::ds;
    float* context = shared + SharedLayout::context;
    float* carried = shared + SharedLayout::carried;
    float* dx = shared + SharedLayout::dx;
    float* shared_dkey = shared + SharedLayout::dkey;
    float* dh_from_key = shared + SharedLayout::dh_from_key;
    float* shared_dc = shared + SharedLayout::dc;
    float* shared_dv = shared + SharedLayout::dv;
    float* scratch = shared + SharedLayout::scratch;
    float* barriers = shared + SharedLayout::barriers;
    RowSum row_sum{scratch, shared + SharedLayout::row_sums,
                   exchange_at(barriers, 0, RowSum::BYTES)};
    ColumnSum column_sum{scratch, shared + SharedLayout::column_sums,
                         exchange_at(barriers, 1, ColumnSum::BYTES)};
    keys += (long long)sequence * rows * PADDED_N;
    values += (long long)sequence * rows * PADDED_N;
    const History history{keys, values, shared + SharedLayout::resident};
    queries += (long long)sequence * T * PADDED_N;
    ds_rows += (long long)sequence * T * PADDED_N;
    means += ((long long)sequence * CLUSTER_BLOCKS + rank) * T;
    later_sums += (long long)sequence * COLUMN_CHUNK * 2 * PADDED_N;
    const int first_own = STATES_PER_WARP * (rank * WARPS + warp);  // this warp's states of a chunk

    AttentionMatrix matrix{history, queries,
                           ds_rows, log_sums + sequence,
                           means,   origin0 ? origin0 + (long long)sequence * m0 : nullptr,
                           m0,      T,
                           B,       steps,
                           rank,    warp,
                           lane};
    matrix.weight.load(v, lane);

    // The gradients at the end. Every block of the cluster has all of them.
    for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
        carried[j] = shared_dv[j] = 0.f;
        if (GATES == 4) shared_dc[j] = HAS_DC && j < n ? dc_T[(long long)sequence * n + j] : 0.f;
    }

    // Queries and keys as powers, every warp its own rows, and the rows that stay here.
    history.clear();
    sync_block();
    bool beyond = false;  // one of the sequence has no power
    for (int first = first_row(rank, warp); first < m0 + steps; first += ROW_STRIDE)
        for (int state = first; state < first + ROWS_AT_ONCE && state < m0 + steps; ++state) {
            const long long start = (long long)state * PADDED_N;
            Row key, value, query;
            key.load(keys + start, lane);
            beyond |= key.make_powers();
            key.store(keys + start, lane);
            if (state < steps) {
                query.load(queries + start, lane);
                beyond |= query.make_powers();
                query.store(queries + start, lane);
            }
            if (history.shared_group(state)) {
                value.load(values + start, lane);
                key.store(history.key(state), lane);
                value.store(history.value(state), lane);
            }
        }
    begin_exchanges(row_sum.exchange, column_sum.exchange);
    sync_cluster();  // before a block stores into another, that one must have begun
    beyond = sync_block_or(beyond);
    if (threadIdx.x < CLUSTER_BLOCKS) store_in_block(scratch + rank, threadIdx.x, beyond);
    sync_cluster();
    for (int from = 0; from < CLUSTER_BLOCKS; ++from) beyond |= scratch[from] != 0.f;
    sync_block();

    // No gradient past the sequence's length: zeros, by the blocks in turn.
    for (int t = steps + rank; t < T; t += CLUSTER_BLOCKS) {
        const long long row = (long long)t * B + sequence;
        for (int j = threadIdx.x; j < n; j += THREADS) {
            for (int r = 0; r < GATES; ++r) dxp[row * GATES * n + r * n + j] = 0.f;
            dq[row * n + j] = dk[row * n + j] = 0.f;
        }
    }

    int chunk_end = steps, chunk_start = steps;
    for (int t = steps - 1; t >= 0; --t) {
        // A new chunk: its columns over the steps behind it.
        if (t < chunk_start) {
            chunk_end = chunk_start;
            chunk_start = t / COLUMN_CHUNK * COLUMN_CHUNK;
            if (chunk_end < steps) {
                sync_cluster();  // the last step's ds_rows and means
                Row dkey[STATES_PER_WARP], dvalue[STATES_PER_WARP];
                const int state = m0 + chunk_start + first_own;
                if (beyond)
                    matrix.make_columns<true>(state, chunk_end, dkey, dvalue);
                else
                    matrix.make_columns<false>(state, chunk_end, dkey, dvalue);
#pragma unroll
                for (int i = 0; i < STATES_PER_WARP; ++i) {
                    float* own = later_sums + (first_own + i) * 2 * PADDED_N;
                    dkey[i].store(own, lane);
                    dvalue[i].store(own + PADDED_N, lane);
                }
            }
        }
        const long long row = (long long)t * B + sequence;
        const bool owns_row = owner(t) == rank;

        // The gradient of s_t = MIX (h_t + c_t): thread j has unit j. Its owner keeps it for the
        // columns of the earlier steps.
        for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
            shared_ds[j] = j < n ? MIX * (carried[j] + (HAS_DS ? ds[row * n + j] : 0.f)) : 0.f;
            context[j] = j < n ? contexts[row * n + j] : 0.f;
            if (owns_row) ds_rows[(long long)t * PADDED_N + j] = shared_ds[j];
        }
        sync_block();
        Row ds_t, query, context_t;
        ds_t.load(shared_ds, lane);
        context_t.load(context, lane);
        query.load(queries + (long long)t * PADDED_N, lane);
        // The mean of the weights' gradients is ds_t . c_t. This is rounded: what is missing to the
        // mean over the recomputed weights, `rest`, is corrected below.
        const float mean = warp_sum(ds_t.dot(context_t)), log_sum = log_sums[row];

        // The row: every warp goes over its part of the states up to t. Sums with alpha are the
        // correction's.
        Row row_sums[4];
        for (Row& one : row_sums) one.clear();
        float rest = beyond ? matrix.add_row<true>(t, query, ds_t, log_sum, mean, row_sums)
                            : matrix.add_row<false>(t, query, ds_t, log_sum, mean, row_sums);
        row_sum.make(row_sums, rest, rank, warp, lane);
        rest = row_sum.number();
        for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
            dx[GATES * PADDED_N + j] = v[j] * (rest * row_sum.of(1, j) - row_sum.of(0, j));
            shared_dv[j] += row_sum.of(2, j) - rest * row_sum.of(3, j);
        }
        if (threadIdx.x == 0) means[t] = mean + rest;
        sync_block();

        // The column of state t: the steps behind the chunk are in one warp's later sums, those of
        // the chunk are added here.
        Row column_sums[2];
        column_sums[0].clear();
        column_sums[1].clear();
        const int in_chunk = t - chunk_start;
        if (chunk_end < steps && in_chunk >= first_own && in_chunk < first_own + STATES_PER_WARP) {
            const float* own = later_sums + in_chunk * 2 * PADDED_N;
            column_sums[0].load(own, lane);
            column_sums[1].load(own + PADDED_N, lane);
        }
        if (beyond)
            matrix.add_column<true>(m0 + t, t, chunk_end, column_sums[0], column_sums[1]);
        else
            matrix.add_column<false>(m0 + t, t, chunk_end, column_sums[0], column_sums[1]);
        column_sum.make(column_sums, 0.f, rank, warp, lane);
        for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
            shared_dkey[j] = 4.f * v[j] * column_sum.of(0, j);
            if (j < n && rank == 0) {
                dq[row * n + j] = dx[GATES * PADDED_N + j];
                dk[row * n + j] = shared_dkey[j];
            }
        }
        sync_block();

        // The gradient of h_t from the output, s_t, its value and its key; then the cell.
        product<PADDED_N, PADDED_N>(U_a, shared_dkey, dh_from_key, scratch);
        for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
            float dz[4] = {};
            if (j < n) {
                const float dh_t = (HAS_DH ? dh[row * n + j] : 0.f) + shared_ds[j] +
                                   column_sum.of(1, j) + dh_from_key[j];
                if constexpr (GATES == 4) {
                    const float* saved = activations + row * 5 * n + j;  // i, f, g, o, c
                    const LSTMGates gates{saved[0], saved[n], saved[2 * n], saved[3 * n]};
                    const float previous_c =
                        t > 0 ? saved[(4 - 5 * (long long)B) * n] : c0[(long long)sequence * n + j];
                    gates.backward(dh_t, shared_dc[j], saved[4 * n], previous_c, dz);
                } else {
                    dz[0] = dh_t * phi_slope(h[row * n + j]);
                }
                for (int r = 0; r < GATES; ++r)
                    if (rank == 0) dxp[row * GATES * n + r * n + j] = dz[r];
            }
            for (int r = 0; r < GATES; ++r) dx[r * PADDED_N + j] = dz[r];
        }
        sync_block();

        // The gradient of s_{t-1}, through [V; W_a].
        product<(GATES + 1) * PADDED_N, PADDED_N>(VW_a, dx, carried, scratch);
    }

    // The columns of the carried memory, over all steps.
    if (m0 > 0) sync_cluster();
    for (int first = first_own; first < m0; first += COLUMN_CHUNK) {
        Row dkey[STATES_PER_WARP], dvalue[STATES_PER_WARP];
        if (beyond)
            matrix.make_columns<true>(first, 0, dkey, dvalue);
        else
            matrix.make_columns<false>(first, 0, dkey, dvalue);
#pragma unroll
        for (int i = 0; i < STATES_PER_WARP; ++i) {
            const int state = first + i;
            if (state >= m0) continue;
            const long long start = ((long long)sequence * m0 + state) * n;
            const bool filled = origin0[(long long)sequence * m0 + state] >= 0;
            dkey[i].visit(lane, [&](int j, float x) {
                if (j < n) dkeys0[start + j] = filled ? 4.f * v[j] * x : 0.f;
            });
            dvalue[i].visit(lane, [&](int j, float x) {
                if (j < n) dvalues0[start + j] = filled ? x : 0.f;
            });
        }
    }

    // v and the first cell state.
    for (int j = threadIdx.x; j < n; j += THREADS)
        if (rank == 0) {
            dv_rows[(long long)sequence * n + j] = shared_dv[j];
            if (GATES == 4) dc0[(long long)sequence * n + j] = shared_dc[j];
        }
    sync_cluster();  // no block ends before the others are done with its shared memory
}
