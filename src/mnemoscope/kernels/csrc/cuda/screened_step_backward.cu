// RelRNN and RelLSTM, backward, for layers that are too wide for one cluster: one step of all
// sequences, a block for each.
//
// As in screened_backward.cu, the gradients of a state's products [V; W_a; U_a] h_i are summed over
// the steps that attend to it. The host multiplies: between two launches, dh_products = the sum of
// step t times [V; W_a; U_a] is one matrix product of the whole batch. Launch t then goes back
// through the cell of step t and the attention of step t - 1. The first launch is t = T, the last
// t = 0.
//
// Sizes as in screened_step_forward.cu; HAS_DH, HAS_DS, HAS_LENGTHS: dh, ds and lengths are given.
#include "equations.cuh"
#include "screened_step.cuh"

constexpr int VALUE = GATES + 2,
              FIELDS = ROWS + HAS_DS;  // the value, if s has a gradient of its own

// From the host: projected, projected0, queries and query0 as in screened_backward.cu, and
// dh_products (B,n). dproducts (T,B,FIELDS*n) and gathered0 (B,m,FIELDS*n) are zero before the
// first launch, dv_rows and dc0 (B,n) are zero and dc_T. The other names and shapes are those of
// the operator attentive_backward.
KERNEL screened_step_backward(const float* dh, const float* ds, const float* v,
                              const float* projected, const float* projected0, const float* queries,
                              const float* query0, const float* dh_products, const float* c0,
                              const float* values0, const float* h, const float* activations,
                              const int* slots, const float* attention, const long long* lengths,
                              float* dproducts, float* gathered0, float* dxp, float* dq, float* dk,
                              float* dv_rows, float* dc0, int n, int T, int B, int t) {
    const int row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int steps = HAS_LENGTHS ? clamped_length(lengths[row], T) : T;
    const StateRows rows{projected, projected0, h, values0, n, B, row};
    float* sums = shared_memory() + SharedLayout::sums;
    float* weights = shared_memory() + SharedLayout::weights;
    float* dlogits = shared_memory() + SharedLayout::gradients;
    float* states = shared_memory() + SharedLayout::states;
    const long long now = (long long)t * B + row;  // step t of this sequence, in (T,B)
    const long long before = now - B;
    const long long first = (long long)row * n;

    // Back through the cell of step t, to dxp. No gradient past the sequence's length.
    for (int unit = threadIdx.x; t < T && unit < n; unit += THREADS) {
        float dz[4] = {};
        if (t < steps) {
            float dh_total = dh_products[first + unit];
            if (HAS_DH) dh_total += dh[now * n + unit];
            if (HAS_DS) dh_total += dproducts[now * FIELDS * n + VALUE * n + unit];
            if constexpr (GATES == 4) {
                const float* saved = activations + now * 5 * n + unit;
                const LSTMGates gates{saved[0], saved[n], saved[2 * n], saved[3 * n]};
                float previous_c = c0 ? c0[first + unit] : 0.f;
                if (t > 0) previous_c = activations[before * 5 * n + 4 * n + unit];
                float dc = dc0[first + unit];
                gates.backward(dh_total, dc, saved[4 * n], previous_c, dz);
                dc0[first + unit] = dc;
            } else {
                dz[0] = dh_total * phi_slope(h[now * n + unit]);
            }
        }
#pragma unroll
        for (int r = 0; r < GATES; ++r) dxp[now * GATES * n + r * n + unit] = dz[r];
    }
    if (t == 0) return;

    if (t - 1 >= steps) {
        for (int unit = threadIdx.x; unit < n; unit += THREADS)
            dq[before * n + unit] = dk[before * n + unit] = 0.f;
        return;
    }

    // The gradients of [V; W_a] s_{t-1} (0 .. GATES) and of s_{t-1} itself, times MIX. Each thread
    // reads what it has written.
    const auto load_gradients = [&](int unit, float (&g)[GATES + 2]) {
#pragma unroll
        for (int r = 0; r < GATES; ++r)
            g[r] = t < T ? MIX * dxp[now * GATES * n + r * n + unit] : 0.f;
        g[QUERY] = t < T ? MIX * dq[now * n + unit] : 0.f;
        g[GATES + 1] = HAS_DS ? MIX * ds[before * n + unit] : 0.f;
    };

    // The states that step t - 1 attended to. A saved tensor may come back changed (torch's hooks):
    // an index of no state is an empty slot.
    int state = -1;
    float alpha = 0.f;
    if (lane < SLOTS) {
        const int saved = slots[before * SLOTS + lane];
        const bool exists = saved < SLOTS + T && (projected0 || saved >= SLOTS);
        state = exists ? saved : -1;
        alpha = attention[before * SLOTS + lane];
    }

    // dalpha_i = sum_r g_r . field_r(i), summed over the units. h_t's own fields are subtracted
    // first, as in screened_backward.cu.
    const float* newest = rows.products_of(SLOTS + t - 1);
    int held[MOST_SLOTS];
    float part[MOST_SLOTS] = {};
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) held[slot] = shuffle(state, slot);
    for (int unit = threadIdx.x; unit < n; unit += THREADS) {
        float g[GATES + 2];
        load_gradients(unit, g);
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) {
            if (held[slot] < 0) continue;
            const float* fields = rows.products_of(held[slot]);
#pragma unroll
            for (int r = 0; r <= GATES; ++r)
                part[slot] += g[r] * (fields[r * n + unit] - newest[r * n + unit]);
            if (HAS_DS)
                part[slot] +=
                    g[GATES + 1] * (rows.value_of(held[slot])[unit] - h[before * n + unit]);
        }
    }
    sum_over_warps(part, sums);
    sync_block();
    float dalpha = 0.f;
    if (lane < SLOTS && state >= 0)
        for (int w = 0; w < WARPS; ++w) dalpha += sums[w * 32 + lane];
    const float dlogit = alpha * (dalpha - warp_sum(alpha * dalpha));
    if (warp == 0) {
        weights[lane] = alpha;
        dlogits[lane] = dlogit;
        states[lane] = bits_float(state);
    }
    sync_block();

    // Through tanh(q + k_i) to the query, to v and to the states' keys, and through the mixture to
    // their other fields.
    const auto gradients_of = [&](int index) {
        if (index < SLOTS) return gathered0 + ((long long)row * SLOTS + index) * FIELDS * n;
        return dproducts + ((long long)(index - SLOTS) * B + row) * FIELDS * n;
    };
    for (int unit = threadIdx.x; unit < n; unit += THREADS) {
        float g[GATES + 2];
        load_gradients(unit, g);
        float query = query0 ? query0[first + unit] : 0.f;
        if (t > 1) query = queries[(before - B) * n + unit];
        query = prescale(query);
        const float own_key = prescale(newest[KEY * n + unit]);
        const float own_tanh = 1.f - 2.f * half_one_minus_tanh(query, own_key);
        float dq_unit = 0.f, dv = 0.f;
#pragma unroll
        for (int slot = 0; slot < SLOTS; ++slot) {
            const int attended = float_bits(states[slot]);
            if (attended < 0) continue;
            const float key = prescale(rows.products_of(attended)[KEY * n + unit]);
            const float tanh_i = 1.f - 2.f * half_one_minus_tanh(query, key);
            const float dtanh = v[unit] * dlogits[slot];
            // All dlogits sum to zero: a constant in tanh and tanh^2 drops out, and would only cost
            // precision. h_{t-1}'s own leaves small numbers.
            dq_unit -= dtanh * (tanh_i * tanh_i - own_tanh * own_tanh);
            dv += dlogits[slot] * (tanh_i - own_tanh);
            float* gradients = gradients_of(attended) + unit;
            gradients[KEY * n] += dtanh - dtanh * tanh_i * tanh_i;
#pragma unroll
            for (int r = 0; r <= GATES; ++r) gradients[r * n] += weights[slot] * g[r];
            if (HAS_DS) gradients[VALUE * n] += weights[slot] * g[GATES + 1];
        }
        dv_rows[first + unit] += dv;
        dq[before * n + unit] = dq_unit;

        // h_{t-1} is a part of s_{t-1} itself.
        float* own = gradients_of(SLOTS + t - 1) + unit;
#pragma unroll
        for (int r = 0; r <= GATES; ++r) own[r * n] += g[r];
        if (HAS_DS) own[VALUE * n] += g[GATES + 1];
        dk[before * n + unit] = own[KEY * n];
    }
}
