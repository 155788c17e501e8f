// RelRNN and RelLSTM, forward, for layers that are too wide for one cluster: one step of all
// sequences, a block for each.
//
// The host multiplies: between two launches, products[t] = [V; W_a; U_a] h_t is one matrix product
// of the whole batch. Launch t then ends step t, its attention, and begins step t + 1, its cell:
// the mixture of products that s_t is to V and W_a is all that the next cell reads
// (screened_forward.cu). The first launch is t = -1, the last t = T - 1.
//
// Sizes: ROWS of weights per unit, THREADS, SHARED_FLOATS; those of screening.cuh; PHI
// (equations.cuh); REFRESH: states in R gain relevance, too; HAS_BIAS, HAS_LENGTHS: b and lengths
// are given; SAVE: the tensors for the backward pass are written.
#include "equations.cuh"
#include "screened_step.cuh"

// products (T,B,ROWS*n); products0 (B,m,ROWS*n) = [V; W_a] values0 followed by keys0, null if the
// carried memory is empty. Carried from launch to launch: u (B,(GATES+1)n) = [V; W_a] s_{t-1},
// c_T (B,n), slots_T and relevance_T (B,m). The other names and shapes are those of the operator
// attentive_forward.
KERNEL screened_step_forward(const float* xp, const float* v, const float* b, const float* products,
                             const float* products0, const float* values0, const long long* clock0,
                             const long long* lengths, float* u, float* h, float* s, float* c_T,
                             long long* slots_T, float* relevance_T, float* activations, int* slots,
                             float* attention, int n, int T, int B, int t, double decay) {
    const int row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int steps = HAS_LENGTHS ? clamped_length(lengths[row], T) : T;
    const StateRows rows{products, products0, h, values0, n, B, row};
    float* sums = shared_memory() + SharedLayout::sums;
    float* weights = shared_memory() + SharedLayout::weights;
    float* states = shared_memory() + SharedLayout::states;
    u += (long long)row * (GATES + 1) * n;
    const long long now = (long long)t * B + row;  // step t of this sequence, in (T,B)
    const long long next = now + B;
    const bool attends = t >= 0 && t < steps;
    const bool advances = t + 1 < steps;

    if (attends) {
        // Screening, the same in every warp: h_t gets a slot.
        SlotTable table;
        if (lane < SLOTS) {
            table.state = (int)slots_T[row * SLOTS + lane];
            table.relevance = relevance_T[row * SLOTS + lane];
        }
        const long long clock = (clock0 ? clock0[row] : 0) + t;
        if (BUFFER > 0) table.next_slot = floor_mod(clock, BUFFER > 0 ? BUFFER : 1);
        int promoted;
        table.admit(lane, SLOTS + t, (float)decay, promoted);

        // Scores, summed over the units. The loads of all slots are under way at once.
        int held[MOST_SLOTS];
        float part[MOST_SLOTS] = {};
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) held[slot] = shuffle(table.state, slot);
        for (int unit = threadIdx.x; unit < n; unit += THREADS) {
            const float query = prescale(u[QUERY * n + unit]);
#pragma unroll
            for (int slot = 0; slot < SLOTS; ++slot) {
                if (held[slot] < 0) continue;
                const float key = rows.products_of(held[slot])[KEY * n + unit];
                // Less 1/2: sums of small numbers, and a constant that the softmax does not see.
                part[slot] += v[unit] * (half_one_minus_tanh(query, prescale(key)) - .5f);
            }
        }
        sum_over_warps(part, sums);
        sync_block();
        const bool filled = lane < SLOTS && table.state >= 0;
        float logit = 0.f;
        if (filled)
            for (int w = 0; w < WARPS; ++w) logit -= 2.f * sums[w * 32 + lane];

        // Softmax over the slots; relevance grows by the attention received.
        const int largest = warp_max(sortable(filled ? logit : NEGATIVE_INFINITY));
        const float exponential = filled ? expf(logit - from_sortable(largest)) : 0.f;
        const float total = warp_sum(exponential);
        const float alpha = total > 0.f ? exponential * reciprocal(total) : 0.f;
        if (lane < BUFFER || REFRESH) table.relevance += alpha;
        if (warp == 0) {
            weights[lane] = alpha;
            states[lane] = bits_float(table.state);
            if (lane < SLOTS) {
                slots_T[row * SLOTS + lane] = table.state;
                relevance_T[row * SLOTS + lane] = table.relevance;
                if (SAVE) {
                    slots[now * SLOTS + lane] = table.state;
                    attention[now * SLOTS + lane] = alpha;
                }
            }
        }
        sync_block();
    } else if (SAVE && t >= 0 && warp == 0 && lane < SLOTS) {
        slots[now * SLOTS + lane] = -1;
        attention[now * SLOTS + lane] = 0.f;
    }

    for (int unit = threadIdx.x; unit < n; unit += THREADS) {
        // s_t, and u = [V; W_a] s_t for the next step.
        float y[GATES + 1];
        if (attends) {
            float mixed[GATES + 1] = {}, value = 0.f;
#pragma unroll
            for (int slot = 0; slot < SLOTS; ++slot) {
                const int state = float_bits(states[slot]);
                if (state < 0) continue;
                const float* products_i = rows.products_of(state);
                value += weights[slot] * rows.value_of(state)[unit];
#pragma unroll
                for (int r = 0; r <= GATES; ++r)
                    mixed[r] += weights[slot] * products_i[r * n + unit];
            }
            s[now * n + unit] = MIX * (h[now * n + unit] + value);
#pragma unroll
            for (int r = 0; r <= GATES; ++r) {
                y[r] = MIX * (products[now * ROWS * n + r * n + unit] + mixed[r]);
                u[r * n + unit] = y[r];
            }
        } else {
            if (t >= 0) s[now * n + unit] = 0.f;
#pragma unroll
            for (int r = 0; r <= GATES; ++r) y[r] = u[r * n + unit];
        }

        // The next step's cell; zeros past the sequence's length.
        if (t + 1 >= T) continue;
        float* saved = activations + next * 5 * n + unit;
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
