// The C boundary: one structure of arguments and results for each operator.
//
// A structure is a list of FIELD(type, name). From it come its members and its description
// (describe.cpp), which a test compares with the structure that Python derives from the operator
// (structures.py). Every field has eight bytes: a pointer, an integer, an enumeration or a double.
//
// Shapes are those of _operators.py: T = steps, B = batch, n units; a null pointer stands for None.
#pragma once

#include "cells.h"
#include "product.h"
#include "sequence.h"
#include "threads.h"

namespace mnemoscope {

enum class Cell : std::int64_t { rnn = 0, lstm = 1 };
enum class Mix : std::int64_t { sum = 0, mean = 1 };

#define MNEMOSCOPE_MEMBER(type, name) type name;

#define SIZES(FIELD)           \
    FIELD(std::int64_t, steps) \
    FIELD(std::int64_t, batch) \
    FIELD(std::int64_t, n)

// n_inputs = E > 0: the loop computes the projection itself. Then xp is [x, 1] (T, B, E) and V is
// [V, U, b] (Gn, n + E); the backward reads x and writes dV and dx, which may be null.
// n_inputs = 0: the backward writes dxp.
#define RNN_FORWARD(FIELD)              \
    SIZES(FIELD)                        \
    FIELD(std::int64_t, n_inputs)       \
    FIELD(const T*, xp)                 \
    FIELD(const T*, V)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, b)                  \
    FIELD(Phi, phi)                     \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, h)                        \
    FIELD(ThreadPool, threads)

#define RNN_BACKWARD(FIELD)             \
    SIZES(FIELD)                        \
    FIELD(std::int64_t, n_inputs)       \
    FIELD(const T*, dh)                 \
    FIELD(const T*, x)                  \
    FIELD(const T*, V)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, h)                  \
    FIELD(const std::int64_t*, lengths) \
    FIELD(Phi, phi)                     \
    FIELD(T*, dx)                       \
    FIELD(T*, dV)                       \
    FIELD(T*, dh0)                      \
    FIELD(T*, dxp)                      \
    FIELD(ThreadPool, threads)

#define LSTM_FORWARD(FIELD)             \
    SIZES(FIELD)                        \
    FIELD(std::int64_t, n_inputs)       \
    FIELD(const T*, xp)                 \
    FIELD(const T*, V)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, c0)                 \
    FIELD(const std::int64_t*, lengths) \
    FIELD(std::int64_t, save)           \
    FIELD(T*, h)                        \
    FIELD(T*, c_T)                      \
    FIELD(T*, cells)                    \
    FIELD(T*, gates)                    \
    FIELD(ThreadPool, threads)

#define LSTM_BACKWARD(FIELD)            \
    SIZES(FIELD)                        \
    FIELD(std::int64_t, n_inputs)       \
    FIELD(const T*, dh)                 \
    FIELD(const T*, dc_T)               \
    FIELD(const T*, x)                  \
    FIELD(const T*, V)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, c0)                 \
    FIELD(const T*, h)                  \
    FIELD(const T*, cells)              \
    FIELD(const T*, gates)              \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, dx)                       \
    FIELD(T*, dV)                       \
    FIELD(T*, dh0)                      \
    FIELD(T*, dc0)                      \
    FIELD(T*, dxp)                      \
    FIELD(ThreadPool, threads)

#define RAC_FORWARD(FIELD)              \
    SIZES(FIELD)                        \
    FIELD(const T*, xp)                 \
    FIELD(const T*, V)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, b)                  \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, h)                        \
    FIELD(ThreadPool, threads)

#define RAC_BACKWARD(FIELD)             \
    SIZES(FIELD)                        \
    FIELD(const T*, dh)                 \
    FIELD(const T*, xp)                 \
    FIELD(const T*, V)                  \
    FIELD(const T*, u)                  \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, dxp)                      \
    FIELD(T*, du)                       \
    FIELD(T*, dh0)                      \
    FIELD(ThreadPool, threads)

#define GORU_FORWARD(FIELD)             \
    SIZES(FIELD)                        \
    FIELD(const T*, xp)                 \
    FIELD(const T*, W)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, b)                  \
    FIELD(const std::int64_t*, lengths) \
    FIELD(std::int64_t, save)           \
    FIELD(T*, h)                        \
    FIELD(T*, gates)                    \
    FIELD(ThreadPool, threads)

#define GORU_BACKWARD(FIELD)            \
    SIZES(FIELD)                        \
    FIELD(const T*, dh)                 \
    FIELD(const T*, W)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, h)                  \
    FIELD(const T*, gates)              \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, dxp)                      \
    FIELD(T*, du)                       \
    FIELD(T*, dh0)                      \
    FIELD(ThreadPool, threads)

#define GRU_FORWARD(FIELD)              \
    SIZES(FIELD)                        \
    FIELD(const T*, xp)                 \
    FIELD(const T*, V)                  \
    FIELD(const T*, b_hn)               \
    FIELD(const T*, h0)                 \
    FIELD(const std::int64_t*, lengths) \
    FIELD(std::int64_t, save)           \
    FIELD(T*, h)                        \
    FIELD(T*, gates)                    \
    FIELD(ThreadPool, threads)

#define GRU_BACKWARD(FIELD)             \
    SIZES(FIELD)                        \
    FIELD(const T*, dh)                 \
    FIELD(const T*, V)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, h)                  \
    FIELD(const T*, gates)              \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, dxp)                      \
    FIELD(T*, du)                       \
    FIELD(T*, dh0)                      \
    FIELD(ThreadPool, threads)

// The memory that is carried in: `carried` slots a row.
#define CARRIED_MEMORY(FIELD)           \
    FIELD(const T*, values0)            \
    FIELD(const T*, keys0)              \
    FIELD(const std::int64_t*, origin0) \
    FIELD(const T*, relevance0)         \
    FIELD(const std::int64_t*, clock0)

#define SAB_OPTIONS(FIELD)           \
    FIELD(std::int64_t, store_every) \
    FIELD(std::int64_t, top)         \
    FIELD(std::int64_t, truncation)

#define SAB_FORWARD(FIELD)              \
    SIZES(FIELD)                        \
    FIELD(std::int64_t, carried)        \
    FIELD(const T*, xp)                 \
    FIELD(const T*, V)                  \
    FIELD(const T*, w)                  \
    FIELD(const T*, h0)                 \
    FIELD(const T*, c0)                 \
    CARRIED_MEMORY(FIELD)               \
    SAB_OPTIONS(FIELD)                  \
    FIELD(const std::int64_t*, lengths) \
    FIELD(std::int64_t, save)           \
    FIELD(T*, h)                        \
    FIELD(T*, attended)                 \
    FIELD(T*, c_T)                      \
    FIELD(T*, cells)                    \
    FIELD(T*, gates)                    \
    FIELD(std::int32_t*, slots)         \
    FIELD(T*, attention)                \
    FIELD(ThreadPool, threads)

// dscores and dscores0 come in as zeros.
#define SAB_BACKWARD(FIELD)             \
    SIZES(FIELD)                        \
    FIELD(std::int64_t, carried)        \
    FIELD(const T*, dh)                 \
    FIELD(const T*, dattended)          \
    FIELD(const T*, dc_T)               \
    FIELD(const T*, V)                  \
    FIELD(const T*, w)                  \
    FIELD(const T*, c0)                 \
    CARRIED_MEMORY(FIELD)               \
    SAB_OPTIONS(FIELD)                  \
    FIELD(const T*, h)                  \
    FIELD(const T*, cells)              \
    FIELD(const T*, gates)              \
    FIELD(const std::int32_t*, slots)   \
    FIELD(const T*, attention)          \
    FIELD(const std::int64_t*, lengths) \
    FIELD(T*, dxp)                      \
    FIELD(T*, dh0)                      \
    FIELD(T*, dc0)                      \
    FIELD(T*, dvalues0)                 \
    FIELD(T*, dscores)                  \
    FIELD(T*, dscores0)                 \
    FIELD(ThreadPool, threads)

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

// largest_magnitude (B,) is the largest |query| or |key| of each row (exponent_range.py).
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
    FIELD(T*, relevance_T)              \
    FIELD(T*, activations)              \
    FIELD(std::int32_t*, slots)         \
    FIELD(T*, attention)                \
    FIELD(T*, largest_magnitude)        \
    FIELD(ThreadPool, threads)

// dv_rows (B, n) is dv of each sequence, summed outside. dq and dk are null where dV, dW_a and dU_a
// are made here.
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
    FIELD(T*, ds0)                      \
    FIELD(T*, dc0)                      \
    FIELD(T*, dvalues0)                 \
    FIELD(T*, dkeys0)                   \
    FIELD(T*, dxp)                      \
    FIELD(T*, dq)                       \
    FIELD(T*, dk)                       \
    FIELD(T*, dv_rows)                  \
    FIELD(ThreadPool, threads)

template <class T>
struct RnnForward {
    RNN_FORWARD(MNEMOSCOPE_MEMBER)
};
template <class T>
struct RnnBackward {
    RNN_BACKWARD(MNEMOSCOPE_MEMBER)
};
template <class T>
struct LstmForward {
    LSTM_FORWARD(MNEMOSCOPE_MEMBER)
};
template <class T>
struct LstmBackward {
    LSTM_BACKWARD(MNEMOSCOPE_MEMBER)
};
template <class T>
struct RacForward {
    RAC_FORWARD(MNEMOSCOPE_MEMBER)
};
template <class T>
struct RacBackward {
    RAC_BACKWARD(MNEMOSCOPE_MEMBER)
};
template <class T>
struct GoruForward {
    GORU_FORWARD(MNEMOSCOPE_MEMBER)
};
template <class T>
struct GoruBackward {
    GORU_BACKWARD(MNEMOSCOPE_MEMBER)
};
template <class T>
struct GruForward {
    GRU_FORWARD(MNEMOSCOPE_MEMBER)
};
template <class T>
struct GruBackward {
    GRU_BACKWARD(MNEMOSCOPE_MEMBER)
};
template <class T>
struct SabForward {
    SAB_FORWARD(MNEMOSCOPE_MEMBER)
};
template <class T>
struct SabBackward {
    SAB_BACKWARD(MNEMOSCOPE_MEMBER)
};

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
    Activations<const T> activations_of(std::int64_t at) const {
        return {activations + at * activation_width, n};
    }
};

}  // namespace mnemoscope
