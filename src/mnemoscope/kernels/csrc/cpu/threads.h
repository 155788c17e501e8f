// Threads over the rows of a batch. Rows are independent for the whole sequence, so each block of
// rows is processed by one thread from the first step to the last, without a barrier.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "interrupt.h"
#include "simd.h"

namespace mnemoscope {

// How many threads may run, and who provides them. Torch's OpenMP runtime is already in the process
// and its threads are warm; a second runtime would compete with it for the cores. So its entry
// point is used where it was found, and std::thread otherwise.
struct ThreadPool {
    // GOMP_parallel: calls body(data) on that many threads at once.
    using Parallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
    int64_t count;
    Parallel gomp_parallel;  // null: not found
    int64_t watches_signals;  // 1: a signal stops the call (interrupt.h)
};

// Rows first .. end - 1 of the batch.
struct Block {
    int64_t first, end;
    int rows() const { return static_cast<int>(end - first); }
};

// Enough rows to use each weight several times from cache, few enough to occupy every thread.
inline int64_t rows_in_block(int64_t batch, int64_t threads, int64_t most) {
    return std::clamp<int64_t>((batch + threads - 1) / threads, 1, most);
}

// Calls body() on that many threads at once.
template <class Body>
void run_parallel(const ThreadPool& pool, std::size_t threads, Body body) {
    if (threads == 1) return body();
    if (pool.gomp_parallel) {
        const auto call = [](void* data) { (*static_cast<Body*>(data))(); };
        return pool.gomp_parallel(call, &body, static_cast<unsigned>(threads), 0u);
    }
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < threads; ++i) others.emplace_back([&body] { body(); });
    body();
    for (std::thread& other : others) other.join();
}

// Calls run(block, scratch) for every block of at most `most_rows` rows. Each thread slot builds
// its own scratch by make(rows), in its own cache. At the end finish(scratch) runs for one slot
// after the other. Blocks are assigned to slots in a fixed order, so sums kept in a scratch are
// reproducible.
template <class Scratch, class Make, class Run, class Finish>
void for_each_block(const ThreadPool& pool, int64_t batch, int64_t most_rows, Make make, Run run,
                    Finish finish) {
    const int64_t size = rows_in_block(batch, pool.count, most_rows);
    const int64_t blocks = (batch + size - 1) / size;
    const auto threads = static_cast<std::size_t>(std::min(pool.count, blocks));
    struct alignas(128) ThreadSlot {  // aligned to avoid false sharing
        std::optional<Scratch> scratch;
    };
    std::vector<ThreadSlot> slots(threads);
    std::atomic<std::size_t> next_slot{0};
    std::atomic<bool> failed{false}, stopped{false};
    auto work = [&](std::size_t slot) {
        Scratch& scratch = slots[slot].scratch.emplace(make(size));
        const auto step = static_cast<int64_t>(threads);
        for (auto i = static_cast<int64_t>(slot); i < blocks; i += step)
            run(Block{i * size, std::min(batch, (i + 1) * size)}, scratch);
    };
    auto body = [&] {
        const FlushSubnormals flush;
        // There may be fewer threads than asked for: each takes slots until none is left.
        for (std::size_t slot = next_slot++; slot < threads; slot = next_slot++) {
            try {
                work(slot);
            } catch (const Stopped&) {
                stopped = true;
            } catch (...) {  // must not leave the thread
                failed = true;
            }
        }
    };
    run_parallel(pool, threads, body);
    if (failed) throw std::bad_alloc();
    if (stopped) throw Stopped{};
    for (ThreadSlot& slot : slots) finish(*slot.scratch);
}
template <class Scratch, class Make, class Run>
void for_each_block(const ThreadPool& pool, int64_t batch, int64_t most_rows, Make make, Run run) {
    for_each_block<Scratch>(pool, batch, most_rows, make, run, [](Scratch&) {});
}

// Catches every exception, since none may cross the C boundary. Returns 0, 1 if memory ran out, or
// 2 if a signal stopped the call, whose results are then worth nothing.
template <class F>
int guarded(const ThreadPool& pool, F function) noexcept {
    const SignalWatch watch(pool.watches_signals);
    try {
        function();
        return 0;
    } catch (const Stopped&) {
        return 2;
    } catch (...) {
        return 1;
    }
}

}  // namespace mnemoscope
