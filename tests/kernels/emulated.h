// The hardware operations of the CUDA kernels (device.cuh), on one thread of a CPU.
//
// Every CUDA thread of a cluster is a coroutine. They wait for each other at barriers and at exchanges within a warp.
// Which of them runs next is drawn at random, so that a missing barrier gives a wrong number sooner or later. With
// MNEMOSCOPE_RACES it is found for certain (races.h). Shared memory starts as NaN, and a store behind its end is found.
// The first error ends the launch.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "races.h"

#define DEVICE inline
#define KERNEL extern "C" void

struct alignas(16) float4 { float x, y, z, w; };
struct DataBarrier { int missing, round; };  // missing: bytes that are expected and have not come
struct Index { int x; };
static Index threadIdx, blockIdx;

namespace emulated {
struct Thread;
struct Barrier {
    int expected = 0;
    std::vector<Thread*> waiting;
};
struct Warp {
    Barrier barrier;
    int values[2][32];
    unsigned tiles[2][32][6];
};
struct Block {
    Barrier barrier;
    std::vector<Warp> warps;
    std::vector<char> votes[2];
    std::vector<float4> memory;
};
struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    int thread, block, parity = 0, block_parity = 0;
};

static std::vector<Block> blocks;
static std::vector<std::unique_ptr<Thread>> threads;
static std::vector<Thread*> ready;
static Barrier cluster;
static Thread* current;
static ucontext_t outside;
static void (*body)(void** args);
static void** body_args;

static char failure[256];  // of the launch
static const void* failed_at[2];  // the instructions behind the two accesses of a race
[[noreturn]] inline void fail(const char* text) {
    std::snprintf(failure, sizeof failure, "%s", text);
    setcontext(&outside);
    std::abort();
}

// Pseudo-random numbers (xorshift); a header less to compile than std::mt19937.
inline unsigned random_number() {
    static unsigned state = 2463534242u;
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return state;
}

constexpr int GUARD = 1024;  // float4 behind the shared memory of a block
inline bool touched(const float4& x) { return !(std::isnan(x.x) && std::isnan(x.y) && std::isnan(x.z) && std::isnan(x.w)); }
inline void check_guards() {
    for (const Block& block : blocks)
        for (size_t i = block.memory.size() - GUARD; i < block.memory.size(); ++i)
            if (touched(block.memory[i]))
                std::snprintf(failure, sizeof failure, "a store behind the end of shared memory");
}

// What is sent to another block comes at any later moment, and in any order. For one block of many clusters it comes as
// late as it can: when all threads wait.
struct Send {
    DataBarrier* barrier;
    float* address;
    float4 x;
    int block;  // of the receiver
    races::Message message;
};
static std::vector<Send> sends;
static int late_block;  // none if there is no such block
static std::map<DataBarrier*, std::vector<Thread*>> waiting_for_data;
constexpr int NOT_EXPECTED = 1 << 30;  // added to what is missing until expect_bytes is called

NOT_WATCHED inline void change_missing(DataBarrier* barrier, int bytes) {
    barrier->missing += bytes;
    if (barrier->missing) return;
    ++barrier->round, barrier->missing = NOT_EXPECTED;
    races::complete(barrier, barrier->round);
    auto& waiting = waiting_for_data[barrier];
    ready.insert(ready.end(), waiting.begin(), waiting.end());
    waiting.clear();
}
NOT_WATCHED inline void deliver_some() {
    while (!sends.empty() && (ready.empty() || random_number() % 2)) {
        std::swap(sends[random_number() % sends.size()], sends.back());
        if (!ready.empty() && sends.back().block == late_block) break;
        const Send send = sends.back();
        sends.pop_back();
        races::deliver(send.barrier, send.barrier->round, send.address, send.message);
        std::memcpy(send.address, &send.x, sizeof send.x);
        change_missing(send.barrier, -(int)sizeof send.x);
    }
}

inline void resume_another(ucontext_t* from) {
    deliver_some();
    if (ready.empty()) fail("deadlock: every thread waits");
    std::swap(ready[random_number() % ready.size()], ready.back());
    current = ready.back();
    ready.pop_back();
    threadIdx.x = current->thread;
    blockIdx.x = current->block;
    swapcontext(from, &current->context);
}

inline int index_of(const Thread* thread) {
    return thread->block % CLUSTER_BLOCKS * (int)blocks[0].warps.size() * 32 + thread->thread;
}
inline int own_index() { return index_of(current); }

// is_shuffle: the threads of a warp exchange numbers, and order no stores.
inline void wait(Barrier& barrier, bool is_shuffle = false) {
    Thread* self = current;
    barrier.waiting.push_back(self);
    if ((int)barrier.waiting.size() == barrier.expected) {
        std::vector<int> met;
        for (const Thread* thread : barrier.waiting) met.push_back(index_of(thread));
        races::meet(met, is_shuffle);
        ready.insert(ready.end(), barrier.waiting.begin(), barrier.waiting.end());
        barrier.waiting.clear();
    }
    resume_another(&self->context);
}

inline Block& here() { return blocks[blockIdx.x % CLUSTER_BLOCKS]; }
inline Warp& warp() { return here().warps[threadIdx.x / 32]; }

// Return the x of every lane. Two tables in turn: no lane overwrites what another has yet to read.
inline const int* exchange(int x) {
    Warp& own_warp = warp();
    int* table = own_warp.values[current->parity ^= 1];
    table[threadIdx.x % 32] = x;
    wait(own_warp.barrier, true);
    return table;
}

static int alive;
inline void run_thread() {
    body(body_args);
    ucontext_t finished;
    if (--alive == 0) {
        races::end();
        setcontext(&outside);
    }
    resume_another(&finished);
}

inline void launch(int grid, int threads_per_block, int shared_bytes, void (*kernel)(void**), void** args) {
    body = kernel;
    body_args = args;
    failure[0] = 0, failed_at[0] = failed_at[1] = nullptr;
    for (int first = 0; first < grid; first += CLUSTER_BLOCKS) {
        blocks.assign(CLUSTER_BLOCKS, {});
        threads.clear();
        ready.clear();
        cluster = {CLUSTER_BLOCKS * threads_per_block, {}};
        sends.clear(), waiting_for_data.clear();
        late_block = random_number() % (CLUSTER_BLOCKS + 1);
        alive = CLUSTER_BLOCKS * threads_per_block;
        races::begin(first / CLUSTER_BLOCKS, CLUSTER_BLOCKS, threads_per_block);
        for (int b = 0; b < CLUSTER_BLOCKS; ++b) {
            blocks[b].barrier.expected = threads_per_block;
            blocks[b].warps.resize(threads_per_block / 32);
            for (auto& table : blocks[b].votes) table.assign(threads_per_block, 0);
            for (Warp& w : blocks[b].warps) w.barrier.expected = 32;
            blocks[b].memory.assign((shared_bytes + 15) / 16 + GUARD, {NAN, NAN, NAN, NAN});
            races::add_shared(b, blocks[b].memory.data(), shared_bytes);
            for (int i = 0; i < threads_per_block; ++i) {
                auto thread = std::make_unique<Thread>();
                thread->thread = i, thread->block = first + b;
                thread->stack.reset(new char[65536]);
                getcontext(&thread->context);
                thread->context.uc_stack.ss_sp = thread->stack.get();
                thread->context.uc_stack.ss_size = 65536;
                makecontext(&thread->context, run_thread, 0);
                ready.push_back(thread.get());
                threads.push_back(std::move(thread));
            }
        }
        resume_another(&outside);
        current = nullptr;
        if (!failure[0]) check_guards();
        if (failure[0]) return;
    }
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(args[I])...);
}
template <class... A>
void call(void (*kernel)(A...), void** args) {
    call(kernel, args, std::index_sequence_for<A...>{});
}
template <auto kernel>
void launch(int grid, int threads_per_block, int shared_bytes, void** args) {
    launch(grid, threads_per_block, shared_bytes, [](void** each) { call(kernel, each); }, args);
}
}  // namespace emulated

#ifdef MNEMOSCOPE_RACES
int races::running() { return emulated::current ? emulated::own_index() : -1; }
void races::fail(const char* text, const void* first, const void* second) {
    busy = false;
    emulated::failed_at[0] = first, emulated::failed_at[1] = second;
    emulated::fail(text);
}
#endif

inline int float_bits(float x) { int y; std::memcpy(&y, &x, 4); return y; }
inline float bits_float(int x) { float y; std::memcpy(&y, &x, 4); return y; }
inline float* shared_memory() { return &emulated::here().memory[0].x; }
inline int shuffle(int x, int source) { return emulated::exchange(x)[source & 31]; }
inline float shuffle(float x, int source) { return bits_float(shuffle(float_bits(x), source)); }
inline float shuffle_xor(float x, int mask) { return shuffle(x, (threadIdx.x % 32) ^ mask); }
inline unsigned warp_ballot(bool x) {
    const int* all = emulated::exchange(x);
    unsigned bits = 0;
    for (int lane = 0; lane < 32; ++lane) bits |= (unsigned)all[lane] << lane;
    return bits;
}
inline int warp_max(int x) {
    const int* all = emulated::exchange(x);
    int largest = all[0];
    for (int lane = 1; lane < 32; ++lane) largest = all[lane] > largest ? all[lane] : largest;
    return largest;
}
inline int warp_min(int x) { return ~warp_max(~x); }
inline void sync_warp() { emulated::wait(emulated::warp().barrier); }
inline void sync_block() { emulated::wait(emulated::here().barrier); }
inline bool sync_block_or(bool x) {
    std::vector<char>& table = emulated::here().votes[emulated::current->block_parity ^= 1];
    table[threadIdx.x] = x;
    sync_block();
    for (char vote : table)
        if (vote) return true;
    return false;
}
inline void sync_cluster() { emulated::wait(emulated::cluster); }
inline int thread_index() { return threadIdx.x; }
inline int first_bit(unsigned x) { return x ? __builtin_ctz(x) : -1; }
inline float reciprocal(float x) { return 1.f / x; }
// 2^x as the device computes it: 0 below the smallest normal number.
inline float power_of_two(float x) { return x < -126.f ? 0.f : exp2f(x); }
inline float log_two(float x) { return log2f(x); }
inline unsigned short bf16_bits(float x) {
    const unsigned bits = float_bits(x);
    if (std::isnan(x)) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // to the nearest, ties to even
}
inline unsigned pack_bf16(float low, float high) { return bf16_bits(low) | (unsigned)bf16_bits(high) << 16; }
inline void multiply_tiles(float (&sum)[4], const unsigned* a, unsigned b0, unsigned b1) {
    emulated::Warp& warp = emulated::warp();
    const int lane = threadIdx.x % 32;
    unsigned(*tiles)[6] = warp.tiles[emulated::current->parity ^= 1];
    const unsigned own[6] = {a[0], a[1], a[2], a[3], b0, b1};
    std::memcpy(tiles[lane], own, sizeof own);
    emulated::wait(warp.barrier, true);
    const auto number = [](unsigned word, int half) { return bits_float(half ? word & 0xffff0000u : word << 16); };
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 16; ++k) {
            const unsigned* of_a = tiles[lane / 4 * 4 + k % 8 / 2];
            const unsigned* of_b = tiles[(lane % 4 * 2 + i % 2) * 4 + k % 8 / 2];
            sum[i] += number(of_a[i / 2 + k / 8 * 2], k % 2) * number(of_b[4 + k / 8], k % 2);
        }
}
NOT_WATCHED inline void add_in_memory(float* address, float x) { *address += x; }
inline void prefetch(const float*) {}
NOT_WATCHED inline void init_barrier(DataBarrier* barrier) {
    *barrier = {emulated::NOT_EXPECTED, 0};
    races::begin_barrier(barrier, emulated::own_index());
}
NOT_WATCHED inline void expect_bytes(DataBarrier* barrier, int bytes) {
    if (barrier->missing > emulated::NOT_EXPECTED || barrier->missing <= 0)
        emulated::fail("a barrier expects bytes twice in a round");
    races::prepare(barrier, emulated::own_index());
    emulated::change_missing(barrier, bytes - emulated::NOT_EXPECTED);
}
NOT_WATCHED inline void wait_for_bytes(DataBarrier* barrier, int odd) {
    using namespace emulated;
    Thread* self = current;
    while (barrier->round % 2 == odd) {
        waiting_for_data[barrier].push_back(self);
        resume_another(&self->context);
    }
    races::receive(barrier, own_index());
}
template <class T>
T* in_block(T* address, int rank) {
    const char* start = reinterpret_cast<const char*>(shared_memory());
    char* other = reinterpret_cast<char*>(&emulated::blocks[rank].memory[0].x);
    return reinterpret_cast<T*>(other + (reinterpret_cast<const char*>(address) - start));
}
inline void check_alignment(const float* address) {
    if ((address - shared_memory()) % 4) emulated::fail("four numbers at an address that is no multiple of 16 bytes");
}
NOT_WATCHED inline void send_to_block(float* address, int rank, float4 x, DataBarrier* barrier) {
    check_alignment(address);
    DataBarrier* remote = in_block(barrier, rank);
    const auto message = races::send(remote, __builtin_return_address(0), emulated::own_index());
    emulated::sends.push_back({remote, in_block(address, rank), x, rank, message});
}
inline void store_in_block(float* address, int rank, float x) {
    (&emulated::blocks[rank].memory[0].x)[address - shared_memory()] = x;
}
inline void store_in_block(float* address, int rank, float4 x) {
    check_alignment(address);
    store_in_block(address, rank, x.x), store_in_block(address + 1, rank, x.y);
    store_in_block(address + 2, rank, x.z), store_in_block(address + 3, rank, x.w);
}
