// The C boundary: one structure of arguments and results for each operator.
//
// A structure is a list of FIELD(type, name), beside the loop that takes it. From the list come the
// members (MNEMOSCOPE_STRUCTURE) and, with the exported functions (MNEMOSCOPE_EXPORT), a
// description, which a test compares with Python's structure of the same name (structures.py).
// Every field has eight bytes: a pointer, an integer, an enumeration or a double.
//
// Shapes are those of kernels/_operators: T = steps, B = batch, n units; a null pointer is None.
//
// Where a structure has n_inputs: n_inputs = E > 0 means that the loop computes the projection
// itself. Then xp is [x, 1] (T, B, E) and V is [V, U, b] (Gn, n + E); the backward reads x and
// writes dV and dx, which may be null. With n_inputs = 0 the backward writes dxp. If U is not null,
// x, V, U and the biases are apart instead, and so are their gradients; E counts the 1 of the bias
// all the same (PROJECTION). h_T (B, n) is the last state; the loop writes it unless it is null.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

#include "cells.h"
#include "product.h"
#include "sequence.h"
#include "threads.h"

namespace mnemoscope {

enum class Cell : std::int64_t { rnn = 0, lstm = 1 };
enum class Mix : std::int64_t { sum = 0, mean = 1 };

#define MNEMOSCOPE_MEMBER(type, name) type name;
#define MNEMOSCOPE_STRUCTURE(NAME, FIELDS) \
    template <class T>                     \
    struct NAME {                          \
        FIELDS(MNEMOSCOPE_MEMBER)          \
    };

// One line "structure field offset size kind" for each field of each structure (describe.cpp).
std::string& descriptions();

template <class Field>
constexpr const char* kind() {
    if (std::is_pointer_v<Field>) return "pointer";
    if (std::is_floating_point_v<Field>) return "double";
    return std::is_class_v<Field> ? "structure" : "integer";
}

template <class Field>
std::string description(const char* structure, const char* field, std::size_t offset) {
    return std::string(structure) + ' ' + field + ' ' + std::to_string(offset) + ' ' +
           std::to_string(sizeof(Field)) + ' ' + kind<Field>() + '\n';
}

#define MNEMOSCOPE_DESCRIBE(type, name) \
    descriptions() += description<type>(structure, #name, offsetof(Structure, name));

// The C functions NAME_float and NAME_double, which call run(STRUCTURE<T>), and the description.
#define MNEMOSCOPE_EXPORT(NAME, STRUCTURE, FIELDS)                             \
    MNEMOSCOPE_API int NAME##_float(const mnemoscope::STRUCTURE<float>* a) {   \
        return mnemoscope::run(*a);                                            \
    }                                                                          \
    MNEMOSCOPE_API int NAME##_double(const mnemoscope::STRUCTURE<double>* a) { \
        return mnemoscope::run(*a);                                            \
    }                                                                          \
    namespace mnemoscope {                                                     \
    static const bool NAME##_is_described = [] {                               \
        using T = double;                                                      \
        using Structure = STRUCTURE<T>;                                        \
        constexpr const char* structure = #NAME;                               \
        FIELDS(MNEMOSCOPE_DESCRIBE)                                            \
        return true;                                                           \
    }();                                                                       \
    }

#define SIZES(FIELD)           \
    FIELD(std::int64_t, steps) \
    FIELD(std::int64_t, batch) \
    FIELD(std::int64_t, n)

#define PROJECTION(FIELD) \
    FIELD(const T*, U)    \
    FIELD(const T*, b_ih) \
    FIELD(const T*, b_hh) \
    FIELD(T*, h_T)
#define PROJECTION_BACKWARD(FIELD) \
    FIELD(const T*, U)             \
    FIELD(T*, dU)                  \
    FIELD(T*, db_ih)               \
    FIELD(T*, db_hh)

// The memory that is carried in: `carried` slots a row. Of screened attention all of it may be
// null: every slot is then empty.
#define CARRIED_MEMORY(FIELD)           \
    FIELD(const T*, values0)            \
    FIELD(const T*, keys0)              \
    FIELD(const std::int64_t*, origin0) \
    FIELD(const T*, relevance0)         \
    FIELD(const std::int64_t*, clock0)

#define ATTENTION_SIZES(FIELD)    \
    SIZES(FIELD)                  \
    FIELD(std::int64_t, n_inputs) \
    FIELD(std::int64_t, carried)  \
    FIELD(std::int64_t, activation_width)

#define ATTENTION_WEIGHTS(FIELD) \
    FIELD(const T*, V)           \
    FIELD(const T*, W_a)         \
    FIELD(const T*, U_a)         \
    FIELD(const T*, v)           \
    FIELD(const T*, b)

#define ATTENTION_STATE(FIELD) \
    FIELD(const T*, s0)        \
    FIELD(const T*, c0)

#define ATTENTION_OPTIONS(FIELD)  \
    FIELD(Cell, cell)             \
    FIELD(Phi, phi)               \
    FIELD(std::int64_t, buffer)   \
    FIELD(std::int64_t, relevant) \
    FIELD(Mix, mix)               \
    FIELD(double, decay)          \
    FIELD(std::int64_t, refresh)

// largest_magnitude is the largest |query| or |key| of the run (exponent_range.py).
#define ATTENTIVE_FORWARD(FIELD)        \
    ATTENTION_SIZES(FIELD)              \
    FIELD(const T*, xp)                 \
    ATTENTION_WEIGHTS(FIELD)            \
    ATTENTION_STATE(FIELD)              \
    CARRIED_MEMORY(FIELD)               \
    ATTENTION_OPTIONS(FIELD)            \
    FIELD(const std::int64_t*, lengths) \
    FIELD(std::int64_t, save)           \
    FIELD(T*, h)                        \
    FIELD(T*, s)                        \
    FIELD(T*, c_T)                      \
    FIELD(T*, values_T)                 \
    FIELD(T*, keys_T)                   \
    FIELD(std::int64_t*, slots_T)       \
    FIELD(std::int64_t*, origin_T)      \
    FIELD(T*, relevance_T)              \
    FIELD(T*, activations)              \
    FIELD(std::int32_t*, slots)         \
    FIELD(T*, attention)                \
    FIELD(T*, largest_magnitude)        \
    PROJECTION(FIELD)                   \
    FIELD(ThreadPool, threads)

// dq and dk are null where dV, dW_a and dU_a are made here.
#define ATTENTIVE_BACKWARD(FIELD)       \
    ATTENTION_SIZES(FIELD)              \
    FIELD(const T*, dh)                 \
    FIELD(const T*, ds)                 \
    FIELD(const T*, dc_T)               \
    FIELD(const T*, x)                  \
    ATTENTION_WEIGHTS(FIELD)            \
    ATTENTION_STATE(FIELD)              \
    CARRIED_MEMORY(FIELD)               \
    ATTENTION_OPTIONS(FIELD)            \
    FIELD(const T*, h)                  \
    FIELD(const T*, s)                  \
    FIELD(const T*, activations)        \
    FIELD(const std::int32_t*, slots)   \
    FIELD(const T*, attention)          \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, dx)                       \
    FIELD(T*, dV)                       \
    FIELD(T*, dW_a)                     \
    FIELD(T*, dU_a)                     \
    FIELD(T*, dv)                       \
    FIELD(T*, ds0)                      \
    FIELD(T*, dc0)                      \
    FIELD(T*, dvalues0)                 \
    FIELD(T*, dkeys0)                   \
    FIELD(T*, dxp)                      \
    FIELD(T*, dq)                       \
    FIELD(T*, dk)                       \
    PROJECTION_BACKWARD(FIELD)          \
    FIELD(ThreadPool, threads)

// What is saved of one step of one row: e^{2q} and e^{2k} of its query and key, then an LSTM's
// gates and c_t.
template <class T>
struct Activations {
    T* start;
    std::int64_t n;
    T* query() const { return start; }
    T* key() const { return start + n; }
    T* gates() const { return start + 2 * n; }
    T* cell() const { return start + 6 * n; }
};

template <class T>
struct AttentiveForward {
    ATTENTIVE_FORWARD(MNEMOSCOPE_MEMBER)

    std::int64_t capacity() const { return buffer + relevant; }
    std::int64_t gate_width() const { return cell == Cell::lstm ? 4 * n : n; }
    std::int64_t depth() const { return n + n_inputs; }
    Inputs<T> inputs() const { return {xp, n_inputs, gate_width(), U && b_ih}; }
    CellWeights<T> cell_weights() const { return {V, gate_width(), n, n_inputs, U, b_ih, b_hh}; }
    Activations<T> activations_of(std::int64_t at) const {
        return {activations + at * activation_width, n};
    }
};

template <class T>
struct AttentiveBackward {
    ATTENTIVE_BACKWARD(MNEMOSCOPE_MEMBER)

    std::int64_t capacity() const { return buffer + relevant; }
    std::int64_t gate_width() const { return cell == Cell::lstm ? 4 * n : n; }
    std::int64_t depth() const { return n + n_inputs; }
    Inputs<T> inputs() const { return {x, n_inputs, gate_width(), U && db_ih}; }
    // The width of [ds, dx], or of ds alone.
    std::int64_t gradient_width() const { return dx ? n + inputs().given() : n; }
    CellGradients<T> cell_gradients() const { return {dV, n, n_inputs, dU, db_ih, db_hh}; }
    Activations<const T> activations_of(std::int64_t at) const {
        return {activations + at * activation_width, n};
    }
};

}  // namespace mnemoscope
