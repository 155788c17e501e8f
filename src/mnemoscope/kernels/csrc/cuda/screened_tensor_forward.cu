// RelRNN and RelLSTM in bfloat16, forward: SEQUENCES sequences per cluster, products on the tensor
// cores. The mathematics is that of screened_forward.cu, but for the products: they round h_t to
// bfloat16.
//
// Sizes as in tensor.cuh; PHI (equations.cuh); REFRESH: states in R gain relevance, too; HAS_BIAS,
// HAS_LENGTHS: b and lengths are given; HAS_INPUT_BIAS: xp is without the biases b_ih and b_hh
// (GATES*n), of which b_hh may be null; SAVE: the tensors for the backward pass are written.
#include "tensor.cuh"

#include "slots_forward.cuh"  // of the columns that tensor.cuh gives to threads

using Matrix = TensorWeights<ROWS * UNITS_PER_BLOCK, PADDED_N>;

// A warp's row: SLOT_COLUMNS sums, or WARP_UNITS states as bfloat16.
constexpr int ROW_FLOATS = SLOT_COLUMNS > WARP_UNITS / 2 ? SLOT_COLUMNS : WARP_UNITS / 2;

struct SharedLayout {  // offsets in floats
    static constexpr int barriers = 0;  // of h, and of the sums of each sequence
    static constexpr int h = barriers + BARRIER_FLOATS;  // (SEQUENCES, STATE_STRIDE) in bfloat16
    static constexpr int products = h + Matrix::STATE_FLOATS;
    static constexpr int sums = products + Matrix::SUM_FLOATS;
    static constexpr int rows = sums + UNIT_SUM_FLOATS;  // (PAIR_WARPS, ROW_FLOATS)
    static constexpr int memory = rows + PAIR_WARPS * ROW_FLOATS;
    static constexpr int size = memory + FIELDS * FIELD_STRIDE;
};
CHECK_SHARED_MEMORY(SharedLayout);

// weights: [V; W_a; U_a], packed (tensor.cuh). The other names and shapes are those of the operator
// attentive_forward. Null pointers: s0 and c0 are zero,
// and the carried memory (values0, keys0, origin0, relevance0, clock0) is empty.
KERNEL screened_tensor_forward(const float* xp, const float* weights, const float* v,
                               const float* b, const float* b_ih, const float* b_hh,
                               const float* s0, const float* c0, const float* values0,
                               const float* keys0, const long long* origin0,
                               const float* relevance0, const long long* clock0,
                               const long long* lengths, float* h, float* h_T, float* s, float* c_T,
                               float* values_T, float* keys_T, long long* slots_T,
                               long long* origin_T, float* relevance_T, float* activations,
                               int* slots, float* attention, int n, int T, int B, double decay) {
    const PairPosition at = pair_position();
    const int unit = at.unit, lane = at.lane;
    const int steps = sequence_steps(at, HAS_LENGTHS ? lengths : nullptr, T, B);
    const int cluster_steps = most_steps(at.cluster, HAS_LENGTHS ? lengths : nullptr, T, B);
    const bool has_sequence = at.has_pair && at.sequence < B;
    const bool in_range = has_sequence && unit < n;
    const bool writes = in_range && at.pair_lane == 0;  // one lane of each pair
    float* shared_h = shared_memory() + SharedLayout::h;
    float* products = shared_memory() + SharedLayout::products;
    float* sums = shared_memory() + SharedLayout::sums;
    float* row = shared_memory() + SharedLayout::rows + at.warp * ROW_FLOATS;
    const SlotFields memory{shared_memory() + SharedLayout::memory};
    const SlotColumn column = slot_column(at);

    DataBarrier* barriers =
        reinterpret_cast<DataBarrier*>(shared_memory() + SharedLayout::barriers);
    Exchange states_exchange{barriers, Matrix::INPUT_BYTES};
    Exchange sums_exchange{barriers + 1 + (at.has_pair ? at.q : 0), UNIT_SUM_BYTES};
    const bool renews_sums = lane == 0 && at.warp_part == 0;
    if (threadIdx.x == 0) states_exchange.init();
    if (at.has_pair && renews_sums) sums_exchange.init();

    // The weights, into registers.
    Matrix matrix;
    matrix.load(at, weights);

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

    // The record of the slots of the warp's sequence, in its lanes.
    const bool writes_slots = has_sequence && at.rank == 0 && at.warp_part == 0 && lane < SLOTS;
    const long long first_slot = (long long)at.sequence * SLOTS;
    const SequenceSlots record{origin0, first_slot,
                               clock0 && has_sequence ? clock0[at.sequence] : 0};
    SlotTable table;
    record.load(table, relevance0, lane, has_sequence);
    sync_cluster();  // before a block stores into another, that one must have begun

    // y = [V; W_a; U_a] of the states in shared memory.
    const auto results = [&](float (&y)[ROWS]) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            y[r] = Matrix::result(at, products, r * UNITS_PER_BLOCK + at.block_unit);
    };
    // The same of states whose unit is `value`, before the first step.
    const auto project = [&](float value, float (&y)[ROWS]) {
        const float values[1] = {value};
        if (at.has_pair) Matrix::send_inputs(at, values, row, shared_h, states_exchange);
        states_exchange.wait(threadIdx.x == 0);
        matrix.times(at, shared_h, products);
        sync_block();
        if (at.has_pair) results(y);
        sync_cluster();
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
            const long long carried = first_slot + slot;
            if (in_range && origin0[carried] >= 0) {
                value = values0[carried * n + unit];
                key = prescale(keys0[carried * n + unit]);
            }
            project(value, y);
        }
        put_state(memory, column, slot, y, value, key, at.has_pair);
    }
    sync_warp();  // only the lanes of this pair touch its fields

    long long offset = first;  // of (t, sequence, unit) in a (T,B,n) tensor
    for (int t = 0; t < cluster_steps; ++t, offset += step_stride) {
        // The cell reads s_{t-1} through u. h_t goes to every block of the cluster.
        const bool active = t < steps;  // the same for all lanes of a warp
        float h_t = 0.f, part[SLOTS_PER_LANE][1] = {};
        const float query = prescale(u[QUERY]);
        int slot = -1;
        if (at.has_pair) {
            float z[4], gates[4] = {};
#pragma unroll
            for (int r = 0; r < GATES; ++r) z[r] = x[r] + input_bias[r] + u[r];
            if constexpr (GATES == 4) {
                LSTMGates unit_gates;
                float c = c_t;
                h_t = unit_gates.forward(z, c);
                c_t = active ? c : c_t;
                gates[0] = unit_gates.i, gates[1] = unit_gates.f;
                gates[2] = unit_gates.g, gates[3] = unit_gates.o;
            } else {
                h_t = phi(z[0], bias);
            }
            h_t = in_range && active ? h_t : 0.f;
            const float values[1] = {h_t};
            Matrix::send_inputs(at, values, row, shared_h, states_exchange);
            if (writes) {
                h[offset] = h_t;
                if (h_T && t == T - 1) h_T[first] = h_t;
                if (SAVE && GATES == 4) {
                    float* saved = activations + (offset - unit) * 5 + unit;
                    for (int r = 0; r < 4; ++r) saved[r * n] = active ? gates[r] : 0.f;
                    saved[4 * n] = active ? c_t : 0.f;
                }
            }
        }

        if (active) {
            // Load the next step's inputs now.
            if (in_range && t + 1 < steps)
#pragma unroll
                for (int r = 0; r < GATES; ++r)
                    x[r] = xp[(offset - unit + step_stride) * GATES + r * n + unit];

            // Relevancy screening: h_t gets a slot, and a state that leaves S may move to R. Only
            // the lanes of this pair touch its fields: a warp's barrier protects them.
            int promoted;
            slot = table.admit(lane, SLOTS + t, (float)decay, promoted);
            sync_warp();
            promote(memory, column, slot, promoted);
            sync_warp();

            // Scores of the states already there, v_j r_ij, need not wait for h_t's key.
#pragma unroll
            for (int k = 0; k < SLOTS_PER_LANE; ++k) {
                const float key = memory(KEY, at.pair_lane + LANES_PER_PAIR * k, at.pair);
                part[k][0] = weight * half_one_minus_tanh(query, key);
            }
        }

        // y = [V; W_a; U_a] h_t: the new slot's fields, and its own score.
        states_exchange.wait(threadIdx.x == 0);
        matrix.times(at, shared_h, products);
        sync_block();
        if (!at.has_pair) continue;
        float y[ROWS];
        results(y);
        const float key = prescale(y[GATES + 1]);
        const float score = weight * half_one_minus_tanh(query, key);
#pragma unroll
        for (int k = 0; k < SLOTS_PER_LANE; ++k)
            part[k][0] = at.pair_lane + LANES_PER_PAIR * k == slot ? score : part[k][0];
        send_sums(at, part, row, sums, sums_exchange);
        if (slot >= 0) put_state(memory, column, slot, y, h_t, key);

        // Softmax over the slots (lane i has slot i). Relevance grows by the attention received.
        sums_exchange.wait(renews_sums);
        const float logit = -2.f * collect_sums(at, sums);
        const bool filled = active && table.state[0] >= 0;
        const int largest = warp_max(sortable(filled ? logit : NEGATIVE_INFINITY));
        const float exponential = filled ? expf(logit - from_sortable(largest)) : 0.f;
        const float total = warp_sum(exponential);
        const float alpha = total > 0.f ? exponential * reciprocal(total) : 0.f;
        if (lane < BUFFER || REFRESH) table.relevance[0] += alpha;
        if (SAVE && writes_slots) {
            const long long saved = ((long long)t * B + at.sequence) * SLOTS + lane;
            slots[saved] = active ? table.state[0] : -1;
            attention[saved] = alpha;
        }

        // The mixtures of V h_i, W_a h_i and h_i: u = [V; W_a] s_t for the next step, and s_t.
        // The lanes of a pair share its slots.
        float mixed[GATES + 2] = {};
#pragma unroll
        for (int k = 0; k < SLOTS_PER_LANE; ++k) {
            const int mixed_slot = at.pair_lane + LANES_PER_PAIR * k;
            const float slot_alpha = shuffle(alpha, mixed_slot);
#pragma unroll
            for (int r = 0; r < GATES + 2; ++r)
                mixed[r] += slot_alpha * memory(r, mixed_slot, at.pair);
        }
#pragma unroll
        for (int r = 0; r <= GATES; ++r) u[r] = MIX * (y[r] + sum_over_pair_lanes(mixed[r]));
        const float s_t = MIX * (h_t + sum_over_pair_lanes(mixed[VALUE]));
        if (writes) s[offset] = active ? s_t : 0.f;
    }

    // The final memory.
    sync_warp();
#pragma unroll
    for (int k = 0; k < SLOTS_PER_LANE; ++k) {
        const int slot = at.pair_lane + LANES_PER_PAIR * k;
        const int state = of_slot(table.state, slot);
        if (slot >= SLOTS || !in_range) continue;
        write_final_slot(memory, column, slot, state, first_slot, n, unit, values0, keys0, values_T,
                         keys_T);
    }
    if (writes_slots) record.write(table, lane, slots_T, relevance_T, origin_T);

    // The final cell state; zeros past the longest of the cluster's sequences.
    if (GATES == 4 && writes) c_T[first] = c_t;
    for (int t = cluster_steps; t < T; ++t, offset += step_stride) {
        if (writes) {
            h[offset] = s[offset] = 0.f;
            if (SAVE && GATES == 4)
                for (int r = 0; r < 5; ++r) activations[(offset - unit) * 5 + r * n + unit] = 0.f;
        }
        if (SAVE && writes_slots) {
            slots[((long long)t * B + at.sequence) * SLOTS + lane] = -1;
            attention[((long long)t * B + at.sequence) * SLOTS + lane] = 0.f;
        }
    }
    sync_cluster();  // no block ends before the others are done with its shared memory
}
