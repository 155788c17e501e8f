// What the blocks of a cluster send to each other in every step, behind barriers of data.
#pragma once
#include "device.cuh"

struct Exchange {
    DataBarrier* barrier;
    int bytes;  // of a round
    int odd = 0;  // of the round that comes

    // By one thread, before a barrier of the cluster.
    DEVICE void init() const {
        init_barrier(barrier);
        expect_bytes(barrier, bytes);
    }
    // `renews`: true in one thread of those that wait, which prepares the next round.
    DEVICE void wait(bool renews) {
        wait_for_bytes(barrier, odd);
        odd ^= 1;
        if (renews) expect_bytes(barrier, bytes);
        sync_warp();
    }
    // `count` times 16 bytes, from the warp's own row of shared memory to every block. Block `rank`
    // begins with itself: not all of them send to the same one at a time.
    DEVICE void send(int rank, int lane, const float* row, float* address, int count) const {
        for (int i = lane; i < CLUSTER_BLOCKS * count; i += 32)
            send_to_block(address + i % count * 4, (rank + i / count) % CLUSTER_BLOCKS,
                          reinterpret_cast<const float4*>(row)[i % count], barrier);
    }
};
