// Four consecutive small triples at a time, and two atoms made floats at a time, where the processor
// has AVX2: what `TriplePair` and the plain loops do, in the same arithmetic.
#pragma once

#include "../codecs/cpu.h"
#include "triple.h"

#define MDIO_QUADS MDIO_TARGET("avx2,bmi,bmi2")

namespace mdio::xtc {

#if MDIO_X86

inline bool has_quads() {
    static const bool found = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    return found && has_avx2();
}

// Four 64-bit lanes, filled without AVX2 and loaded with it.
struct Lanes {
    std::uint64_t lane[4];

    MDIO_QUADS MDIO_INLINE __m256i load() const {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lane));
    }
};

struct TripleQuad {
    static constexpr int MAX_BITS = TriplePair::MAX_BITS;

    Lanes low_mask, high_mask, factor, size, offset, starts;
    std::uint64_t shift, high_shift;
    std::uint32_t n_bits;

    void set(const Triple& triple) {
        n_bits = static_cast<std::uint32_t>(triple.n_bits);
        const int power = triple.n_bits + bit_length(triple.size_z);
        const std::uint64_t above = (std::uint64_t(1) << power) + triple.size_z - 1;
        const std::uint64_t added = triple.offset[0];
        fill(low_mask, triple.low_mask);
        fill(high_mask, triple.high_mask);
        fill(factor, above / triple.size_z);  // less than 2^32 for all small sizes
        fill(size, triple.size_z);
        for (int i = 0; i < 4; ++i) {
            offset.lane[i] = i % 2 == 0 ? added << 32 | added : added;
            starts.lane[i] = i * std::uint64_t(n_bits);
        }
        shift = static_cast<std::uint64_t>(power);
        high_shift = triple.high_shift;
    }

    // Stores what it reads, each added to the one before and the first to `here`: the first in
    // `first`, the others from `rest` on. Returns the last.
    MDIO_QUADS MDIO_INLINE __m128i read(const std::uint8_t* data, std::uint32_t bit, __m128i here,
                                        Uint4* first, Uint4* rest) const {
        // Where the four begin.
        const __m256i begin =
            _mm256_and_si256(_mm256_add_epi64(_mm256_set1_epi64x(bit), starts.load()),
                             _mm256_set1_epi64x(7));
        const __m256i raw = _mm256_set_m128i(two(data, bit + 2 * n_bits, bit + 3 * n_bits),
                                             two(data, bit, bit + n_bits));
        const __m256i turn = _mm256_broadcastsi128_si256(
            _mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
        const __m256i words = _mm256_shuffle_epi8(
            _mm256_sllv_epi64(_mm256_shuffle_epi8(raw, turn), begin), turn);
        const __m128i power = _mm_cvtsi64_si128(static_cast<long long>(shift));
        const __m256i value = _mm256_or_si256(
            _mm256_and_si256(words, low_mask.load()),
            _mm256_and_si256(
                _mm256_srl_epi64(words, _mm_cvtsi64_si128(static_cast<long long>(high_shift))),
                high_mask.load()));
        const __m256i by = factor.load(), times = size.load();
        const __m256i xy = _mm256_srl_epi64(_mm256_mul_epu32(value, by), power);
        const __m256i x = _mm256_srl_epi64(_mm256_mul_epu32(xy, by), power);
        const __m256i y = _mm256_sub_epi64(xy, _mm256_mul_epu32(x, times));
        const __m256i z = _mm256_sub_epi64(value, _mm256_mul_epu32(xy, times));
        const __m256i x_y = _mm256_or_si256(x, _mm256_slli_epi64(y, 32));
        const __m256i added = offset.load();
        const __m256i even = _mm256_add_epi32(_mm256_unpacklo_epi64(x_y, z), added);
        const __m256i odd = _mm256_add_epi32(_mm256_unpackhi_epi64(x_y, z), added);
        here = store(_mm_add_epi32(here, _mm256_castsi256_si128(even)), first);
        here = store(_mm_add_epi32(here, _mm256_castsi256_si128(odd)), rest);
        here = store(_mm_add_epi32(here, _mm256_extracti128_si256(even, 1)), rest + 1);
        return store(_mm_add_epi32(here, _mm256_extracti128_si256(odd, 1)), rest + 2);
    }

  private:
    // The eight bytes from where each of two bits is.
    MDIO_QUADS MDIO_INLINE static __m128i two(const std::uint8_t* data, std::uint32_t first,
                                              std::uint32_t second) {
        const __m128i low =
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data + (first >> 3)));
        return _mm_castpd_si128(_mm_loadh_pd(
            _mm_castsi128_pd(low), reinterpret_cast<const double*>(data + (second >> 3))));
    }

    static void fill(Lanes& lanes, std::uint64_t value) {
        std::fill(lanes.lane, lanes.lane + 4, value);
    }

    MDIO_QUADS MDIO_INLINE static __m128i store(__m128i triple, Uint4* out) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out), triple);
        return triple;
    }
};

// Two atoms as coordinates, in the order of operations of `to_angstrom`; four floats are stored for
// each.
MDIO_QUADS MDIO_INLINE void store_two(const Uint4* integers, float nm, float* target) {
    const __m256 x = _mm256_mul_ps(
        _mm256_mul_ps(_mm256_cvtepi32_ps(
                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(integers))),
                      _mm256_set1_ps(nm)),
        _mm256_set1_ps(10.0f));
    _mm_storeu_ps(target, _mm256_castps256_ps128(x));
    _mm_storeu_ps(target + 3, _mm256_extractf128_ps(x, 1));
}

#endif

}  // namespace mdio::xtc
