// Sparse attentive backtracking: an LSTM that adds a few stored states to its own, fused over time; one barrier a step.
//
// A stored state's score w . tanh([h; m_i]) is the query's part, which shifts all scores alike and so changes no weight,
// and w_m . tanh(m_i), which never changes. The best RHO by it are all that can ever be attended: once out, a state stays
// out.
#define NU 0
#define MEAN 0
#include "attention.cuh"

constexpr int TOP = RHO;
constexpr float MARGIN = 1e-7f;

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += shuffle_xor(x, offset);
    return x;
}

// One lane a slot, every warp with the same books.
struct Best {
    int held = -1;
    float score = 0.f;
    int stored = 0;  // how many states were ever stored

    DEVICE bool sparse() const { return stored > TOP; }
    DEVICE int lowest() const { return warp_min(held >= 0 ? ordered(float_bits(score)) : 0x7fffffff); }

    // The weights of the states: a softmax while all that were stored are here, else what stands out above the least.
    // `size` is the number by which they were divided.
    DEVICE float weights(float& size) const {
        float share = 0.f;
        if (sparse()) {
            const float least = bits_float(ordered(lowest()));
            if (held >= 0) share = fmaxf(score - least - MARGIN, 0.f);
            size = warp_sum(share) + MARGIN;
        } else {
            const int most = warp_max(held >= 0 ? ordered(float_bits(score)) : ordered(float_bits(NEGATIVE_INFINITY)));
            if (held >= 0) share = expf(score - bits_float(ordered(most)));
            size = warp_sum(share);
        }
        return size > 0.f ? share / size : 0.f;
    }

    // Store a state: returns its slot, -1 where it is not among the best.
    DEVICE int store(int lane, int newest, float its) {
        int slot = stored;
        if (stored++ >= TOP) {
            const int least = lowest();
            slot = first_bit(lanes_where(held >= 0 && ordered(float_bits(score)) == least));
            if (!(its > bits_float(ordered(least)))) return -1;
        }
        if (lane == slot) held = newest, score = its;
        return slot;
    }
};

// best0 (B,TOP) int32, scores0 (B,m0), stored0 (B,) int32: the best of the carried memory, made outside. -> h, attended
// (T,B,n), c_T | cells, gates, slots (T,B,TOP), attention (T,B,TOP).
KERNEL(THREADS) sab_forward(
    const float* xp, const float* weights, const float* score_weights, const float* h0, const float* c0,
    const float* values0, const int* best0, const float* scores0, const int* stored0, const long long* clock0,
    const long long* lengths, float* h_out, float* attended_out, float* c_T, float* cells, float* gates, int* slots,
    float* attention, int n, int T, int B, int m0, int store_every) {
    const Place p = place();
    const int unit = p.unit, lane = p.lane, steps = HAS_LENGTHS ? (int)lengths[p.sequence] : T;
    const bool mine = unit < n, writes = mine && p.part == 0, keeps = p.rank == 0 && p.warp == 0 && lane < TOP;
    float* shared_h = shared_memory();          // (2, N)
    float* partial = shared_h + 2 * N;          // (2, C, NW)
    const Bank bank{partial + 2 * 8 * C};
    Rows matrix;
#pragma unroll
    for (int r = 0; r < 4; ++r) matrix.load(p, r, weights + (long long)r * n * n, n);

    const long long first = (long long)p.sequence * n + unit, stride = (long long)B * n;
    const float w = mine ? score_weights[unit] : 0.f;
    float h = mine ? h0[first] : 0.f, c = mine ? c0[first] : 0.f, x[4] = {};
    if (mine && steps)
        for (int r = 0; r < 4; ++r) x[r] = xp[(first - unit) * 4 + r * n + unit];
    Best best;
    best.stored = stored0[p.sequence];
    if (lane < TOP) {
        best.held = best0[(long long)p.sequence * TOP + lane];
        if (best.held >= 0) best.score = scores0[(long long)p.sequence * m0 + best.held];
    }
    for (int slot = p.part; slot < SLOTS; slot += D) {
        const int state = slot < TOP ? best0[(long long)p.sequence * TOP + slot] : -1;
        bank(0, slot, p.local) = mine && state >= 0 ? values0[((long long)p.sequence * m0 + state) * n + unit] : 0.f;
    }
    int until = store_every - (int)(clock0[p.sequence] % store_every);  // steps until a state is stored
    float size, alpha = best.weights(size), attended = 0.f;
    bool changed = true;
    sync_cluster();
    publish(p, shared_h + unit, h);
    sync_cluster();

    long long at = first;
    for (int t = 0; t < steps; ++t, at += stride) {
        if (changed) {
            float sum = 0.f;
#pragma unroll
            for (int k = 0; k < K; ++k) sum += shuffle(alpha, p.part + D * k) * bank(0, p.part + D * k, p.local);
            attended = sum_over_parts(sum);
        }
        float y[4], z[4];
        matrix.times(p, shared_h + (t & 1) * N, y);
#pragma unroll
        for (int r = 0; r < 4; ++r) z[r] = x[r] + y[r];
        LSTMUnit now;
        h = now.advance(z, c) + attended;
        h = mine ? h : 0.f;
        publish(p, shared_h + ((t + 1) & 1) * N + unit, h);
        if (mine && t + 1 < steps)
            for (int r = 0; r < 4; ++r) x[r] = xp[(at - unit + stride) * 4 + r * n + unit];

        const bool due = --until == 0;
        float* parts = partial + (t & 1) * 8 * C;
        if (due) {
            const float part = warp_sum(p.part == 0 ? w * tanhf(h) : 0.f);
            if (lane < C) store_at(parts + p.rank * 8 + p.warp, lane, part);
        }
        if (writes) {
            h_out[at] = h;
            attended_out[at] = attended;
            if (SAVE) {
                const float kept[4] = {now.i, now.f, now.g, now.o};
                cells[at] = c;
                for (int r = 0; r < 4; ++r) gates[(at - unit) * 4 + r * n + unit] = kept[r];
            }
        }
        if (SAVE && keeps) {
            slots[((long long)t * B + p.sequence) * TOP + lane] = best.held;
            attention[((long long)t * B + p.sequence) * TOP + lane] = alpha;
        }
        sync_cluster();

        changed = due;
        if (due) {
            until = store_every;
            float score = 0.f;
            for (int rank = 0; rank < C; ++rank)
                for (int warp = 0; warp < NW; ++warp) score += parts[rank * 8 + warp];
            const int slot = best.store(lane, m0 + t, score);
            if (slot >= 0 && p.part == 0) bank(0, slot, p.local) = h;
            alpha = best.weights(size);
            sync_warp();
        }
    }
    if (writes) c_T[first] = c;
    for (int t = steps; t < T; ++t, at += stride) {
        if (writes) {
            h_out[at] = attended_out[at] = 0.f;
            if (SAVE) {
                cells[at] = 0.f;
                for (int r = 0; r < 4; ++r) gates[(at - unit) * 4 + r * n + unit] = 0.f;
            }
        }
        if (SAVE && keeps) {
            slots[((long long)t * B + p.sequence) * TOP + lane] = -1;
            attention[((long long)t * B + p.sequence) * TOP + lane] = 0.f;
        }
    }
    sync_cluster();
}

// scores (T,B), scores0 (B,m0): what each state's score is or would be. dattended may be absent. -> dxp (T,B,4n), dscores
// (T,B), dscores0 (B,m0) and dvalues0 (B,m0,n) (both zeroed outside), dh0, dc0 (B,n).
KERNEL(THREADS) sab_backward(
    const float* dh_out, const float* dattended, const float* dc_T, const float* weights, const float* score_weights,
    const float* c0, const float* values0, const int* best0, const int* stored0, const long long* clock0,
    const float* h_in, const float* cells, const float* gates, const int* slots, const float* attention,
    const float* scores, const float* scores0, const long long* lengths, float* dxp, float* dscores, float* dscores0,
    float* dvalues0, float* dh0, float* dc0, int n, int T, int B, int m0, int store_every, int truncation) {
    const Place p = place();
    const int unit = p.unit, lane = p.lane, steps = HAS_LENGTHS ? (int)lengths[p.sequence] : T;
    const bool mine = unit < n, writes = mine && p.part == 0, keeps = p.rank == 0 && p.warp == 0 && lane < TOP;
    constexpr int EXCHANGE = 32 * (8 + C);
    float* shared_x = shared_memory();             // (2, 4, N)
    float* exchange = shared_x + 2 * 4 * N;        // (2, EXCHANGE): what one step reads while the next is written
    const Bank bank{exchange + 2 * EXCHANGE};      // the states; then what they receive
    Columns matrix;
#pragma unroll
    for (int r = 0; r < 4; ++r) matrix.load(p, r, weights + (long long)r * n * n, n);

    const long long first = (long long)p.sequence * n + unit, stride = (long long)B * n;
    for (int t = steps; t < T; ++t)
        if (writes)
            for (int r = 0; r < 4; ++r) dxp[(first - unit + t * stride) * 4 + r * n + unit] = 0.f;
    const auto row_of = [&](int t) {
        if (lane >= TOP) return -1;
        return t >= 0 ? slots[((long long)t * B + p.sequence) * TOP + lane] : best0[(long long)p.sequence * TOP + lane];
    };
    const auto weights_of = [&](int t) {
        return lane < TOP && t >= 0 ? attention[((long long)t * B + p.sequence) * TOP + lane] : 0.f;
    };
    const auto score_of = [&](int state) {
        if (state < 0) return 0.f;
        return state < m0 ? scores0[(long long)p.sequence * m0 + state] : scores[(long long)(state - m0) * B + p.sequence];
    };
    const auto value_of = [&](int state) {
        if (!mine || state < 0) return 0.f;
        return state < m0 ? values0[((long long)p.sequence * m0 + state) * n + unit]
                          : h_in[((long long)(state - m0) * B + p.sequence) * n + unit];
    };

    Best best;
    best.held = row_of(steps - 1), best.score = score_of(best.held);
    // How many had been stored when the last step attended: its own state came later.
    const long long clock = clock0[p.sequence];
    const int before_us = (int)(clock / store_every);
    best.stored = stored0[p.sequence] + (steps > 0 ? (int)((clock + steps - 1) / store_every) - before_us : 0);
    for (int slot = 0; slot < SLOTS; ++slot) {
        const int state = slot < TOP ? shuffle(best.held, slot) : -1;
        if (p.part == slot % D) bank(0, slot, p.local) = value_of(state), bank(1, slot, p.local) = 0.f;
    }
    const float w = mine ? score_weights[unit] : 0.f;
    float carried = 0.f, dc = HAS_DC && mine ? dc_T[first] : 0.f, dscore = 0.f;
    float c = mine && steps ? cells[first + (steps - 1) * stride] : 0.f;
    float out = 0.f, aside = 0.f, previous = 0.f, gate[4] = {};
    const auto fetch = [&](int t) {
        if (!mine || t < 0) return;
        const long long at = first + t * stride;
        if (HAS_DH) out = dh_out[at];
        if (HAS_DS) aside = dattended[at];
        previous = t > 0 ? cells[at - stride] : c0[first];
        for (int r = 0; r < 4; ++r) gate[r] = gates[(at - unit) * 4 + r * n + unit];
    };
    fetch(steps - 1);
    float alpha = weights_of(steps - 1);
    int before = row_of(steps - 2);
    sync_cluster();

    for (int t = steps - 1; t >= 0; --t) {
        const long long at = first + t * stride;
        const float dh = carried + out * HAS_DH, da = dh + aside * HAS_DS;
        float dz[4];
        LSTMUnit{gate[0], gate[1], gate[2], gate[3]}.back(dh, dc, c, previous, dz);
        c = previous;
        float* buffer = shared_x + (t & 1) * 4 * N;
#pragma unroll
        for (int r = 0; r < 4; ++r) publish(p, buffer + r * N + unit, mine ? dz[r] : 0.f);
        const bool stores = t > 0 && (clock + t) % store_every == 0;  // the step before stored its state
        const bool cut = clock + t > 0 && (clock + t) % truncation == 0;
        const int earlier = row_of(t - 2);
        const float alpha_next = weights_of(t - 1), h_before = mine && t > 0 ? h_in[at - stride] : 0.f;
        const float score_before = score_of(before);
        fetch(t - 1);
        if (writes)
            for (int r = 0; r < 4; ++r) dxp[(at - unit) * 4 + r * n + unit] = dz[r];

        float part[K][1];
#pragma unroll
        for (int k = 0; k < K; ++k) part[k][0] = mine ? da * bank(0, p.part + D * k, p.local) : 0.f;
        float* sums = exchange + (t & 1) * EXCHANGE;
        const float dalpha = sum_over_units(p, part, sums, sums + 32 * 8);
#pragma unroll
        for (int k = 0; k < K; ++k)
            bank(1, p.part + D * k, p.local) += shuffle(alpha, p.part + D * k) * (mine ? da : 0.f);

        const float mean = warp_sum(alpha * dalpha);
        float size;
        best.weights(size);
        if (best.sparse()) {
            const float dkept = alpha > 0.f ? (dalpha - mean) / size : 0.f, all = warp_sum(dkept);
            const int least = best.lowest();
            const int threshold = first_bit(lanes_where(best.held >= 0 && ordered(float_bits(best.score)) == least));
            dscore += dkept - (lane == threshold ? all : 0.f);
        } else {
            dscore += alpha * (dalpha - mean);
        }
        carried = cut ? 0.f : matrix.times(p, buffer);
        if (cut) dc = 0.f;
        sync_warp();

        // The state stored after step t - 1 leaves the memory with what it has received; the one before it comes back.
        if (stores) {
            best.stored -= 1;
            const int slot = first_bit(lanes_where(lane < TOP && best.held == m0 + t - 1));
            float received = 0.f;
            if (slot >= 0) {
                received = shuffle(dscore, slot);
                const float bent = tanhf(h_before);
                carried += bank(1, slot, p.local) + received * w * (1.f - bent * bent);
                const int old = shuffle(before, slot);
                sync_warp();
                if (p.part == slot % D) bank(0, slot, p.local) = value_of(old), bank(1, slot, p.local) = 0.f;
                if (lane == slot) dscore = 0.f;
            }
            if (keeps && lane == 0) dscores[(long long)(t - 1) * B + p.sequence] = received;
            sync_warp();
        }
        best.held = before, best.score = score_before;
        before = earlier, alpha = alpha_next;
    }
    if (writes) dh0[first] = carried, dc0[first] = dc;
    for (int slot = 0; slot < TOP; ++slot) {
        const int state = shuffle(best.held, slot);
        if (state < 0 || state >= m0) continue;
        if (writes) dvalues0[((long long)p.sequence * m0 + state) * n + unit] = bank(1, slot, p.local);
        if (keeps && lane == slot) dscores0[(long long)p.sequence * m0 + state] = dscore;
    }
    sync_cluster();
}
