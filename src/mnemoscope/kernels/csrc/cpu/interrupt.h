// Ctrl-C within a long call. Python runs its signal handlers between bytecodes of the main thread,
// which waits for us. So a watched call puts a handler of its own before Python's: it asks all
// loops to stop, which they do at their next step, and Python decides what the signal means.
#pragma once

#include <atomic>
#include <cstdint>

#if !defined(_WIN32)
#include <csignal>
#endif

namespace mnemoscope {

struct Stopped {};  // thrown by a loop that was asked to stop

inline std::atomic<bool> stop_requested{false};

// Called once a step.
inline void stop_if_requested() {
    if (stop_requested.load(std::memory_order_relaxed)) throw Stopped{};
}

#if defined(_WIN32)
struct SignalWatch {
    explicit SignalWatch(bool) {}
};
#else
// Watches SIGINT and SIGTERM while it exists. Only one may watch at a time: that of the main
// thread.
class SignalWatch {
    static constexpr int signals[] = {SIGINT, SIGTERM};
    inline static struct sigaction before[2];
    bool watches;

    static void on_signal(int number, siginfo_t* info, void* context) {
        stop_requested = true;
        const struct sigaction& python = before[number == SIGINT ? 0 : 1];
        if (python.sa_flags & SA_SIGINFO)
            python.sa_sigaction(number, info, context);
        else
            python.sa_handler(number);
    }
    // A signal that is ignored, or ends the process at once, needs no watch.
    static bool has_handler(const struct sigaction& action) {
        return action.sa_flags & SA_SIGINFO ||
               (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
    }

public:
    explicit SignalWatch(bool watches) : watches(watches) {
        if (!watches) return;
        for (int i = 0; i < 2; ++i) {
            sigaction(signals[i], nullptr, &before[i]);
            if (!has_handler(before[i])) continue;
            struct sigaction ours = before[i];
            ours.sa_flags |= SA_SIGINFO;
            ours.sa_sigaction = on_signal;
            sigaction(signals[i], &ours, nullptr);
        }
    }
    ~SignalWatch() {
        if (!watches) return;
        for (int i = 0; i < 2; ++i)
            if (has_handler(before[i])) sigaction(signals[i], &before[i], nullptr);
        stop_requested = false;
    }
    SignalWatch(const SignalWatch&) = delete;
    SignalWatch& operator=(const SignalWatch&) = delete;
};
#endif

}  // namespace mnemoscope
