// The gradients of a recurrence's weights and biases from those of its products, in one launch:
//
//     dV = sum_k dy_k state_k^T, db_hh = sum_k dy_k,  dU = sum_k dz_k x_k^T, db_ih = sum_k dz_k,
//     dU_a = sum_k dk_k h_k^T of attention's keys, dv = sum_b dv_b of its scores,
//
// over the K = T * B rows of a run, and its B sequences. A short run waits for its host, and this
// is what cuBLAS and torch's sums take six launches for. A cluster makes one tile of a matrix: each
// of its blocks adds up a part of the rows, and the parts are then summed in the order of the
// blocks, so that the same numbers give the same sums.
//
// Sizes that the host passes: CLUSTER_BLOCKS, THREADS, SHARED_FLOATS.
#include "device.cuh"

constexpr int TILE = 64;  // rows and columns of a tile
constexpr int DEPTH = 16;  // rows of the run that are in shared memory at once
constexpr int PART = TILE * TILE / CLUSTER_BLOCKS;  // elements of a tile that a block sums
constexpr int LOADS = DEPTH * TILE / THREADS;  // numbers of each factor that a thread loads
static_assert(THREADS == TILE * TILE / 16, "the kernel and its launch disagree on the threads");
static_assert(PART % 4 == 0, "four neighboring elements belong to one block");

struct SharedLayout {  // offsets in floats
    static constexpr int left = 0;  // (DEPTH, TILE) of dy or dz
    static constexpr int right = left + DEPTH * TILE;  // (DEPTH, TILE) of the states or of x
    static constexpr int sums = right + DEPTH * TILE;  // (THREADS)
    static constexpr int parts = sums + THREADS;  // (CLUSTER_BLOCKS, PART)
    static constexpr int bias_parts = parts + CLUSTER_BLOCKS * PART;  // (CLUSTER_BLOCKS, TILE)
    static constexpr int size = bias_parts + CLUSTER_BLOCKS * TILE;
};
CHECK_SHARED_MEMORY(SharedLayout);

// How many tiles cover a side of so many elements.
DEVICE int tiles(int size) { return (size + TILE - 1) / TILE; }

// dz (K,G) of U x and of what is added to it. dy (K,H) of V h has the first du_row columns of dz,
// and then du (K,H-du_row). state_k is states_{k-B} (K,n); of the first B rows it is first (B,n),
// or zero if that is null. x (K,E); dk, h (K,n); dv_rows (B,n). -> dV (H,n), db_hh (H), dU (G,E),
// db_ih (G), dU_a (n,n), dv (n). A null bias or dv is not wanted, and dU_a, with which dv is made,
// has no tile in the grid if it is not.
KERNEL weight_gradients(const float* dz, const float* du, const float* first, const float* states,
                        const float* x, const float* dk, const float* h, const float* dv_rows,
                        float* dV, float* db_hh, float* dU, float* db_ih, float* dU_a, float* dv,
                        int G, int H, int du_row, int n, int E, int K, int B) {
    const int thread = threadIdx.x, rank = blockIdx.x % CLUSTER_BLOCKS;
    // The tiles of dV come first, then those of dU and of dU_a.
    int tile = blockIdx.x / CLUSTER_BLOCKS;
    const bool of_states = tile < tiles(H) * tiles(n);
    if (!of_states) tile -= tiles(H) * tiles(n);
    const bool of_inputs = !of_states && tile < tiles(G) * tiles(E);
    if (!of_states && !of_inputs) tile -= tiles(G) * tiles(E);
    const int rows = of_states ? H : (of_inputs ? G : n), columns = of_inputs ? E : n;
    const int first_row = tile % tiles(rows) * TILE, first_column = tile / tiles(rows) * TILE;
    float* left = shared_memory() + SharedLayout::left;
    float* right = shared_memory() + SharedLayout::right;
    float* sums = shared_memory() + SharedLayout::sums;
    float* parts = shared_memory() + SharedLayout::parts;
    float* bias_parts = shared_memory() + SharedLayout::bias_parts;
    sync_cluster();  // before a block stores into another, that one must have begun

    // What this thread loads: one column of each factor, of every THREADS / TILE-th row.
    const int row = first_row + thread % TILE, column = first_column + thread % TILE;
    const bool from_du = of_states && row >= du_row;
    const float* gradient = of_states || of_inputs ? dz + row : dk + row;
    int gradient_stride = of_states || of_inputs ? G : n;
    if (from_du) gradient = du + (row - du_row), gradient_stride = H - du_row;
    const float* factor = of_states ? states : (of_inputs ? x : h);
    const int lag = of_states ? B : 0;
    const int chunk = ((K + CLUSTER_BLOCKS - 1) / CLUSTER_BLOCKS + DEPTH - 1) / DEPTH * DEPTH;
    const int begin = rank * chunk, end = begin + chunk < K ? begin + chunk : K;
    float next_left[LOADS], next_right[LOADS], sum = 0.f;
    const auto load = [&](int start) {
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const long long k = start + thread / TILE + i * (THREADS / TILE);
            next_left[i] = k < end && row < rows ? gradient[k * gradient_stride] : 0.f;
            next_right[i] = 0.f;
            if (k >= end || column >= columns) continue;
            if (k >= lag)
                next_right[i] = factor[(k - lag) * columns + column];
            else if (first)
                next_right[i] = first[k * columns + column];
        }
    };

    // 4 x 4 elements of the tile, summed over this block's rows.
    const int tile_row = thread / 16, tile_column = thread % 16;
    float total[4][4] = {};
    load(begin);
    for (int start = begin; start < end; start += DEPTH) {
        sync_block();  // all have read the rows before
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            left[thread + i * THREADS] = next_left[i];
            right[thread + i * THREADS] = next_right[i];
            sum += next_left[i];
        }
        sync_block();
        load(start + DEPTH);
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            const float4 a = reinterpret_cast<const float4*>(left + k * TILE)[tile_row];
            const float4 b = reinterpret_cast<const float4*>(right + k * TILE)[tile_column];
            const float factors[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                total[i][0] += factors[i] * b.x;
                total[i][1] += factors[i] * b.y;
                total[i][2] += factors[i] * b.z;
                total[i][3] += factors[i] * b.w;
            }
        }
    }

    // What the keys have in place of a bias, shared among the threads of the cluster.
    if (!of_states && !of_inputs) {
        sum = 0.f;
        const int lanes = THREADS / TILE, sequences = dv && row < rows ? B : 0;
        for (int b = rank * lanes + thread / TILE; b < sequences; b += CLUSTER_BLOCKS * lanes)
            sum += dv_rows[(long long)b * n + row];
    }

    // To the block that sums them, and the bias to the first one.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int element = (4 * tile_row + i) * TILE + 4 * tile_column;
        store_in_block(parts + rank * PART + element % PART, element / PART,
                       float4{total[i][0], total[i][1], total[i][2], total[i][3]});
    }
    sums[thread] = sum;
    sync_block();
    if (thread < TILE) {
        for (int i = TILE; i < THREADS; i += TILE) sum += sums[thread + i];
        store_in_block(bias_parts + rank * TILE + thread, 0, sum);
    }
    sync_cluster();

    float* result = of_states ? dV : (of_inputs ? dU : dU_a);
    for (int i = thread; i < PART; i += THREADS) {
        float element = 0.f;
        for (int r = 0; r < CLUSTER_BLOCKS; ++r) element += parts[r * PART + i];
        const int to_row = first_row + (rank * PART + i) / TILE;
        const int to_column = first_column + (rank * PART + i) % TILE;
        if (to_row < rows && to_column < columns)
            result[(long long)to_row * columns + to_column] = element;
    }
    float* bias = of_states ? db_hh : (of_inputs ? db_ih : dv);
    if (bias && rank == 0 && first_column == 0 && thread < TILE && row < rows) {
        float element = 0.f;
        for (int r = 0; r < CLUSTER_BLOCKS; ++r) element += bias_parts[r * TILE + thread];
        bias[row] = element;
    }
}
