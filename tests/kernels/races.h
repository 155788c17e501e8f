// Finds races in the emulated CUDA kernels: two accesses of different threads to the same memory, one of them a store,
// that nothing puts in order. A random order of the threads shows such a race sometimes; this finds it in any order.
//
// g++ -fsanitize=thread calls a function before every load and store; these are defined here. Threads keep vector
// clocks. They count for warps, whose epochs end at barriers, and for barriers of data, whose epochs are rounds.
//   A barrier of a warp, block or cluster orders all accesses of its threads.
//   A shuffle orders the loads before it only: their numbers have come. Stores need a barrier.
//   What is sent is a store of the barrier of data, before all who wait for it. It is behind whatever its sender knows
//   of. Nothing is said about device memory: who waits does not empty its cache.
// Clusters of a launch are not ordered at all. Lanes of a warp may store the same number by one instruction.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#ifdef MNEMOSCOPE_RACES
#define NOT_WATCHED __attribute__((no_sanitize("thread"), noinline))
#else
#define NOT_WATCHED
#endif

namespace races {
// What is known to be done: loads, stores into shared memory, and stores into device memory.
enum Kind { LOADS, STORES, DEVICE_STORES, KINDS };

#ifndef MNEMOSCOPE_RACES
struct Message {};
inline void begin(int, int, int) {}
inline void add_shared(int, const void*, size_t) {}
inline void meet(const std::vector<int>&, bool) {}
inline void begin_barrier(const void*, int) {}
inline void prepare(const void*, int) {}
inline Message send(const void*, const void*, int) { return {}; }
inline void deliver(const void*, int, const void*, const Message&) {}
inline void complete(const void*, int) {}
inline void receive(const void*, int) {}
inline void end() {}
#else
[[noreturn]] void fail(const char* text, const void* first = nullptr, const void* second = nullptr);
int running();  // the thread's index in its cluster, -1 outside of the kernel

struct Clock {
    std::vector<int> known[KINDS];  // epochs of each source that are done
    void join(const Clock& other, bool loads_only = false, bool device = true) {
        for (int kind = 0; kind < (loads_only ? 1 : device ? KINDS : DEVICE_STORES); ++kind)
            for (size_t i = 0; i < known[kind].size(); ++i)
                known[kind][i] = std::max(known[kind][i], other.known[kind][i]);
    }
};
struct Message {  // on its way: what its sender knew, and where it was sent from
    Clock clock;
    const void* code;
};
struct Stamp {  // of an access
    int cluster = -1, source = 0, lane = 0, epoch = 0;
    const void* code = nullptr;
};
struct Cell {  // two bytes of memory: the last store, and the last load of each warp since
    Stamp store;
    std::vector<Stamp> loads;
};
struct Region {
    uintptr_t start, end;
    int block;  // of the cluster, or -1: device memory
    std::vector<Cell> cells;
};
struct BarrierClock {
    int source, block;
    Stamp start;
    Clock incoming, released;
};

constexpr int MOST_BARRIERS = 32;
static bool busy;
static int cluster = -1, warps, warps_per_block, sources;
static std::vector<Clock> clocks;  // of the threads
static std::vector<int> epochs[2];  // of each warp, of loads and of stores
static std::vector<Region> regions;
static std::map<const void*, BarrierClock> barriers;
static std::vector<std::map<int, int>> received;  // by block: the last epoch of each source that stored into it

// Inside, loads and stores are the emulator's own.
struct Busy {
    NOT_WATCHED Busy() { busy = true; }
    NOT_WATCHED ~Busy() { busy = false; }
};

inline Clock new_clock() {
    Clock clock;
    for (auto& known : clock.known) known.assign(sources, 0);
    return clock;
}
inline void add_region(int block, const void* start, size_t bytes) {
    const auto at = reinterpret_cast<uintptr_t>(start);
    regions.push_back({at, at + bytes, block, std::vector<Cell>((bytes + 1) / 2)});
    std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) { return a.start < b.start; });
}
inline Region* region_of(const void* address) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    for (Region& region : regions)
        if (at >= region.start && at < region.end) return &region;
    return nullptr;
}

inline void begin(int index, int cluster_blocks, int threads_per_block) {
    Busy guard;
    cluster = index, warps_per_block = threads_per_block / 32, warps = cluster_blocks * warps_per_block;
    sources = warps + MOST_BARRIERS;
    for (auto& one : epochs) one.assign(warps, 0);
    clocks.assign(cluster_blocks * threads_per_block, new_clock());
    barriers.clear();
    received.assign(cluster_blocks, {});
    regions.erase(std::remove_if(regions.begin(), regions.end(), [](const Region& r) { return r.block >= 0; }),
                  regions.end());
}
inline void add_shared(int block, const void* start, size_t bytes) {
    Busy guard;
    add_region(block, start, bytes);
}

// A lane stores where another one has just stored, by the same instruction: seen when it has, the number must be the
// same.
static struct {
    const void* address;
    size_t bytes;
    char before[16];
    const void* code;
} repeated;
inline void settle() {
    const bool differs = repeated.address && std::memcmp(repeated.address, repeated.before, repeated.bytes);
    repeated.address = nullptr;
    if (differs) fail("a race", repeated.code, repeated.code);
}

// Threads have met at a barrier, or at a shuffle (then only loads are ordered).
inline void meet(const std::vector<int>& threads, bool loads_only) {
    Busy guard;
    settle();
    Clock all = clocks[threads[0]];
    for (int thread : threads) all.join(clocks[thread], loads_only);
    for (int thread : threads) {
        if (thread % 32) continue;
        const int warp = thread / 32;
        all.known[LOADS][warp] = ++epochs[0][warp];
        if (!loads_only) all.known[STORES][warp] = all.known[DEVICE_STORES][warp] = ++epochs[1][warp];
    }
    for (int thread : threads)
        if (loads_only)
            clocks[thread].known[LOADS] = all.known[LOADS];
        else
            clocks[thread] = all;
}

inline bool knows(const Clock& clock, Kind kind, const Stamp& stamp) {
    return stamp.cluster < 0 || (stamp.cluster == cluster && clock.known[kind][stamp.source] > stamp.epoch);
}
inline void check_begun(const Clock& clock, int block, const void* code) {
    for (int warp = block * warps_per_block; warp < (block + 1) * warps_per_block; ++warp)
        if (clock.known[STORES][warp] > 0) return;
    fail("a store into a block that may not have begun", code);
}
inline Stamp stamp_of(int thread, bool store, const void* code) {
    return {cluster, thread / 32, thread % 32, epochs[store][thread / 32], code};
}

inline bool repeats(const Stamp& store, const Stamp& now) {
    return store.cluster == now.cluster && store.source == now.source && store.epoch == now.epoch &&
           store.code == now.code;
}

inline void check_access(const void* address, size_t bytes, bool store, const void* code) {
    settle();
    const int thread = running();
    Region* region = thread < 0 ? nullptr : region_of(address);
    if (!region) return;
    const Clock& clock = clocks[thread];
    const Kind stores = region->block < 0 ? DEVICE_STORES : STORES;
    const Stamp now = stamp_of(thread, store, code);
    const auto same_thread = [&](const Stamp& other) {
        return other.cluster == cluster && other.source == now.source && other.lane == now.lane;
    };
    if (store && region->block >= 0 && region->block != thread / 32 / warps_per_block) {
        check_begun(clock, region->block, code);
        received[region->block][now.source] = now.epoch;
    }
    const size_t first = (reinterpret_cast<uintptr_t>(address) - region->start) / 2;
    for (size_t i = first; i < first + (bytes + 1) / 2 && i < region->cells.size(); ++i) {
        Cell& cell = region->cells[i];
        if (store && repeats(cell.store, now) && !same_thread(cell.store)) {
            repeated = {address, bytes, {}, code};
            std::memcpy(repeated.before, address, bytes);
        } else if (!same_thread(cell.store) && !knows(clock, stores, cell.store)) {
            fail("a race", cell.store.code, code);
        }
        if (store) {
            for (const Stamp& load : cell.loads)
                if (!same_thread(load) && !knows(clock, LOADS, load)) fail("a race", load.code, code);
            cell.loads.clear();
            cell.store = now;
            continue;
        }
        bool found = false;
        for (Stamp& load : cell.loads)
            if (load.cluster == cluster && load.source == now.source) {
                const bool several = load.epoch == now.epoch && load.lane != now.lane;
                load = now, found = true;
                if (several) load.lane = -1;
            }
        if (!found) cell.loads.push_back(now);
    }
}

NOT_WATCHED inline void access(const void* address, size_t bytes, bool store, const void* code) {
    if (busy) return;
    Busy guard;
    check_access(address, bytes, store, code);
}

// Barriers of data. By the thread that begins or prepares a round.
inline void begin_barrier(const void* barrier, int thread) {
    Busy guard;
    const int source = warps + (int)barriers.size();
    if (source >= sources) fail("too many barriers of data");
    const Stamp start = stamp_of(thread, true, nullptr);
    barriers[barrier] = {source, thread / 32 / warps_per_block, start, new_clock(), new_clock()};
}
inline void prepare(const void* barrier, int thread) {
    Busy guard;
    barriers.at(barrier).incoming.join(clocks[thread], false, false);
}
inline Message send(const void* barrier, const void* code, int thread) {
    Busy guard;
    const auto found = barriers.find(barrier);
    const Clock& clock = clocks[thread];
    if (found == barriers.end() || !knows(clock, STORES, found->second.start))
        fail("a send before its barrier is known to be there", code);
    check_begun(clock, found->second.block, code);
    return {clock, code};
}
inline void deliver(const void* barrier, int round, const void* address, const Message& message) {
    Busy guard;
    BarrierClock& to = barriers.at(barrier);
    Region* region = region_of(address);
    const size_t first = (reinterpret_cast<uintptr_t>(address) - region->start) / 2;
    for (size_t i = first; i < first + 8; ++i) {
        Cell& cell = region->cells[i];
        if (!knows(message.clock, STORES, cell.store)) fail("a race", cell.store.code, message.code);
        for (const Stamp& load : cell.loads)
            if (!knows(message.clock, LOADS, load)) fail("a race", load.code, message.code);
        cell.loads.clear();
        cell.store = {cluster, to.source, -1, round, message.code};
    }
    to.incoming.join(message.clock, false, false);
    received[to.block][to.source] = round;
}
inline void complete(const void* barrier, int rounds) {
    Busy guard;
    BarrierClock& done = barriers.at(barrier);
    done.released = done.incoming;
    done.released.known[STORES][done.source] = rounds;
    done.incoming = new_clock();
}
inline void receive(const void* barrier, int thread) {
    Busy guard;
    clocks[thread].join(barriers.at(barrier).released, false, false);
}

// All threads have ended: whatever was stored into a block was known to one of its threads.
inline void end() {
    Busy guard;
    settle();
    const int threads_per_block = 32 * warps_per_block;
    for (size_t block = 0; block < received.size(); ++block)
        for (const auto& [source, epoch] : received[block]) {
            bool known = false;
            for (int i = 0; i < threads_per_block; ++i)
                known |= clocks[block * threads_per_block + i].known[STORES][source] > epoch;
            if (!known) fail("a block may end before all that is stored into it has come");
        }
}

#endif
}  // namespace races

#ifdef MNEMOSCOPE_RACES
#define WATCH(CALL, BYTES, STORES)                                              \
    extern "C" NOT_WATCHED void __tsan_##CALL(const void* address) {            \
        races::access(address, BYTES, STORES, __builtin_return_address(0));     \
    }
#define WATCH_SIZE(BYTES)                    \
    WATCH(read##BYTES, BYTES, false)         \
    WATCH(write##BYTES, BYTES, true)         \
    WATCH(unaligned_read##BYTES, BYTES, false) \
    WATCH(unaligned_write##BYTES, BYTES, true)
WATCH_SIZE(1)
WATCH_SIZE(2)
WATCH_SIZE(4)
WATCH_SIZE(8)
WATCH_SIZE(16)
extern "C" NOT_WATCHED void __tsan_read_range(const void* address, size_t bytes) {
    races::access(address, bytes, false, __builtin_return_address(0));
}
extern "C" NOT_WATCHED void __tsan_write_range(const void* address, size_t bytes) {
    races::access(address, bytes, true, __builtin_return_address(0));
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_update(void*, void*) {}
extern "C" void __tsan_vptr_read(void*) {}
// The device memory of a launch.
extern "C" void watch(const void* start, size_t bytes) { races::add_region(-1, start, bytes); }
extern "C" void forget() { races::regions.clear(); }
#endif
