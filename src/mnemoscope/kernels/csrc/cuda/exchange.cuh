// What the blocks of a cluster send to each other in every step, behind barriers of data.
#pragma once
#include "device.cuh"

// What is sent to every block of a cluster waits behind a barrier of data (a cluster's barrier
// would also wait for the step's stores to device memory). A kernel has two exchanges that take
// turns, and a block sends nothing in one before it has all of the other. Each of its warps sends,
// or sync_block comes before it sends for them: who has the data of a round knows that every warp
// has received those of the round before, and read those of the one before that, of the same
// exchange as this one. Their place may be written, and their barrier be used, again.
// A single block has neither barriers nor rows to send from: it stores, and waits for its threads.
constexpr bool IS_CLUSTER = CLUSTER_BLOCKS > 1;
constexpr int TWO_BARRIERS = IS_CLUSTER ? 4 : 0;  // floats

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

DEVICE Exchange exchange_at(float* barriers, int index, int bytes) {
    return {reinterpret_cast<DataBarrier*>(barriers) + index, bytes};
}
// Before a barrier of the cluster.
DEVICE void begin_exchanges(const Exchange& one, const Exchange& other) {
    if (!IS_CLUSTER || threadIdx.x != 0) return;
    one.init();
    other.init();
}
// For one exchange a step with two buffers, of which each has its barrier.
DEVICE void take_turns(Exchange& now, Exchange& next) {
    const Exchange done = now;
    now = next;
    next = done;
}
// Wait for all that was sent.
DEVICE void receive(Exchange& exchange) {
    if constexpr (IS_CLUSTER)
        exchange.wait(threadIdx.x == 0);
    else
        sync_block();
}
