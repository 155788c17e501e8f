// The pairs of queries and keys in full attention's backward pass: rows and columns of the
// attention matrix. COLUMN_CHUNK: how many columns are made at a time.
#pragma once
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
