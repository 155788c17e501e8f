// RelRNN and RelLSTM (Kerg et al. 2020), forward: attention over the slots S and R. One cluster per
// sequence, two barriers per step.
//
// V s and W_a s are never multiplied out. s is a mixture of states h_i, so [V; W_a] s is the same
// mixture of [V; W_a] h_i, and each slot stores those products beside its state. A step then needs
// one product only, [V; W_a; U_a] h_t.
//
// Sizes as in attention.cuh; PHI (equations.cuh); REFRESH: states in R gain relevance, too;
// HAS_BIAS, HAS_LENGTHS: b and lengths are given; HAS_INPUT_BIAS: xp is without the biases b_ih and
// b_hh (GATES*n), of which b_hh may be null; SAVE: the tensors for the backward pass are written;
// KEEP_PRODUCTS: so are the products that it would else make again.
#include "attention.cuh"
#include "slots_forward.cuh"

struct SharedLayout {  // offsets in floats
    static constexpr int barriers = 0;
    static constexpr int h = barriers + TWO_BARRIERS;  // (PADDED_N)
    static constexpr int sums = h + PADDED_N;
    static constexpr int memory = sums + SENT_SUM_FLOATS;
    static constexpr int size = memory + FIELDS * FIELD_STRIDE;
};
CHECK_SHARED_MEMORY(SharedLayout);

// Names and shapes are those of the operator attentive_forward. Null pointers: s0 and c0 are zero,
// and the carried memory (values0, keys0, origin0, relevance0, clock0) is empty; h_T, which is a
// copy of the last h, is not wanted. products: [V; W_a; U_a] h (T,B,ROWS*n), then W_a s (T,B,n).
KERNEL screened_forward(const float* xp, const float* V, const float* W_a, const float* U_a,
                        const float* v, const float* b, const float* b_ih, const float* b_hh,
                        const float* s0, const float* c0, const float* values0, const float* keys0,
                        const long long* origin0, const float* relevance0, const long long* clock0,
                        const long long* lengths, float* h, float* h_T, float* s, float* c_T,
                        float* values_T, float* keys_T, long long* slots_T, long long* origin_T,
                        float* relevance_T, float* activations, int* slots, float* attention,
                        float* products, int n, int T, int B, double decay) {
    const ThreadPosition pos = thread_position();
    const int unit = pos.unit, lane = pos.lane;
    const int steps = HAS_LENGTHS ? clamped_length(lengths[pos.sequence], T) : T;
    const bool in_range = unit < n;
    const bool writes = in_range && pos.unit_lane == 0;  // one lane of each unit
    const bool writes_slots = pos.rank == 0 && pos.warp == 0;  // one warp
    float* shared_h = shared_memory() + SharedLayout::h;
    float* sum_scratch = shared_memory() + SharedLayout::sums;
    const SlotFields memory{shared_memory() + SharedLayout::memory};
    const SlotColumn column = slot_column(pos);
    float* barriers = shared_memory() + SharedLayout::barriers;
    Exchange states = exchange_at(barriers, 0, UNIT_BYTES);
    Exchange sums = exchange_at(barriers, 1, UNIT_SUM_BYTES);

    // The weights, into registers.
    WeightRows matrix;
#pragma unroll
    for (int r = 0; r < GATES; ++r) matrix.load(pos, r, V + (long long)r * n * n, n);
    matrix.load(pos, GATES, W_a, n);
    matrix.load(pos, GATES + 1, U_a, n);

    // The first step's inputs.
    const long long first = (long long)pos.sequence * n + unit;
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
            x[r] = xp[(long long)pos.sequence * GATES * n + r * n + unit];

    // The record of the carried memory, into lanes.
    SlotTable table;
    const long long first_slot = (long long)pos.sequence * SLOTS;
    const SequenceSlots record{origin0, first_slot, clock0 ? clock0[pos.sequence] : 0};
    record.load(table, relevance0, lane, true);
    begin_exchanges(states, sums);
    sync_cluster();  // before a block stores into another, that one must have begun

    // y = [V; W_a; U_a] of the state whose unit is `value`, by the whole cluster.
    const auto project = [&](float value, float* y) {
        send_unit(pos, value, shared_h, states);
        receive(states);
        matrix.times(pos, shared_h, y);
        sync_cluster();  // all have read it
    };

    // The state at the start, as u = [V; W_a] s_{t-1}.
    float u[GATES + 1] = {};
    if (s0) {
        float y[ROWS];
        project(in_range ? s0[first] : 0.f, y);
#pragma unroll
        for (int r = 0; r <= GATES; ++r) u[r] = y[r];
    }

    // The fields of the carried states, into shared memory. The lanes of a unit share them.
    for (int slot = 0; slot < PADDED_SLOTS; ++slot) {
        const bool filled = slot < SLOTS && of_slot(table.state, slot) >= 0;
        float y[ROWS] = {}, value = 0.f, key = 0.f;
        if (filled) {
            const long long at = (first_slot + slot) * n + unit;
            value = in_range ? values0[at] : 0.f;
            key = in_range ? prescale(keys0[at]) : 0.f;
            project(value, y);
        }
        put_state(memory, column, slot, y, value, key);
    }
    sync_warp();  // only the lanes of this unit touch its fields

    long long offset = first;  // of (t, sequence, unit) in a (T,B,n) tensor
    for (int t = 0; t < steps; ++t, offset += step_stride) {
        // The cell reads s_{t-1} through u. h_t goes to every block of the cluster.
        float z[4], gates[4];
#pragma unroll
        for (int r = 0; r < GATES; ++r) z[r] = x[r] + input_bias[r] + u[r];
        float h_t;
        if constexpr (GATES == 4) {
            LSTMGates unit_gates;
            h_t = unit_gates.forward(z, c_t);
            gates[0] = unit_gates.i, gates[1] = unit_gates.f;
            gates[2] = unit_gates.g, gates[3] = unit_gates.o;
        } else {
            h_t = phi(z[0], bias);
        }
        h_t = in_range ? h_t : 0.f;
        send_unit(pos, h_t, shared_h, states);
        const float query = prescale(u[QUERY]);

        // Load the next step's inputs now.
        if (in_range && t + 1 < steps)
#pragma unroll
            for (int r = 0; r < GATES; ++r)
                x[r] = xp[(offset - unit + step_stride) * GATES + r * n + unit];

        // Relevancy screening: h_t gets a slot, and a state that leaves S may move to R. Only the
        // lanes of this unit touch its fields: a warp's barrier protects them.
        int promoted;
        const int slot = table.admit(lane, SLOTS + t, (float)decay, promoted);
        sync_warp();
        promote(memory, column, slot, promoted);
        sync_warp();

        // Scores of the states already there, v_j r_ij, need not wait for h_t's key.
        float part[PARTS][1] = {};
#pragma unroll
        for (int k = 0; k < SLOTS_PER_LANE; ++k) {
            const float key = memory(KEY, pos.unit_lane + LANES_PER_UNIT * k, pos.block_unit);
            part[k][0] = weight * half_one_minus_tanh(query, key);
        }
        receive(states);  // h_t is in every block

        // y = [V; W_a; U_a] h_t: the new slot's own score.
        float y[ROWS];
        matrix.times(pos, shared_h, y);
        const float key = prescale(y[GATES + 1]);
        const float score = weight * half_one_minus_tanh(query, key);
#pragma unroll
        for (int k = 0; k < SLOTS_PER_LANE; ++k)
            part[k][0] = pos.unit_lane + LANES_PER_UNIT * k == slot ? score : part[k][0];

        // Logits: sums over all units. Their barriers also end every block's reads of shared_h, so
        // that the next step may store into it.
        float logit[SLOTS_OF_LANE];
        send_sums(pos, t, part, sum_scratch, sums, logit);

        // While they are on their way: the new slot's fields, and the outputs that are known.
        if (slot >= 0) put_state(memory, column, slot, y, h_t, key);
        if (writes) {
            h[offset] = h_t;
            if (SAVE && GATES == 4) {
                float* saved = activations + (offset - unit) * 5 + unit;
                for (int r = 0; r < 4; ++r) saved[r * n] = gates[r];
                saved[4 * n] = c_t;
            }
            if (KEEP_PRODUCTS)
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
                    products[(offset - unit) * ROWS + r * n + unit] = y[r];
        }
        sync_warp();  // the other lanes of the unit read the new slot's fields
        receive_sums(pos, sum_scratch, sums, logit);

        // Softmax over the slots, and the mixtures of V h_i, W_a h_i and h_i. The lanes of a unit
        // share its slots.
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i)
            logit[i] = table.state[i] >= 0 ? -2.f * logit[i] : NEGATIVE_INFINITY;
        const float largest = largest_logit(logit);
        float exponential[SLOTS_OF_LANE];
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i)
            exponential[i] = table.state[i] >= 0 ? expf(logit[i] - largest) : 0.f;
        float total = 0.f, mixed[GATES + 2] = {};
#pragma unroll
        for (int k = 0; k < SLOTS_PER_LANE; ++k) {
            const float slot_exponential = of_lane_slot(exponential, pos.unit_lane, k);
            total += slot_exponential;
#pragma unroll
            for (int r = 0; r < GATES + 2; ++r)
                mixed[r] += slot_exponential *
                            memory(r, pos.unit_lane + LANES_PER_UNIT * k, pos.block_unit);
        }
        total = sum_over_unit_lanes(total);
        const float scale = total > 0.f ? reciprocal(total) : 0.f;  // no slot at all: c = 0

        // u = [V; W_a] s_t for the next step, and s_t.
#pragma unroll
        for (int r = 0; r <= GATES; ++r)
            u[r] = MIX * (y[r] + scale * sum_over_unit_lanes(mixed[r]));
        const float s_t = MIX * (h_t + scale * sum_over_unit_lanes(mixed[VALUE]));

        // Relevance grows by the attention received.
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i) {
            const int own_slot = lane + 32 * i;
            const float alpha = exponential[i] * scale;
            if (own_slot < BUFFER || REFRESH) table.relevance[i] += alpha;
            if (SAVE && writes_slots && own_slot < SLOTS) {
                const long long row = ((long long)t * B + pos.sequence) * SLOTS + own_slot;
                slots[row] = table.state[i];
                attention[row] = alpha;
            }
        }
        if (writes) {
            s[offset] = s_t;
            if (KEEP_PRODUCTS) products[step_stride * T * ROWS + offset] = u[QUERY];
        }
    }
    if (h_T && writes) h_T[first] = h[offset - step_stride];

    // The final memory.
    sync_warp();
#pragma unroll
    for (int k = 0; k < SLOTS_PER_LANE; ++k) {
        const int slot = pos.unit_lane + LANES_PER_UNIT * k;
        const int state = of_lane_slot(table.state, pos.unit_lane, k);
        if (slot >= SLOTS || !in_range) continue;
        write_final_slot(memory, column, slot, state, first_slot, n, unit, values0, keys0, values_T,
                         keys_T);
    }
    if (writes_slots) record.write(table, lane, slots_T, relevance_T, origin_T);

    // The final cell state; zeros past the sequence's length.
    if (GATES == 4 && writes) c_T[first] = c_t;
    for (int t = steps; t < T; ++t, offset += step_stride) {
        if (writes) {
            h[offset] = s[offset] = 0.f;
            if (SAVE && GATES == 4)
                for (int r = 0; r < 5; ++r) activations[(offset - unit) * 5 + r * n + unit] = 0.f;
        }
        for (int slot = lane; SAVE && writes_slots && slot < SLOTS; slot += 32) {
            slots[((long long)t * B + pos.sequence) * SLOTS + slot] = -1;
            attention[((long long)t * B + pos.sequence) * SLOTS + slot] = 0.f;
        }
    }
    sync_cluster();  // no block ends before the others are done with its shared memory
}
