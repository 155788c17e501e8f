// The hardware operations that the kernels use, one small function each.
//
// NVRTC compiles the kernels without any header. The tests compile the same kernels for the CPU
// (MNEMOSCOPE_EMULATED): emulated.h then defines these names, which checks the mathematics and the
// indexing on a machine without a GPU.
#pragma once

#ifdef MNEMOSCOPE_EMULATED
#include "emulated.h"
#else
#define DEVICE __device__ __forceinline__
#define FULL_WARP 0xffffffffu

#if CLUSTER_BLOCKS > 1
#define KERNEL \
    extern "C" __global__ void __cluster_dims__(CLUSTER_BLOCKS, 1, 1) __launch_bounds__(THREADS, 1)
#else
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 1)
#endif

extern __shared__ float4 dynamic_shared[];
DEVICE float* shared_memory() { return reinterpret_cast<float*>(dynamic_shared); }

DEVICE float shuffle(float x, int source) { return __shfl_sync(FULL_WARP, x, source); }
DEVICE int shuffle(int x, int source) { return __shfl_sync(FULL_WARP, x, source); }
DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(FULL_WARP, x, mask); }
DEVICE unsigned warp_ballot(bool x) { return __ballot_sync(FULL_WARP, x); }
DEVICE int warp_max(int x) { return __reduce_max_sync(FULL_WARP, x); }
DEVICE int warp_min(int x) { return __reduce_min_sync(FULL_WARP, x); }
DEVICE void sync_warp() { __syncwarp(); }
DEVICE void sync_block() { __syncthreads(); }
DEVICE bool sync_block_or(bool x) { return __syncthreads_or(x); }  // x of any thread
DEVICE int first_bit(unsigned x) { return __ffs(x) - 1; }  // -1 if x is zero
DEVICE int float_bits(float x) { return __float_as_int(x); }
DEVICE float bits_float(int x) { return __int_as_float(x); }

// threadIdx.x, read anew: what follows from it is computed anew, too, instead of being kept in
// registers from step to step.
DEVICE int thread_index() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// 1 / x to one unit in the last place, without the slow path of an IEEE division.
DEVICE float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 2^x to two units in the last place; 0 below float's range and infinity above it.
DEVICE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The logarithm to the base of two, to 22 bits.
DEVICE float log_two(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two numbers rounded to bfloat16, the first in the lower half of the word; and one.
DEVICE unsigned pack_bf16(float low, float high) {
    unsigned y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
DEVICE unsigned short bf16_bits(float x) { return (unsigned short)pack_bf16(x, 0.f); }

// sum += a b by the warp's tensor core: a (16, 16) and b (16, 8) are bfloat16, two numbers a word.
// Lane 4 i + j has of a, at a[0] .. a[3]: columns 2j and 2j + 1 of rows i and i + 8, and columns
// 2j + 8 and 2j + 9 of them; of b, at b0 and b1: the same rows of column i; of the sum: columns 2j
// and 2j + 1 of rows i and i + 8.
DEVICE void multiply_tiles(float (&sum)[4], const unsigned* a, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// *address += x, without waiting for what is there. The sum is for a later launch: this one must
// not read it.
DEVICE void add_in_memory(float* address, float x) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(address), "f"(x));
}

// Bring a line of device memory into the L2 cache for the load of a later step.
DEVICE void prefetch(const float* x) { asm volatile("prefetch.global.L2 [%0];" ::"l"(x)); }

#if CLUSTER_BLOCKS > 1
// Barrier over all blocks of the cluster. Stores into any block's shared memory before it are
// visible after it. A warp must come to it as one (.aligned): its lanes may come from branches and
// loops of their own.
DEVICE void sync_cluster() {
    sync_warp();
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
// Store x in the shared memory of block `rank` of the cluster, at the offset of `address` in ours.
DEVICE void store_in_block(float* address, int rank, float x) {
    unsigned local = static_cast<unsigned>(__cvta_generic_to_shared(address)), remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(x) : "memory");
}
// The same for four numbers; the address is a multiple of 16 bytes.
DEVICE void store_in_block(float* address, int rank, float4 x) {
    unsigned local = static_cast<unsigned>(__cvta_generic_to_shared(address)), remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(remote), "f"(x.x),
                 "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
}
#else
DEVICE void sync_cluster() { __syncthreads(); }
DEVICE void store_in_block(float* address, int, float x) { *address = x; }
DEVICE void store_in_block(float* address, int, float4 x) {
    *reinterpret_cast<float4*>(address) = x;
}
#endif
#endif

#ifndef MNEMOSCOPE_EMULATED
// A barrier in shared memory that waits for data instead of threads. A round ends when expect_bytes
// was called once and as many bytes have been sent to the block. Nothing else is waited for,
// neither stores to device memory nor other warps: a cluster's barrier takes several times as long.
typedef unsigned long long DataBarrier;
DEVICE unsigned shared_address(const void* address) {
    return static_cast<unsigned>(__cvta_generic_to_shared(address));
}
// By one thread, before a barrier of the cluster.
DEVICE void init_barrier(DataBarrier* barrier) {
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(
            shared_address(barrier))
        : "memory");
}
DEVICE void expect_bytes(DataBarrier* barrier, int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}
// Wait for the end of a round; `odd` is 0 for the first one, 1 for the second, 0 for the third.
// What came is in shared memory, before which there is no cache: to acquire it for the block is
// enough, and for the cluster would also empty the cache of device memory.
DEVICE void wait_for_bytes(DataBarrier* barrier, int odd) {
    unsigned done = 0;
    while (!done)
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(odd)
            : "memory");
}
// Send 16 bytes to block `rank` of the cluster, to the place of `address` and for the barrier at
// the place of `barrier` in ours.
DEVICE void send_to_block(float* address, int rank, float4 x, DataBarrier* barrier) {
    unsigned target, target_barrier;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(target)
                 : "r"(shared_address(address)), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(target_barrier)
                 : "r"(shared_address(barrier)), "r"(rank));
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(target),
        "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(target_barrier)
        : "memory");
}
#endif

#define NEGATIVE_INFINITY bits_float((int)0xff800000u)

// Numbers from tensors are brought into range before anything is indexed by them.
DEVICE int clamped_length(long long length, int T) {
    return length < 0 ? 0 : (length < T ? (int)length : T);
}
// n modulo m, 0 .. m - 1, of negative n, too.
DEVICE int floor_mod(long long n, int m) {
    const int rest = (int)(n % m);
    return rest < 0 ? rest + m : rest;
}

// The host allocates SHARED_FLOATS of shared memory per block (layout.py, full_attention.py), and
// each kernel divides it by a struct of offsets: they must agree.
#define CHECK_SHARED_MEMORY(Layout)              \
    static_assert(Layout::size == SHARED_FLOATS, \
                  "shared memory: the kernel and its launch disagree")
