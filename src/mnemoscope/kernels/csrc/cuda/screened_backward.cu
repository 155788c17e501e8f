// RelRNN and RelLSTM, backward: the slots are walked back in time, two barriers a step.
//
// Gradients stay in front of the matrices, as the states do in the forward pass: each slot gathers what its state's
// products [V; W_a; U_a] h_i receive, and one transposed product, when the walk reaches step i, turns it into the gradient
// of h_i.
#include "attention.cuh"

constexpr int G = ROWS - 2;
constexpr int KEY = G + 1;                   // rows of the bank: V h (G), W_a h, U_a h doubled, and h itself where s has a
constexpr int VALUE = G + 2;                 // gradient of its own; then as many that gather the gradients of these
constexpr int FIELDS = G + 2 + HAS_DS;
constexpr int MINE = (FIELDS + D - 1) / D;   // fields a lane: field r belongs to lane r % D of each unit

// What happens to the slots between step t - 1 and step t, undone: at most one state moves and one comes back from memory.
struct Undo {
    int from = -1, to = -1;       // the state in slot `from` sat in slot `to` before
    int slot = -1, state = -1;    // and this state, which had left the memory, in `slot`

    DEVICE void find(int lane, int held, int before) {
        from = to = slot = state = -1;
        for (unsigned changed = lanes_where(lane < KAPPA && held != before); changed; changed &= changed - 1) {
            const int here = first_bit(changed), old = shuffle(before, here);
            if (old < 0) continue;
            const int now = first_bit(lanes_where(lane < KAPPA && held == old));
            if (now >= 0) from = now, to = here;
            else slot = here, state = old;
        }
    }
};

// projected (T,B,ROWS*n) = [V; W_a; U_a] h and queries (T,B,n) = W_a s_{t-1} are made outside, as is projected0
// (B,m0,ROWS*n) = [V; W_a] values0 with keys0 behind; gathered0 (B,m0,FIELDS*n) are the gradients of its rows (and of
// values0 themselves); dv_rows (B,n). The rest as in ops.py.
KERNEL(THREADS) screened_backward(
    const float* dh_out, const float* ds_out, const float* dc_T, const float* V, const float* W_a, const float* U_a,
    const float* v, const float* projected, const float* projected0, const float* queries, const float* c0,
    const float* values0, const long long* origin0, const float* h_in, const float* activations,
    const int* slots, const float* attention, const long long* lengths, float* dxp, float* dq_out, float* dk_out,
    float* dv_rows, float* dc0, float* gathered0, int n, int T, int B) {
    const Place p = place();
    const int unit = p.unit, lane = p.lane, steps = HAS_LENGTHS ? (int)lengths[p.sequence] : T;
    const bool mine = unit < n, writes = mine && p.part == 0;
    float* shared_x = shared_memory();  // (ROWS, N)
    float *partial = shared_x + ROWS * N, *sums = partial + 32 * NW;
    const Bank bank{sums + 32 * C}, gathered{sums + 32 * C + FIELDS * BANK_ROW};

    Columns matrix;
#pragma unroll
    for (int r = 0; r < G; ++r) matrix.load(p, r, V + (long long)r * n * n, n);
    matrix.load(p, G, W_a, n);
    matrix.load(p, G + 1, U_a, n);

    const long long first = (long long)p.sequence * n + unit, stride = (long long)B * n;
    for (int t = steps; t < T; ++t)
        if (writes) {
            const long long at = first + t * stride;
            for (int r = 0; r < G; ++r) dxp[(at - unit) * G + r * n + unit] = 0.f;
            dq_out[at] = dk_out[at] = 0.f;
        }

    // The fields of a state that this lane keeps, from device memory.
    const auto recall = [&](int state, float (&fields)[MINE]) {
        const bool old = state < KAPPA;
        const long long at = (old ? (long long)p.sequence * KAPPA + state : (long long)(state - KAPPA) * B + p.sequence) * n;
        const float *rows = (old ? projected0 : projected) + at * ROWS + unit, *values = (old ? values0 : h_in) + at + unit;
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            const int r = p.part + D * i;
            fields[i] = !mine || state < 0 || r >= FIELDS ? 0.f : r == VALUE ? *values : rows[r * n];
        }
    };
    const auto put = [&](int slot, const float (&fields)[MINE]) {
#pragma unroll
        for (int i = 0; i < MINE; ++i) {
            const int r = p.part + D * i;
            if (r >= FIELDS) continue;
            bank(r, slot, p.local) = r == KEY ? doubled(fields[i]) : fields[i];
            gathered(r, slot, p.local) = 0.f;
        }
    };
    const auto row_of = [&](int t) {  // which states sat in the slots at step t, one lane a slot
        if (lane >= KAPPA) return -1;
        if (t >= 0) return slots[((long long)t * B + p.sequence) * KAPPA + lane];
        return origin0[(long long)p.sequence * KAPPA + lane] >= 0 ? lane : -1;
    };
    const auto weights_of = [&](int t) {
        return lane < KAPPA && t >= 0 ? attention[((long long)t * B + p.sequence) * KAPPA + lane] : 0.f;
    };

    int held = row_of(steps - 1), before = row_of(steps - 2);
    for (int slot = 0; slot < SLOTS; ++slot) {
        float fields[MINE];
        recall(slot < KAPPA ? shuffle(held, slot) : -1, fields);
        put(slot, fields);
    }

    const float weight = mine ? v[unit] : 0.f;
    float g[FIELDS] = {};  // gradients of [V; W_a] s_t (0..G) and of s_t itself (VALUE), times the mixture's factor
    float dv = 0.f, dc = G == 4 && HAS_DC && mine ? dc_T[first] : 0.f;
    float query = 0.f, h = 0.f, out = 0.f, own = 0.f, c = 0.f, previous = 0.f, gate[4] = {};
    const auto fetch = [&](int t) {  // what this unit needs at step t
        if (!mine || t < 0) return;
        const long long at = first + t * stride;
        query = queries[at];
        if (HAS_DH) out = dh_out[at];
        if (HAS_DS) own = ds_out[at];
        if (G == 1) h = h_in[at];
        if (G == 4) {
            const float* its = activations + (at - unit) * 5 + unit;
            previous = t > 0 ? its[4 * n - 5 * stride] : c0[first];
            for (int r = 0; r < 4; ++r) gate[r] = its[r * n];
        }
    };
    if (G == 4 && mine && steps) c = activations[(first - unit + (steps - 1) * stride) * 5 + 4 * n + unit];
    fetch(steps - 1);
    float alpha = weights_of(steps - 1);
    sync_cluster();

    for (int t = steps - 1; t >= 0; --t) {
        const long long at = first + t * stride;
        Undo undo;
        undo.find(lane, held, before);
        float fields[MINE];
        recall(undo.state, fields);
        const int earlier = row_of(t - 2);
        const float alpha_next = weights_of(t - 1);
        if (HAS_DS) g[FIELDS - 1] = MIX * own;
        const float q = doubled(query), dh_t = out, h_t = h, previous_t = previous;
        const LSTMUnit now{gate[0], gate[1], gate[2], gate[3]};
        fetch(t - 1);

        // A softmax does not feel what all its weights' gradients have in common: taking h_t off every state first leaves
        // small numbers where states resemble each other, and no cancellation.
        const int slot = first_bit(lanes_where(held == KAPPA + t));
        float part[K][1], common[FIELDS];
#pragma unroll
        for (int r = 0; r < FIELDS; ++r) common[r] = bank(r, slot >= 0 ? slot : 0, p.local);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            part[k][0] = 0.f;
#pragma unroll
            for (int r = 0; r < FIELDS; ++r)
                if (r != KEY) part[k][0] += g[r] * (bank(r, p.part + D * k, p.local) - common[r]);
        }
        const float dalpha = sum_over_units(p, part, partial, sums);
        float dot = alpha * dalpha;
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) dot += shuffle_xor(dot, offset);
        const float dlogit = alpha * (dalpha - dot);

        float dq = 0.f;
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const int slot = p.part + D * k;
            const float share = shuffle(alpha, slot), de = shuffle(dlogit, slot);
            const float bent = 1.f - 2.f * unbent(q, bank(KEY, slot, p.local));  // tanh(q + k)
            const float straight = weight * de, through = straight - straight * bent * bent;
            dq -= straight * bent * bent;  // tanh' = 1 - tanh^2, and all de sum to zero: the 1 would only cost precision
            dv += de * bent;
#pragma unroll
            for (int r = 0; r < FIELDS; ++r) gathered(r, slot, p.local) += r == KEY ? through : share * g[r];
        }
        dq = sum_over_parts(dq);
        sync_warp();

        // Everything that the products of h_t receive: through later steps' slots, and directly through s_t.
        float total[FIELDS];
#pragma unroll
        for (int r = 0; r < FIELDS; ++r)
            total[r] = (slot >= 0 ? gathered(r, slot, p.local) : 0.f) + (r == KEY ? 0.f : g[r]);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) publish(p, shared_x + r * N + unit, total[r]);
        sync_cluster();

        const float dh = dh_t * HAS_DH + matrix.times(p, shared_x) + (HAS_DS ? total[FIELDS - 1] : 0.f);
        float dz[4];
        if constexpr (G == 4) {
            now.back(dh, dc, c, previous_t, dz);
            c = previous_t;
        } else {
            dz[0] = dh * phi_slope(h_t);
        }
        if (writes) {
#pragma unroll
            for (int r = 0; r < G; ++r) dxp[(at - unit) * G + r * n + unit] = dz[r];
            dq_out[at] = dq;
            dk_out[at] = total[KEY];
        }
#pragma unroll
        for (int r = 0; r < G; ++r) g[r] = mine ? MIX * dz[r] : 0.f;
        g[G] = MIX * dq;

        if (undo.to >= 0)
            for (int r = p.part; r < FIELDS; r += D) {
                bank(r, undo.to, p.local) = bank(r, undo.from, p.local);
                gathered(r, undo.to, p.local) = gathered(r, undo.from, p.local);
            }
        if (undo.slot >= 0) put(undo.slot, fields);
        sync_warp();
        held = before, before = earlier, alpha = alpha_next;
    }

    dv = sum_over_parts(dv);
    if (writes) dv_rows[first] = dv;
    if (G == 4 && writes) dc0[first] = dc;
    for (int slot = 0; slot < KAPPA; ++slot) {
        const bool there = shuffle(held, slot) >= 0;
        float* row = gathered0 + ((long long)p.sequence * KAPPA + slot) * FIELDS * n + unit;
        for (int r = p.part; r < FIELDS; r += D)
            if (mine) row[r * n] = there ? gathered(r, slot, p.local) : 0.f;
    }
    sync_cluster();
}
