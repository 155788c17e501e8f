// Rows of a batch are independent for the whole sequence: each block of rows is walked by one thread, with no barrier.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <optional>
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

// body() by so many threads at once.
template <class Body>
void run_together(const Team& team, std::size_t threads, Body body) {
    if (threads == 1) return body();
    if (team.borrow)
        return team.borrow([](void* data) { (*static_cast<Body*>(data))(); }, &body, static_cast<unsigned>(threads), 0u);
    std::vector<std::thread> others;
    for (std::size_t i = 1; i < threads; ++i) others.emplace_back([&body] { body(); });
    body();
    for (std::thread& other : others) other.join();
}

// Calls walk(block, scratch) for every block; each thread makes a scratch of its own, in its own cache, and
// finish(scratch) is called when all are done, one after the other. Which blocks share a scratch does not depend on who is
// faster: what is summed in it is the same twice.
template <class Scratch, class Make, class Walk, class Finish>
void over_rows(const Team& team, std::int64_t batch, std::int64_t most_rows, Make make, Walk walk, Finish finish) {
    const std::int64_t size = rows_in_block(batch, team.threads, most_rows), blocks = (batch + size - 1) / size;
    const auto threads = static_cast<std::size_t>(std::min(team.threads, blocks));
    struct alignas(128) Own {  // what one thread counts in must not share a line with what another one reads
        std::optional<Scratch> scratch;
    };
    std::vector<Own> own(threads);
    std::atomic<std::size_t> shares{0};
    std::atomic<bool> failed{false};
    auto work = [&](std::size_t share) {
        Scratch& scratch = own[share].scratch.emplace(make(size));
        for (auto i = static_cast<std::int64_t>(share); i < blocks; i += static_cast<std::int64_t>(threads))
            walk(Block{i * size, std::min(batch, (i + 1) * size)}, scratch);
    };
    auto body = [&] {
        const FlushSubnormals flush;
        for (std::size_t share = shares++; share < threads; share = shares++)  // there may be fewer threads than asked for
            try {
                work(share);
            } catch (...) {  // it may not leave a thread
                failed = true;
            }
    };
    run_together(team, threads, body);
    if (failed) throw std::bad_alloc();
    for (Own& each : own) finish(*each.scratch);
}
template <class Scratch, class Make, class Walk>
void over_rows(const Team& team, std::int64_t batch, std::int64_t most_rows, Make make, Walk walk) {
    over_rows<Scratch>(team, batch, most_rows, make, walk, [](Scratch&) {});
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
