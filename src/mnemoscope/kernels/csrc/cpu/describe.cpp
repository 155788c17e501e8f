// What the compiled library says of its structures. Each loop adds its own (MNEMOSCOPE_EXPORT).
#include "arguments.h"

namespace mnemoscope {

std::string& descriptions() {
    static std::string text;
    return text;
}

}  // namespace mnemoscope

MNEMOSCOPE_API const char* describe_structures() { return mnemoscope::descriptions().c_str(); }
