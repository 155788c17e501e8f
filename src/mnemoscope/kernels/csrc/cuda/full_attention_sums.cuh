// Sums over all warps of a cluster, for full attention's backward pass.
#pragma once
#include "full_attention.cuh"

// Sums of COUNT rows, and of a number, over all warps of all blocks of the cluster.
template <int COUNT>
struct ClusterSum {
    // Of a block: its rows, its number, and three that make it whole float4.
    static constexpr int SIZE = COUNT * PADDED_N + 4;
    static constexpr int BYTES = 4 * SIZE * CLUSTER_BLOCKS;
    static constexpr int HALF = WARPS / 2;
    static constexpr int SCRATCH = COUNT * HALF * PADDED_N + WARPS;

    float* scratch;  // (HALF, COUNT, PADDED_N), (WARPS)
    float* blocks;  // (CLUSTER_BLOCKS, SIZE)
    Exchange exchange;

    // Complete behind this.
    DEVICE void make(Row (&rows)[COUNT], float x, int rank, int warp, int lane) {
        float* numbers = scratch + COUNT * HALF * PADDED_N;
        if (lane == 0) numbers[warp] = x;
        // Half of the warps hand their rows to the others: so much shared memory is better used for
        // the history.
        float* own_rows = scratch + warp % HALF * COUNT * PADDED_N;
        if (warp >= HALF) store(rows, own_rows, lane);
        sync_block();
        if (warp < HALF) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                Row other;
                other.load(own_rows + i * PADDED_N, lane);
                rows[i].add(1.f, other);
            }
            store(rows, own_rows, lane);
        }
        sync_block();

        // Over the warps of a block, and to all blocks. A sum takes the place of the first of its
        // numbers, which nobody else reads.
        float* own = blocks + rank * SIZE;
        for (int j = threadIdx.x; j < COUNT * PADDED_N; j += THREADS) {
            float sum = 0.f;
            for (int w = 0; w < HALF; ++w) sum += scratch[w * COUNT * PADDED_N + j];
            if constexpr (IS_CLUSTER) {
                scratch[j] = sum;
                sync_warp();
                exchange.send(rank, lane, scratch + j - lane, own + j - lane, 32 / 4);
            } else {
                own[j] = sum;
            }
        }
        if (warp == WARPS - 1) {
            x = warp_sum(lane < WARPS ? numbers[lane] : 0.f);
            if (lane == 0) (IS_CLUSTER ? numbers : own + COUNT * PADDED_N)[0] = x;
            if constexpr (IS_CLUSTER) {
                sync_warp();
                exchange.send(rank, lane, numbers, own + COUNT * PADDED_N, 1);
            }
        }
        receive(exchange);
    }
    DEVICE static void store(const Row (&rows)[COUNT], float* place, int lane) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) rows[i].store(place + i * PADDED_N, lane);
    }
    // Unit j of row i; and the number.
    DEVICE float of(int i, int j) const { return total(i * PADDED_N + j); }
    DEVICE float number() const { return total(COUNT * PADDED_N); }
    DEVICE float total(int at) const {
        float sum = 0.f;
        for (int from = 0; from < CLUSTER_BLOCKS; ++from) sum += blocks[from * SIZE + at];
        return sum;
    }
};
