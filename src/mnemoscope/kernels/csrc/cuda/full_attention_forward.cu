// MemRNN and MemLSTM (Kerg et al. 2020, eqs 9-10, 50-53), forward. Memory grows with T, not with
// T^2.
//
// Sizes as in full_attention.cuh; PHI (equations.cuh); HAS_BIAS, HAS_LENGTHS: b and lengths are
// given; SAVE: activations and log_sums are written.
#include "full_attention.cuh"

// The softmax over a part of the history, unfinished: its largest logit, and the sums of
// exp(logit - largest) and of exp(logit - largest) * value.
struct PartialSoftmax {
    float largest, total;
    Row mixed;

    DEVICE void clear() {
        largest = NEGATIVE_INFINITY;
        total = 0.f;
        mixed.clear();
    }
    DEVICE void rescale(float new_largest) {
        const float scale = largest == new_largest ? 1.f : expf(largest - new_largest);
        total *= scale;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            float4& m = mixed.piece[i];
            m.x *= scale, m.y *= scale, m.z *= scale, m.w *= scale;
        }
        largest = new_largest;
    }
};

constexpr int PARTIAL_FLOATS = PADDED_N + 2;  // in shared memory: largest, total, mixed

// Merge `count` partial softmaxes: unit j of their mixture, with `largest` and `total` of all.
DEVICE float merge(const float* partials, int count, int j, float& largest, float& total) {
    largest = NEGATIVE_INFINITY;
    total = 0.f;
    for (int i = 0; i < count; ++i) largest = fmaxf(largest, partials[i * PARTIAL_FLOATS]);
    float mixed = 0.f;
    for (int i = 0; i < count; ++i) {
        const float* partial = partials + i * PARTIAL_FLOATS;
        const float scale = partial[0] == NEGATIVE_INFINITY ? 0.f : expf(partial[0] - largest);
        total += scale * partial[1];
        mixed += scale * partial[2 + j];
    }
    return mixed;
}

struct SharedLayout {  // offsets in floats
    static constexpr int s = 0;
    static constexpr int h = s + PADDED_N;
    static constexpr int products = h + PADDED_N;  // [V; W_a] s_{t-1}
    static constexpr int key = products + (GATES + 1) * PADDED_N;
    static constexpr int query = key + PADDED_N;
    static constexpr int c = query + PADDED_N;
    static constexpr int warp_partials = c + PADDED_N;  // (WARPS, PARTIAL_FLOATS)
    static constexpr int block_partials = warp_partials + WARPS * PARTIAL_FLOATS;
    // (2, CLUSTER_BLOCKS, PARTIAL_FLOATS): step t + 1 is written while step t is read
    static constexpr int partials_end = block_partials + 2 * CLUSTER_BLOCKS * PARTIAL_FLOATS;
    static constexpr int scratch = (partials_end + 3) / 4 * 4;  // read as float4
    static constexpr int size = scratch + PRODUCT_SCRATCH;
};
CHECK_SHARED_MEMORY(SharedLayout);

// From the host: VW_a_T (PADDED_N,(GATES+1)PADDED_N) = [V; W_a]^T and U_a_T (PADDED_N,PADDED_N) =
// U_a^T, padded with zeros, as are v, b, s0 (B,PADDED_N) and keys, values (B,m0+T,PADDED_N). keys
// (U_a h, prescaled) and values hold the carried memory; the new states are added here. log_sums
// (T,B): the log of the sum of exp(logit), less the constant sum_j v_j in all logits. The other
// names and shapes are those of the operator attentive_forward.
KERNEL full_attention_forward(const float* xp, const float* VW_a_T, const float* U_a_T,
                              const float* v, const float* b, const float* s0, const float* c0,
                              float* keys, float* values, const long long* origin0,
                              const long long* lengths, float* h, float* s, float* c_T,
                              float* activations, float* log_sums, int n, int T, int B, int m0) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int rank = blockIdx.x % CLUSTER_BLOCKS, sequence = blockIdx.x / CLUSTER_BLOCKS;
    const int steps = HAS_LENGTHS ? clamped_length(lengths[sequence], T) : T;
    float* shared = shared_memory();
    float* shared_s = shared + SharedLayout::s;
    float* shared_h = shared + SharedLayout::h;
    float* products = shared + SharedLayout::products;
    float* shared_key = shared + SharedLayout::key;
    float* shared_query = shared + SharedLayout::query;
    float* shared_c = shared + SharedLayout::c;
    float* warp_partials = shared + SharedLayout::warp_partials;
    float* scratch = shared + SharedLayout::scratch;
    keys += (long long)sequence * (m0 + T) * PADDED_N;
    values += (long long)sequence * (m0 + T) * PADDED_N;

    // The state at the start. Every block of the cluster has all of it.
    Row weight;
    weight.load(v, lane);
    for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
        shared_s[j] = s0[sequence * PADDED_N + j];
        if (GATES == 4) shared_c[j] = j < n ? c0[(long long)sequence * n + j] : 0.f;
    }
    sync_cluster();  // also: before a block stores into another, that one must have begun

    for (int t = 0; t < steps; ++t) {
        const long long row = (long long)t * B + sequence;
        const bool owns_row = owner(m0 + t) == rank;

        // The cell and the query from [V; W_a] s_{t-1}: thread j has unit j. Every block computes
        // all of h_t; block 0 writes the outputs, the owner of row m0 + t the memory.
        product<PADDED_N, (GATES + 1) * PADDED_N>(VW_a_T, shared_s, products, scratch);
        for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
            float z[4] = {}, h_t = 0.f;
            if (j < n)
                for (int r = 0; r < GATES; ++r)
                    z[r] = xp[row * GATES * n + r * n + j] + products[r * PADDED_N + j];
            if constexpr (GATES == 4) {
                LSTMGates gates;
                h_t = gates.forward(z, shared_c[j]);
                if (j < n && SAVE && rank == 0) {
                    const float saved[5] = {gates.i, gates.f, gates.g, gates.o, shared_c[j]};
                    for (int r = 0; r < 5; ++r) activations[(row * 5 + r) * n + j] = saved[r];
                }
            } else {
                h_t = phi(z[0], HAS_BIAS ? b[j] : 0.f);
            }
            h_t = j < n ? h_t : 0.f;
            shared_h[j] = h_t;
            shared_query[j] = prescale(products[GATES * PADDED_N + j]);
            if (owns_row) values[(long long)(m0 + t) * PADDED_N + j] = h_t;
            if (j < n && rank == 0) h[row * n + j] = h_t;
        }
        sync_block();

        // The key of h_t.
        product<PADDED_N, PADDED_N>(U_a_T, shared_h, shared_key, scratch);
        if (owns_row)
            for (int j = threadIdx.x; j < PADDED_N; j += THREADS)
                keys[(long long)(m0 + t) * PADDED_N + j] = prescale(shared_key[j]);
        sync_block();  // the owner's warps read the new row of keys and values below

        // Every warp: the softmax over its rows of the history, ROWS_AT_ONCE at a time. The largest
        // logit so far is subtracted from all.
        Row query;
        query.load(shared_query, lane);
        PartialSoftmax partial;
        partial.clear();
        const int count = m0 + t + 1;
        for (int first = first_row(rank, warp); first < count; first += ROW_STRIDE) {
            Row value[ROWS_AT_ONCE];
            float part[ROWS_AT_ONCE][1], logit[ROWS_AT_ONCE], largest = partial.largest;
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; ++i) {
                const long long start =
                    (long long)(first + i < count ? first + i : first) * PADDED_N;
                Row key;
                key.load(keys + start, lane);
                value[i].load(values + start, lane);
                part[i][0] = weight.dot(half_one_minus_tanh(query, key));
            }
            // logit = -2 v . r; afterwards every lane has all of them.
            reduce_scatter<ROWS_AT_ONCE, 16, 1, 1>(part, lane);
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; ++i) {
                const int state = first + i;
                const float sum = shuffle(part[0][0], i * (32 / ROWS_AT_ONCE));
                const bool exists = state < count &&
                                    (state >= m0 || origin0[(long long)sequence * m0 + state] >= 0);
                logit[i] = exists ? -2.f * sum : NEGATIVE_INFINITY;
                largest = fmaxf(largest, logit[i]);
            }
            if (largest == NEGATIVE_INFINITY) continue;
            partial.rescale(largest);
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; ++i) {
                const float exponential = expf(logit[i] - largest);
                partial.total += exponential;
                partial.mixed.add(exponential, value[i]);
            }
        }

        // Merge the warps' softmaxes, then the blocks': thread j has unit j. A block may be a step
        // ahead of another when it stores into it: two buffers in turn.
        float* block_partials =
            shared + SharedLayout::block_partials + (t & 1) * CLUSTER_BLOCKS * PARTIAL_FLOATS;
        float* own_partial = warp_partials + warp * PARTIAL_FLOATS;
        if (lane == 0) own_partial[0] = partial.largest, own_partial[1] = partial.total;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            float* piece = own_partial + 2 + 4 * (lane + 32 * i);
            piece[0] = partial.mixed.piece[i].x, piece[1] = partial.mixed.piece[i].y;
            piece[2] = partial.mixed.piece[i].z, piece[3] = partial.mixed.piece[i].w;
        }
        sync_block();
        float largest, total;
        if constexpr (CLUSTER_BLOCKS > 1) {
            for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
                const float mixed = merge(warp_partials, WARPS, j, largest, total);
                float* block_partial = block_partials + rank * PARTIAL_FLOATS;
                for (int to = 0; to < CLUSTER_BLOCKS; ++to) {
                    store_in_block(block_partial + 2 + j, to, mixed);
                    if (j == 0) {
                        store_in_block(block_partial, to, largest);
                        store_in_block(block_partial + 1, to, total);
                    }
                }
            }
            sync_cluster();
        }

        // s_t = h_t + c_t (or their mean), in every block.
        for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
            const float mixed = CLUSTER_BLOCKS > 1
                                    ? merge(block_partials, CLUSTER_BLOCKS, j, largest, total)
                                    : merge(warp_partials, WARPS, j, largest, total);
            shared_s[j] = MIX * (shared_h[j] + mixed / total);
            if (j < n && rank == 0) s[row * n + j] = shared_s[j];
            if (j == 0 && SAVE && rank == 0) log_sums[row] = largest + logf(total);
        }
        sync_block();
    }

    // The final cell state; zeros past the sequence's length, by the blocks in turn.
    if (GATES == 4 && rank == 0)
        for (int j = threadIdx.x; j < n; j += THREADS)
            c_T[(long long)sequence * n + j] = shared_c[j];
    for (int t = steps + rank; t < T; t += CLUSTER_BLOCKS) {
        const long long row = (long long)t * B + sequence;
        for (int j = threadIdx.x; j < n; j += THREADS) {
            h[row * n + j] = s[row * n + j] = 0.f;
            for (int r = 0; SAVE && GATES == 4 && r < 5; ++r)
                activations[(row * 5 + r) * n + j] = 0.f;
        }
        if (SAVE && threadIdx.x == 0) log_sums[row] = 0.f;
    }
    sync_cluster();  // no block ends before the others are done with its shared memory
}
