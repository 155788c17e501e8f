// RelRNN and RelLSTM in bfloat16, backward: SEQUENCES sequences per cluster, products on the tensor
// cores. The mathematics is that of screened_backward.cu, but for the products: they round the
// gradients of h_t's products to bfloat16.
//
// Sizes as in tensor.cuh; PHI (equations.cuh); HAS_DH, HAS_DS, HAS_DC, HAS_LENGTHS: dh, ds, dc_T
// and lengths are given.
#include "tensor.cuh"

#include "slots_backward.cuh"  // of the columns that tensor.cuh gives to threads

using Matrix = TensorWeights<UNITS_PER_BLOCK, ROWS * PADDED_N>;

// A warp's row: SLOT_COLUMNS sums, or ROWS * WARP_UNITS gradients as bfloat16.
constexpr int GRADIENT_FLOATS = ROWS * WARP_UNITS / 2;
constexpr int ROW_FLOATS = SLOT_COLUMNS > GRADIENT_FLOATS ? SLOT_COLUMNS : GRADIENT_FLOATS;

struct SharedLayout {  // offsets in floats
    static constexpr int barriers = 0;  // of dy, and of the sums of each sequence
    static constexpr int dy = barriers + BARRIER_FLOATS;  // (SEQUENCES, STATE_STRIDE) in bfloat16
    static constexpr int products = dy + Matrix::STATE_FLOATS;
    static constexpr int sums = products + Matrix::SUM_FLOATS;
    static constexpr int rows = sums + UNIT_SUM_FLOATS;  // (PAIR_WARPS, ROW_FLOATS)
    static constexpr int memory = rows + PAIR_WARPS * ROW_FLOATS;
    static constexpr int gradients = memory + FIELDS * FIELD_STRIDE;
    static constexpr int size = gradients + FIELDS * FIELD_STRIDE;
};
CHECK_SHARED_MEMORY(SharedLayout);

// weights: [V; W_a; U_a], packed (tensor.cuh). The other names and shapes are those of
// screened_backward.cu.
KERNEL screened_tensor_backward(const float* dh, const float* ds, const float* dc_T,
                                const float* weights, const float* v, const float* projected,
                                const float* projected0, const float* queries, const float* query0,
                                const float* c0, const float* values0, const long long* origin0,
                                const float* h, const float* activations, const int* slots,
                                const float* attention, const long long* lengths, float* dxp,
                                float* dq, float* dk, float* dv_rows, float* dc0, float* gathered0,
                                int n, int T, int B) {
    const PairPosition at = pair_position();
    const int unit = at.unit, lane = at.lane;
    const int steps = sequence_steps(at, HAS_LENGTHS ? lengths : nullptr, T, B);
    const int cluster_steps = most_steps(at.cluster, HAS_LENGTHS ? lengths : nullptr, T, B);
    const bool has_sequence = at.has_pair && at.sequence < B;
    const bool in_range = has_sequence && unit < n;
    const bool writes = in_range && at.pair_lane == 0;  // one lane of each pair
    float* shared_dy = shared_memory() + SharedLayout::dy;
    float* products = shared_memory() + SharedLayout::products;
    float* sums = shared_memory() + SharedLayout::sums;
    float* row = shared_memory() + SharedLayout::rows + at.warp * ROW_FLOATS;
    const SlotFields memory{shared_memory() + SharedLayout::memory};
    const SlotFields gradients{shared_memory() + SharedLayout::gradients};
    const SlotColumn column = slot_column(at);

    DataBarrier* barriers =
        reinterpret_cast<DataBarrier*>(shared_memory() + SharedLayout::barriers);
    Exchange dy_exchange{barriers, Matrix::INPUT_BYTES};
    Exchange sums_exchange{barriers + 1 + (at.has_pair ? at.q : 0), UNIT_SUM_BYTES};
    const bool renews_sums = lane == 0 && at.warp_part == 0;
    if (threadIdx.x == 0) dy_exchange.init();
    if (at.has_pair && renews_sums) sums_exchange.init();

    // The weights, transposed, into registers.
    Matrix matrix;
    matrix.load(at, weights);

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
    const SavedSlots record{slots, attention, origin0, at.sequence, lane, T, B, has_sequence};

    // The slots as the last step left them.
    int state[1], previous_state[1];
    record.states_at(steps - 1, state);
    record.states_at(steps - 2, previous_state);
    record.check(state);
    record.check(previous_state);
    if (at.has_pair)
        for (int slot = 0; slot < PADDED_SLOTS; ++slot) {
            float fields[FIELDS_PER_LANE];
            states.load(column, slot < SLOTS ? of_slot(state, slot) : -1, fields);
            fill_slot(memory, gradients, column, slot, fields);
        }
    sync_warp();  // only the lanes of this pair touch its fields

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
    load_step(steps == cluster_steps ? steps - 1 : -1);
    float alpha[1];
    record.attention_at(steps - 1, alpha, steps == cluster_steps);
    sync_cluster();  // before a block stores into another, that one must have begun

    for (int t = cluster_steps - 1; t >= 0; --t) {
        const bool active = t < steps;  // the same for all lanes of a warp
        const long long offset = first + t * step_stride;
        float dq_t = 0.f, total[FIELDS] = {};
        const float dh_t = next_dh, h_t = next_h, previous_c = next_c;
        const LSTMGates gates{next_gates[0], next_gates[1], next_gates[2], next_gates[3]};
        if (at.has_pair) {
            SlotChange change;
            int newest_slot = -1;
            if (active) {
                newest_slot = slot_of(lane, state, SLOTS + t);
                change.find(lane, newest_slot, state, previous_state);
            }
            if (HAS_DS) g[FIELDS - 1] = active ? MIX * next_ds : 0.f;
            const float query = prescale(next_query);

            // Gradients of the weights, dalpha_i = sum_r g_r . field_r(i). A constant in all of
            // them leaves the softmax's gradient as it is: subtracting h_t's first leaves small
            // numbers where states resemble each other, and no cancellation.
            float part[SLOTS_PER_LANE][1], newest[FIELDS];
#pragma unroll
            for (int r = 0; r < FIELDS; ++r)
                newest[r] = memory(r, newest_slot >= 0 ? newest_slot : 0, at.pair);
#pragma unroll
            for (int k = 0; k < SLOTS_PER_LANE; ++k) {
                const int slot = at.pair_lane + LANES_PER_PAIR * k;
                part[k][0] = 0.f;
#pragma unroll
                for (int r = 0; r < FIELDS; ++r)
                    if (r != KEY) part[k][0] += g[r] * (memory(r, slot, at.pair) - newest[r]);
            }
            send_sums(at, part, row, sums, sums_exchange);

            // While the sums are under way: what needs none of them, and the next step's loads.
            float evicted_fields[FIELDS_PER_LANE], tanhs[SLOTS_PER_LANE];
            states.load(column, change.evicted, evicted_fields);
            int earlier_state[1];
            float previous_alpha[1];
            record.states_at(t - 2, earlier_state);
            record.attention_at(t - 1, previous_alpha);
            if (t <= steps) load_step(t - 1);
#pragma unroll
            for (int k = 0; k < SLOTS_PER_LANE; ++k)
                tanhs[k] =
                    1.f - 2.f * half_one_minus_tanh(
                                    query, memory(KEY, at.pair_lane + LANES_PER_PAIR * k, at.pair));

            // Through tanh(q + k_i) to the query, to v and to the slots' keys, and through the
            // mixture to the slots' other fields. The lanes of a pair share its slots.
            sums_exchange.wait(renews_sums);
            const float dalpha = collect_sums(at, sums);
            const float dlogit = alpha[0] * (dalpha - warp_sum(alpha[0] * dalpha));
#pragma unroll
            for (int k = 0; k < SLOTS_PER_LANE; ++k) {
                const int slot = at.pair_lane + LANES_PER_PAIR * k;
                const float slot_alpha = of_slot(alpha, slot), slot_dlogit = shuffle(dlogit, slot);
                const float tanh_i = tanhs[k];
                const float dtanh = weight * slot_dlogit;
                // tanh' = 1 - tanh^2. All dlogit sum to zero: in the query's gradient the 1 drops
                // out, and would only cost precision.
                dq_t -= dtanh * tanh_i * tanh_i;
                dv += slot_dlogit * tanh_i;
#pragma unroll
                for (int r = 0; r < FIELDS; ++r)
                    gradients(r, slot, at.pair) +=
                        r == KEY ? dtanh - dtanh * tanh_i * tanh_i : slot_alpha * g[r];
            }
            dq_t = sum_over_pair_lanes(dq_t);
            sync_warp();  // the other lanes of the pair have added to the newest slot

            // The gradients of h_t's products, from later steps through its slot and from s_t
            // itself.
            float dy[ROWS];
#pragma unroll
            for (int r = 0; r < FIELDS; ++r) {
                total[r] = (newest_slot >= 0 ? gradients(r, newest_slot, at.pair) : 0.f) +
                           (r == KEY ? 0.f : g[r]);
                if (r < ROWS) dy[r < ROWS ? r : 0] = total[r];
            }
            Matrix::send_inputs(at, dy, row, shared_dy, dy_exchange);
            if (writes) {
                dq[offset] = active ? dq_t : 0.f;
                dk[offset] = active ? total[KEY] : 0.f;
            }

            // The slots as they were at step t - 1. Only the lanes of this pair touch its fields.
            // Until its last step is reached, a sequence keeps the slots as that step left them.
            if (active) {
                move_back(memory, gradients, column, change.moved_to, change.moved_from);
                if (change.evicted_from >= 0)
                    fill_slot(memory, gradients, column, change.evicted_from, evicted_fields);
                record.check(earlier_state);
                state[0] = previous_state[0];
                previous_state[0] = earlier_state[0];
            }
            alpha[0] = t <= steps ? previous_alpha[0] : 0.f;
        }

        // The gradient of h_t, and the cell.
        dy_exchange.wait(threadIdx.x == 0);
        matrix.times(at, shared_dy, products);
        sync_block();
        if (!at.has_pair) continue;
        const float product = Matrix::result(at, products, at.block_unit);
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
        if (writes)
#pragma unroll
            for (int r = 0; r < GATES; ++r) dxp[(offset - unit) * GATES + r * n + unit] = dz[r];
#pragma unroll
        for (int r = 0; r < GATES; ++r) g[r] = in_range ? MIX * dz[r] : 0.f;
        g[QUERY] = active ? MIX * dq_t : 0.f;
    }

    // v, the first cell state, and what the carried memory has received.
    dv = sum_over_pair_lanes(dv);
    if (writes) dv_rows[first] = dv;
    if (GATES == 4 && writes) dc0[first] = dc;
    for (int slot = 0; gathered0 && slot < SLOTS; ++slot) {
        const bool filled = of_slot(state, slot) >= 0;
        float* gathered = gathered0 + ((long long)at.sequence * SLOTS + slot) * FIELDS * n + unit;
        for (int r = at.pair_lane; r < FIELDS; r += LANES_PER_PAIR)
            if (in_range) gathered[r * n] = filled ? gradients(r, slot, at.pair) : 0.f;
    }
    sync_cluster();  // no block ends before the others are done with its shared memory
}
