// The arithmetic that encoder and decoder share, for MDIO_LANES atoms at a time: float32 operations one by
// one, each rounded as IEEE 754 has it (no fused ones), so that every machine gets the same integers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "rigid.h"

#ifndef MDIO_LANES
#define MDIO_LANES 8
#define MDIO_LANES_NAME eight
#endif

// Vectors are passed only to functions that are inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace mdio::rigid {
inline namespace MDIO_LANES_NAME {

constexpr int LANES = MDIO_LANES;
using Ints = int32_t __attribute__((vector_size(4 * LANES)));
using Sizes = uint32_t __attribute__((vector_size(4 * LANES)));
using Floats = float __attribute__((vector_size(4 * LANES)));
using Halves = uint16_t __attribute__((vector_size(2 * LANES)));  // between bytes and integers: one instruction each
using Bytes = uint8_t __attribute__((vector_size(LANES)));

MDIO_INLINE Ints load(const int32_t* from) {
    Ints x;
    std::memcpy(&x, from, sizeof x);
    return x;
}
MDIO_INLINE Floats load(const float* from) {
    Floats x;
    std::memcpy(&x, from, sizeof x);
    return x;
}
// Single instructions for which GCC emits many. If either operand is NaN, the second is returned.
#if MDIO_X86 && defined(MDIO_LANES_AVX2)
MDIO_TARGET("avx2") MDIO_INLINE Ints load(const uint8_t* from) {
    return Ints(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
MDIO_TARGET("avx2") MDIO_INLINE Ints load(const uint16_t* from) {
    return Ints(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
MDIO_TARGET("avx2") MDIO_INLINE Floats larger(const Floats& x, const Floats& y) { return _mm256_max_ps(x, y); }
MDIO_TARGET("avx2") MDIO_INLINE Floats smaller(const Floats& x, const Floats& y) { return _mm256_min_ps(x, y); }
MDIO_TARGET("avx2") MDIO_INLINE Ints absolute(const Ints& x) { return Ints(_mm256_abs_epi32(__m256i(x))); }
MDIO_TARGET("avx2") MDIO_INLINE Sizes shifted(const Ints& x, int by) {
    return Sizes(_mm256_sllv_epi32(__m256i(x), _mm256_set1_epi32(by)));
}
MDIO_TARGET("avx2") MDIO_INLINE void store(const Ints& x, uint8_t* to) {
    const auto lowest = _mm256_shuffle_epi8(__m256i(x), _mm256_set1_epi64x(0x0C080400));
    const auto bytes = _mm_unpacklo_epi32(_mm256_castsi256_si128(lowest), _mm256_extracti128_si256(lowest, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), bytes);
}
MDIO_TARGET("avx2") MDIO_INLINE void store(const Ints& x, uint16_t* to) {
    const auto y = __m256i(x & 0xFFFF);  // since packing saturates
    const auto halves = _mm_packus_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
}
#elif MDIO_X86 && MDIO_LANES == 16
MDIO_TARGET(MDIO_AVX512) MDIO_INLINE Ints load(const uint8_t* from) {
    return Ints(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
MDIO_TARGET(MDIO_AVX512) MDIO_INLINE Ints load(const uint16_t* from) {
    return Ints(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}
MDIO_TARGET(MDIO_AVX512) MDIO_INLINE Floats larger(const Floats& x, const Floats& y) { return _mm512_max_ps(x, y); }
MDIO_TARGET(MDIO_AVX512) MDIO_INLINE Floats smaller(const Floats& x, const Floats& y) { return _mm512_min_ps(x, y); }
MDIO_TARGET(MDIO_AVX512) MDIO_INLINE Ints absolute(const Ints& x) { return Ints(_mm512_abs_epi32(__m512i(x))); }
MDIO_TARGET(MDIO_AVX512) MDIO_INLINE Sizes shifted(const Ints& x, int by) {
    return Sizes(_mm512_sllv_epi32(__m512i(x), _mm512_set1_epi32(by)));
}
MDIO_TARGET(MDIO_AVX512) MDIO_INLINE void store(const Ints& x, uint8_t* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(__m512i(x)));
}
MDIO_TARGET(MDIO_AVX512) MDIO_INLINE void store(const Ints& x, uint16_t* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(__m512i(x)));
}
#elif MDIO_X86 && MDIO_LANES == 4
MDIO_INLINE Ints load(const uint16_t* from) {
    return Ints(_mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)), __m128i{}));
}
MDIO_INLINE Ints load(const uint8_t* from) {
    int32_t four;
    std::memcpy(&four, from, 4);
    return Ints(_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(four), __m128i{}), __m128i{}));
}
MDIO_INLINE Floats larger(const Floats& x, const Floats& y) { return _mm_max_ps(x, y); }
MDIO_INLINE Floats smaller(const Floats& x, const Floats& y) { return _mm_min_ps(x, y); }
MDIO_INLINE void store(const Ints& x, uint8_t* to) {
    // Truncated to bytes first, since packing saturates.
    const auto halves = _mm_packs_epi32(__m128i(x & 255), __m128i{});
    const int32_t four = _mm_cvtsi128_si32(_mm_packus_epi16(halves, halves));
    std::memcpy(to, &four, 4);
}
MDIO_INLINE void store(const Ints& x, uint16_t* to) {
    const auto y = __m128i(Ints(Sizes(x) << 16) >> 16);  // since packing saturates
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi32(y, y));
}
#else
MDIO_INLINE void store(const Ints& x, uint16_t* to) {
    const Halves halves = __builtin_convertvector(x, Halves);
    std::memcpy(to, &halves, sizeof halves);
}
MDIO_INLINE void store(const Ints& x, uint8_t* to) {
    const Bytes bytes = __builtin_convertvector(__builtin_convertvector(x, Halves), Bytes);
    std::memcpy(to, &bytes, sizeof bytes);
}
MDIO_INLINE Ints load(const uint8_t* from) {
    Bytes x;
    std::memcpy(&x, from, sizeof x);
    return __builtin_convertvector(__builtin_convertvector(x, Halves), Ints);
}
MDIO_INLINE Ints load(const uint16_t* from) {
    Halves x;
    std::memcpy(&x, from, sizeof x);
    return __builtin_convertvector(x, Ints);
}
MDIO_INLINE Floats larger(const Floats& x, const Floats& y) { return x > y ? x : y; }
MDIO_INLINE Floats smaller(const Floats& x, const Floats& y) { return x < y ? x : y; }
#endif
MDIO_INLINE void store(const Ints& x, int32_t* to) { std::memcpy(to, &x, sizeof x); }
MDIO_INLINE void store(const Floats& x, float* to) { std::memcpy(to, &x, sizeof x); }
MDIO_INLINE Floats floats(const Ints& x) { return __builtin_convertvector(x, Floats); }
MDIO_INLINE Ints plus(const Ints& a, const Ints& b) { return Ints(Sizes(a) + Sizes(b)); }
MDIO_INLINE Ints minus(const Ints& a, const Ints& b) { return Ints(Sizes(a) - Sizes(b)); }
// Results of comparisons are used only in ?:, since GCC splits masks of 64-byte vectors to combine them.
MDIO_INLINE Ints sign_of(const Ints& x) { return x >> 31; }  // -1 if negative, else 0
MDIO_INLINE Ints negated_if(const Ints& sign, const Ints& a) { return minus(a ^ sign, sign); }
#if !MDIO_X86 || MDIO_LANES == 4
MDIO_INLINE Ints absolute(const Ints& x) { return negated_if(sign_of(x), x); }
MDIO_INLINE Sizes shifted(const Ints& x, int by) { return Sizes(x) << by; }
#endif

MDIO_INLINE Floats root(const Floats& x) {
    Floats y;
    for (int k = 0; k < LANES; ++k) y[k] = std::sqrt(x[k]);
    return y;
}
MDIO_INLINE Floats magnitude(const Floats& x) { return Floats(Ints(x) & INT32_MAX); }
MDIO_INLINE Floats positive(const Floats& x) { return larger(x, Floats{}); }

constexpr float MAX_COMPUTED = 1 << 20;

// Truncated towards zero after limiting to MAX_COMPUTED; defined for NaN, too.
MDIO_INLINE Ints whole(const Floats& x) {
    const Floats most = Floats{} + MAX_COMPUTED, least = Floats{} - MAX_COMPUTED;
    return __builtin_convertvector(smaller(larger(x, least), most), Ints);
}
MDIO_INLINE Ints floor_of(const Floats& x) {
    const Ints n = whole(x);
    return floats(n) > x ? n - 1 : n;
}
MDIO_INLINE Ints limit(const Floats& x, int n) {
    return __builtin_convertvector(smaller(positive(x), Floats{} + float(n - 1)), Ints);
}

struct Vector {
    Ints x, y, z;
};

// Number of the longest axis.
MDIO_INLINE Ints longest(const Vector& v) {
    const Ints a = absolute(v.x), b = absolute(v.y), c = absolute(v.z);
    const Ints last = b >= c ? Ints{} + 1 : Ints{} + 2, other = b >= c ? b : c;
    return a >= other ? Ints{} : last;
}

// The components in the order `axis`, the axis after it, the one after that; and back.
MDIO_INLINE Ints pick(const Ints& axis, const Ints& x, const Ints& y, const Ints& z) {
    const Ints last = axis == 1 ? y : z;
    return axis == 0 ? x : last;
}
MDIO_INLINE Vector rotated(const Ints& axis, const Vector& v) {
    return {pick(axis, v.x, v.y, v.z), pick(axis, v.y, v.z, v.x), pick(axis, v.z, v.x, v.y)};
}
MDIO_INLINE Vector rotated_back(const Ints& axis, const Vector& v) {
    return {pick(axis, v.x, v.z, v.y), pick(axis, v.y, v.x, v.z), pick(axis, v.z, v.y, v.x)};
}

// The third side: sqrt(square - a^2 - b^2), zero where there is none.
MDIO_INLINE Floats third(const Floats& square, const Ints& a, const Ints& b) {
    const Floats fa = floats(a), fb = floats(b);
    return root(positive((square - fa * fa) - fb * fb));
}

MDIO_INLINE Ints quarter(const Floats& x, const Ints& floor) {
    return limit((x - floats(floor)) * 4.0f, 4);
}

// SPHERE: the share of the first number in the square of the length.
MDIO_INLINE Ints sphere_context(const Floats& square, const Ints& a) {
    const Floats fa = floats(a);
    return limit(fa * fa * 16.0f / square, 8);
}
constexpr int32_t SPHERE_MIN = -14, SPHERE_MAX = 16;  // range of the deviation of the third side

// CIRCLE: the vector of the second atom, rotated such that the stored axis comes first; its square; and the
// scalar product of both vectors, which follows from the lengths.
struct Plane {
    Floats x, y, z, square, product;
};

MDIO_INLINE Plane plane(const Vector& u, const Floats& square, float second_square) {
    Plane p{floats(u.x), floats(u.y), floats(u.z), {}, {}};
    p.square = (p.x * p.x + p.y * p.y) + p.z * p.z;
    p.product = (p.square + (square - second_square)) * 0.5f;
    return p;
}
MDIO_INLINE Ints centre(const Plane& p) { return whole(p.product * p.x / p.square); }
MDIO_INLINE Ints circle_context(const Plane& p) { return limit(p.x * p.x * 6.0f / p.square, 6); }

// The two components that follow from the stored one, `v`, and their context. `is_other`: 1 on the other side.
struct CirclePoint {
    Ints y, z, context;
};
MDIO_INLINE CirclePoint circle_point(const Plane& p, const Floats& square, const Ints& v, const Ints& is_other) {
    const Floats fv = floats(v);
    const Floats across = p.y * p.y + p.z * p.z;
    const Floats q = p.product - p.x * fv;
    const Floats side = root(positive(across * (square - fv * fv) - q * q));
    const Floats s = Floats(Ints(side) ^ Ints(Sizes(is_other) << 31));
    const Floats y = (q * p.y - s * p.z) / across, z = (q * p.z + s * p.y) / across;
    const Ints fy = floor_of(y), fz = floor_of(z);
    return {fy, fz, 4 * quarter(y, fy) + quarter(z, fz)};
}
constexpr int32_t CIRCLE_MIN = -3, CIRCLE_MAX = 4;

MDIO_INLINE Ints number(const Ints& symbol, const Ints& raw, int raw_bits) {
    return plus(Ints(shifted(symbol - ZERO_SYMBOL, raw_bits)), raw);
}
// The axis in the low two bits of a symbol; 3 means 2.
MDIO_INLINE Ints axis_of(const Ints& symbol) {
    const Ints axis = symbol & 3;
    return axis < 2 ? axis : Ints{} + 2;
}

// Vectors of the second atoms, whose slots are adjacent in most groups. `gathers`: of has_fast_gathers().
MDIO_INLINE Vector second_vectors(const int32_t* const all[3], const int32_t* at, bool are_adjacent,
                                  [[maybe_unused]] bool gathers) {
    if (are_adjacent) return {load(all[0] + at[0]), load(all[1] + at[0]), load(all[2] + at[0])};
    const auto each = [=](const int32_t* from) __attribute__((always_inline)) {
#if MDIO_X86 && MDIO_LANES == 16
        if (gathers) return Ints(gathered(from, _mm512_loadu_si512(at)));
#endif
        int32_t x[LANES];
        for (int k = 0; k < LANES; ++k) x[k] = from[at[k]];
        return load(x);
    };
    return {each(all[0]), each(all[1]), each(all[2])};
}

}  // namespace
}  // namespace mdio::rigid
