// A triple of integers, as the stream has it: one number (x * size_y + y) * size_z + z, its least
// significant byte first, in a fixed number of bits; bytes are filled from their most significant
// bit on.
//
// Numbers are undone by multiplication: with m = ceil(2^p / size), m * size exceeds 2^p by less
// than size, so floor(v * m / 2^p) is floor(v / size) as long as v * size <= 2^p.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "bits.h"

namespace mdio::xtc {

using Wide = unsigned __int128;

// x, y, z, and a lane that is not used. Sums wrap, whatever the bytes are.
typedef std::uint32_t Uint4 __attribute__((vector_size(16)));

// The bits of the product of three sizes.
inline int product_bits(const std::uint32_t sizes[3]) {
    const Wide product = Wide(sizes[0]) * sizes[1] * sizes[2];
    const auto above = static_cast<std::uint64_t>(product >> 64);
    return above ? 64 + bit_length(above) : bit_length(static_cast<std::uint64_t>(product));
}

// How to read one kind of triple, of up to 72 bits and up to 24 bits a size.
struct Triple {
    std::uint64_t low_mask;            // of the whole bytes
    std::uint64_t high_mask;           // of the last, partial byte, moved down
    std::uint64_t factor_z, factor_y;  // 2^64 / size, rounded up
    std::uint32_t size_z, size_y;
    std::uint32_t high_shift;
    int n_bits;
    Uint4 offset;  // to add to what is read
    Reciprocal by_z, by_y;
    // Whether one 64-bit load has it at any bit of a byte, and 2^64 is a good enough power for
    // both divisions; so in boxes of up to about 650 angstrom at steps of 0.01.
    bool narrow;

    void set(int bits, const std::uint32_t sizes[3], const Uint4& added) {
        n_bits = bits;
        const int n_whole = std::min(bits - 1, 63) / 8 * 8;
        const int n_rest = std::min(bits, 64) - n_whole;
        low_mask = (std::uint64_t(1) << n_whole) - 1;
        high_shift = 8 - n_rest;
        high_mask = ((std::uint64_t(1) << n_rest) - 1) << n_whole;
        size_z = sizes[2];
        size_y = sizes[1];
        factor_z = ~std::uint64_t(0) / size_z + 1;
        factor_y = ~std::uint64_t(0) / size_y + 1;
        by_z = Reciprocal(size_z);
        by_y = Reciprocal(size_y);
        offset = added;
        narrow = bits <= 57 && size_z > 1 && size_y > 1 &&
                 bits + bit_length(std::max(size_z, size_y)) <= 64;
    }

    Uint4 read(const std::uint8_t* data, std::uint32_t bit) const {
        return narrow ? read_narrow(data, bit) : read_wide(data, bit);
    }

  private:
    Uint4 read_narrow(const std::uint8_t* data, std::uint32_t bit) const {
        const std::uint64_t word = __builtin_bswap64(load_be64(data + (bit >> 3)) << (bit & 7));
        const std::uint64_t value = (word & low_mask) | ((word >> high_shift) & high_mask);
        const auto xy = static_cast<std::uint64_t>(Wide(value) * factor_z >> 64);
        return split(static_cast<std::uint32_t>(value), xy,
                     static_cast<std::uint32_t>(Wide(xy) * factor_y >> 64));
    }

    Uint4 read_wide(const std::uint8_t* data, std::uint32_t bit) const {
        const std::uint8_t* p = data + (bit >> 3);
        const Wide both = ((Wide(load_be64(p)) << 64) | load_be64(p + 8)) << (bit & 7);
        const std::uint64_t word = __builtin_bswap64(static_cast<std::uint64_t>(both >> 64));
        Wide value = (word & low_mask) | ((word >> high_shift) & high_mask);
        if (n_bits > 64)
            value |= Wide(static_cast<std::uint64_t>(both) >> (128 - n_bits)) << 64;
        // In two steps, of which each fits `Reciprocal`.
        const auto upper = static_cast<std::uint64_t>(value >> 32);
        const std::uint64_t quotient = by_z.divide(upper);
        const std::uint64_t rest = upper - quotient * size_z;
        const std::uint64_t lower = (rest << 32) | static_cast<std::uint32_t>(value);
        const std::uint64_t xy = (quotient << 32) + by_z.divide(lower);
        return split(static_cast<std::uint32_t>(value), xy,
                     static_cast<std::uint32_t>(by_y.divide(xy)));
    }

    Uint4 split(std::uint32_t value, std::uint64_t xy, std::uint32_t x) const {
        const std::uint32_t y = static_cast<std::uint32_t>(xy) - x * size_y;
        const std::uint32_t z = value - static_cast<std::uint32_t>(xy) * size_z;
        return Uint4{x, y, z, 0} + offset;
    }
};

#if defined(__SSE2__)

// Two consecutive small triples at a time; SSE2, which every x86-64 has, multiplies two pairs of
// 32-bit numbers.
struct TriplePair {
    static constexpr int MAX_BITS = 31;

    __m128i low_mask, high_mask, factor, size, offset, shift, high_shift;
    std::uint32_t n_bits;

    void set(const Triple& triple) {
        n_bits = static_cast<std::uint32_t>(triple.n_bits);
        const int power = triple.n_bits + bit_length(triple.size_z);
        const std::uint64_t above = (std::uint64_t(1) << power) + triple.size_z - 1;
        low_mask = twice(triple.low_mask);
        high_mask = twice(triple.high_mask);
        factor = twice(above / triple.size_z);  // less than 2^32 for all small sizes
        size = twice(triple.size_z);
        offset = reinterpret_cast<__m128i>(triple.offset);
        shift = _mm_cvtsi32_si128(power);
        high_shift = _mm_cvtsi32_si128(static_cast<int>(triple.high_shift));
    }

    void read(const std::uint8_t* data, std::uint32_t bit, Uint4& first, Uint4& second) const {
        const std::uint32_t next = bit + n_bits;
        const __m128i words = _mm_set_epi64x(
            static_cast<long long>(__builtin_bswap64(load_be64(data + (next >> 3)) << (next & 7))),
            static_cast<long long>(__builtin_bswap64(load_be64(data + (bit >> 3)) << (bit & 7))));
        const __m128i value =
            _mm_or_si128(_mm_and_si128(words, low_mask),
                         _mm_and_si128(_mm_srl_epi64(words, high_shift), high_mask));
        const __m128i xy = _mm_srl_epi64(_mm_mul_epu32(value, factor), shift);
        const __m128i x = _mm_srl_epi64(_mm_mul_epu32(xy, factor), shift);
        const __m128i y = _mm_sub_epi64(xy, _mm_mul_epu32(x, size));
        const __m128i z = _mm_sub_epi64(value, _mm_mul_epu32(xy, size));
        const __m128i x_y = _mm_or_si128(x, _mm_slli_epi64(y, 32));
        first = reinterpret_cast<Uint4>(_mm_add_epi32(_mm_unpacklo_epi64(x_y, z), offset));
        second = reinterpret_cast<Uint4>(_mm_add_epi32(_mm_unpackhi_epi64(x_y, z), offset));
    }

  private:
    static __m128i twice(std::uint64_t value) {
        return _mm_set1_epi64x(static_cast<long long>(value));
    }
};

#else

struct TriplePair {
    static constexpr int MAX_BITS = 31;

    Triple triple;

    void set(const Triple& one) { triple = one; }

    void read(const std::uint8_t* data, std::uint32_t bit, Uint4& first, Uint4& second) const {
        first = triple.read(data, bit);
        second = triple.read(data, bit + static_cast<std::uint32_t>(triple.n_bits));
    }
};

#endif

}  // namespace mdio::xtc
