// RelRNN and RelLSTM, forward: SEQUENCES sequences per cluster, four barriers per step. The
// mathematics is that of screened_forward.cu, which is faster where every sequence can have a
// cluster of its own at once.
//
// Sizes as in batch.cuh; PHI (equations.cuh); REFRESH: states in R gain relevance, too; HAS_BIAS,
// HAS_LENGTHS: b and lengths are given; HAS_INPUT_BIAS: xp is without the biases b_ih and b_hh
// (GATES*n), of which b_hh may be null; SAVE: the tensors for the backward pass are written;
// KEEP_PRODUCTS: so are the products that it would else make again.
#include "batch.cuh"
#include "slots_forward.cuh"

struct SharedLayout {  // offsets in floats
    static constexpr int barriers = 0;
    static constexpr int h = barriers + TWO_BARRIERS;  // (SEQUENCES, PADDED_N)
    static constexpr int sums = h + SEQUENCES * PADDED_N;
    static constexpr int alphas = sums + UNIT_SUM_FLOATS;  // (SEQUENCES, SLOT_COLUMNS)
    static constexpr int admitted = alphas + SUM_ROW;  // (SEQUENCES, 2) integers
    static constexpr int memory = admitted + 2 * SEQUENCES;
    static constexpr int size = memory + FIELDS * FIELD_STRIDE;
};
CHECK_SHARED_MEMORY(SharedLayout);

// Names and shapes are those of the operator attentive_forward. Null pointers: s0 and c0 are zero,
// and the carried memory (values0, keys0, origin0, relevance0, clock0) is empty; h_T, which is a
// copy of the last h, is not wanted. products: as in screened_forward.cu.
KERNEL screened_batch_forward(const float* xp, const float* V, const float* W_a, const float* U_a,
                              const float* v, const float* b, const float* b_ih, const float* b_hh,
                              const float* s0, const float* c0, const float* values0,
                              const float* keys0, const long long* origin0, const float* relevance0,
                              const long long* clock0, const long long* lengths, float* h,
                              float* h_T, float* s, float* c_T, float* values_T, float* keys_T,
                              long long* slots_T, long long* origin_T, float* relevance_T,
                              float* activations, int* slots, float* attention, float* products,
                              int n, int T, int B, double decay) {
    const ThreadPosition pos = thread_position();
    const PairPosition at = pair_position(pos);
    const int unit = pos.unit, lane = pos.lane;
    const int steps = sequence_steps(at.sequence, HAS_LENGTHS ? lengths : nullptr, T, B);
    const int cluster_steps = most_steps(pos.sequence, HAS_LENGTHS ? lengths : nullptr, T, B);
    const bool in_range = unit < n && at.sequence < B;
    const bool writes = in_range && at.pair_lane == 0;  // one lane of each pair
    float* shared_h = shared_memory() + SharedLayout::h;
    float* sum_scratch = shared_memory() + SharedLayout::sums;
    float* alphas = shared_memory() + SharedLayout::alphas;
    int* admitted = reinterpret_cast<int*>(shared_memory() + SharedLayout::admitted);
    const SlotFields memory{shared_memory() + SharedLayout::memory};
    const SlotColumn column = slot_column(at);
    float* barriers = shared_memory() + SharedLayout::barriers;
    Exchange states = exchange_at(barriers, 0, SEQUENCES * UNIT_BYTES);
    Exchange sums = exchange_at(barriers, 1, UNIT_SUM_BYTES);

    // The weights, into registers.
    WeightRows matrix;
#pragma unroll
    for (int r = 0; r < GATES; ++r) matrix.load(pos, r, V + (long long)r * n * n, n);
    matrix.load(pos, GATES, W_a, n);
    matrix.load(pos, GATES + 1, U_a, n);

    // The first step's inputs.
    const long long first = (long long)at.sequence * n + unit;
    const long long step_stride = (long long)B * n;
    const float weight = in_range ? v[unit] : 0.f;
    const float bias = HAS_BIAS && in_range ? b[unit] : 0.f;
    float c_t = GATES == 4 && in_range && c0 ? c0[first] : 0.f;
    float x[GATES] = {}, input_bias[GATES] = {};
    if (HAS_INPUT_BIAS && in_range)
#pragma unroll
        for (int r = 0; r < GATES; ++r)
            input_bias[r] = b_ih[r * n + unit] + (b_hh ? b_hh[r * n + unit] : 0.f);
    if (in_range && steps)
#pragma unroll
        for (int r = 0; r < GATES; ++r)
            x[r] = xp[(long long)at.sequence * GATES * n + r * n + unit];

    // The record of the slots of sequence `pos.warp`, in the lanes of this warp.
    const int table_sequence = pos.sequence * SEQUENCES + pos.warp;
    const bool has_table = pos.warp < SEQUENCES && table_sequence < B;
    const int table_steps =
        has_table ? sequence_steps(table_sequence, HAS_LENGTHS ? lengths : nullptr, T, B) : 0;
    const bool writes_slots = has_table && pos.rank == 0 && lane < SLOTS;
    const SequenceSlots record{origin0, (long long)table_sequence * SLOTS,
                               clock0 && has_table ? clock0[table_sequence] : 0};
    SlotTable table;
    record.load(table, relevance0, lane, has_table);
    begin_exchanges(states, sums);
    sync_cluster();  // before a block stores into another, that one must have begun

    // y = [V; W_a; U_a] of the state whose unit is `value`, by the whole cluster.
    const auto product = [&](float* y) {
#pragma unroll 1
        for (int q = 0; q < SEQUENCES; ++q) {
            float found[ROWS];
            matrix.times(pos, shared_h + q * PADDED_N, found);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) y[r] = q == at.q ? found[r] : y[r];
        }
    };
    const auto project = [&](float value, float* y) {
        send_pair(pos, at, value, shared_h, states);
        receive(states);
        product(y);
        sync_cluster();  // all have read it
    };

    // The state at the start, as u = [V; W_a] s_{t-1}.
    float u[GATES + 1] = {};
    if (s0) {
        float y[ROWS] = {};
        project(in_range ? s0[first] : 0.f, y);
#pragma unroll
        for (int r = 0; r <= GATES; ++r) u[r] = y[r];
    }

    // The fields of the carried states, into shared memory. The lanes of a pair share them.
    for (int slot = 0; slot < PADDED_SLOTS; ++slot) {
        float y[ROWS] = {}, value = 0.f, key = 0.f;
        if (origin0 && slot < SLOTS) {
            const long long row = (long long)at.sequence * SLOTS + slot;
            if (in_range && origin0[row] >= 0) {
                value = values0[row * n + unit];
                key = prescale(keys0[row * n + unit]);
            }
            project(value, y);
        }
        put_state(memory, column, slot, y, value, key);
    }

    // Relevancy screening of step t: its state gets a slot, and a state that leaves S may move to
    // R. The pairs of the sequence read the two slots after the next barrier.
    const auto admit = [&](int t) {
        int promoted = -1, slot = -1;
        if (t < table_steps) slot = table.admit(lane, SLOTS + t, (float)decay, promoted);
        if (pos.warp < SEQUENCES && lane == 0)
            admitted[2 * pos.warp] = slot, admitted[2 * pos.warp + 1] = promoted;
    };
    admit(0);
    sync_block();

    long long offset = first;  // of (t, sequence, unit) in a (T,B,n) tensor
    for (int t = 0; t < cluster_steps; ++t, offset += step_stride) {
        // The cell reads s_{t-1} through u. h_t goes to every block of the cluster.
        const bool active = t < steps;
        float z[4], gates[4] = {};
#pragma unroll
        for (int r = 0; r < GATES; ++r) z[r] = x[r] + input_bias[r] + u[r];
        float h_t = 0.f;
        if (active && in_range) {
            if constexpr (GATES == 4) {
                LSTMGates unit_gates;
                h_t = unit_gates.forward(z, c_t);
                gates[0] = unit_gates.i, gates[1] = unit_gates.f;
                gates[2] = unit_gates.g, gates[3] = unit_gates.o;
            } else {
                h_t = phi(z[0], bias);
            }
        }
        sync_warp();
        send_pair(pos, at, h_t, shared_h, states);
        const float query = prescale(u[QUERY]);

        // Load the next step's inputs now.
        if (in_range && t + 1 < steps)
#pragma unroll
            for (int r = 0; r < GATES; ++r)
                x[r] = xp[(offset - unit + step_stride) * GATES + r * n + unit];

        // The state that leaves S may move to R. Only the lanes of this pair touch its fields: a
        // warp's barrier protects them.
        const int slot = admitted[2 * at.q], promoted = admitted[2 * at.q + 1];
        sync_warp();
        promote(memory, column, slot, promoted);
        receive(states);  // h_t is in every block
        // Outputs go to device memory after the barrier, which would otherwise wait for them.
        if (writes) {
            h[offset] = h_t;
            if (SAVE && GATES == 4) {
                float* saved = activations + (offset - unit) * 5 + unit;
                for (int r = 0; r < 4; ++r) saved[r * n] = gates[r];
                saved[4 * n] = active ? c_t : 0.f;
            }
        }

        // y = [V; W_a; U_a] h_t: the new slot's fields.
        float y[ROWS] = {};
        product(y);
        const float key = prescale(y[GATES + 1]);
        if (slot >= 0) put_state(memory, column, slot, y, h_t, key);
        sync_warp();

        // Scores v_j r_ij, and logits: sums over all units. The barriers of the sum also end every
        // block's reads of shared_h, so that the next step may store into it.
        float part[PARTS][1] = {};
#pragma unroll
        for (int k = 0; k < SLOTS_PER_LANE; ++k)
            part[k][0] =
                weight *
                half_one_minus_tanh(query, memory(KEY, at.pair_lane + LANES_PER_PAIR * k, at.pair));
        const float logit = -2.f * sum_over_units(pos, at, part, sum_scratch, sums);

        // Warp q: the softmax over the slots of sequence q (lane i has slot i). Relevance grows by
        // the attention received. Then the next step's state gets its slot.
        if (pos.warp < SEQUENCES) {
            const bool filled = t < table_steps && table.state[0] >= 0;
            const int largest = warp_max(sortable(filled ? logit : NEGATIVE_INFINITY));
            const float exponential = filled ? expf(logit - from_sortable(largest)) : 0.f;
            const float total = warp_sum(exponential);
            const float alpha = total > 0.f ? exponential * reciprocal(total) : 0.f;
            if (lane < SLOT_COLUMNS) alphas[pos.warp * SLOT_COLUMNS + lane] = alpha;
            if (lane < BUFFER || REFRESH) table.relevance[0] += alpha;
            if (SAVE && writes_slots) {
                const long long row = ((long long)t * B + table_sequence) * SLOTS + lane;
                slots[row] = t < table_steps ? table.state[0] : -1;
                attention[row] = alpha;
            }
            admit(t + 1);
        }
        sync_block();

        // The mixtures of V h_i, W_a h_i and h_i: u = [V; W_a] s_t for the next step, and s_t.
        // The lanes of a pair share its slots.
        float mixed[GATES + 2] = {};
#pragma unroll
        for (int k = 0; k < SLOTS_PER_LANE; ++k) {
            const int mixed_slot = at.pair_lane + LANES_PER_PAIR * k;
            const float alpha = alphas[at.q * SLOT_COLUMNS + mixed_slot];
#pragma unroll
            for (int r = 0; r < GATES + 2; ++r) mixed[r] += alpha * memory(r, mixed_slot, at.pair);
        }
#pragma unroll
        for (int r = 0; r <= GATES; ++r) u[r] = MIX * (y[r] + sum_over_pair_lanes(mixed[r]));
        const float s_t = MIX * (h_t + sum_over_pair_lanes(mixed[VALUE]));
        if (writes) {
            s[offset] = active ? s_t : 0.f;
            if (KEEP_PRODUCTS) {
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
                    products[(offset - unit) * ROWS + r * n + unit] = y[r];
                products[step_stride * T * ROWS + offset] = u[QUERY];
            }
        }
    }
    if (h_T && writes) h_T[first] = h[offset - step_stride];

    // The final memory. Warp q writes the record of sequence q, and tells its pairs which state is
    // in which slot.
    sync_block();
    int* final_states = reinterpret_cast<int*>(alphas);  // (SEQUENCES, SLOT_COLUMNS)
    if (pos.warp < SEQUENCES && lane < SLOT_COLUMNS)
        final_states[pos.warp * SLOT_COLUMNS + lane] = lane < SLOTS ? table.state[0] : -1;
    if (writes_slots) record.write(table, lane, slots_T, relevance_T, origin_T);
    sync_block();
    for (int slot = at.pair_lane; in_range && slot < SLOTS; slot += LANES_PER_PAIR) {
        const int state = final_states[at.q * SLOT_COLUMNS + slot];
        const long long row = (long long)at.sequence * SLOTS;
        const long long source = (row + (state < 0 ? slot : state)) * n + unit;
        if (state >= SLOTS) {
            values_T[(row + slot) * n + unit] = memory(VALUE, slot, at.pair);
            keys_T[(row + slot) * n + unit] = undo_prescale(memory(KEY, slot, at.pair));
        } else {
            values_T[(row + slot) * n + unit] = values0 ? values0[source] : 0.f;
            keys_T[(row + slot) * n + unit] = keys0 ? keys0[source] : 0.f;
        }
    }

    // The final cell state; zeros past the longest of the cluster's sequences.
    if (GATES == 4 && writes) c_T[first] = c_t;
    for (int t = cluster_steps; t < T; ++t, offset += step_stride) {
        if (writes) {
            h[offset] = s[offset] = 0.f;
            if (SAVE && GATES == 4)
                for (int r = 0; r < 5; ++r) activations[(offset - unit) * 5 + r * n + unit] = 0.f;
        }
        if (SAVE && writes_slots) {
            slots[((long long)t * B + table_sequence) * SLOTS + lane] = -1;
            attention[((long long)t * B + table_sequence) * SLOTS + lane] = 0.f;
        }
    }
    sync_cluster();  // no block ends before the others are done with its shared memory
}
