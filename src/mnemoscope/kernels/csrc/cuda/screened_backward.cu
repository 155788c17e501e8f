// RelRNN and RelLSTM, backward: the slots are taken back in time. One cluster per sequence, two
// barriers per step.
//
// Gradients are gathered before the matrices, as the forward pass mixes states after them: each
// slot sums the gradients of its state's products [V; W_a; U_a] h_i, and one transposed product at
// step i turns them into the gradient of h_i.
//
// Sizes as in attention.cuh; PHI (equations.cuh); HAS_DH, HAS_DS, HAS_DC, HAS_LENGTHS: dh, ds, dc_T
// and lengths are given.
#include "attention.cuh"
#include "slots_backward.cuh"

struct SharedLayout {  // offsets in floats
    static constexpr int barriers = 0;
    static constexpr int outbox = barriers + TWO_BARRIERS;
    static constexpr int dy = outbox + OUTBOX_FLOATS;  // (ROWS, PADDED_N)
    static constexpr int sums = dy + ROWS * PADDED_N;
    static constexpr int memory = sums + SENT_SUM_FLOATS;
    static constexpr int gradients = memory + FIELDS * FIELD_STRIDE;
    static constexpr int size = gradients + FIELDS * FIELD_STRIDE;
};
CHECK_SHARED_MEMORY(SharedLayout);

// From the host: projected (T,B,ROWS*n) = [V; W_a; U_a] h, queries (T-1,B,n) = W_a s_t, query0
// (B,n) = W_a s0, and projected0 (B,m0,ROWS*n) = [V; W_a] values0 followed by keys0. gathered0
// (B,m0,FIELDS*n) are the gradients of projected0 (and of values0); dv_rows (B,n). The other names
// and shapes are those of the operator attentive_backward. Null pointers: query0 and c0 are zero,
// the carried memory (projected0, values0, origin0, gathered0) is empty, and queries lie behind
// projected, as the forward pass kept them.
KERNEL screened_backward(const float* dh, const float* ds, const float* dc_T, const float* V,
                         const float* W_a, const float* U_a, const float* v, const float* projected,
                         const float* projected0, const float* queries, const float* query0,
                         const float* c0, const float* values0, const long long* origin0,
                         const float* h, const float* activations, const int* slots,
                         const float* attention, const long long* lengths, float* dxp, float* dq,
                         float* dk, float* dv_rows, float* dc0, float* gathered0, int n, int T,
                         int B) {
    const ThreadPosition pos = thread_position();
    const int unit = pos.unit, lane = pos.lane;
    const int steps = HAS_LENGTHS ? clamped_length(lengths[pos.sequence], T) : T;
    const bool in_range = unit < n;
    const bool writes = in_range && pos.unit_lane == 0;  // one lane of each unit
    float* shared_dy = shared_memory() + SharedLayout::dy;
    float* sum_scratch = shared_memory() + SharedLayout::sums;
    const SlotFields memory{shared_memory() + SharedLayout::memory};
    const SlotFields gradients{shared_memory() + SharedLayout::gradients};
    const SlotColumn column = slot_column(pos);
    float* outbox = shared_memory() + SharedLayout::outbox;
    float* barriers = shared_memory() + SharedLayout::barriers;
    Exchange products = exchange_at(barriers, 0, ROWS * UNIT_BYTES);
    Exchange sums = exchange_at(barriers, 1, UNIT_SUM_BYTES);

    if (!queries) queries = projected + (long long)T * B * ROWS * n;

    // The weights, into registers.
    WeightColumns matrix;
#pragma unroll
    for (int r = 0; r < GATES; ++r) matrix.load(pos, r, V + (long long)r * n * n, n);
    matrix.load(pos, GATES, W_a, n);
    matrix.load(pos, GATES + 1, U_a, n);

    // No gradient past the sequence's length.
    const long long first = (long long)pos.sequence * n + unit;
    const long long step_stride = (long long)B * n;
    for (int t = steps; t < T; ++t)
        if (writes) {
            const long long offset = first + t * step_stride;
            for (int r = 0; r < GATES; ++r) dxp[(offset - unit) * GATES + r * n + unit] = 0.f;
            dq[offset] = dk[offset] = 0.f;
        }

    const SavedStates states{projected, projected0, h, values0, pos.sequence, unit, n, B, in_range};
    const SavedSlots record{slots, attention, origin0, pos.sequence, lane, T, B, true};
    const auto load_state = [&](int state, float (&fields)[FIELDS_PER_LANE]) {
        states.load(column, state, fields);
    };

    // The slots as the last step left them.
    int state[SLOTS_OF_LANE], previous_state[SLOTS_OF_LANE];
    record.states_at(steps - 1, state);
    record.states_at(steps - 2, previous_state);
    record.check(state);
    record.check(previous_state);
    for (int slot = 0; slot < PADDED_SLOTS; ++slot) {
        float fields[FIELDS_PER_LANE];
        load_state(slot < SLOTS ? of_slot(state, slot) : -1, fields);
        fill_slot(memory, gradients, column, slot, fields);
    }

    // What a step reads from device memory, one step ahead.
    const float weight = in_range ? v[unit] : 0.f;
    float next_query = 0.f, next_h = 0.f, next_dh = 0.f, next_ds = 0.f, next_c = 0.f;
    float next_gates[4] = {};
    const auto load_step = [&](int t) {
        if (!in_range || t < 0) return;
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
    load_step(steps - 1);
    float alpha[SLOTS_OF_LANE];
    record.attention_at(steps - 1, alpha);
    begin_exchanges(products, sums);
    sync_cluster();  // before a block stores into another, that one must have begun

    for (int t = steps - 1; t >= 0; --t) {
        const long long offset = first + t * step_stride;
        const int newest_slot = slot_of(lane, state, SLOTS + t);
        if (HAS_DS) g[FIELDS - 1] = MIX * next_ds;

        // What this step has loaded, and loads for the next one: in a cluster, while sums are on
        // their way. A single block waits little; there, loads need the whole step.
        SlotChange change;
        float evicted_fields[FIELDS_PER_LANE];
        int earlier_state[SLOTS_OF_LANE];
        float previous_alpha[SLOTS_OF_LANE], query = 0.f, dh_t = 0.f, h_t = 0.f, previous_c = 0.f;
        LSTMGates gates{};
        const auto load_ahead = [&] {
            change.find(lane, newest_slot, state, previous_state);
            load_state(change.evicted, evicted_fields);
            record.states_at(t - 2, earlier_state);
            record.attention_at(t - 1, previous_alpha);
            query = prescale(next_query), dh_t = next_dh, h_t = next_h, previous_c = next_c;
            gates = {next_gates[0], next_gates[1], next_gates[2], next_gates[3]};
            load_step(t - 1);
        };
        if (!IS_CLUSTER) load_ahead();

        // Gradients of the weights, dalpha_i = sum_r g_r . field_r(i). A constant in all of them
        // leaves the softmax's gradient as it is: subtracting h_t's first leaves small numbers
        // where states resemble each other, and no cancellation.
        float part[PARTS][1] = {}, newest[FIELDS];
#pragma unroll
        for (int r = 0; r < FIELDS; ++r)
            newest[r] = memory(r, newest_slot >= 0 ? newest_slot : 0, pos.block_unit);
#pragma unroll
        for (int k = 0; k < SLOTS_PER_LANE; ++k) {
            const int slot = pos.unit_lane + LANES_PER_UNIT * k;
#pragma unroll
            for (int r = 0; r < FIELDS; ++r)
                if (r != KEY) part[k][0] += g[r] * (memory(r, slot, pos.block_unit) - newest[r]);
        }
        float dalpha[SLOTS_OF_LANE];
        send_sums(pos, t, part, sum_scratch, sums, dalpha);
        if (IS_CLUSTER) load_ahead();

        // tanh(q + k_i) of the lane's slots, and what h_t's products have received from later steps
        // through its slot.
        float tanhs[SLOTS_PER_LANE], total[FIELDS];
#pragma unroll
        for (int k = 0; k < SLOTS_PER_LANE; ++k) {
            const int slot = pos.unit_lane + LANES_PER_UNIT * k;
            tanhs[k] = 1.f - 2.f * half_one_minus_tanh(query, memory(KEY, slot, pos.block_unit));
        }
        const float newest_tanh = 1.f - 2.f * half_one_minus_tanh(query, newest[KEY]);
#pragma unroll
        for (int r = 0; r < FIELDS; ++r)
            total[r] = newest_slot >= 0 ? gradients(r, newest_slot, pos.block_unit) : 0.f;
        receive_sums(pos, sum_scratch, sums, dalpha);
        float dlogit[SLOTS_OF_LANE], mean = 0.f;
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i) mean += alpha[i] * dalpha[i];
        mean = warp_sum(mean);
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i) dlogit[i] = alpha[i] * (dalpha[i] - mean);

        // And at step t: through tanh(q + k), through the mixture, and from s_t itself. All
        // of dy goes to every block. The barriers of the next step's sums come before shared_dy is
        // written again.
        if (newest_slot >= 0) {
            const float dtanh = weight * of_slot(dlogit, newest_slot);
            total[KEY] += dtanh - dtanh * newest_tanh * newest_tanh;
        }
        const float newest_alpha = newest_slot >= 0 ? of_slot(alpha, newest_slot) : 0.f;
#pragma unroll
        for (int r = 0; r < FIELDS; ++r)
            if (r != KEY) total[r] += newest_alpha * g[r] + g[r];
        send_unit_rows(pos, total, outbox, shared_dy, products);
        sync_warp();  // the other lanes of the unit have read what the newest slot had

        // While it is on its way: the gradients of all slots, of the query and of v. The lanes of a
        // unit share its slots.
        float dq_t = 0.f;
#pragma unroll
        for (int k = 0; k < SLOTS_PER_LANE; ++k) {
            const int slot = pos.unit_lane + LANES_PER_UNIT * k;
            const float slot_alpha = of_lane_slot(alpha, pos.unit_lane, k);
            const float slot_dlogit = of_lane_slot(dlogit, pos.unit_lane, k);
            const float tanh_i = tanhs[k];
            const float dtanh = weight * slot_dlogit;
            // tanh' = 1 - tanh^2. All dlogit sum to zero: in the query's gradient the 1 drops out,
            // and would only cost precision.
            dq_t -= dtanh * tanh_i * tanh_i;
            dv += slot_dlogit * tanh_i;
#pragma unroll
            for (int r = 0; r < FIELDS; ++r)
                gradients(r, slot, pos.block_unit) +=
                    r == KEY ? dtanh - dtanh * tanh_i * tanh_i : slot_alpha * g[r];
        }
        dq_t = sum_over_unit_lanes(dq_t);
        if (writes) {
            dq[offset] = dq_t;
            dk[offset] = total[KEY];
        }

        // The slots as they were at step t - 1. Only the lanes of this unit touch its fields.
        const auto move_slots_back = [&] {
            sync_warp();  // the other lanes of the unit have added to their slots
            move_back(memory, gradients, column, change.moved_to, change.moved_from);
            if (change.evicted_from >= 0)
                fill_slot(memory, gradients, column, change.evicted_from, evicted_fields);
            sync_warp();
        };
        if (IS_CLUSTER) move_slots_back();
        receive(products);

        // The gradient of h_t, and the cell.
        const float dh_total =
            dh_t * HAS_DH + matrix.times(pos, shared_dy) + (HAS_DS ? total[FIELDS - 1] : 0.f);
        float dz[4];
        if constexpr (GATES == 4) {
            gates.backward(dh_total, dc, c_t, previous_c, dz);
            c_t = previous_c;
        } else {
            dz[0] = dh_total * phi_slope(h_t);
        }
        if (writes)
#pragma unroll
            for (int r = 0; r < GATES; ++r) dxp[(offset - unit) * GATES + r * n + unit] = dz[r];
#pragma unroll
        for (int r = 0; r < GATES; ++r) g[r] = in_range ? MIX * dz[r] : 0.f;
        g[QUERY] = MIX * dq_t;

        if (!IS_CLUSTER) move_slots_back();
        record.check(earlier_state);
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i) {
            state[i] = previous_state[i];
            previous_state[i] = earlier_state[i];
            alpha[i] = previous_alpha[i];
        }
    }

    // v, the first cell state, and what the carried memory has received.
    dv = sum_over_unit_lanes(dv);
    if (writes) dv_rows[first] = dv;
    if (GATES == 4 && writes) dc0[first] = dc;
    for (int slot = 0; gathered0 && slot < SLOTS; ++slot) {
        const bool filled = of_slot(state, slot) >= 0;
        float* row = gathered0 + ((long long)pos.sequence * SLOTS + slot) * FIELDS * n + unit;
        for (int r = pos.unit_lane; r < FIELDS; r += LANES_PER_UNIT)
            if (in_range) row[r * n] = filled ? gradients(r, slot, pos.block_unit) : 0.f;
    }
    sync_cluster();  // no block ends before the others are done with its shared memory
}
