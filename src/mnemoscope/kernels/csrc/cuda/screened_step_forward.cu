// RelRNN and RelLSTM, forward, for layers that are too wide for one cluster: one step of all
// sequences, a cluster of blocks for each.
//
// The host multiplies: between two launches, the products [V; W_a; U_a] h_t are one matrix product
// of the whole batch. Launch t then ends step t, its attention, and begins step t + 1, its cell:
// the mixture of products that s_t is to V and W_a is all that the next cell reads
// (screened_forward.cu). The first launch is t = -1, the last t = T - 1.
//
// Sizes: UNITS, ROWS of weights per unit, CLUSTER_BLOCKS, THREADS, SHARED_FLOATS; those of
// screening.cuh; PHI (equations.cuh); REFRESH: states in R gain relevance, too; HAS_BIAS,
// HAS_LENGTHS: b and lengths are given; SAVE: the tensors for the backward pass are written.
#include "equations.cuh"
#include "screened_step.cuh"

constexpr int WIDTH = SAVE ? SAVED_WIDTH : ROWS * n;

// activations (T,B,WIDTH), the products from the host; products0 (B,m,ROWS*n) = [V; W_a] values0
// followed by keys0, null if the carried memory is empty. Carried from launch to launch: u
// (B,(GATES+1)n) = [V; W_a] s_{t-1}, c_T (B,n), slots_T and relevance_T (B,m). The other names and
// shapes are those of the operator attentive_forward.
KERNEL screened_step_forward(const float* xp, const float* v, const float* b,
                             const float* products0, const float* values0, const long long* clock0,
                             const long long* lengths, float* u, float* h, float* s, float* c_T,
                             long long* slots_T, float* relevance_T, float* activations, int* slots,
                             float* attention, int T, int B, int t, double decay) {
    const BlockPosition pos;
    const int row = pos.row, lane = pos.lane, warp = pos.warp;
    const int steps = HAS_LENGTHS ? clamped_length(lengths[row], T) : T;
    const StateRows rows{activations, products0, h, values0, WIDTH, B, row};
    const SlotPointers in_slot;
    float* sums = shared_memory() + SharedLayout::sums;
    float* weights = shared_memory() + SharedLayout::weights;
    u += (long long)row * (GATES + 1) * n;
    const long long now = (long long)t * B + row;  // step t of this sequence, in (T,B)
    const long long next = now + B;
    const bool attends = t >= 0 && t < steps;
    const bool advances = t + 1 < steps;

    if (attends) {
        // Screening, by the first warp: h_t gets a slot. An empty slot points to h_t, too.
        SlotTable table;
        if (warp == 0) {
#pragma unroll
            for (int i = 0; i < SLOTS_OF_LANE; ++i)
                if (lane + 32 * i < SLOTS) {
                    table.state[i] = (int)slots_T[row * SLOTS + lane + 32 * i];
                    table.relevance[i] = relevance_T[row * SLOTS + lane + 32 * i];
                }
            const long long clock = (clock0 ? clock0[row] : 0) + t;
            if (BUFFER > 0) table.next_slot = floor_mod(clock, BUFFER > 0 ? BUFFER : 1);
            int promoted;
            table.admit(lane, SLOTS + t, (float)decay, promoted);
#pragma unroll
            for (int i = 0; i < SLOTS_OF_LANE; ++i) {
                const int state = table.state[i] >= 0 ? table.state[i] : SLOTS + t;
                in_slot.products[lane + 32 * i] = rows.products_of(state);
                in_slot.values[lane + 32 * i] = rows.value_of(state);
            }
        }
        sync_cluster();  // before a block stores into another, that one must have begun

        // Scores, summed over the units. A warp's sums of all slots are spread over its lanes.
        using Keys = Batch<1>;
        float kept[Keys::count + 1] = {};
        int which = 0;
#pragma unroll
        for (int i = 0; i < UNITS_PER_THREAD; ++i) {
            const bool exists = pos.has_unit(i);
            const int unit = exists ? pos.unit(i) : 0;
            const float query = prescale(u[QUERY * n + unit]);
            const float v_unit = exists ? v[unit] : 0.f;
#pragma unroll
            for (int batch = 0; batch < Keys::count; ++batch) {
                float part[Keys::size][1];
#pragma unroll
                for (int k = 0; k < Keys::size; ++k)
                    part[k][0] = in_slot.products[Keys::slot(batch, k)][KEY * n + unit];
                // Less 1/2: sums of small numbers, and a constant that the softmax does not see.
#pragma unroll
                for (int k = 0; k < Keys::size; ++k)
                    part[k][0] = v_unit * (half_one_minus_tanh(query, prescale(part[k][0])) - .5f);
                which = reduce_scatter<Keys::size, 16, 1, 1>(part, lane);
                kept[batch] += part[0][0];
            }
        }
#pragma unroll
        for (int batch = 0; batch < Keys::count; ++batch)
            if (which < Keys::size && batch * Keys::size + which < SLOTS)
                sums[warp * SLOT_ROW + batch * Keys::size + which] = kept[batch];
        float logit[SLOTS_OF_LANE];
        sum_over_units(pos, logit);

        // Softmax over the slots; relevance grows by the attention received.
        if (warp == 0) {
            float exponential[SLOTS_OF_LANE], total = 0.f;
#pragma unroll
            for (int i = 0; i < SLOTS_OF_LANE; ++i)
                logit[i] = table.state[i] >= 0 ? -2.f * logit[i] : NEGATIVE_INFINITY;
            const float largest = largest_logit(logit);
#pragma unroll
            for (int i = 0; i < SLOTS_OF_LANE; ++i) {
                exponential[i] = table.state[i] >= 0 ? expf(logit[i] - largest) : 0.f;
                total += exponential[i];
            }
            total = warp_sum(total);
            const float scale = total > 0.f ? reciprocal(total) : 0.f;
#pragma unroll
            for (int i = 0; i < SLOTS_OF_LANE; ++i) {
                const int slot = lane + 32 * i;
                const float alpha = exponential[i] * scale;
                if (slot < BUFFER || REFRESH) table.relevance[i] += alpha;
                weights[slot] = alpha;
                if (slot >= SLOTS || pos.rank > 0) continue;
                slots_T[row * SLOTS + slot] = table.state[i];
                relevance_T[row * SLOTS + slot] = table.relevance[i];
                if (SAVE) {
                    slots[now * SLOTS + slot] = table.state[i];
                    attention[now * SLOTS + slot] = alpha;
                }
            }
        }
        sync_block();
    } else if (SAVE && t >= 0 && warp == 0 && pos.rank == 0) {
        for (int slot = lane; slot < SLOTS; slot += 32) {
            slots[now * SLOTS + slot] = -1;
            attention[now * SLOTS + slot] = 0.f;
        }
    }

#pragma unroll
    for (int i = 0; i < UNITS_PER_THREAD; ++i) {
        if (!pos.has_unit(i)) continue;
        const int unit = pos.unit(i);

        // The context: the mixture of the values, and of their products with [V; W_a].
        using Mixed = Batch<GATES + 2>;
        float mixed[GATES + 1] = {}, value = 0.f;
#pragma unroll
        for (int batch = 0; batch < Mixed::count && attends; ++batch) {
            float field[Mixed::size][GATES + 2];
#pragma unroll
            for (int k = 0; k < Mixed::size; ++k) {
                const int slot = Mixed::slot(batch, k);
                const float* products_i = in_slot.products[slot] + unit;
                field[k][GATES + 1] = in_slot.values[slot][unit];
#pragma unroll
                for (int r = 0; r <= GATES; ++r) field[k][r] = products_i[r * n];
            }
#pragma unroll
            for (int k = 0; k < Mixed::size && batch * Mixed::size + k < SLOTS; ++k) {
                const float weight = weights[Mixed::slot(batch, k)];
                value += weight * field[k][GATES + 1];
#pragma unroll
                for (int r = 0; r <= GATES; ++r) mixed[r] += weight * field[k][r];
            }
        }

        // s_t, and u = [V; W_a] s_t for the next step.
        float y[GATES + 1];
        if (attends) {
            s[now * n + unit] = MIX * (h[now * n + unit] + value);
#pragma unroll
            for (int r = 0; r <= GATES; ++r) {
                y[r] = MIX * (activations[now * WIDTH + r * n + unit] + mixed[r]);
                u[r * n + unit] = y[r];
            }
            if (SAVE) activations[now * WIDTH + SAVED_QUERY + unit] = y[QUERY];
        } else {
            if (t >= 0) s[now * n + unit] = 0.f;
            if (t >= 0 && SAVE) activations[now * WIDTH + SAVED_QUERY + unit] = 0.f;
#pragma unroll
            for (int r = 0; r <= GATES; ++r) y[r] = u[r * n + unit];
        }

        // The next step's cell; zeros past the sequence's length.
        if (t + 1 >= T) continue;
        float* saved = activations + next * WIDTH + SAVED_GATES + unit;
        if (!advances) {
            h[next * n + unit] = 0.f;
            for (int r = 0; SAVE && GATES == 4 && r < 5; ++r) saved[r * n] = 0.f;
            continue;
        }
        float z[4];
#pragma unroll
        for (int r = 0; r < GATES; ++r) z[r] = xp[next * GATES * n + r * n + unit] + y[r];
        if constexpr (GATES == 4) {
            LSTMGates gates;
            float c = c_T[(long long)row * n + unit];
            h[next * n + unit] = gates.forward(z, c);
            c_T[(long long)row * n + unit] = c;
            if (SAVE) {
                saved[0] = gates.i, saved[n] = gates.f, saved[2 * n] = gates.g;
                saved[3 * n] = gates.o, saved[4 * n] = c;
            }
        } else {
            h[next * n + unit] = phi(z[0], HAS_BIAS ? b[unit] : 0.f);
        }
    }
}
