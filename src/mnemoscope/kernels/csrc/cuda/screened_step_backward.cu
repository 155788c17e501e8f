// RelRNN and RelLSTM, backward, for layers that are too wide for one cluster: one step of all
// sequences, a cluster of blocks for each.
//
// As in screened_backward.cu, the gradients of a state's products [V; W_a; U_a] h_i are summed over
// the steps that attend to it. The host multiplies: between two launches, dh_products = the sum of
// step t times [V; W_a; U_a] is one matrix product of the whole batch. Launch t then goes back
// through the cell of step t and the attention of step t - 1. The first launch is t = T, the last
// t = 0.
//
// Sizes as in screened_step_forward.cu; HAS_DH, HAS_DS, HAS_LENGTHS: dh, ds and lengths are given;
// ADDS_IN_CACHE: gradients are added in the L2 cache, where they are, instead of read and written.
#include "equations.cuh"
#include "screened_step.cuh"

constexpr int VALUE = GATES + 2,
              FIELDS = ROWS + HAS_DS;  // the value, if s has a gradient of its own
constexpr int MIXED = GATES + 1 + HAS_DS;  // of the fields, those that the mixture reads

// From the host: projected0 and query0 as in screened_backward.cu, and dh_products (B,n).
// activations (T,B,SAVED_WIDTH). dproducts (T,B,FIELDS*n) and gathered0 (B,m,FIELDS*n) are zero
// before the first launch, dv_rows and dc0 (B,n) are zero and dc_T. The other names and shapes are
// those of the operator attentive_backward.
KERNEL screened_step_backward(const float* dh, const float* ds, const float* v,
                              const float* projected0, const float* query0,
                              const float* dh_products, const float* c0, const float* values0,
                              const float* h, const float* activations, const int* slots,
                              const float* attention, const long long* lengths, float* dproducts,
                              float* gathered0, float* dxp, float* dq, float* dk, float* dv_rows,
                              float* dc0, int T, int B, int t) {
    const BlockPosition pos;
    const int row = pos.row, lane = pos.lane, warp = pos.warp;
    const int steps = HAS_LENGTHS ? clamped_length(lengths[row], T) : T;
    const StateRows rows{activations, projected0, h, values0, SAVED_WIDTH, B, row};
    const SlotPointers in_slot;
    float* sums = shared_memory() + SharedLayout::sums;
    float* weights = shared_memory() + SharedLayout::weights;
    float* dlogits = shared_memory() + SharedLayout::dlogits;
    float* own = shared_memory() + SharedLayout::own;
    const long long now = (long long)t * B + row;  // step t of this sequence, in (T,B)
    const long long before = now - B;
    const long long first = (long long)row * n;
    const bool attended = t > 0 && t - 1 < steps;
    const int newest = SLOTS + t - 1;

    // The states that step t - 1 attended to, by the first warp. A saved tensor may come back
    // changed (torch's hooks): an index of no state is an empty slot. An empty slot points to
    // h_{t-1}, whose gradients are written apart from those of the others.
    int states[SLOTS_OF_LANE];
    float alpha[SLOTS_OF_LANE] = {};
#pragma unroll
    for (int i = 0; i < SLOTS_OF_LANE; ++i) {
        const int slot = lane + 32 * i;
        int state = -1;
        if (attended && warp == 0) {
            if (slot < SLOTS) {
                const int saved = slots[before * SLOTS + slot];
                const float weight = attention[before * SLOTS + slot];
                const bool exists = saved >= (projected0 ? 0 : SLOTS) && saved < SLOTS + T;
                state = exists ? saved : -1;
                alpha[i] = exists ? weight : 0.f;
            }
            float* gradients = nullptr;
            if (state >= SLOTS && state != newest)
                gradients = dproducts + ((long long)(state - SLOTS) * B + row) * FIELDS * n;
            if (state >= 0 && state < SLOTS)
                gradients = gathered0 + ((long long)row * SLOTS + state) * FIELDS * n;
            in_slot.products[slot] = rows.products_of(state >= 0 ? state : newest);
            in_slot.values[slot] = rows.value_of(state >= 0 ? state : newest);
            in_slot.gradients[slot] = gradients;
        }
        states[i] = state;
    }

    // Back through the cell of step t, to dxp. No gradient past the sequence's length. g: the
    // gradients of [V; W_a] s_{t-1} (0 .. GATES) and of s_{t-1} itself, times MIX.
    float g[UNITS_PER_THREAD][GATES + 2] = {};
#pragma unroll
    for (int i = 0; i < UNITS_PER_THREAD; ++i) {
        if (!pos.has_unit(i)) continue;
        const int unit = pos.unit(i);
        float dz[4] = {};
        if (t < steps) {
            float dh_total = dh_products[first + unit];
            if (HAS_DH) dh_total += dh[now * n + unit];
            if (HAS_DS) dh_total += dproducts[now * FIELDS * n + VALUE * n + unit];
            if constexpr (GATES == 4) {
                const float* saved = activations + now * SAVED_WIDTH + SAVED_GATES + unit;
                const LSTMGates gates{saved[0], saved[n], saved[2 * n], saved[3 * n]};
                float previous_c = c0 ? c0[first + unit] : 0.f;
                if (t > 0) previous_c = saved[4 * n - (long long)B * SAVED_WIDTH];
                float dc = dc0[first + unit];
                gates.backward(dh_total, dc, saved[4 * n], previous_c, dz);
                dc0[first + unit] = dc;
            } else {
                dz[0] = dh_total * phi_slope(h[now * n + unit]);
            }
        }
        if (t < T) {
            g[i][QUERY] = MIX * dq[now * n + unit];
#pragma unroll
            for (int r = 0; r < GATES; ++r) {
                g[i][r] = MIX * dz[r];
                dxp[now * GATES * n + r * n + unit] = dz[r];
            }
        }
        if (HAS_DS && attended) g[i][GATES + 1] = MIX * ds[before * n + unit];
        if (t > 0 && !attended) dq[before * n + unit] = dk[before * n + unit] = 0.f;
    }
    if (!attended) return;
    sync_cluster();  // before a block stores into another, that one must have begun

    // dalpha_i = sum_r g_r . field_r(i), summed over the units. h_t's own fields are subtracted
    // first, as in screened_backward.cu. A warp's sums of all slots are spread over its lanes.
    const float* own_products = rows.products_of(newest);
    using Mixed = Batch<MIXED>;
    float kept[Mixed::count + 1] = {};
    int which = 0;
#pragma unroll
    for (int i = 0; i < UNITS_PER_THREAD; ++i) {
        const int unit = pos.has_unit(i) ? pos.unit(i) : 0;
        float own_field[MIXED];
#pragma unroll
        for (int r = 0; r <= GATES; ++r) own_field[r] = own_products[r * n + unit];
        if (HAS_DS) own_field[MIXED - 1] = h[before * n + unit];
#pragma unroll
        for (int batch = 0; batch < Mixed::count; ++batch) {
            float field[Mixed::size][MIXED];
#pragma unroll
            for (int k = 0; k < Mixed::size; ++k) {
                const int slot = Mixed::slot(batch, k);
                const float* products_i = in_slot.products[slot] + unit;
#pragma unroll
                for (int r = 0; r <= GATES; ++r) field[k][r] = products_i[r * n];
                if (HAS_DS) field[k][MIXED - 1] = in_slot.values[slot][unit];
            }
            float part[Mixed::size][1] = {};
#pragma unroll
            for (int k = 0; k < Mixed::size; ++k)
#pragma unroll
                for (int r = 0; r < MIXED; ++r)
                    part[k][0] += g[i][r] * (field[k][r] - own_field[r]);
            which = reduce_scatter<Mixed::size, 16, 1, 1>(part, lane);
            kept[batch] += part[0][0];
        }
    }
#pragma unroll
    for (int batch = 0; batch < Mixed::count; ++batch)
        if (which < Mixed::size && batch * Mixed::size + which < SLOTS)
            sums[warp * SLOT_ROW + batch * Mixed::size + which] = kept[batch];
    float dalpha[SLOTS_OF_LANE];
    sum_over_units(pos, dalpha);
    if (warp == 0) {
        float mean = 0.f, own_alpha = 0.f, own_dlogit = 0.f;
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i) mean += alpha[i] * dalpha[i];
        mean = warp_sum(mean);
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i) {
            const float dlogit = alpha[i] * (dalpha[i] - mean);
            own_alpha += states[i] == newest ? alpha[i] : 0.f;
            own_dlogit += states[i] == newest ? dlogit : 0.f;
            weights[lane + 32 * i] = alpha[i];
            dlogits[lane + 32 * i] = dlogit;
        }
        own_alpha = warp_sum(own_alpha);
        own_dlogit = warp_sum(own_dlogit);
        if (lane == 0) own[0] = own_alpha, own[1] = own_dlogit;
    }
    sync_block();

    // Through tanh(q + k_i) to the query, to v and to the states' keys, and through the mixture to
    // their other fields.
#pragma unroll
    for (int i = 0; i < UNITS_PER_THREAD; ++i) {
        if (!pos.has_unit(i)) continue;
        const int unit = pos.unit(i);
        float query = query0 ? query0[first + unit] : 0.f;
        if (t > 1) query = activations[(before - B) * SAVED_WIDTH + SAVED_QUERY + unit];
        query = prescale(query);
        const float own_key = prescale(own_products[KEY * n + unit]);
        float* own_gradients = dproducts + before * FIELDS * n + unit;
        float own_sum[FIELDS];
#pragma unroll
        for (int r = 0; r < FIELDS; ++r) own_sum[r] = own_gradients[r * n];
        const float v_unit = v[unit];
        const float own_tanh = 1.f - 2.f * half_one_minus_tanh(query, own_key);
        float dq_unit = 0.f, dv = 0.f;
        using Keys = Batch<ADDS_IN_CACHE ? 1 : 1 + FIELDS>;
#pragma unroll
        for (int batch = 0; batch < Keys::count; ++batch) {
            float key[Keys::size], sum[Keys::size][FIELDS] = {};
#pragma unroll
            for (int k = 0; k < Keys::size; ++k) {
                const int slot = Keys::slot(batch, k);
                key[k] = in_slot.products[slot][KEY * n + unit];
                if constexpr (ADDS_IN_CACHE) continue;
                const float* gradients = in_slot.gradients[slot];
                gradients = gradients ? gradients + unit : own_gradients;
#pragma unroll
                for (int r = 0; r < FIELDS; ++r) sum[k][r] = gradients[r * n];
            }
#pragma unroll
            for (int k = 0; k < Keys::size && batch * Keys::size + k < SLOTS; ++k) {
                const int slot = Keys::slot(batch, k);
                const float tanh_i = 1.f - 2.f * half_one_minus_tanh(query, prescale(key[k]));
                const float dtanh = v_unit * dlogits[slot];
                // All dlogits sum to zero: a constant in tanh and tanh^2 drops out, and would only
                // cost precision. h_{t-1}'s own leaves small numbers.
                dq_unit -= dtanh * (tanh_i * tanh_i - own_tanh * own_tanh);
                dv += dlogits[slot] * (tanh_i - own_tanh);
                float* gradients = in_slot.gradients[slot];
                if (!gradients) continue;
                gradients += unit;
#pragma unroll
                for (int r = 0; r < FIELDS; ++r) {
                    const float mixed = weights[slot] * g[i][r == VALUE ? GATES + 1 : r];
                    const float more = r == KEY ? dtanh - dtanh * tanh_i * tanh_i : mixed;
                    if constexpr (ADDS_IN_CACHE)
                        add_in_memory(gradients + r * n, more);
                    else
                        gradients[r * n] = sum[k][r] + more;
                }
            }
        }
        add_in_memory(dv_rows + first + unit, dv);
        dq[before * n + unit] = dq_unit;

        // h_{t-1} is a part of s_{t-1} itself, beside what its slot has of it.
        const float own_part = 1.f + own[0], own_dtanh = v_unit * own[1];
#pragma unroll
        for (int r = 0; r <= GATES; ++r) own_gradients[r * n] = own_sum[r] + own_part * g[i][r];
        if (HAS_DS) own_gradients[VALUE * n] = own_sum[FIELDS - 1] + own_part * g[i][GATES + 1];
        const float own_dk = own_sum[KEY] + own_dtanh - own_dtanh * own_tanh * own_tanh;
        own_gradients[KEY * n] = own_dk;
        dk[before * n + unit] = own_dk;
    }
}
