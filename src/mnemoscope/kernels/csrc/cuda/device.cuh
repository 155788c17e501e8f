// What the kernels ask of the machine, behind names of their own.
//
// Compiled by NVRTC without any header. The tests compile the same kernels for the CPU with other definitions of these
// names (MNEMOSCOPE_EMULATED), which checks the mathematics and the indexing where there is no GPU.
#pragma once

#ifdef MNEMOSCOPE_EMULATED
#include "emulated.h"
#else
#define DEVICE __device__ __forceinline__
#define FULL_WARP 0xffffffffu

#if C > 1
#define KERNEL(threads) extern "C" __global__ void __cluster_dims__(C, 1, 1) __launch_bounds__(threads, 1)
#else
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
#endif

extern __shared__ float4 dynamic_shared[];
DEVICE float* shared_memory() { return reinterpret_cast<float*>(dynamic_shared); }

DEVICE float shuffle(float x, int source) { return __shfl_sync(FULL_WARP, x, source); }
DEVICE int shuffle(int x, int source) { return __shfl_sync(FULL_WARP, x, source); }
DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(FULL_WARP, x, mask); }
DEVICE unsigned lanes_where(bool x) { return __ballot_sync(FULL_WARP, x); }
DEVICE int warp_max(int x) { return __reduce_max_sync(FULL_WARP, x); }
DEVICE int warp_min(int x) { return __reduce_min_sync(FULL_WARP, x); }
DEVICE void sync_warp() { __syncwarp(); }
DEVICE void sync_block() { __syncthreads(); }
DEVICE int first_bit(unsigned x) { return __ffs(x) - 1; }
DEVICE int float_bits(float x) { return __float_as_int(x); }
DEVICE float bits_float(int x) { return __int_as_float(x); }

// 1 / x to one unit in the last place, without the slow path of an IEEE division.
DEVICE float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 2^x to two units in the last place; 0 and infinity where float ends.
DEVICE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Bring a line from device memory to the cache, so that the load of a later step finds it there.
DEVICE void prefetch(const float* x) { asm volatile("prefetch.global.L2 [%0];" ::"l"(x)); }

#if C > 1
// All blocks of a cluster wait for each other; what was stored before is seen after, in every block's shared memory.
DEVICE void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Store into the place that `here` has in the shared memory of another block of the cluster.
DEVICE void store_at(float* here, int rank, float x) {
    unsigned local = static_cast<unsigned>(__cvta_generic_to_shared(here)), remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(x) : "memory");
}
#else
DEVICE void sync_cluster() { __syncthreads(); }
DEVICE void store_at(float* here, int, float x) { *here = x; }
#endif
#endif

#define NEGATIVE_INFINITY bits_float((int)0xff800000u)
