// MemRNN and MemLSTM (Kerg et al. 2020, eqs 9-10, 50-53), forward. Memory grows with T, never with T^2.
#include "full_attention.cuh"

// The softmax of a part of the history: its largest logit, the sum of exponentials below it, and so much of the values.
struct Share {
    float most, total;
    Row mixed;

    DEVICE void clear() { most = NEGATIVE_INFINITY, total = 0.f, mixed.clear(); }
    DEVICE void rescale(float larger) {
        const float scale = most == larger ? 1.f : expf(most - larger);
        total *= scale;
#pragma unroll
        for (int i = 0; i < Q; ++i) {
            float4& m = mixed.piece[i];
            m.x *= scale, m.y *= scale, m.z *= scale, m.w *= scale;
        }
        most = larger;
    }
};

constexpr int PARTS = N + 2;  // a share laid out in shared memory: most, total, mixed

// Merge `count` shares at `from`; thread j of a block makes unit j. Returns the context's unit, and the log of the sum.
DEVICE float merge(const float* from, int count, int j, float& most, float& total) {
    most = NEGATIVE_INFINITY, total = 0.f;
    for (int i = 0; i < count; ++i) most = fmaxf(most, from[i * PARTS]);
    float mixed = 0.f;
    for (int i = 0; i < count; ++i) {
        const float scale = from[i * PARTS] == NEGATIVE_INFINITY ? 0.f : expf(from[i * PARTS] - most);
        total += scale * from[i * PARTS + 1];
        mixed += scale * from[i * PARTS + 2 + j];
    }
    return mixed;
}

// reads_s (N,(G+1)N) = [V; W_a]^T and makes_key (N,N) = U_a^T, padded with zeros, as are all rows of N; keys (B,M,N)
// = U_a h doubled, values (B,M,N), M = m0 + T, hold the carried memory and are filled with the new states here. log_sums
// (T,B): log sum exp of the logits less their constant sum_j v_j. The rest as in ops.py.
KERNEL(THREADS) full_attention_forward(
    const float* xp, const float* reads_s, const float* makes_key, const float* v, const float* bias, const float* s0,
    const float* c0, float* keys, float* values, const long long* origin0, const long long* lengths, float* h_out,
    float* s_out, float* c_T, float* activations, float* log_sums, int n, int T, int B, int m0) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = blockIdx.x % C, sequence = blockIdx.x / C;
    const int steps = HAS_LENGTHS ? (int)lengths[sequence] : T;
    float* s = shared_memory();
    float *h = s + N, *u = h + N, *key = u + (G + 1) * N, *query = key + N, *cell = query + N;
    float *shares = cell + N, *ranks = shares + NW * PARTS, *scratch = ranks + C * PARTS + (4 - (NW + C) * PARTS % 4) % 4;
    keys += (long long)sequence * (m0 + T) * N;
    values += (long long)sequence * (m0 + T) * N;

    Row weight;
    weight.load(v, lane);
    for (int j = threadIdx.x; j < N; j += THREADS) {
        s[j] = s0[sequence * N + j];
        if (G == 4) cell[j] = j < n ? c0[(long long)sequence * n + j] : 0.f;
    }
    sync_cluster();

    for (int t = 0; t < steps; ++t) {
        const long long row = (long long)t * B + sequence;
        const bool mine = owner(m0 + t) == rank;
        product<N, (G + 1) * N>(reads_s, s, u, scratch);
        for (int j = threadIdx.x; j < N; j += THREADS) {
            float z[4] = {}, now = 0.f;
            if (j < n)
                for (int r = 0; r < G; ++r) z[r] = xp[row * G * n + r * n + j] + u[r * N + j];
            if constexpr (G == 4) {
                LSTMUnit unit;
                now = unit.advance(z, cell[j]);
                if (j < n && SAVE && rank == 0) {
                    const float kept[5] = {unit.i, unit.f, unit.g, unit.o, cell[j]};
                    for (int r = 0; r < 5; ++r) activations[(row * 5 + r) * n + j] = kept[r];
                }
            } else {
                now = phi(z[0], HAS_BIAS ? bias[j] : 0.f);
            }
            now = j < n ? now : 0.f;
            h[j] = now;
            query[j] = doubled(u[G * N + j]);
            if (mine) values[(long long)(m0 + t) * N + j] = now;
            if (j < n && rank == 0) h_out[row * n + j] = now;
        }
        sync_block();
        product<N, N>(makes_key, h, key, scratch);
        if (mine)
            for (int j = threadIdx.x; j < N; j += THREADS) keys[(long long)(m0 + t) * N + j] = doubled(key[j]);
        sync_block();

        Row asks;
        asks.load(query, lane);
        Share share;
        share.clear();
        const int count = m0 + t + 1;
        for (int first = first_row(rank, warp); first < count; first += NEXT_ROWS) {
            Row value[PAIRS];
            float part[PAIRS][1], logit[PAIRS], larger = share.most;
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) {
                const long long at = (long long)(first + i < count ? first + i : first) * N;
                Row its;
                its.load(keys + at, lane);
                value[i].load(values + at, lane);
                part[i][0] = weight.dot(score(asks, its));
            }
            fold<PAIRS, 16, 1, 1>(part, lane);
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) {
                const int it = first + i;
                const float sum = shuffle(part[0][0], i * (32 / PAIRS));
                const bool there = it < count && (it >= m0 || origin0[(long long)sequence * m0 + it] >= 0);
                logit[i] = there ? -2.f * sum : NEGATIVE_INFINITY;
                larger = fmaxf(larger, logit[i]);
            }
            if (larger == NEGATIVE_INFINITY) continue;
            share.rescale(larger);
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) {
                const float w = expf(logit[i] - larger);
                share.total += w;
                share.mixed.add(w, value[i]);
            }
        }
        if (lane == 0) shares[warp * PARTS] = share.most, shares[warp * PARTS + 1] = share.total;
#pragma unroll
        for (int i = 0; i < Q; ++i) {
            float* to = shares + warp * PARTS + 2 + 4 * (lane + 32 * i);
            to[0] = share.mixed.piece[i].x, to[1] = share.mixed.piece[i].y;
            to[2] = share.mixed.piece[i].z, to[3] = share.mixed.piece[i].w;
        }
        sync_block();
        float most, total;
        if constexpr (C > 1) {
            for (int j = threadIdx.x; j < N; j += THREADS) {
                const float mixed = merge(shares, NW, j, most, total);
                for (int to = 0; to < C; ++to) {
                    store_at(ranks + rank * PARTS + 2 + j, to, mixed);
                    if (j == 0) store_at(ranks + rank * PARTS, to, most), store_at(ranks + rank * PARTS + 1, to, total);
                }
            }
            sync_cluster();
        }
        for (int j = threadIdx.x; j < N; j += THREADS) {
            const float mixed = C > 1 ? merge(ranks, C, j, most, total) : merge(shares, NW, j, most, total);
            s[j] = MIX * (h[j] + mixed / total);
            if (j < n && rank == 0) s_out[row * n + j] = s[j];
            if (j == 0 && SAVE && rank == 0) log_sums[row] = most + logf(total);
        }
        sync_block();
    }
    if (G == 4 && rank == 0)
        for (int j = threadIdx.x; j < n; j += THREADS) c_T[(long long)sequence * n + j] = cell[j];
    sync_cluster();
}
