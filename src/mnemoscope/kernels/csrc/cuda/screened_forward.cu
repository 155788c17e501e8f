// RelRNN and RelLSTM (Kerg et al. 2020), forward: attention over S and R, one cluster a sequence, two barriers a step.
//
// V s and W_a s are never multiplied out: s is a mixture of states h_i, so [V; W_a] s is the same mixture of [V; W_a] h_i,
// and each slot keeps those products beside its state. One step is then one product, [V; W_a; U_a] h_t.
#include "attention.cuh"

constexpr int G = ROWS - 2;                      // gates of the cell: 1, or 4 of an LSTM
constexpr int VALUE = G + 1, KEY = G + 2;        // rows of the bank: V h (G), W_a h, h, U_a h doubled
constexpr int BANK_ROWS = G + 3;

// One lane a slot, every warp with the same books.
struct Books {
    int held = -1;          // which state sits here: an index into the carried memory, then the new states; -1: empty
    float relevance = 0.f;  // the attention that it has received while it was in S
    int ring = 0;           // the slot of S that the next state takes

    // Make room for the state `newest`: returns its slot (-1: none) and, in `promoted`, the slot of R into which the
    // state that leaves S moves (-1: none).
    DEVICE int admit(int lane, int newest, float decay, int& promoted) {
        promoted = -1;
        if (lane >= NU) relevance *= decay;
        if constexpr (RHO > 0) {
            const int leaving = NU > 0 ? shuffle(held, ring) : newest;
            const float its = NU > 0 ? shuffle(relevance, ring) : 0.f;
            if (leaving >= 0) {
                const bool member = lane >= NU && lane < KAPPA;
                const int standing = ordered(float_bits(held >= 0 ? relevance : NEGATIVE_INFINITY));
                const int least = warp_min(member ? standing : 0x7fffffff);
                const int place = first_bit(lanes_where(member && standing == least));
                if (its > bits_float(ordered(least))) promoted = place;
                if (lane == promoted) held = leaving, relevance = its;
            }
        }
        const int slot = NU > 0 ? ring : promoted;
        if (lane == slot) held = newest, relevance = 0.f;
        if (NU > 0) ring = ring + 1 == NU ? 0 : ring + 1;
        return slot;
    }
};

// projected0 (B,m0,(G+1)n) = [V; W_a] values0 and query0 (B,(G+1)n) = [V; W_a] s0 are made outside; the rest as in ops.py.
KERNEL(THREADS) screened_forward(
    const float* xp, const float* V, const float* W_a, const float* U_a, const float* v, const float* bias,
    const float* query0, const float* c0, const float* projected0, const float* values0, const float* keys0,
    const long long* origin0, const float* relevance0, const long long* clock0, const long long* lengths, float* h_out,
    float* s_out, float* c_T, long long* final_slots, float* final_relevance, float* activations, int* slots,
    float* attention, int n, int T, int B, double decay) {
    const Place p = place();
    const int unit = p.unit, lane = p.lane, steps = HAS_LENGTHS ? (int)lengths[p.sequence] : T;
    const bool mine = unit < n, writes = mine && p.part == 0, keeps = p.rank == 0 && p.warp == 0 && lane < KAPPA;
    float* shared_h = shared_memory();
    float *partial = shared_h + N, *sums = partial + 32 * NW;
    const Bank bank{sums + 32 * C};

    Rows matrix;
#pragma unroll
    for (int r = 0; r < G; ++r) matrix.load(p, r, V + (long long)r * n * n, n);
    matrix.load(p, G, W_a, n);
    matrix.load(p, G + 1, U_a, n);

    const long long first = (long long)p.sequence * n + unit, stride = (long long)B * n;
    const float weight = mine ? v[unit] : 0.f, b = HAS_BIAS && mine ? bias[unit] : 0.f;
    float c = G == 4 && mine ? c0[first] : 0.f;
    float x[G] = {}, u[G + 1] = {};
    if (mine) {
#pragma unroll
        for (int r = 0; r <= G; ++r) u[r] = query0[(long long)p.sequence * (G + 1) * n + r * n + unit];
#pragma unroll
        for (int r = 0; r < G; ++r) x[r] = steps ? xp[(long long)p.sequence * G * n + r * n + unit] : 0.f;
    }

    Books books;
    if (lane < KAPPA) {
        books.held = origin0[(long long)p.sequence * KAPPA + lane] >= 0 ? lane : -1;
        books.relevance = relevance0[(long long)p.sequence * KAPPA + lane];
    }
    if (NU > 0) books.ring = (int)(clock0[p.sequence] % (NU > 0 ? NU : 1));
    for (int slot = p.part; slot < SLOTS; slot += D) {
        const long long at = ((long long)p.sequence * KAPPA + slot) * n + unit;
        const bool there = mine && slot < KAPPA;
        for (int r = 0; r <= G; ++r) bank(r, slot, p.local) = there ? projected0[(at - unit) * (G + 1) + r * n + unit] : 0.f;
        bank(VALUE, slot, p.local) = there ? values0[at] : 0.f;
        bank(KEY, slot, p.local) = there ? doubled(keys0[at]) : 0.f;
    }
    sync_cluster();

    long long at = first;
    for (int t = 0; t < steps; ++t, at += stride) {
        // The cell reads s_{t-1} through u = [V; W_a] s_{t-1}.
        float z[4], kept[4];
#pragma unroll
        for (int r = 0; r < G; ++r) z[r] = x[r] + u[r];
        float h;
        if constexpr (G == 4) {
            LSTMUnit now;
            h = now.advance(z, c);
            kept[0] = now.i, kept[1] = now.f, kept[2] = now.g, kept[3] = now.o;
        } else {
            h = phi(z[0], b);
        }
        h = mine ? h : 0.f;
        publish(p, shared_h + unit, h);
        const float query = doubled(u[G]);

        if (mine && t + 1 < steps)
#pragma unroll
            for (int r = 0; r < G; ++r) x[r] = xp[(at - unit + stride) * G + r * n + unit];

        int promoted;
        const int slot = books.admit(lane, KAPPA + t, (float)decay, promoted);
        sync_warp();
        if (NU > 0 && promoted >= 0)
            for (int r = p.part; r < BANK_ROWS; r += D) bank(r, promoted, p.local) = bank(r, slot, p.local);
        sync_warp();

        // Scores of the states already there need not wait for h_t's key.
        float part[K][1];
#pragma unroll
        for (int k = 0; k < K; ++k) part[k][0] = weight * unbent(query, bank(KEY, p.part + D * k, p.local));
        sync_cluster();
        if (writes) {  // behind the barrier, which would wait for them
            h_out[at] = h;
            if (SAVE && G == 4) {
                float* its = activations + (at - unit) * 5 + unit;
                for (int r = 0; r < 4; ++r) its[r * n] = kept[r];
                its[4 * n] = c;
            }
        }

        float y[ROWS];
        matrix.times(p, shared_h, y);
        const float key = doubled(y[G + 1]);
        const float score = weight * unbent(query, key);
#pragma unroll
        for (int k = 0; k < K; ++k) part[k][0] = p.part + D * k == slot ? score : part[k][0];
        if (slot >= 0)
#pragma unroll
            for (int r = 0; r < BANK_ROWS; ++r)
                if (r % D == p.part) bank(r, slot, p.local) = r <= G ? y[r <= G ? r : 0] : r == VALUE ? h : key;
        const float logit = -2.f * sum_over_units(p, part, partial, sums);

        const bool filled = books.held >= 0;
        const int most = warp_max(filled ? ordered(float_bits(logit)) : ordered(float_bits(NEGATIVE_INFINITY)));
        const float share = filled ? expf(logit - bits_float(ordered(most))) : 0.f;
        float total = 0.f, mixed[G + 2] = {};
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const float its = shuffle(share, p.part + D * k);
            total += its;
#pragma unroll
            for (int r = 0; r < G + 2; ++r) mixed[r] += its * bank(r, p.part + D * k, p.local);
        }
        total = sum_over_parts(total);
        const float scale = total > 0.f ? reciprocal(total) : 0.f;  // no slot at all: c = 0
#pragma unroll
        for (int r = 0; r <= G; ++r) u[r] = MIX * (y[r] + scale * sum_over_parts(mixed[r]));
        const float s = MIX * (h + scale * sum_over_parts(mixed[VALUE]));

        const float alpha = share * scale;
        if (lane < NU || REFRESH) books.relevance += alpha;
        if (SAVE && keeps) {
            const long long here = ((long long)t * B + p.sequence) * KAPPA + lane;
            slots[here] = books.held;
            attention[here] = alpha;
        }
        if (writes) s_out[at] = s;
    }

    if (keeps) {
        final_slots[(long long)p.sequence * KAPPA + lane] = books.held;
        final_relevance[(long long)p.sequence * KAPPA + lane] = books.relevance;
    }
    if (G == 4 && writes) c_T[first] = c;
    for (int t = steps; t < T; ++t, at += stride) {
        if (writes) {
            h_out[at] = s_out[at] = 0.f;
            if (SAVE && G == 4)
                for (int r = 0; r < 5; ++r) activations[(at - unit) * 5 + r * n + unit] = 0.f;
        }
        if (SAVE && keeps) {
            slots[((long long)t * B + p.sequence) * KAPPA + lane] = -1;
            attention[((long long)t * B + p.sequence) * KAPPA + lane] = 0.f;
        }
    }
    sync_cluster();
}
