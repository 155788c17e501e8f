// Whether a memory can have these clocks and origins: asked before a state is used.
#include "sequence.h"

// origin (rows, slots) and clock (rows). A clock counts the steps made so far; an origin is an
// earlier step, or -1 for an empty slot.
MNEMOSCOPE_API int steps_in_range(const std::int64_t* origin, const std::int64_t* clock,
                                  std::int64_t rows, std::int64_t slots) {
    constexpr std::int64_t last_step = std::int64_t(1) << 62;
    bool in_range = true;
    for (std::int64_t r = 0; r < rows; ++r) {
        in_range &= clock[r] >= 0 && clock[r] <= last_step;
        for (std::int64_t j = 0; j < slots; ++j)
            in_range &= (origin[r * slots + j] >= -1) & (origin[r * slots + j] < clock[r]);
    }
    return in_range;
}
