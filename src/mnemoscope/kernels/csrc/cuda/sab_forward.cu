// Sparse attentive backtracking, forward: an LSTM that adds a few stored states to its h. One
// cluster per sequence, one barrier per step.
//
// Sizes as in tile.cuh; TOP: states attended; HAS_LENGTHS: lengths are given; SAVE: the tensors for
// the backward pass are written.
#include "sab.cuh"

struct SharedLayout {  // offsets in floats
    static constexpr int h = 0;  // (2, PADDED_N): h_t is written while h_{t-1} is read
    static constexpr int scores = h + 2 * PADDED_N;  // (2, CLUSTER_BLOCKS, WARPS)
    static constexpr int memory = scores + 2 * CLUSTER_BLOCKS * WARPS;
    static constexpr int size = memory + FIELD_STRIDE;
};
CHECK_SHARED_MEMORY(SharedLayout);

// From the host: top0 (B,TOP) int32, the states of the carried memory with the largest scores;
// scores0 (B,m0); stored0 (B) int32. -> h, attended (T,B,n), c_T (B,n), and if SAVE cells (T,B,n),
// gates (T,B,4n), slots, attention (T,B,TOP). The other names are those of the operator
// sab_forward.
KERNEL sab_forward(const float* xp, const float* V, const float* w, const float* h0,
                   const float* c0, const float* values0, const int* top0, const float* scores0,
                   const int* stored0, const long long* clock0, const long long* lengths, float* h,
                   float* attended, float* c_T, float* cells, float* gates, int* slots,
                   float* attention, int n, int T, int B, int m0, int store_every) {
    const ThreadPosition pos = thread_position();
    const int unit = pos.unit, lane = pos.lane;
    const int steps = HAS_LENGTHS ? clamped_length(lengths[pos.sequence], T) : T;
    const bool in_range = unit < n;
    const bool writes = in_range && pos.unit_lane == 0;  // one lane of each unit
    const bool writes_slots = pos.rank == 0 && pos.warp == 0 && lane < TOP;  // one warp
    float* shared_h = shared_memory() + SharedLayout::h;
    float* shared_scores = shared_memory() + SharedLayout::scores;
    const SlotFields memory{shared_memory() + SharedLayout::memory};

    // The weights, into registers.
    WeightRows matrix;
#pragma unroll
    for (int r = 0; r < 4; ++r) matrix.load(pos, r, V + (long long)r * n * n, n);

    // The state at the start and the first step's inputs.
    const long long first = (long long)pos.sequence * n + unit;
    const long long step_stride = (long long)B * n;
    const float score_weight = in_range ? w[unit] : 0.f;
    float h_t = in_range ? h0[first] : 0.f, c_t = in_range ? c0[first] : 0.f, x[4] = {};
    if (in_range && steps)
        for (int r = 0; r < 4; ++r) x[r] = xp[(first - unit) * 4 + r * n + unit];

    // The carried memory: its record into lanes, its states into shared memory. The lanes of a unit
    // share its slots.
    TopStates top;
    top.stored = stored0[pos.sequence];
    if (lane < TOP) {
        top.state = top0[(long long)pos.sequence * TOP + lane];
        if (top.state >= 0) top.score = scores0[(long long)pos.sequence * m0 + top.state];
    }
    for (int slot = pos.unit_lane; slot < PADDED_SLOTS; slot += LANES_PER_UNIT) {
        const int state = slot < TOP ? top0[(long long)pos.sequence * TOP + slot] : -1;
        const bool exists = in_range && state >= 0;
        memory(0, slot, pos.block_unit) =
            exists ? values0[((long long)pos.sequence * m0 + state) * n + unit] : 0.f;
    }
    // Steps until a state is stored.
    int countdown = store_every - floor_mod(clock0[pos.sequence], store_every);
    float divisor, alpha = top.weights(divisor), attended_t = 0.f;
    bool changed = true;  // the memory, since attended_t was computed
    sync_cluster();  // before a block stores into another, that one must have begun
    store_in_cluster(pos, shared_h + unit, h_t);
    sync_cluster();

    long long offset = first;  // of (t, sequence, unit) in a (T,B,n) tensor
    for (int t = 0; t < steps; ++t, offset += step_stride) {
        // attended = sum_i alpha_i m_i; the lanes of a unit share its slots.
        if (changed) {
            float sum = 0.f;
#pragma unroll
            for (int k = 0; k < SLOTS_PER_LANE; ++k) {
                const int slot = pos.unit_lane + LANES_PER_UNIT * k;
                sum += shuffle(alpha, slot) * memory(0, slot, pos.block_unit);
            }
            attended_t = sum_over_unit_lanes(sum);
        }

        // The LSTM; h_t = its output + attended, to every block in the half that is not read now.
        float y[4], z[4];
        matrix.times(pos, shared_h + (t & 1) * PADDED_N, y);
#pragma unroll
        for (int r = 0; r < 4; ++r) z[r] = x[r] + y[r];
        LSTMGates unit_gates;
        h_t = unit_gates.forward(z, c_t) + attended_t;
        h_t = in_range ? h_t : 0.f;
        store_in_cluster(pos, shared_h + ((t + 1) & 1) * PADDED_N + unit, h_t);

        // Load the next step's inputs now.
        if (in_range && t + 1 < steps)
            for (int r = 0; r < 4; ++r) x[r] = xp[(offset - unit + step_stride) * 4 + r * n + unit];

        // The score w . tanh(h_t) of a state to be stored: every warp sends its part to every
        // block. Two buffers in turn, like shared_h.
        const bool stores = --countdown == 0;
        float* scores = shared_scores + (t & 1) * CLUSTER_BLOCKS * WARPS;
        if (stores) {
            const float part = warp_sum(pos.unit_lane == 0 ? score_weight * tanhf(h_t) : 0.f);
            if (lane < CLUSTER_BLOCKS)
                store_in_block(scores + pos.rank * WARPS + pos.warp, lane, part);
        }

        // Outputs.
        if (writes) {
            h[offset] = h_t;
            attended[offset] = attended_t;
            if (SAVE) {
                const float saved[4] = {unit_gates.i, unit_gates.f, unit_gates.g, unit_gates.o};
                cells[offset] = c_t;
                for (int r = 0; r < 4; ++r) gates[(offset - unit) * 4 + r * n + unit] = saved[r];
            }
        }
        if (SAVE && writes_slots) {
            slots[((long long)t * B + pos.sequence) * TOP + lane] = top.state;
            attention[((long long)t * B + pos.sequence) * TOP + lane] = alpha;
        }
        sync_cluster();  // h_t and the parts of its score are in every block

        // Store h_t if it is among the best. Only the lanes of this unit touch its fields: a warp's
        // barrier protects them.
        changed = stores;
        if (stores) {
            countdown = store_every;
            float score = 0.f;
            for (int rank = 0; rank < CLUSTER_BLOCKS; ++rank)
                for (int warp = 0; warp < WARPS; ++warp) score += scores[rank * WARPS + warp];
            const int slot = top.store(lane, m0 + t, score);
            if (slot >= 0 && pos.unit_lane == 0) memory(0, slot, pos.block_unit) = h_t;
            alpha = top.weights(divisor);
            sync_warp();
        }
    }

    // The final cell state; zeros past the sequence's length.
    if (writes) c_T[first] = c_t;
    for (int t = steps; t < T; ++t, offset += step_stride) {
        if (writes) {
            h[offset] = attended[offset] = 0.f;
            if (SAVE) {
                cells[offset] = 0.f;
                for (int r = 0; r < 4; ++r) gates[(offset - unit) * 4 + r * n + unit] = 0.f;
            }
        }
        if (SAVE && writes_slots) {
            slots[((long long)t * B + pos.sequence) * TOP + lane] = -1;
            attention[((long long)t * B + pos.sequence) * TOP + lane] = 0.f;
        }
    }
    sync_cluster();  // no block ends before the others are done with its shared memory
}
