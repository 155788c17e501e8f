// MemRNN and MemLSTM, backward.
//
// Step t meets every earlier state once (its row of the attention: gradients of the query) and its own state every later
// step once (its column: gradients of the key and the value). Both walk pairs (query t', key i) whose attention weight
// and its gradient are made anew, so that no table of T x T weights is ever kept.
#include "full_attention.cuh"

struct Pair {
    float alpha, dlogit;
    Row r;
};

// Weights and their gradients for PAIRS pairs of a query with a key: `fixed` is the one, `rows` hold the other.
// x . y is the gradient of a weight: that of s_t with the value; the softmax takes off the mean over its weights.
template <class Against>
DEVICE void meet(Pair (&pairs)[PAIRS], const Row& weight, const Row& fixed_e, const Row& fixed_x, const float* rows_e,
                 const float* rows_x, int first, int end, int lane, Row (&x)[PAIRS], const Against& against) {
    float part[PAIRS][2];
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
        const long long at = (long long)(first + i < end ? first + i : first) * N;
        Row e;
        e.load(rows_e + at, lane);
        x[i].load(rows_x + at, lane);
        pairs[i].r = score(fixed_e, e);
        part[i][0] = weight.dot(pairs[i].r);
        part[i][1] = fixed_x.dot(x[i]);
    }
    fold<PAIRS, 16, 1, 2>(part, lane);
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
        const float logit = -2.f * shuffle(part[0][0], i * (32 / PAIRS)), dalpha = shuffle(part[0][1], i * (32 / PAIRS));
        float log_sum, mean;
        const bool there = first + i < end && against(first + i, log_sum, mean);
        pairs[i].alpha = there ? expf(logit - log_sum) : 0.f;
        pairs[i].dlogit = there ? pairs[i].alpha * (dalpha - mean) : 0.f;
    }
}

// Through tanh' = 4 (r - r^2), less its factor 4 v.
DEVICE void through(Row& sum, float x, const Row& score) {
#pragma unroll
    for (int i = 0; i < Q; ++i) {
        const float4& r = score.piece[i];
        add4(sum.piece[i], x, float4{r.x - r.x * r.x, r.y - r.y * r.y, r.z - r.z * r.z, r.w - r.w * r.w});
    }
}

// tanh^2: of tanh' = 1 - tanh^2 the 1 drops out where gradients that sum to zero are summed, and costs precision.
DEVICE void squared(Row& sum, float x, const Row& score) {
#pragma unroll
    for (int i = 0; i < Q; ++i) {
        const float4& r = score.piece[i];
        const float4 bent{1.f - 2.f * r.x, 1.f - 2.f * r.y, 1.f - 2.f * r.z, 1.f - 2.f * r.w};
        add4(sum.piece[i], x, float4{bent.x * bent.x, bent.y * bent.y, bent.z * bent.z, bent.w * bent.w});
    }
}

// tanh = 1 - 2 r itself.
DEVICE void itself(Row& sum, float x, const Row& score) {
#pragma unroll
    for (int i = 0; i < Q; ++i) {
        const float4& r = score.piece[i];
        add4(sum.piece[i], x, float4{1.f - 2.f * r.x, 1.f - 2.f * r.y, 1.f - 2.f * r.z, 1.f - 2.f * r.w});
    }
}

// Where sums over all warps and blocks meet, in shared memory.
struct Meeting {
    float *parts, *ranks, *sums;  // (NW, 4, N), also the products' scratch; (C, 4, N); (4, N)
    float *part, *rank_part;      // (NW), (C): the same for one number

    // Leaves the sums of COUNT rows in `sums` of every block; returns that of x.
    template <int COUNT>
    DEVICE float gather(const Row (&rows)[COUNT], float x, int rank, int warp, int lane) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) rows[i].store(parts + (warp * COUNT + i) * N, lane);
        if (lane == 0) part[warp] = x;
        sync_block();
        x = 0.f;
        for (int w = 0; w < NW; ++w) x += part[w];
        for (int j = threadIdx.x; j < COUNT * N; j += THREADS) {
            float sum = 0.f;
            for (int w = 0; w < NW; ++w) sum += parts[w * COUNT * N + j];
            if constexpr (C > 1)
                for (int to = 0; to < C; ++to) store_at(ranks + rank * COUNT * N + j, to, sum);
            else
                sums[j] = sum;
        }
        if (C > 1 && threadIdx.x < C) store_at(rank_part + rank, threadIdx.x, x);
        sync_cluster();
        if constexpr (C > 1) {
            x = 0.f;
            for (int from = 0; from < C; ++from) x += rank_part[from];
            for (int j = threadIdx.x; j < COUNT * N; j += THREADS) {
                float sum = 0.f;
                for (int from = 0; from < C; ++from) sum += ranks[from * COUNT * N + j];
                sums[j] = sum;
            }
            sync_cluster();
        }
        return x;
    }
};

// matrix_s ((G+1)N,N) = [V; W_a] and matrix_k (N,N) = U_a, padded; keys, queries (doubled), values (B,M or T,N) are
// made outside; values and contexts c_t (T,B,n) less one row a sequence that is common to all. outer (B,T,N), means (B,T):
// the gradient of each s_t and of its weights on average, kept here for the earlier steps' columns. -> dxp, dq, dk (T,B,..), dv_rows (B,n), dc0, dvalues0, dkeys0 (B,m0,n).
KERNEL(THREADS) full_attention_backward(
    const float* dh_out, const float* ds_out, const float* dc_T, const float* matrix_s, const float* matrix_k,
    const float* v, const float* keys, const float* values, const float* queries, const long long* origin0,
    const float* c0, const float* h_in, const float* contexts, const float* activations, const float* log_sums,
    const long long* lengths, float* outer, float* means, float* dxp, float* dq_out, float* dk_out, float* dv_rows,
    float* dc0, float* dvalues0, float* dkeys0, int n, int T, int B, int m0) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = blockIdx.x % C, sequence = blockIdx.x / C;
    const int steps = HAS_LENGTHS ? (int)lengths[sequence] : T;
    float* g = shared_memory();  // the gradient of s_t, times the mixture's factor
    float *context = g + N, *carried = context + N, *x = carried + N, *back = x + (G + 1) * N, *dc = back + N;
    float *dv = dc + N, *sums = dv + N, *ranks = sums + 4 * N, *part = ranks + 4 * C * N, *parts = part + 32;
    const Meeting meeting{parts, ranks, sums, part, part + NW};
    keys += (long long)sequence * (m0 + T) * N;
    values += (long long)sequence * (m0 + T) * N;
    queries += (long long)sequence * T * N;
    outer += (long long)sequence * T * N;
    means += (long long)sequence * T;

    Row weight;
    weight.load(v, lane);
    for (int j = threadIdx.x; j < N; j += THREADS) {
        carried[j] = dv[j] = 0.f;
        if (G == 4) dc[j] = HAS_DC && j < n ? dc_T[(long long)sequence * n + j] : 0.f;
    }
    sync_cluster();

    const auto by_step = [&](int t, float& log_sum, float& mean) {
        log_sum = log_sums[(long long)t * B + sequence], mean = means[t];
        return true;
    };
    // The column of one state: what its key and its value receive from the steps `first` .. `steps` - 1.
    const auto column = [&](int state, int start, Row& dkey, Row& dvalue) {
        Row key, value;
        key.load(keys + (long long)state * N, lane);
        value.load(values + (long long)state * N, lane);
        const int lead = start / NEXT_ROWS * NEXT_ROWS + first_row(rank, warp);
        for (int first = lead; first < steps; first += NEXT_ROWS) {
            if (first + PAIRS <= start) continue;
            const int from = first < start ? start : first, end = first + PAIRS < steps ? first + PAIRS : steps;
            Pair pairs[PAIRS];
            Row gradient[PAIRS];
            meet(pairs, weight, key, value, queries, outer, from, end, lane, gradient, by_step);
#pragma unroll
            for (int i = 0; i < PAIRS; ++i)
                through(dkey, pairs[i].dlogit, pairs[i].r), dvalue.add(pairs[i].alpha, gradient[i]);
        }
    };

    for (int t = steps - 1; t >= 0; --t) {
        const long long row = (long long)t * B + sequence;
        const bool mine = owner(t) == rank;
        for (int j = threadIdx.x; j < N; j += THREADS) {
            g[j] = j < n ? MIX * (carried[j] + (HAS_DS ? ds_out[row * n + j] : 0.f)) : 0.f;
            context[j] = j < n ? contexts[row * n + j] : 0.f;
            if (mine) outer[(long long)t * N + j] = g[j];
        }
        sync_block();
        Row gradient, query, c;
        gradient.load(g, lane);
        c.load(context, lane);
        query.load(queries + (long long)t * N, lane);
        const float mean = warp_sum(gradient.dot(c)), log_sum = log_sums[row];

        // The row. The weights' mean gradient is known only to rounding before it is walked: the rest is put right after.
        Row sum[4];  // of the query, and what of it belongs to the mean; of v, and likewise
        for (Row& one : sum) one.clear();
        float rest = 0.f;
        const auto by_state = [&](int state, float& its_log_sum, float& its_mean) {
            its_log_sum = log_sum, its_mean = mean;
            return state >= m0 || origin0[(long long)sequence * m0 + state] >= 0;
        };
        const int count = m0 + t + 1;
        for (int first = first_row(rank, warp); first < count; first += NEXT_ROWS) {
            Pair pairs[PAIRS];
            Row value[PAIRS];
            meet(pairs, weight, query, gradient, keys, values, first, count, lane, value, by_state);
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) {
                squared(sum[0], pairs[i].dlogit, pairs[i].r);
                squared(sum[1], pairs[i].alpha, pairs[i].r);
                itself(sum[2], pairs[i].dlogit, pairs[i].r);
                itself(sum[3], pairs[i].alpha, pairs[i].r);
                rest += pairs[i].dlogit;
            }
        }
        rest = meeting.gather(sum, rest, rank, warp, lane);
        for (int j = threadIdx.x; j < N; j += THREADS) {
            x[G * N + j] = v[j] * (rest * sums[N + j] - sums[j]);
            dv[j] += sums[2 * N + j] - rest * sums[3 * N + j];
        }
        if (mine && threadIdx.x == 0) means[t] = mean + rest;
        sync_block();

        // The column.
        Row column_sum[2];
        column_sum[0].clear(), column_sum[1].clear();
        column(m0 + t, t, column_sum[0], column_sum[1]);
        meeting.gather(column_sum, 0.f, rank, warp, lane);
        for (int j = threadIdx.x; j < N; j += THREADS) {
            sums[j] *= 4.f * v[j];
            if (j < n && rank == 0) dq_out[row * n + j] = x[G * N + j], dk_out[row * n + j] = sums[j];
        }
        sync_block();
        product<N, N>(matrix_k, sums, back, parts);
        for (int j = threadIdx.x; j < N; j += THREADS) {
            float dz[4] = {};
            if (j < n) {
                const float dh = (HAS_DH ? dh_out[row * n + j] : 0.f) + g[j] + sums[N + j] + back[j];
                if constexpr (G == 4) {
                    const float* kept = activations + row * 5 * n + j;
                    const LSTMUnit unit{kept[0], kept[n], kept[2 * n], kept[3 * n]};
                    const float previous = t > 0 ? kept[(4 - 5 * (long long)B) * n] : c0[(long long)sequence * n + j];
                    unit.back(dh, dc[j], kept[4 * n], previous, dz);
                } else {
                    dz[0] = dh * phi_slope(h_in[row * n + j]);
                }
                for (int r = 0; r < G; ++r)
                    if (rank == 0) dxp[row * G * n + r * n + j] = dz[r];
            }
            for (int r = 0; r < G; ++r) x[r * N + j] = dz[r];
        }
        sync_block();
        product<(G + 1) * N, N>(matrix_s, x, carried, parts);
    }

    for (int state = 0; state < m0; ++state) {  // what was carried in
        Row sum[2];
        sum[0].clear(), sum[1].clear();
        const bool there = origin0[(long long)sequence * m0 + state] >= 0;
        if (there) column(state, 0, sum[0], sum[1]);
        meeting.gather(sum, 0.f, rank, warp, lane);
        for (int j = threadIdx.x; j < n; j += THREADS)
            if (rank == 0) {
                dkeys0[((long long)sequence * m0 + state) * n + j] = 4.f * v[j] * sums[j];
                dvalues0[((long long)sequence * m0 + state) * n + j] = sums[N + j];
            }
        sync_block();
    }
    for (int j = threadIdx.x; j < n; j += THREADS)
        if (rank == 0) {
            dv_rows[(long long)sequence * n + j] = dv[j];
            if (G == 4) dc0[(long long)sequence * n + j] = dc[j];
        }
    sync_cluster();
}
