// SIMD vectors for float and double: arithmetic, loads and stores, exp, sigmoid and tanh.
//
// Vec<T> is one register of the instruction set this file is compiled for (16, 32 or 64 bytes).
// GCC and Clang use their vector extension; other compilers get an array with the same operators.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#endif

// A vector passed to a function goes through memory, so small functions are always inlined. A
// function over a whole row (MNEMOSCOPE_ROW) is not inlined into the loop over time: there its
// constants would compete for registers, and a * b + c would not always become one instruction.
#if defined(__GNUC__)
#define MNEMOSCOPE_INLINE inline __attribute__((always_inline))
#define MNEMOSCOPE_FLATTEN inline __attribute__((flatten))  // inlines its callees
#define MNEMOSCOPE_ROW __attribute__((noinline, flatten))
#else
#define MNEMOSCOPE_INLINE inline
#define MNEMOSCOPE_FLATTEN inline
#define MNEMOSCOPE_ROW
#endif

// Unrolling hint for the next loop. An array of vectors stays in registers only if every index into
// it is a compile-time constant.
#define MNEMOSCOPE_PRAGMA(TEXT) _Pragma(#TEXT)
#if defined(__clang__)
#define MNEMOSCOPE_UNROLL(TIMES) MNEMOSCOPE_PRAGMA(clang loop unroll_count(TIMES))
#elif defined(__GNUC__)
#define MNEMOSCOPE_UNROLL(TIMES) MNEMOSCOPE_PRAGMA(GCC unroll TIMES)
#else
#define MNEMOSCOPE_UNROLL(TIMES)
#endif

namespace mnemoscope {

using std::int32_t;
using std::int64_t;

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif

template <class T>
constexpr int lanes = vector_bytes / static_cast<int>(sizeof(T));

template <class T>
struct Integer;
template <>
struct Integer<float> {
    using type = std::uint32_t;
};
template <>
struct Integer<double> {
    using type = std::uint64_t;
};

template <class To, class From>
MNEMOSCOPE_INLINE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast needs types of the same size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

#if defined(__GNUC__) && !defined(MNEMOSCOPE_PLAIN_VECTORS)

template <class T, int bytes = vector_bytes>
struct VectorOf {
    typedef T type __attribute__((vector_size(bytes)));
};
template <class T>
using Vec = typename VectorOf<T>::type;
template <class T>
using Bits = typename VectorOf<typename Integer<T>::type>::type;

template <class T>
MNEMOSCOPE_INLINE Vec<T> splat(T value) {
    return value - Vec<T>{};
}
// NaN in b gives NaN: pass the bound first and the bounded value second.
template <class V>
MNEMOSCOPE_INLINE V max(V a, V b) {
    return a > b ? a : b;
}
template <class V>
MNEMOSCOPE_INLINE V min(V a, V b) {
    return a < b ? a : b;
}
template <class V>
MNEMOSCOPE_INLINE V where_positive(V z, V yes, V no) {
    return z > 0 ? yes : no;
}
#if defined(__AVX512F__) || defined(__AVX2__)
// One instruction with the same treatment of NaN, which compilers do not emit on their own.
#if defined(__AVX512F__)
#define MNEMOSCOPE_MINMAX(OP)                                                          \
    MNEMOSCOPE_INLINE Vec<float> OP(Vec<float> a, Vec<float> b) {                      \
        return bit_cast<Vec<float>>(                                                   \
            _mm512_maskz_##OP##_ps(0xffff, bit_cast<__m512>(a), bit_cast<__m512>(b))); \
    }                                                                                  \
    MNEMOSCOPE_INLINE Vec<double> OP(Vec<double> a, Vec<double> b) {                   \
        return bit_cast<Vec<double>>(                                                  \
            _mm512_maskz_##OP##_pd(0xff, bit_cast<__m512d>(a), bit_cast<__m512d>(b))); \
    }
#else
#define MNEMOSCOPE_MINMAX(OP)                                                                    \
    MNEMOSCOPE_INLINE Vec<float> OP(Vec<float> a, Vec<float> b) {                                \
        return bit_cast<Vec<float>>(_mm256_##OP##_ps(bit_cast<__m256>(a), bit_cast<__m256>(b))); \
    }                                                                                            \
    MNEMOSCOPE_INLINE Vec<double> OP(Vec<double> a, Vec<double> b) {                             \
        return bit_cast<Vec<double>>(                                                            \
            _mm256_##OP##_pd(bit_cast<__m256d>(a), bit_cast<__m256d>(b)));                       \
    }
#endif
MNEMOSCOPE_MINMAX(max)
MNEMOSCOPE_MINMAX(min)
#undef MNEMOSCOPE_MINMAX
#endif

#else

template <class T>
struct Plain {
    T x[vector_bytes / sizeof(T)];
    T& operator[](int i) { return x[i]; }
    T operator[](int i) const { return x[i]; }
};
template <class T>
using Vec = Plain<T>;
template <class T>
using Bits = Plain<typename Integer<T>::type>;

template <class T, class F>
MNEMOSCOPE_INLINE Plain<T> map_lanes(F f) {
    Plain<T> out;
    for (int i = 0; i < static_cast<int>(vector_bytes / sizeof(T)); ++i) out[i] = f(i);
    return out;
}
template <class T>
MNEMOSCOPE_INLINE Plain<T> splat(T value) {
    return map_lanes<T>([&](int) { return value; });
}
#define MNEMOSCOPE_OPERATOR(OP)                                                   \
    template <class T>                                                            \
    MNEMOSCOPE_INLINE Plain<T> operator OP(Plain<T> a, Plain<T> b) {              \
        return map_lanes<T>([&](int i) { return static_cast<T>(a[i] OP b[i]); }); \
    }                                                                             \
    template <class T>                                                            \
    MNEMOSCOPE_INLINE Plain<T> operator OP(T a, Plain<T> b) {                     \
        return map_lanes<T>([&](int i) { return static_cast<T>(a OP b[i]); });    \
    }                                                                             \
    template <class T>                                                            \
    MNEMOSCOPE_INLINE Plain<T> operator OP(Plain<T> a, T b) {                     \
        return map_lanes<T>([&](int i) { return static_cast<T>(a[i] OP b); });    \
    }
MNEMOSCOPE_OPERATOR(+)
MNEMOSCOPE_OPERATOR(-)
MNEMOSCOPE_OPERATOR(*)
MNEMOSCOPE_OPERATOR(/)
MNEMOSCOPE_OPERATOR(<<)
#undef MNEMOSCOPE_OPERATOR
template <class T>
MNEMOSCOPE_INLINE Plain<T>& operator+=(Plain<T>& a, Plain<T> b) {
    return a = a + b;
}
template <class T>
MNEMOSCOPE_INLINE Plain<T> operator-(Plain<T> a) {
    return map_lanes<T>([&](int i) { return -a[i]; });
}
template <class T>
MNEMOSCOPE_INLINE Plain<T> max(Plain<T> a, Plain<T> b) {
    return map_lanes<T>([&](int i) { return a[i] > b[i] ? a[i] : b[i]; });
}
template <class T>
MNEMOSCOPE_INLINE Plain<T> min(Plain<T> a, Plain<T> b) {
    return map_lanes<T>([&](int i) { return a[i] < b[i] ? a[i] : b[i]; });
}
template <class T>
MNEMOSCOPE_INLINE Plain<T> where_positive(Plain<T> z, Plain<T> yes, Plain<T> no) {
    return map_lanes<T>([&](int i) { return z[i] > 0 ? yes[i] : no[i]; });
}

#endif

template <class T>
MNEMOSCOPE_INLINE Vec<T> load(const T* p) {
    Vec<T> v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
template <class T>
MNEMOSCOPE_INLINE void store(T* p, Vec<T> v) {
    std::memcpy(p, &v, sizeof v);
}

// Partial access to the first `count` lanes, count > 0. A partial load sets the others to zero.
template <class T>
MNEMOSCOPE_INLINE Vec<T> load(const T* p, int count) {
    if (count >= lanes<T>) return load(p);
    T part[lanes<T>] = {};
    std::memcpy(part, p, static_cast<std::size_t>(count) * sizeof(T));
    return load(part);
}
template <class T>
MNEMOSCOPE_INLINE void store(T* p, Vec<T> v, int count) {
    if (count >= lanes<T>)
        store(p, v);
    else
        std::memcpy(p, &v, static_cast<std::size_t>(count) * sizeof(T));
}
#if defined(__AVX512F__) && !defined(MNEMOSCOPE_PLAIN_VECTORS)
MNEMOSCOPE_INLINE __mmask16 first_of_16(int count) {
    return static_cast<__mmask16>((1u << count) - 1u);
}
MNEMOSCOPE_INLINE __mmask8 first_of_8(int count) {
    return static_cast<__mmask8>((1u << count) - 1u);
}
template <>
MNEMOSCOPE_INLINE Vec<float> load<float>(const float* p, int count) {
    return bit_cast<Vec<float>>(_mm512_maskz_loadu_ps(first_of_16(count), p));
}
template <>
MNEMOSCOPE_INLINE void store<float>(float* p, Vec<float> v, int count) {
    _mm512_mask_storeu_ps(p, first_of_16(count), bit_cast<__m512>(v));
}
template <>
MNEMOSCOPE_INLINE Vec<double> load<double>(const double* p, int count) {
    return bit_cast<Vec<double>>(_mm512_maskz_loadu_pd(first_of_8(count), p));
}
template <>
MNEMOSCOPE_INLINE void store<double>(double* p, Vec<double> v, int count) {
    _mm512_mask_storeu_pd(p, first_of_8(count), bit_cast<__m512d>(v));
}
#endif

#if defined(__GNUC__) && !defined(MNEMOSCOPE_PLAIN_VECTORS)

// Sum of all lanes, by halving: the order of the additions does not depend on the compiler.
template <class T, int bytes>
MNEMOSCOPE_INLINE T horizontal_sum_of(typename VectorOf<T, bytes>::type v) {
    if constexpr (bytes == sizeof(T)) {
        return v[0];
    } else {
        typename VectorOf<T, bytes / 2>::type halves[2];
        std::memcpy(halves, &v, sizeof v);
        return horizontal_sum_of<T, bytes / 2>(halves[0] + halves[1]);
    }
}
template <class T>
MNEMOSCOPE_INLINE T horizontal_sum(Vec<T> v) {
    return horizontal_sum_of<T, vector_bytes>(v);
}

#else

template <class T>
MNEMOSCOPE_INLINE T horizontal_sum(Vec<T> v) {
    for (int half = lanes<T> / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) v[i] += v[i + half];
    return v[0];
}

#endif

// 1 / x. In single precision, a hardware estimate and one Newton step are as accurate as a division
// and several times faster. x must then be finite and normal, since 0 * inf is NaN.
template <class T>
MNEMOSCOPE_INLINE Vec<T> reciprocal(Vec<T> x) {
    return T(1) / x;
}
#if defined(__AVX512F__) && !defined(MNEMOSCOPE_PLAIN_VECTORS)
template <>
MNEMOSCOPE_INLINE Vec<float> reciprocal<float>(Vec<float> x) {
    Vec<float> r = bit_cast<Vec<float>>(_mm512_maskz_rcp14_ps(0xffff, bit_cast<__m512>(x)));
    return r + r * (1.0f - x * r);
}
#elif defined(__AVX2__) && !defined(MNEMOSCOPE_PLAIN_VECTORS)
template <>
MNEMOSCOPE_INLINE Vec<float> reciprocal<float>(Vec<float> x) {
    Vec<float> r = bit_cast<Vec<float>>(_mm256_rcp_ps(bit_cast<__m256>(x)));
    return r + r * (1.0f - x * r);
}
#endif

template <class T>
struct Limits;
template <>
struct Limits<float> {
    static constexpr float round =
        12582912.0f;  // 1.5 * 2^23: x + round has the nearest integer in its low bits
    static constexpr int mantissa = 23, bias = 127;
    static constexpr int degree = 7;  // of the Taylor polynomial of exp
    static constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.4286068203094173e-06f;
    static constexpr float exponent = 87.0f;  // exp(+-exponent) is a normal number
    static constexpr float saturated = 20.0f;  // 1 - tanh(saturated / 2) rounds to zero
    static constexpr float huge = 1e37f;  // 1 / huge is still normal
};
template <>
struct Limits<double> {
    static constexpr double round = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr int mantissa = 52, bias = 1023;
    static constexpr int degree = 13;
    static constexpr double ln2_high = 0.6931471805582987, ln2_low = 1.6465949582897082e-12;
    static constexpr double exponent = 700.0, saturated = 44.0, huge = 1e300;
};

// 1 / k!, as constants: a compiler that does not unroll the loop would divide every time.
constexpr double inverse_factorial[] = {
    1.0,
    1.0,
    1.0 / 2,
    1.0 / 6,
    1.0 / 24,
    1.0 / 120,
    1.0 / 720,
    1.0 / 5040,
    1.0 / 40320,
    1.0 / 362880,
    1.0 / 3628800,
    1.0 / 39916800,
    1.0 / 479001600,
    1.0 / 6227020800,
};

// exp(r) - 1 by Horner's rule: p holds the terms above r^K, divided by r^K. Unrolled by recursion.
template <class T, int K>
MNEMOSCOPE_INLINE Vec<T> taylor(Vec<T> r, Vec<T> p) {
    if constexpr (K == 0)
        return p * r;
    else
        return taylor<T, K - 1>(r, p * r + T(inverse_factorial[K]));
}

// exp(x) = 2^k (1 + p) with an integer k, |r| <= ln(2)/2 and p = exp(r) - 1 by its Taylor series.
template <class T>
struct Exponential {
    Vec<T> power, p;
    explicit MNEMOSCOPE_INLINE Exponential(Vec<T> x) {
        using L = Limits<T>;
        const Vec<T> shifted = x * T(1.4426950408889634) + L::round;
        const Vec<T> k = shifted - L::round;
        const Vec<T> r = (x - k * L::ln2_high) - k * L::ln2_low;
        p = taylor<T, L::degree - 1>(r, splat(T(inverse_factorial[L::degree])));
        // The low bits of `shifted` are k; the exponent field of 2^k is k + bias.
        using U = typename Integer<T>::type;
        power = bit_cast<Vec<T>>((bit_cast<Bits<T>>(shifted) + U(L::bias)) << U(L::mantissa));
    }
};

template <class T>
MNEMOSCOPE_INLINE Vec<T> exponential(Vec<T> x) {
    const Vec<T> bound = splat(Limits<T>::exponent);
    const Exponential<T> e(min(bound, max(-bound, x)));
    return e.power + e.power * e.p;
}

template <class T>
MNEMOSCOPE_INLINE Vec<T> sigmoid(Vec<T> x) {
    return reciprocal<T>(T(1) + exponential<T>(-x));
}

// tanh(x) = sign(x) (e^{2|x|} - 1) / (e^{2|x|} + 1); e^y - 1 = 2^k p + (2^k - 1) does not cancel
// near zero.
template <class T>
MNEMOSCOPE_INLINE Vec<T> hyperbolic_tangent(Vec<T> x) {
    const Vec<T> modulus = max(x, -x);
    const Exponential<T> e(min(splat(Limits<T>::saturated), modulus + modulus));
    const Vec<T> less_one = e.power * e.p + (e.power - T(1));
    const Vec<T> y = less_one * reciprocal<T>(less_one + T(2));
    return max(min(x, y), -y);  // |tanh x| <= |x|, so this gives y the sign of x
}

template <class T>
inline void fill_zero(T* row, std::int64_t n) {
    if (n) std::memset(row, 0, static_cast<std::size_t>(n) * sizeof(T));
}
template <class T>
inline void copy(const T* from, T* to, std::int64_t n) {
    if (n) std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
}

// Asks for a row that is read or written soon. Functions that do no more than this must be inlined,
// too: GCC drops calls of them as free of effects.
template <class T>
MNEMOSCOPE_INLINE void prefetch(const T* row, std::int64_t n) {
#if defined(__GNUC__)
    constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t j = 0; j < n; j += line) __builtin_prefetch(row + j);
#else
    (void)row, (void)n;
#endif
}

// Flushes subnormal numbers to zero while in scope: each would cost a hundred cycles, and vanishing
// gradients are full of them.
class FlushSubnormals {
#if defined(__SSE2__)
    unsigned before = _mm_getcsr();

public:
    FlushSubnormals() { _mm_setcsr(before | 0x8040u); }
    ~FlushSubnormals() { _mm_setcsr(before); }
    FlushSubnormals(const FlushSubnormals&) = delete;
    FlushSubnormals& operator=(const FlushSubnormals&) = delete;
#endif
};

}  // namespace mnemoscope
