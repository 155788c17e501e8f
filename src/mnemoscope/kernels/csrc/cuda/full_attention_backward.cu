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

// Weights and logit gradients of up to ROWS_AT_ONCE pairs of a query with a key. One of the two is
// fixed; the others are rows `first` .. `end` - 1 of a table. In the same way, the gradient of a
// weight is the inner product of the gradient of s_t with the value: one of them is `fixed_factor`,
// the others are rows of `factors`, and are left in `factor`.
// softmax_of(row, log_sum, mean) sets the softmax's log sum and mean weight gradient, and returns
// false if there is no such pair.
template <class SoftmaxOf>
DEVICE void score_pairs(Pair (&pairs)[ROWS_AT_ONCE], const Row& weight, const Row& fixed,
                        const Row& fixed_factor, const float* rows, const float* factors, int first,
                        int end, int lane, Row (&factor)[ROWS_AT_ONCE],
                        const SoftmaxOf& softmax_of) {
    // v . r and the inner product with the factor, of every pair.
    float part[ROWS_AT_ONCE][2];
#pragma unroll
    for (int i = 0; i < ROWS_AT_ONCE; ++i) {
        const long long start = (long long)(first + i < end ? first + i : first) * PADDED_N;
        Row other;
        other.load(rows + start, lane);
        factor[i].load(factors + start, lane);
        pairs[i].r = half_one_minus_tanh(fixed, other);
        part[i][0] = weight.dot(pairs[i].r);
        part[i][1] = fixed_factor.dot(factor[i]);
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

constexpr int MOST_SUMS = 4;  // rows that one reduction over the cluster sums

struct SharedLayout {  // offsets in floats
    static constexpr int ds = 0;  // the gradient of s_t, times MIX
    static constexpr int context = ds + PADDED_N;
    static constexpr int carried = context + PADDED_N;  // the gradient of s_t from step t + 1
    static constexpr int dx = carried + PADDED_N;  // of [V; W_a] s_{t-1}
    static constexpr int dh_from_key = dx + (GATES + 1) * PADDED_N;
    static constexpr int dc = dh_from_key + PADDED_N;
    static constexpr int dv = dc + PADDED_N;
    static constexpr int sums = dv + PADDED_N;  // (MOST_SUMS, PADDED_N)
    static constexpr int block_rows = sums + MOST_SUMS * PADDED_N;
    static constexpr int warp_numbers = block_rows + MOST_SUMS * CLUSTER_BLOCKS * PADDED_N;
    static constexpr int block_numbers = warp_numbers + WARPS;
    static constexpr int numbers_end = block_numbers + CLUSTER_BLOCKS;
    static constexpr int warp_rows = (numbers_end + 3) / 4 * 4;  // read as float4
    static constexpr int warp_rows_size = MOST_SUMS * WARPS * PADDED_N;
    static constexpr int size =
        warp_rows + (warp_rows_size > PRODUCT_SCRATCH ? warp_rows_size : PRODUCT_SCRATCH);
};
CHECK_SHARED_MEMORY(SharedLayout);

// Sums over all warps of all blocks of the cluster, by shared memory.
struct ClusterReduction {
    float* warp_rows;  // (WARPS, COUNT, PADDED_N); `product` uses it as scratch, too
    float* block_rows;  // (CLUSTER_BLOCKS, COUNT, PADDED_N)
    float* sums;  // (COUNT, PADDED_N)
    float *warp_numbers, *block_numbers;  // (WARPS), (CLUSTER_BLOCKS)

    // Leaves the sums of COUNT rows in `sums` of every block, complete behind a barrier. Returns
    // the sum of x.
    template <int COUNT>
    DEVICE float sum(const Row (&rows)[COUNT], float x, int rank, int warp, int lane) const {
        static_assert(COUNT <= MOST_SUMS, "no room for so many rows");
        // Over the warps of a block.
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            rows[i].store(warp_rows + (warp * COUNT + i) * PADDED_N, lane);
        if (lane == 0) warp_numbers[warp] = x;
        sync_block();
        x = 0.f;
        for (int w = 0; w < WARPS; ++w) x += warp_numbers[w];
        for (int j = threadIdx.x; j < COUNT * PADDED_N; j += THREADS) {
            float sum = 0.f;
            for (int w = 0; w < WARPS; ++w) sum += warp_rows[w * COUNT * PADDED_N + j];
            if constexpr (CLUSTER_BLOCKS > 1)
                for (int to = 0; to < CLUSTER_BLOCKS; ++to)
                    store_in_block(block_rows + rank * COUNT * PADDED_N + j, to, sum);
            else
                sums[j] = sum;
        }
        if (CLUSTER_BLOCKS > 1 && threadIdx.x < CLUSTER_BLOCKS)
            store_in_block(block_numbers + rank, threadIdx.x, x);
        sync_cluster();

        // Over the blocks. The second barrier ends all reads before the next sum stores.
        if constexpr (CLUSTER_BLOCKS > 1) {
            x = 0.f;
            for (int from = 0; from < CLUSTER_BLOCKS; ++from) x += block_numbers[from];
            for (int j = threadIdx.x; j < COUNT * PADDED_N; j += THREADS) {
                float sum = 0.f;
                for (int from = 0; from < CLUSTER_BLOCKS; ++from)
                    sum += block_rows[from * COUNT * PADDED_N + j];
                sums[j] = sum;
            }
            sync_cluster();
        }
        return x;
    }
};

// From the host, padded with zeros to PADDED_N: VW_a ((GATES+1)PADDED_N,PADDED_N) = [V; W_a], U_a
// (PADDED_N,PADDED_N), v, keys, values (B,m0+T,PADDED_N), queries (B,T,PADDED_N); keys and queries
// prescaled. values and contexts c_t (T,B,n) less one row per sequence that is common to all.
// Written and read here: ds_rows (B,T,PADDED_N), the gradient of each s_t, and means
// (B,CLUSTER_BLOCKS,T), the mean gradient of its weights, for the columns of earlier steps (every
// block keeps the means for itself: they share cache lines); later_sums
// (B,COLUMN_CHUNK,2,PADDED_N), the gradients of a chunk's keys and values from the steps behind it.
// dv_rows (B,n). The other names and shapes are those of the operator attentive_backward.
KERNEL full_attention_backward(const float* dh, const float* ds, const float* dc_T,
                               const float* VW_a, const float* U_a, const float* v,
                               const float* keys, const float* values, const float* queries,
                               const long long* origin0, const float* c0, const float* h,
                               const float* contexts, const float* activations,
                               const float* log_sums, const long long* lengths, float* ds_rows,
                               float* means, float* later_sums, float* dxp, float* dq, float* dk,
                               float* dv_rows, float* dc0, float* dvalues0, float* dkeys0, int n,
                               int T, int B, int m0) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int rank = blockIdx.x % CLUSTER_BLOCKS, sequence = blockIdx.x / CLUSTER_BLOCKS;
    const int steps = HAS_LENGTHS ? clamped_length(lengths[sequence], T) : T;
    float* shared = shared_memory();
    float* shared_ds = shared + SharedLayout::ds;
    float* context = shared + SharedLayout::context;
    float* carried = shared + SharedLayout::carried;
    float* dx = shared + SharedLayout::dx;
    float* dh_from_key = shared + SharedLayout::dh_from_key;
    float* shared_dc = shared + SharedLayout::dc;
    float* shared_dv = shared + SharedLayout::dv;
    float* sums = shared + SharedLayout::sums;
    float* scratch = shared + SharedLayout::warp_rows;
    const ClusterReduction reduction{scratch, shared + SharedLayout::block_rows, sums,
                                     shared + SharedLayout::warp_numbers,
                                     shared + SharedLayout::block_numbers};
    keys += (long long)sequence * (m0 + T) * PADDED_N;
    values += (long long)sequence * (m0 + T) * PADDED_N;
    queries += (long long)sequence * T * PADDED_N;
    ds_rows += (long long)sequence * T * PADDED_N;
    means += ((long long)sequence * CLUSTER_BLOCKS + rank) * T;
    later_sums += (long long)sequence * COLUMN_CHUNK * 2 * PADDED_N;
    const int first_own = STATES_PER_WARP * (rank * WARPS + warp);  // this warp's states of a chunk

    // The gradients at the end. Every block of the cluster has all of them.
    Row weight;
    weight.load(v, lane);
    for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
        carried[j] = shared_dv[j] = 0.f;
        if (GATES == 4) shared_dc[j] = HAS_DC && j < n ? dc_T[(long long)sequence * n + j] : 0.f;
    }
    sync_cluster();  // also: before a block stores into another, that one must have begun

    // No gradient past the sequence's length: zeros, by the blocks in turn.
    for (int t = steps + rank; t < T; t += CLUSTER_BLOCKS) {
        const long long row = (long long)t * B + sequence;
        for (int j = threadIdx.x; j < n; j += THREADS) {
            for (int r = 0; r < GATES; ++r) dxp[row * GATES * n + r * n + j] = 0.f;
            dq[row * n + j] = dk[row * n + j] = 0.f;
        }
    }

    // The softmax of step t.
    const auto softmax_of_step = [&](int t, float& log_sum, float& mean) {
        log_sum = log_sums[(long long)t * B + sequence];
        mean = means[t];
        return true;
    };
    // The column of one state within its chunk: the gradients of its key (less the factor 4 v) and
    // its value from the steps `start` .. `end` - 1, those of them that belong to this warp.
    const auto add_column = [&](int state, int start, int end, Row& dkey, Row& dvalue) {
        Row key, value;
        key.load(keys + (long long)state * PADDED_N, lane);
        value.load(values + (long long)state * PADDED_N, lane);
        const int lead = start / ROW_STRIDE * ROW_STRIDE + first_row(rank, warp);
        for (int first = lead; first < end; first += ROW_STRIDE) {
            if (first + ROWS_AT_ONCE <= start) continue;
            const int from = first < start ? start : first;
            const int rows_end = first + ROWS_AT_ONCE < end ? first + ROWS_AT_ONCE : end;
            Pair pairs[ROWS_AT_ONCE];
            Row step_ds[ROWS_AT_ONCE];
            score_pairs(pairs, weight, key, value, queries, ds_rows, from, rows_end, lane, step_ds,
                        softmax_of_step);
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; ++i) {
                add_tanh_slope(dkey, pairs[i].dlogit, pairs[i].r);
                dvalue.add(pairs[i].alpha, step_ds[i]);
            }
        }
    };
    // The columns of this warp's states, from `state` on, over the steps `start` .. `steps` - 1.
    const auto make_columns = [&](int state, int start, Row(&dkey)[STATES_PER_WARP],
                                  Row(&dvalue)[STATES_PER_WARP]) {
        Row key[STATES_PER_WARP], value[STATES_PER_WARP];
#pragma unroll
        for (int i = 0; i < STATES_PER_WARP; ++i) {
            const int row = state + i < m0 + T ? state + i : m0 + T - 1;
            key[i].load(keys + (long long)row * PADDED_N, lane);
            value[i].load(values + (long long)row * PADDED_N, lane);
            dkey[i].clear();
            dvalue[i].clear();
        }
        // The next step is on its way from device memory while this one is used (LOADS_AHEAD).
        Row next_query, next_ds;
        float next_log_sum, next_mean;
        const auto load_step = [&](int t) {
            next_query.load(queries + (long long)t * PADDED_N, lane);
            next_ds.load(ds_rows + (long long)t * PADDED_N, lane);
            softmax_of_step(t, next_log_sum, next_mean);
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
                r[i] = half_one_minus_tanh(query, key[i]);
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
    };

    int chunk_end = steps, chunk_start = steps;
    for (int t = steps - 1; t >= 0; --t) {
        // A new chunk: its columns over the steps behind it.
        if (t < chunk_start) {
            chunk_end = chunk_start;
            chunk_start = t / COLUMN_CHUNK * COLUMN_CHUNK;
            if (chunk_end < steps) {
                sync_cluster();  // the last step's ds_rows and means
                Row dkey[STATES_PER_WARP], dvalue[STATES_PER_WARP];
                make_columns(m0 + chunk_start + first_own, chunk_end, dkey, dvalue);
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

        // The row: every warp goes over its part of the states up to t. Sums of dlogit tanh^2 and
        // alpha tanh^2 for the query, of dlogit tanh and alpha tanh for v; those with alpha are
        // the correction's.
        Row row_sums[4];
        for (Row& one : row_sums) one.clear();
        float rest = 0.f;
        const auto softmax_of_t = [&](int state, float& its_log_sum, float& its_mean) {
            its_log_sum = log_sum;
            its_mean = mean;
            return state >= m0 || origin0[(long long)sequence * m0 + state] >= 0;
        };
        const int count = m0 + t + 1;
        for (int first = first_row(rank, warp); first < count; first += ROW_STRIDE) {
            Pair pairs[ROWS_AT_ONCE];
            Row value[ROWS_AT_ONCE];
            score_pairs(pairs, weight, query, ds_t, keys, values, first, count, lane, value,
                        softmax_of_t);
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; ++i) {
                add_tanh_squared(row_sums[0], pairs[i].dlogit, pairs[i].r);
                add_tanh_squared(row_sums[1], pairs[i].alpha, pairs[i].r);
                add_tanh(row_sums[2], pairs[i].dlogit, pairs[i].r);
                add_tanh(row_sums[3], pairs[i].alpha, pairs[i].r);
                rest += pairs[i].dlogit;
            }
        }
        rest = reduction.sum(row_sums, rest, rank, warp, lane);
        for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
            dx[GATES * PADDED_N + j] = v[j] * (rest * sums[PADDED_N + j] - sums[j]);
            shared_dv[j] += sums[2 * PADDED_N + j] - rest * sums[3 * PADDED_N + j];
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
        add_column(m0 + t, t, chunk_end, column_sums[0], column_sums[1]);
        reduction.sum(column_sums, 0.f, rank, warp, lane);
        for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
            sums[j] *= 4.f * v[j];
            if (j < n && rank == 0) {
                dq[row * n + j] = dx[GATES * PADDED_N + j];
                dk[row * n + j] = sums[j];
            }
        }
        sync_block();

        // The gradient of h_t from the output, s_t, its value and its key; then the cell.
        product<PADDED_N, PADDED_N>(U_a, sums, dh_from_key, scratch);
        for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
            float dz[4] = {};
            if (j < n) {
                const float dh_t = (HAS_DH ? dh[row * n + j] : 0.f) + shared_ds[j] +
                                   sums[PADDED_N + j] + dh_from_key[j];
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
        make_columns(first, 0, dkey, dvalue);
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
