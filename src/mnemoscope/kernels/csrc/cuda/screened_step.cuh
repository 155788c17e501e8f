// What both passes of the screened recurrences over single steps share (screened_step_*.cu).
//
// A cluster of blocks runs one step of one sequence, each block some of its units. A thread has
// many loads under way at once: a step is short, and most of it would be waiting for one after the
// other.
#pragma once
#include "reduce.cuh"
#include "screening.cuh"

constexpr int GATES = ROWS - 2;  // of the cell: 1, or 4 for an LSTM
// Rows of a state's products: V h (GATES of them), W_a h, U_a h.
constexpr int QUERY = GATES, KEY = GATES + 1;
constexpr int WARPS = THREADS / 32;
constexpr int n = UNITS;
constexpr int UNITS_PER_BLOCK = (UNITS + CLUSTER_BLOCKS - 1) / CLUSTER_BLOCKS;
constexpr int UNITS_PER_THREAD = (UNITS_PER_BLOCK + THREADS - 1) / THREADS;

// What a step saves (T,B,SAVED_WIDTH): the products of h_t, the next step's query W_a s_t, and an
// LSTM's gates and c_t. Without a backward pass it is the products alone.
constexpr int SAVED_QUERY = ROWS * n, SAVED_GATES = SAVED_QUERY + n;
constexpr int SAVED_WIDTH = SAVED_GATES + (GATES == 4 ? 5 * n : 0);

// The slots whose FIELDS numbers per unit a thread loads at once: as many as fit a quarter of its
// registers, and as many as a warp has lanes, over which it spreads their sums.
template <int FIELDS>
struct Batch {
    static constexpr int room = 16384 / THREADS / FIELDS;
    static constexpr int fit = room > 32 ? 32 : room > 0 ? room : 1;
    static constexpr int count = (SLOTS + fit - 1) / fit;
    static constexpr int size = count > 0 ? (SLOTS + count - 1) / count : 1;
    // The slot of number i in a batch. The last batch may have the last slot more than once.
    static DEVICE int slot(int batch, int i) {
        return batch * size + i < SLOTS ? batch * size + i : SLOTS - 1;
    }
};

struct SharedLayout {  // offsets in floats
    // (SLOT_ROW) pointers: of the state in each slot, its value, and its products' gradients
    static constexpr int products = 0;
    static constexpr int values = products + 2 * SLOT_ROW;
    static constexpr int gradients = values + 2 * SLOT_ROW;
    static constexpr int sums = gradients + 2 * SLOT_ROW;  // (WARPS, SLOT_ROW): of each warp
    static constexpr int block_sums = sums + SLOT_ROW * WARPS;  // (CLUSTER_BLOCKS, SLOT_ROW)
    static constexpr int weights = block_sums + SLOT_ROW * CLUSTER_BLOCKS;  // (SLOT_ROW)
    static constexpr int dlogits = weights + SLOT_ROW;  // (SLOT_ROW)
    static constexpr int own = dlogits + SLOT_ROW;  // (2): of the newest state, alpha and dlogit
    static constexpr int size = own + 2;
};
CHECK_SHARED_MEMORY(SharedLayout);

// Where a thread is: the sequence, the block's place in its cluster, its units.
struct BlockPosition {
    int row = blockIdx.x / CLUSTER_BLOCKS, rank = blockIdx.x % CLUSTER_BLOCKS;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // The thread's unit number i, and whether there is one.
    DEVICE int unit(int i) const { return rank * UNITS_PER_BLOCK + i * THREADS + threadIdx.x; }
    DEVICE bool has_unit(int i) const {
        return i * THREADS + (int)threadIdx.x < UNITS_PER_BLOCK && unit(i) < n;
    }
};

// Sum over all units of the parts that are in shared memory, by warp. In the first warp, each lane
// has the sums of its slots. A barrier, and another one for a cluster.
DEVICE void sum_over_units(const BlockPosition& pos, float (&sum)[SLOTS_OF_LANE]) {
    const float* sums = shared_memory() + SharedLayout::sums;
    float* block_sums = shared_memory() + SharedLayout::block_sums;
    sync_block();
#pragma unroll
    for (int i = 0; i < SLOTS_OF_LANE; ++i) {
        const int slot = pos.lane + 32 * i;
        sum[i] = 0.f;
        if (pos.warp == 0 && slot < SLOTS)
            for (int w = 0; w < WARPS; ++w) sum[i] += sums[w * SLOT_ROW + slot];
    }
    if constexpr (CLUSTER_BLOCKS > 1) {
        if (pos.warp == 0)
            for (int rank = 0; rank < CLUSTER_BLOCKS; ++rank)
#pragma unroll
                for (int i = 0; i < SLOTS_OF_LANE; ++i)
                    store_in_block(block_sums + pos.rank * SLOT_ROW + pos.lane + 32 * i, rank,
                                   sum[i]);
        sync_cluster();
#pragma unroll
        for (int i = 0; i < SLOTS_OF_LANE; ++i) {
            sum[i] = 0.f;
            if (pos.warp == 0)
                for (int rank = 0; rank < CLUSTER_BLOCKS; ++rank)
                    sum[i] += block_sums[rank * SLOT_ROW + pos.lane + 32 * i];
        }
    }
}

// Where the products and the value of a state are, by its index: carried ones first, then new ones.
struct StateRows {
    const float *activations, *products0, *h, *values0;
    int width, B, row;

    DEVICE const float* products_of(int state) const {
        if (state < SLOTS) return products0 + ((long long)row * SLOTS + state) * ROWS * n;
        return activations + ((long long)(state - SLOTS) * B + row) * width;
    }
    DEVICE const float* value_of(int state) const {
        if (state < SLOTS) return values0 + ((long long)row * SLOTS + state) * n;
        return h + ((long long)(state - SLOTS) * B + row) * n;
    }
};

// The states in the slots, in shared memory.
struct SlotPointers {
    const float** products =
        reinterpret_cast<const float**>(shared_memory() + SharedLayout::products);
    const float** values = reinterpret_cast<const float**>(shared_memory() + SharedLayout::values);
    float** gradients = reinterpret_cast<float**>(shared_memory() + SharedLayout::gradients);
};
