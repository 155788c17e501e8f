// Sparse attentive backtracking, backward. One cluster per sequence; the memory is taken back in
// time.
//
// Sizes as in tile.cuh; TOP: states attended; DETACH_SCORES: scores pass no gradient on to states;
// HAS_DH, HAS_DATTENDED, HAS_DC, HAS_LENGTHS: dh, dattended, dc_T and lengths are given.
#include "sab.cuh"

// Fields of a slot: the state, and the gradient that it has received.
constexpr int VALUE = 0, GRADIENT = 1, FIELDS = 2;

struct SharedLayout {  // offsets in floats
    static constexpr int dz = 0;  // (2, 4, PADDED_N): step t - 1 is written while step t is read
    static constexpr int sums = dz + 2 * 4 * PADDED_N;  // (2, UNIT_SUM_FLOATS), likewise
    static constexpr int memory = sums + 2 * UNIT_SUM_FLOATS;
    static constexpr int size = memory + FIELDS * FIELD_STRIDE;
};
CHECK_SHARED_MEMORY(SharedLayout);

// From the host: top0, stored0 as in sab_forward; scores (T,B), scores0 (B,m0): the score that each
// new or carried state has or would have. -> dxp (T,B,4n), dscores (T,B), dscores0 (B,m0) and
// dvalues0 (B,m0,n) (these three zeroed by the host), dh0, dc0 (B,n). The other names are those of
// the operator sab_backward.
KERNEL sab_backward(const float* dh, const float* dattended, const float* dc_T, const float* V,
                    const float* w, const float* c0, const float* values0, const int* top0,
                    const int* stored0, const long long* clock0, const float* h, const float* cells,
                    const float* gates, const int* slots, const float* attention,
                    const float* scores, const float* scores0, const long long* lengths, float* dxp,
                    float* dscores, float* dscores0, float* dvalues0, float* dh0, float* dc0, int n,
                    int T, int B, int m0, int store_every, int truncation) {
    const ThreadPosition pos = thread_position();
    const int unit = pos.unit, lane = pos.lane;
    const int steps = HAS_LENGTHS ? clamped_length(lengths[pos.sequence], T) : T;
    const bool in_range = unit < n;
    const bool writes = in_range && pos.unit_lane == 0;  // one lane of each unit
    const bool writes_slots = pos.rank == 0 && pos.warp == 0 && lane < TOP;  // one warp
    float* shared_dz = shared_memory() + SharedLayout::dz;
    float* shared_sums = shared_memory() + SharedLayout::sums;
    const SlotFields memory{shared_memory() + SharedLayout::memory};

    // The weights, into registers.
    WeightColumns matrix;
#pragma unroll
    for (int r = 0; r < 4; ++r) matrix.load(pos, r, V + (long long)r * n * n, n);

    // No gradient past the sequence's length.
    const long long first = (long long)pos.sequence * n + unit;
    const long long step_stride = (long long)B * n;
    for (int t = steps; t < T; ++t)
        if (writes)
            for (int r = 0; r < 4; ++r)
                dxp[(first - unit + t * step_stride) * 4 + r * n + unit] = 0.f;

    // The state in slot `lane` at step t (-1: as carried in), and the attention that it received.
    const auto state_at = [&](int t) {
        if (lane >= TOP) return -1;
        if (t < 0) return top0[(long long)pos.sequence * TOP + lane];
        return slots[((long long)t * B + pos.sequence) * TOP + lane];
    };
    // A saved tensor may come back changed (torch's hooks): an index of no state is an empty slot.
    // Checked when the loaded number is used, a step later: a check would wait for it.
    const auto checked = [&](int state) { return state < m0 + T ? state : -1; };
    const auto attention_at = [&](int t) {
        const bool exists = lane < TOP && t >= 0;
        return exists ? attention[((long long)t * B + pos.sequence) * TOP + lane] : 0.f;
    };
    // A state's score and this unit of it, from device memory.
    const auto score_of = [&](int state) {
        if (state < 0) return 0.f;
        return state < m0 ? scores0[(long long)pos.sequence * m0 + state]
                          : scores[(long long)(state - m0) * B + pos.sequence];
    };
    const auto value_of = [&](int state) {
        if (!in_range || state < 0) return 0.f;
        return state < m0 ? values0[((long long)pos.sequence * m0 + state) * n + unit]
                          : h[((long long)(state - m0) * B + pos.sequence) * n + unit];
    };

    // The memory that the last step attended to. Its own state was stored after that.
    TopStates top;
    top.state = checked(state_at(steps - 1));
    top.score = score_of(top.state);
    const long long clock = clock0[pos.sequence];
    const int stored_by_last =
        steps > 0 ? (int)(((long long)floor_mod(clock, store_every) + steps - 1) / store_every) : 0;
    top.stored = stored0[pos.sequence] + stored_by_last;
    for (int slot = 0; slot < PADDED_SLOTS; ++slot) {
        const int state = slot < TOP ? shuffle(top.state, slot) : -1;
        if (pos.unit_lane == slot % LANES_PER_UNIT) {
            memory(VALUE, slot, pos.block_unit) = value_of(state);
            memory(GRADIENT, slot, pos.block_unit) = 0.f;
        }
    }

    // What a step reads from device memory, one step ahead.
    const float score_weight = in_range ? w[unit] : 0.f;
    float carried = 0.f;  // the gradient of h_t from step t + 1
    float dc = HAS_DC && in_range ? dc_T[first] : 0.f;
    float dscore = 0.f;  // of the state in slot `lane`
    float c_t = in_range && steps ? cells[first + (steps - 1) * step_stride] : 0.f;
    float dh_t = 0.f, dattended_t = 0.f, previous_c = 0.f, gate[4] = {};
    const auto load_step = [&](int t) {
        if (!in_range || t < 0) return;
        const long long offset = first + t * step_stride;
        if (HAS_DH) dh_t = dh[offset];
        if (HAS_DATTENDED) dattended_t = dattended[offset];
        previous_c = t > 0 ? cells[offset - step_stride] : c0[first];
        for (int r = 0; r < 4; ++r) gate[r] = gates[(offset - unit) * 4 + r * n + unit];
    };
    load_step(steps - 1);
    float alpha = attention_at(steps - 1);
    int previous_state = checked(state_at(steps - 2));
    sync_cluster();  // before a block stores into another, that one must have begun

    for (int t = steps - 1; t >= 0; --t) {
        // The LSTM: gradients before its gates' non-linearities, to every block of the cluster.
        const long long offset = first + t * step_stride;
        const float dh_total = carried + dh_t * HAS_DH;
        const float d_attended = dh_total + dattended_t * HAS_DATTENDED;
        float dz[4];
        LSTMGates{gate[0], gate[1], gate[2], gate[3]}.backward(dh_total, dc, c_t, previous_c, dz);
        c_t = previous_c;
        float* buffer = shared_dz + (t & 1) * 4 * PADDED_N;
#pragma unroll
        for (int r = 0; r < 4; ++r)
            store_in_cluster(pos, buffer + r * PADDED_N + unit, in_range ? dz[r] : 0.f);

        // Load what the next step needs.
        const bool stored = t > 0 && (clock + t) % store_every == 0;  // by step t - 1
        const bool cut = clock + t > 0 && (clock + t) % truncation == 0;
        const int earlier_state = state_at(t - 2);
        const float previous_alpha = attention_at(t - 1);
        const float previous_h = in_range && t > 0 ? h[offset - step_stride] : 0.f;
        const float previous_score = score_of(previous_state);
        load_step(t - 1);
        if (writes)
            for (int r = 0; r < 4; ++r) dxp[(offset - unit) * 4 + r * n + unit] = dz[r];

        // Gradients of the weights, dalpha_i = d_attended . m_i, and of the attended states. The
        // lanes of a unit share its slots. The barriers in sum_over_units also protect `buffer`.
        float part[SLOTS_PER_LANE][1];
#pragma unroll
        for (int k = 0; k < SLOTS_PER_LANE; ++k) {
            const int slot = pos.unit_lane + LANES_PER_UNIT * k;
            part[k][0] = in_range ? d_attended * memory(VALUE, slot, pos.block_unit) : 0.f;
        }
        float* sum_scratch = shared_sums + (t & 1) * UNIT_SUM_FLOATS;
        float sums[1];
        sum_over_units(pos, part, sum_scratch, sums);
        const float dalpha = sums[0];
#pragma unroll
        for (int k = 0; k < SLOTS_PER_LANE; ++k) {
            const int slot = pos.unit_lane + LANES_PER_UNIT * k;
            memory(GRADIENT, slot, pos.block_unit) +=
                shuffle(alpha, slot) * (in_range ? d_attended : 0.f);
        }

        // Gradients of the scores (lane i has slot i), through the softmax or, if sparse, through
        // alpha_i = relu(score_i - least - margin) / divisor. `least` is one of the scores.
        const float mean = warp_sum(alpha * dalpha);
        float divisor;
        top.weights(divisor);
        if (top.sparse()) {
            const float dweight = alpha > 0.f ? (dalpha - mean) / divisor : 0.f;
            const float total = warp_sum(dweight);
            const int least = top.lowest();
            const int least_slot =
                first_bit(warp_ballot(top.state >= 0 && sortable(top.score) == least));
            dscore += dweight - (lane == least_slot ? total : 0.f);
        } else {
            dscore += alpha * (dalpha - mean);
        }

        // The gradient of h_{t-1} through V, unless the past is cut off here.
        carried = cut ? 0.f : matrix.times(pos, buffer);
        if (cut) dc = 0.f;
        sync_warp();

        // The state that step t - 1 stored leaves the memory with the gradient that it has
        // received; the one that it replaced comes back.
        if (stored) {
            top.stored -= 1;
            const int slot = first_bit(warp_ballot(lane < TOP && top.state == m0 + t - 1));
            float received = 0.f;  // by its score
            if (slot >= 0) {
                received = shuffle(dscore, slot);
                carried += memory(GRADIENT, slot, pos.block_unit);
                if (!DETACH_SCORES) {
                    const float tanh_h = tanhf(previous_h);
                    carried += received * score_weight * (1.f - tanh_h * tanh_h);
                }
                const int replaced = shuffle(previous_state, slot);
                sync_warp();
                if (pos.unit_lane == slot % LANES_PER_UNIT) {
                    memory(VALUE, slot, pos.block_unit) = value_of(replaced);
                    memory(GRADIENT, slot, pos.block_unit) = 0.f;
                }
                if (lane == slot) dscore = 0.f;
            }
            if (writes_slots && lane == 0)
                dscores[(long long)(t - 1) * B + pos.sequence] = received;
            sync_warp();
        }
        top.state = previous_state;
        top.score = previous_score;
        previous_state = checked(earlier_state);
        alpha = previous_alpha;
    }

    // The first state, and what the carried memory has received.
    if (writes) dh0[first] = carried, dc0[first] = dc;
    for (int slot = 0; slot < TOP; ++slot) {
        const int state = shuffle(top.state, slot);
        if (state < 0 || state >= m0) continue;
        if (writes)
            dvalues0[((long long)pos.sequence * m0 + state) * n + unit] =
                memory(GRADIENT, slot, pos.block_unit);
        if (writes_slots && lane == slot) dscores0[(long long)pos.sequence * m0 + state] = dscore;
    }
    sync_cluster();  // no block ends before the others are done with its shared memory
}
