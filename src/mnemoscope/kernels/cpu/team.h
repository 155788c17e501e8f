// Rows of a batch are independent for the whole sequence: each block of rows is walked by one thread, with no barrier.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <thread>
#include <vector>

#include "simd.h"

namespace mnemoscope {

// How many threads may be used and who provides them. Torch's OpenMP runtime is already in the process and its threads
// are warm, so its entry point is borrowed where it is known; a second runtime would compete with it for the cores.
struct Team {
    using Borrow = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);  // GOMP_parallel
    std::int64_t threads;
    Borrow borrow;
};

struct Block {
    std::int64_t first, end;
    int rows() const { return static_cast<int>(end - first); }
};

// Enough rows in a block to use each weight several times from cache, few enough to occupy every thread.
inline std::int64_t rows_in_block(std::int64_t batch, std::int64_t threads, std::int64_t most) {
    return std::clamp<std::int64_t>((batch + threads - 1) / threads, 1, most);
}

// Calls walk(block, scratch) for every block; each thread has a scratch of its own, made before any of them starts.
template <class Scratch, class Make, class Walk>
void over_rows(const Team& team, std::int64_t batch, std::int64_t most_rows, Make make, Walk walk) {
    const std::int64_t size = rows_in_block(batch, team.threads, most_rows), blocks = (batch + size - 1) / size;
    const auto threads = static_cast<std::size_t>(std::min(team.threads, blocks));
    std::vector<Scratch> scratches;
    for (std::size_t i = 0; i < threads; ++i) scratches.push_back(make(size));
    std::atomic<std::size_t> arrived{0};
    std::atomic<std::int64_t> next{0};
    auto body = [&] {
        const FlushSubnormals flush;
        Scratch& scratch = scratches[arrived++];
        for (std::int64_t i = next++; i < blocks; i = next++)
            walk(Block{i * size, std::min(batch, (i + 1) * size)}, scratch);
    };
    if (threads == 1) return body();
    if (team.borrow)
        return team.borrow([](void* data) { (*static_cast<decltype(body)*>(data))(); }, &body,
                           static_cast<unsigned>(threads), 0u);
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < threads; ++i) others.emplace_back(body);
    body();
    for (std::thread& other : others) other.join();
}

// No exception may cross the C border: 0 is success, 1 means that memory ran out.
template <class F>
int guarded(F function) noexcept {
    try {
        function();
        return 0;
    } catch (...) {
        return 1;
    }
}

}  // namespace mnemoscope
