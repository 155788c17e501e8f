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
    // In shared memory: mixed, largest, total, and two that make it whole float4.
    static constexpr int SIZE = PADDED_N + 4;
    DEVICE void store(float* partial, int lane) const {
        mixed.store(partial, lane);
        if (lane == 0) partial[PADDED_N] = largest, partial[PADDED_N + 1] = total;
    }
};

// Merge `count` partial softmaxes: unit j of their mixture, with `largest` and `total` of all.
DEVICE float merge(const float* partials, int count, int j, float& largest, float& total) {
    largest = NEGATIVE_INFINITY;
    total = 0.f;
    for (int i = 0; i < count; ++i)
        largest = fmaxf(largest, partials[i * PartialSoftmax::SIZE + PADDED_N]);
    float mixed = 0.f;
    for (int i = 0; i < count; ++i) {
        const float* partial = partials + i * PartialSoftmax::SIZE;
        const float scale =
            partial[PADDED_N] == NEGATIVE_INFINITY ? 0.f : expf(partial[PADDED_N] - largest);
        total += scale * partial[PADDED_N + 1];
        mixed += scale * partial[j];
    }
    return mixed;
}

// The softmax of a query over a warp's rows of the history, ROWS_AT_ONCE at a time: `first`, every
// ROW_STRIDE rows, below `count`. The largest logit so far is subtracted from all. exists(row) is
// false of carried states that are none.
template <bool BEYOND, class Exists>
DEVICE PartialSoftmax attend(const History& history, const Row& weight, const Row& query, int first,
                             int count, int lane, const Exists& exists) {
    PartialSoftmax partial;
    partial.clear();
    RowGroup next;  // on its way while the rows before it are used
    if (first < count) next.load(history, first, lane);
    for (; first < count; first += ROW_STRIDE) {
        const RowGroup rows = next;
        if (first + ROW_STRIDE < count) next.load(history, first + ROW_STRIDE, lane);
        float part[ROWS_AT_ONCE][1], logit[ROWS_AT_ONCE], largest = partial.largest;
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; ++i)
            part[i][0] = weight.dot(half_one_minus_tanh<BEYOND>(query, rows.key[i]));
        // logit = -2 v . r; afterwards every lane has all of them.
        reduce_scatter<ROWS_AT_ONCE, 16, 1, 1>(part, lane);
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; ++i) {
            const float sum = shuffle(part[0][0], i * (32 / ROWS_AT_ONCE));
            logit[i] = first + i < count && exists(first + i) ? -2.f * sum : NEGATIVE_INFINITY;
            largest = fmaxf(largest, logit[i]);
        }
        if (largest == NEGATIVE_INFINITY) continue;
        partial.rescale(largest);
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; ++i) {
            const float exponential = expf(logit[i] - largest);
            partial.total += exponential;
            partial.mixed.add(exponential, rows.value[i]);
        }
    }
    return partial;
}

struct SharedLayout {  // offsets in floats
    static constexpr int s = 0;
    static constexpr int h = s + PADDED_N;
    static constexpr int products = h + PADDED_N;  // [V; W_a] s_{t-1}
    static constexpr int key = products + (GATES + 1) * PADDED_N;
    static constexpr int query = key + PADDED_N;
    static constexpr int c = query + PADDED_N;
    static constexpr int barriers = c + PADDED_N;
    static constexpr int outbox = barriers + TWO_BARRIERS;
    static constexpr int outbox_size = IS_CLUSTER ? PartialSoftmax::SIZE : 0;
    // (2, CLUSTER_BLOCKS, SIZE): step t + 1 is sent while step t is read
    static constexpr int block_partials = outbox + outbox_size;
    static constexpr int block_partials_size =
        IS_CLUSTER ? 2 * CLUSTER_BLOCKS * PartialSoftmax::SIZE : 0;
    // (WARPS, SIZE); the products' scratch at other times
    static constexpr int warp_partials = block_partials + block_partials_size;
    static constexpr int products_scratch =
        LARGER<ProductSizes<(GATES + 1) * PADDED_N>::scratch, ProductSizes<PADDED_N>::scratch>;
    static constexpr int scratch_size = LARGER<WARPS * PartialSoftmax::SIZE, products_scratch>;
    static constexpr int resident = warp_partials + scratch_size;
    static constexpr int size = resident + RESIDENT_FLOATS;
};
CHECK_SHARED_MEMORY(SharedLayout);

// From the host: VW_a_T (PADDED_N,(GATES+1)PADDED_N) = [V; W_a]^T and U_a_T (PADDED_N,PADDED_N) =
// U_a^T, padded with zeros, as are v, b, s0 (B,PADDED_N) and keys, values (B,rows,PADDED_N), whole
// groups of rows. keys (U_a h) and values hold the carried memory, and then zeros; the new states
// are added here. log_sums
// (T,B): the log of the sum of exp(logit), less the constant sum_j v_j in all logits. The other
// names and shapes are those of the operator attentive_forward.
KERNEL full_attention_forward(const float* xp, const float* VW_a_T, const float* U_a_T,
                              const float* v, const float* b, const float* s0, const float* c0,
                              float* keys, float* values, const long long* origin0,
                              const long long* lengths, float* h, float* s, float* c_T,
                              float* activations, float* log_sums, int n, int T, int B, int m0,
                              int rows) {
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
    float* scratch = warp_partials;
    float* outbox = shared + SharedLayout::outbox;
    const long long history_start = (long long)sequence * rows * PADDED_N;
    const History history{keys + history_start, values + history_start,
                          shared + SharedLayout::resident};
    Exchange exchange =
        exchange_at(shared + SharedLayout::barriers, 0, 4 * PartialSoftmax::SIZE * CLUSTER_BLOCKS);
    Exchange next_exchange = exchange_at(shared + SharedLayout::barriers, 1, exchange.bytes);

    // The state at the start. Every block of the cluster has all of it.
    Row weight;
    weight.load(v, lane);
    for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
        shared_s[j] = s0[sequence * PADDED_N + j];
        if (GATES == 4) shared_c[j] = j < n ? c0[(long long)sequence * n + j] : 0.f;
    }
    // The carried memory, every warp its own rows: keys as powers, and all that stay here.
    history.clear();
    sync_block();
    bool beyond = false;  // a key or query of this block has no power
    for (int first = first_row(rank, warp); first < m0; first += ROW_STRIDE)
        for (int row = first; row < first + ROWS_AT_ONCE && row < m0; ++row) {
            Row key, value;
            key.load(history.keys + (long long)row * PADDED_N, lane);
            value.load(history.values + (long long)row * PADDED_N, lane);
            beyond |= key.make_powers();
            key.store(history.key(row), lane);
            value.store(history.value(row), lane);
        }
    beyond = sync_block_or(beyond);
    const auto exists = [&](int state) {
        return state >= m0 || origin0[(long long)sequence * m0 + state] >= 0;
    };
    begin_exchanges(exchange, next_exchange);
    sync_cluster();  // before a block sends to another, that one must have begun

    for (int t = 0; t < steps; ++t) {
        const long long row = (long long)t * B + sequence;
        const bool owns_row = owner(m0 + t) == rank;

        // The cell and the query from [V; W_a] s_{t-1}: thread j has unit j. Every block computes
        // all of h_t; block 0 writes the outputs, the owner of row m0 + t the memory.
        product<PADDED_N, (GATES + 1) * PADDED_N>(VW_a_T, shared_s, products, scratch);
        bool without_power = false;
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
            const float query = prescale(products[GATES * PADDED_N + j]);
            without_power |= !has_power(query);
            shared_query[j] = as_power(query);
            if (owns_row) history.value(m0 + t)[j] = h_t;
            if (j < n && rank == 0) h[row * n + j] = h_t;
        }
        sync_block();

        // The key of h_t.
        product<PADDED_N, PADDED_N>(U_a_T, shared_h, shared_key, scratch);
        for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
            const float key = prescale(shared_key[j]);
            without_power |= !has_power(key);
            if (owns_row) history.key(m0 + t)[j] = as_power(key);
        }
        beyond |= sync_block_or(without_power);  // the owner's warps read the new row below

        // Every warp: the softmax over its rows of the history.
        Row query;
        query.load(shared_query, lane);
        const int first = first_row(rank, warp), count = m0 + t + 1;
        const PartialSoftmax partial =
            beyond ? attend<true>(history, weight, query, first, count, lane, exists)
                   : attend<false>(history, weight, query, first, count, lane, exists);

        // Merge the warps' softmaxes, then the blocks': thread j has unit j.
        partial.store(warp_partials + warp * PartialSoftmax::SIZE, lane);
        sync_block();
        float largest, total;
        float* block_partials =
            shared + SharedLayout::block_partials + (t & 1) * CLUSTER_BLOCKS * PartialSoftmax::SIZE;
        if constexpr (IS_CLUSTER) {
            float* own_place = block_partials + rank * PartialSoftmax::SIZE;
            for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
                outbox[j] = merge(warp_partials, WARPS, j, largest, total);
                if (j == 0) outbox[PADDED_N] = largest, outbox[PADDED_N + 1] = total;
                sync_warp();
                exchange.send(rank, lane, outbox + j - lane, own_place + j - lane, 32 / 4);
                if (j == lane)
                    exchange.send(rank, lane, outbox + PADDED_N, own_place + PADDED_N, 1);
            }
            receive(exchange);
            take_turns(exchange, next_exchange);
        }

        // s_t = h_t + c_t (or their mean), in every block.
        for (int j = threadIdx.x; j < PADDED_N; j += THREADS) {
            const float mixed = IS_CLUSTER
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
