// RelRNN and RelLSTM, backward: SEQUENCES sequences per cluster, four barriers per step. The
// mathematics is that of screened_backward.cu, which is faster where every sequence can have a
// cluster of its own at once.
//
// Sizes as in batch.cuh; PHI (equations.cuh); HAS_DH, HAS_DS, HAS_DC, HAS_LENGTHS: dh, ds, dc_T and
// lengths are given.
#include "batch.cuh"
#include "slots_backward.cuh"

// What warp q tells the pairs of sequence q about a step: which slot has its state, and how the
// slots change back to those of the step before.
struct StepSlots {
    int newest_slot, moved_to, moved_from, evicted_from, evicted;
};
constexpr int STEP_SLOTS = sizeof(StepSlots) / sizeof(int);

struct SharedLayout {  // offsets in floats
    static constexpr int barriers = 0;
    static constexpr int dy = barriers + TWO_BARRIERS;  // (ROWS, SEQUENCES, PADDED_N)
    static constexpr int sums = dy + ROWS * SEQUENCES * PADDED_N;
    static constexpr int dlogits = sums + UNIT_SUM_FLOATS;  // (SEQUENCES, SLOT_COLUMNS)
    static constexpr int alphas = dlogits + SUM_ROW;  // (2, SEQUENCES, SLOT_COLUMNS), by t % 2
    static constexpr int changes = alphas + 2 * SUM_ROW;  // (2, SEQUENCES, STEP_SLOTS), by t % 2
    static constexpr int memory = changes + 2 * SEQUENCES * STEP_SLOTS;
    static constexpr int gradients = memory + FIELDS * FIELD_STRIDE;
    static constexpr int size = gradients + FIELDS * FIELD_STRIDE;
};
CHECK_SHARED_MEMORY(SharedLayout);

// Names and shapes are those of screened_backward.cu.
KERNEL screened_batch_backward(const float* dh, const float* ds, const float* dc_T, const float* V,
                               const float* W_a, const float* U_a, const float* v,
                               const float* projected, const float* projected0,
                               const float* queries, const float* query0, const float* c0,
                               const float* values0, const long long* origin0, const float* h,
                               const float* activations, const int* slots, const float* attention,
                               const long long* lengths, float* dxp, float* dq, float* dk,
                               float* dv_rows, float* dc0, float* gathered0, int n, int T, int B) {
    const ThreadPosition pos = thread_position();
    const PairPosition at = pair_position(pos);
    const int unit = pos.unit, lane = pos.lane;
    const int steps = sequence_steps(at.sequence, HAS_LENGTHS ? lengths : nullptr, T, B);
    const int cluster_steps = most_steps(pos.sequence, HAS_LENGTHS ? lengths : nullptr, T, B);
    const bool in_range = unit < n && at.sequence < B;
    const bool writes = in_range && at.pair_lane == 0;  // one lane of each pair
    float* shared_dy = shared_memory() + SharedLayout::dy;
    float* sum_scratch = shared_memory() + SharedLayout::sums;
    float* dlogits = shared_memory() + SharedLayout::dlogits;
    float* alphas = shared_memory() + SharedLayout::alphas;
    StepSlots* changes = reinterpret_cast<StepSlots*>(shared_memory() + SharedLayout::changes);
    const SlotFields memory{shared_memory() + SharedLayout::memory};
    const SlotFields gradients{shared_memory() + SharedLayout::gradients};
    const SlotColumn column = slot_column(at);
    float* barriers = shared_memory() + SharedLayout::barriers;
    Exchange products = exchange_at(barriers, 0, ROWS * SEQUENCES * UNIT_BYTES);
    Exchange sums = exchange_at(barriers, 1, UNIT_SUM_BYTES);

    if (!queries) queries = projected + (long long)T * B * ROWS * n;

    // The weights, into registers.
    WeightColumns matrix;
#pragma unroll
    for (int r = 0; r < GATES; ++r) matrix.load(pos, r, V + (long long)r * n * n, n);
    matrix.load(pos, GATES, W_a, n);
    matrix.load(pos, GATES + 1, U_a, n);

    // No gradient past the longest of the cluster's sequences.
    const long long first = (long long)at.sequence * n + unit;
    const long long step_stride = (long long)B * n;
    for (int t = cluster_steps; t < T; ++t)
        if (writes) {
            const long long offset = first + t * step_stride;
            for (int r = 0; r < GATES; ++r) dxp[(offset - unit) * GATES + r * n + unit] = 0.f;
            dq[offset] = dk[offset] = 0.f;
        }

    const SavedStates states{projected, projected0, h, values0, at.sequence, unit, n, B, in_range};

    // The record of the slots of sequence `pos.warp`, in the lanes of this warp.
    const int table_sequence = pos.sequence * SEQUENCES + pos.warp;
    const bool has_table = pos.warp < SEQUENCES && table_sequence < B;
    const int table_steps =
        has_table ? sequence_steps(table_sequence, HAS_LENGTHS ? lengths : nullptr, T, B) : 0;
    const SavedSlots record{slots, attention, origin0, table_sequence, lane, T, B, has_table};
    const auto attention_at = [&](int t, float (&found)[1]) {
        record.attention_at(t, found, t < table_steps);
    };
    // Until its last step is reached, a sequence keeps the slots as that step left them.
    int state[1], previous_state[1];
    record.states_at(table_steps - 1, state);
    record.states_at(table_steps - 2, previous_state);
    record.check(state);
    record.check(previous_state);
    float alpha[1];
    attention_at(cluster_steps - 1, alpha);
    const auto announce = [&](int t) {
        if (pos.warp >= SEQUENCES) return;
        StepSlots told{-1, -1, -1, -1, -1};
        if (t < table_steps) {
            SlotChange change;
            told.newest_slot = slot_of(lane, state, SLOTS + t);
            change.find(lane, told.newest_slot, state, previous_state);
            told.moved_to = change.moved_to, told.moved_from = change.moved_from;
            told.evicted_from = change.evicted_from, told.evicted = change.evicted;
        }
        const int turn = t % 2;
        if (lane == 0) changes[turn * SEQUENCES + pos.warp] = told;
        if (lane < SLOT_COLUMNS) alphas[turn * SUM_ROW + pos.warp * SLOT_COLUMNS + lane] = alpha[0];
    };

    // The slots as the last step of each sequence left them.
    int* last_states = reinterpret_cast<int*>(dlogits);
    if (pos.warp < SEQUENCES && lane < SLOT_COLUMNS)
        last_states[pos.warp * SLOT_COLUMNS + lane] = lane < SLOTS ? state[0] : -1;
    if (cluster_steps) announce(cluster_steps - 1);
    sync_block();
    for (int slot = 0; slot < PADDED_SLOTS; ++slot) {
        float fields[FIELDS_PER_LANE];
        states.load(column, last_states[at.q * SLOT_COLUMNS + slot], fields);
        fill_slot(memory, gradients, column, slot, fields);
    }

    // What a step reads from device memory, one step ahead.
    const float weight = in_range ? v[unit] : 0.f;
    float next_query = 0.f, next_h = 0.f, next_dh = 0.f, next_ds = 0.f, next_c = 0.f;
    float next_gates[4] = {};
    const auto load_step = [&](int t) {
        if (!in_range || t < 0 || t >= steps) return;
        const long long offset = first + t * step_stride;
        if (t > 0)
            next_query = queries[offset - step_stride];
        else
            next_query = query0 ? query0[first] : 0.f;
        if (HAS_DH) next_dh = dh[offset];
        if (HAS_DS) next_ds = ds[offset];
        if (GATES == 1) next_h = h[offset];
        if (GATES == 4) {
            const float* saved = activations + (offset - unit) * 5 + unit;
            next_c = t > 0 ? saved[4 * n - 5 * step_stride] : (c0 ? c0[first] : 0.f);
            for (int r = 0; r < 4; ++r) next_gates[r] = saved[r * n];
        }
    };

    // Gradients of [V; W_a] s_t (0 .. GATES) and of s_t itself (the last), times MIX.
    float g[FIELDS] = {};
    float dv = 0.f, dc = GATES == 4 && HAS_DC && in_range ? dc_T[first] : 0.f;
    float c_t = 0.f;
    if (GATES == 4 && in_range && steps)
        c_t = activations[(first - unit + (steps - 1) * step_stride) * 5 + 4 * n + unit];
    load_step(cluster_steps - 1);
    begin_exchanges(products, sums);
    sync_cluster();  // before a block stores into another, that one must have begun

    for (int t = cluster_steps - 1; t >= 0; --t) {
        // What this step has loaded; load what the next one needs.
        const bool active = t < steps;
        const long long offset = first + t * step_stride;
        const StepSlots change = changes[t % 2 * SEQUENCES + at.q];
        const float* step_alphas = alphas + t % 2 * SUM_ROW + at.q * SLOT_COLUMNS;
        float evicted_fields[FIELDS_PER_LANE];
        states.load(column, change.evicted, evicted_fields);
        int earlier_state[1];
        float previous_alpha[1];
        record.states_at(t - 2, earlier_state);
        attention_at(t - 1, previous_alpha);
        if (HAS_DS) g[FIELDS - 1] = active ? MIX * next_ds : 0.f;
        const float query = prescale(next_query), dh_t = next_dh, h_t = next_h;
        const float previous_c = next_c;
        const LSTMGates gates{next_gates[0], next_gates[1], next_gates[2], next_gates[3]};
        load_step(t - 1);

        // Gradients of the weights, dalpha_i = sum_r g_r . field_r(i). A constant in all of them
        // leaves the softmax's gradient as it is: subtracting h_t's first leaves small numbers
        // where states resemble each other, and no cancellation.
        float part[PARTS][1] = {}, newest[FIELDS];
#pragma unroll
        for (int r = 0; r < FIELDS; ++r)
            newest[r] = memory(r, change.newest_slot >= 0 ? change.newest_slot : 0, at.pair);
#pragma unroll
        for (int k = 0; k < SLOTS_PER_LANE; ++k) {
            const int slot = at.pair_lane + LANES_PER_PAIR * k;
#pragma unroll
            for (int r = 0; r < FIELDS; ++r)
                if (r != KEY) part[k][0] += g[r] * (memory(r, slot, at.pair) - newest[r]);
        }
        const float dalpha = sum_over_units(pos, at, part, sum_scratch, sums);

        // Warp q: the softmax's gradient. Then it goes back to the slots of the step before.
        if (pos.warp < SEQUENCES) {
            const float dlogit = alpha[0] * (dalpha - warp_sum(alpha[0] * dalpha));
            if (lane < SLOT_COLUMNS) dlogits[pos.warp * SLOT_COLUMNS + lane] = dlogit;
            if (t > 0) {
                if (t < table_steps) {
                    record.check(earlier_state);
                    state[0] = previous_state[0];
                    previous_state[0] = earlier_state[0];
                }
                alpha[0] = previous_alpha[0];
                announce(t - 1);
            }
        }
        sync_block();

        // Through tanh(q + k_i) to the query, to v and to the slots' keys, and through the mixture
        // to the slots' other fields. The lanes of a pair share its slots.
        float dq_t = 0.f;
#pragma unroll
        for (int k = 0; k < SLOTS_PER_LANE; ++k) {
            const int slot = at.pair_lane + LANES_PER_PAIR * k;
            const float slot_alpha = step_alphas[slot];
            const float slot_dlogit = dlogits[at.q * SLOT_COLUMNS + slot];
            const float tanh_i = 1.f - 2.f * half_one_minus_tanh(query, memory(KEY, slot, at.pair));
            const float dtanh = weight * slot_dlogit;
            // tanh' = 1 - tanh^2. All dlogit sum to zero: in the query's gradient the 1 drops out,
            // and would only cost precision.
            dq_t -= dtanh * tanh_i * tanh_i;
            dv += slot_dlogit * tanh_i;
#pragma unroll
            for (int r = 0; r < FIELDS; ++r)
                gradients(r, slot, at.pair) +=
                    r == KEY ? dtanh - dtanh * tanh_i * tanh_i : slot_alpha * g[r];
        }
        dq_t = sum_over_pair_lanes(dq_t);
        sync_warp();  // the other lanes of the pair have added to the newest slot

        // The gradients of h_t's products, from later steps through its slot and from s_t itself.
        float total[FIELDS];
#pragma unroll
        for (int r = 0; r < FIELDS; ++r)
            total[r] = (change.newest_slot >= 0 ? gradients(r, change.newest_slot, at.pair) : 0.f) +
                       (r == KEY ? 0.f : g[r]);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            send_pair(pos, at, total[r], shared_dy + r * SEQUENCES * PADDED_N, products);
        // All of dy is in every block. The barriers of the next step's sum_over_units come before
        // shared_dy is written again.
        receive(products);

        // The gradient of h_t, and the cell.
        float product = 0.f;
#pragma unroll 1
        for (int q = 0; q < SEQUENCES; ++q) {
            const float found = matrix.times(pos, shared_dy + q * PADDED_N, SEQUENCES * PADDED_N);
            product = q == at.q ? found : product;
        }
        const float dh_total = dh_t * HAS_DH + product + (HAS_DS ? total[FIELDS - 1] : 0.f);
        float dz[4] = {};
        if (active) {
            if constexpr (GATES == 4) {
                gates.backward(dh_total, dc, c_t, previous_c, dz);
                c_t = previous_c;
            } else {
                dz[0] = dh_total * phi_slope(h_t);
            }
        }
        if (writes) {
#pragma unroll
            for (int r = 0; r < GATES; ++r) dxp[(offset - unit) * GATES + r * n + unit] = dz[r];
            dq[offset] = active ? dq_t : 0.f;
            dk[offset] = active ? total[KEY] : 0.f;
        }
#pragma unroll
        for (int r = 0; r < GATES; ++r) g[r] = in_range ? MIX * dz[r] : 0.f;
        g[QUERY] = active ? MIX * dq_t : 0.f;

        // The slots as they were at step t - 1. Only the lanes of this pair touch its fields.
        move_back(memory, gradients, column, change.moved_to, change.moved_from);
        if (change.evicted_from >= 0)
            fill_slot(memory, gradients, column, change.evicted_from, evicted_fields);
        sync_warp();
    }

    // v, the first cell state, and what the carried memory has received.
    dv = sum_over_pair_lanes(dv);
    if (writes) dv_rows[first] = dv;
    if (GATES == 4 && writes) dc0[first] = dc;
    for (int slot = 0; gathered0 && slot < SLOTS; ++slot) {
        const long long carried = (long long)at.sequence * SLOTS + slot;
        const bool filled = in_range && origin0 && origin0[carried] >= 0;
        float* row = gathered0 + carried * FIELDS * n + unit;
        for (int r = at.pair_lane; r < FIELDS; r += LANES_PER_PAIR)
            if (in_range) row[r * n] = filled ? gradients(r, slot, at.pair) : 0.f;
    }
    sync_cluster();  // no block ends before the others are done with its shared memory
}
