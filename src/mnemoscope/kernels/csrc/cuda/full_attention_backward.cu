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
#include "full_attention_matrix.cuh"
#include "full_attention_sums.cuh"

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
