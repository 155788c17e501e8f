// What the compiled library says of its structures: one line "structure field offset size kind" for
// each field.
#include <cstddef>
#include <string>
#include <type_traits>

#include "arguments.h"

namespace mnemoscope {

template <class Field>
constexpr const char* kind() {
    if (std::is_pointer_v<Field>) return "pointer";
    if (std::is_floating_point_v<Field>) return "double";
    return std::is_class_v<Field> ? "structure" : "integer";
}

template <class Field>
std::string line(const char* structure, const char* field, std::size_t offset) {
    return std::string(structure) + ' ' + field + ' ' + std::to_string(offset) + ' ' +
           std::to_string(sizeof(Field)) + ' ' + kind<Field>() + '\n';
}

#define DESCRIBE_FIELD(type, name) text += line<type>(structure, #name, offsetof(Structure, name));

#define DESCRIBE(structure_name, Template, FIELDS)        \
    {                                                     \
        using T = double;                                 \
        using Structure = Template<T>;                    \
        constexpr const char* structure = structure_name; \
        FIELDS(DESCRIBE_FIELD)                            \
    }

std::string description() {
    std::string text;
    DESCRIBE("rnn_forward", RnnForward, RNN_FORWARD)
    DESCRIBE("rnn_backward", RnnBackward, RNN_BACKWARD)
    DESCRIBE("lstm_forward", LstmForward, LSTM_FORWARD)
    DESCRIBE("lstm_backward", LstmBackward, LSTM_BACKWARD)
    DESCRIBE("rac_forward", RacForward, RAC_FORWARD)
    DESCRIBE("rac_backward", RacBackward, RAC_BACKWARD)
    DESCRIBE("goru_forward", GoruForward, GORU_FORWARD)
    DESCRIBE("goru_backward", GoruBackward, GORU_BACKWARD)
    DESCRIBE("gru_forward", GruForward, GRU_FORWARD)
    DESCRIBE("gru_backward", GruBackward, GRU_BACKWARD)
    DESCRIBE("sab_forward", SabForward, SAB_FORWARD)
    DESCRIBE("sab_backward", SabBackward, SAB_BACKWARD)
    DESCRIBE("attentive_forward", AttentiveForward, ATTENTIVE_FORWARD)
    DESCRIBE("attentive_backward", AttentiveBackward, ATTENTIVE_BACKWARD)
    return text;
}

}  // namespace mnemoscope

MNEMOSCOPE_API const char* describe_structures() {
    static const std::string text = mnemoscope::description();
    return text.c_str();
}
