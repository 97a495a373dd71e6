// Integers in groups of just the bits that the largest of a group needs, and back.
//
// Eight numbers of w bits are w bytes, so that every eighth begins at a byte: with AVX2, eight are
// cut out of two loads by one shuffle and one shift, as long as none spans more than four bytes.
#include "packed.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "fold.h"
#include "memory.h"

namespace mdio {
namespace {

constexpr int64_t MOST_GROUPS = 1 << 26;  // of a row: sums of their widths fit in 32 bits

MDIO_INLINE uint64_t load8(const uint8_t* from) {
    uint64_t word;
    std::memcpy(&word, from, 8);
    return word;
}

template <bool add>
MDIO_INLINE const uint8_t* unpack_eights(const uint8_t* from, uint32_t width, int64_t n,
                                         uint32_t* to) {
    const uint64_t mask = (uint64_t(1) << width) - 1;
    for (uint32_t i = 0; i < uint32_t(EIGHT * n); ++i) {
        const uint32_t bit = i * width;
        const uint32_t x = unfolded(uint32_t(load8(from + bit / 8) >> (bit % 8) & mask));
        to[i] = add ? to[i] + x : x;
    }
    return from + n * width;
}

template <bool add>
const uint8_t* unpack_groups(const uint8_t* from, const uint8_t* widths, int64_t n_eights,
                             uint32_t* to) {
    for (; n_eights > 0; n_eights -= EIGHTS, to += GROUP)
        from = unpack_eights<add>(from, *widths++, std::min(n_eights, EIGHTS), to);
    return from;
}

// Packs numbers that are folded already, and returns where what follows begins.
MDIO_INLINE uint8_t* pack_eights(const uint32_t* from, uint32_t width, int64_t n, uint8_t* to) {
    uint64_t word = 0;
    uint32_t n_bits = 0;
    for (int64_t i = 0; i < EIGHT * n; ++i) {
        word |= uint64_t(from[i]) << n_bits;
        for (n_bits += width; n_bits >= 8; n_bits -= 8, word >>= 8) *to++ = uint8_t(word);
    }
    return to;
}

uint8_t* pack_groups(const int32_t* from, int64_t n_eights, uint8_t* widths, uint8_t* to) {
    for (; n_eights > 0; n_eights -= EIGHTS, from += GROUP) {
        const int64_t n = std::min(n_eights, EIGHTS);
        uint32_t group[GROUP], any = 0;
        for (int64_t i = 0; i < EIGHT * n; ++i) any |= group[i] = folded(from[i]);
        *widths++ = uint8_t(bits(any));
        to = pack_eights(group, bits(any), n, to);
    }
    return to;
}

#if MDIO_X86

constexpr uint32_t WINDOW = 25;  // bits: wider numbers may span five bytes

// Where eight numbers lie: the bytes of each in the halves of a vector, of which the second holds
// what begins at byte w / 2, and by how many bits they are to be shifted.
struct Layout {
    alignas(32) uint8_t bytes[32];
    alignas(32) uint32_t shifts[8];
};

constexpr std::array<Layout, WINDOW + 1> layouts() {
    std::array<Layout, WINDOW + 1> all{};
    for (uint32_t width = 0; width <= WINDOW; ++width)
        for (uint32_t i = 0; i < 8; ++i) {
            const uint32_t bit = i * width - (i < 4 ? 0 : width / 2 * 8);
            for (uint32_t b = 0; b < 4; ++b)
                all[width].bytes[4 * i + b] = uint8_t(bit / 8 + b);
            all[width].shifts[i] = bit % 8;
        }
    return all;
}

constexpr std::array<Layout, WINDOW + 1> LAYOUTS = layouts();

template <bool add>
MDIO_TARGET("avx2")
MDIO_INLINE const uint8_t* unpack_eights_avx2(const uint8_t* from, uint32_t width, int64_t n,
                                              uint32_t* to) {
    if (width > WINDOW) return unpack_eights<add>(from, width, n, to);
    const __m256i zero = _mm256_setzero_si256(), one = _mm256_set1_epi32(1);
    const Layout& layout = LAYOUTS[width];
    const auto bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(layout.bytes));
    const auto shifts = _mm256_load_si256(reinterpret_cast<const __m256i*>(layout.shifts));
    const auto mask = _mm256_set1_epi32(int32_t((uint32_t(1) << width) - 1));
    for (int64_t i = 0; i < n; ++i, from += width, to += EIGHT) {
        const auto low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        const auto high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + width / 2));
        auto x = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
        x = _mm256_srlv_epi32(_mm256_shuffle_epi8(x, bytes), shifts);
        x = _mm256_and_si256(x, mask);
        const auto sign = _mm256_sub_epi32(zero, _mm256_and_si256(x, one));
        x = _mm256_xor_si256(_mm256_srli_epi32(x, 1), sign);
        auto* place = reinterpret_cast<__m256i*>(to);
        if (add) x = _mm256_add_epi32(x, _mm256_loadu_si256(place));
        _mm256_storeu_si256(place, x);
    }
    return from;
}

template <bool add>
MDIO_TARGET("avx2")
const uint8_t* unpack_groups_avx2(const uint8_t* from, const uint8_t* widths, int64_t n_eights,
                                  uint32_t* to) {
    for (; n_eights >= EIGHTS; n_eights -= EIGHTS, to += GROUP)
        from = unpack_eights_avx2<add>(from, *widths++, EIGHTS, to);
    return n_eights ? unpack_eights_avx2<add>(from, *widths, n_eights, to) : from;
}

MDIO_TARGET("avx2")
uint8_t* pack_groups_avx2(const int32_t* from, int64_t n_eights, uint8_t* widths, uint8_t* to) {
    const __m256i low_half = _mm256_set1_epi64x(0xffffffff);
    for (; n_eights >= EIGHTS; n_eights -= EIGHTS, from += GROUP) {
        __m256i x[EIGHTS];
        for (int64_t i = 0; i < EIGHTS; ++i) {
            const auto q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + EIGHT * i));
            x[i] = _mm256_xor_si256(_mm256_slli_epi32(q, 1), _mm256_srai_epi32(q, 31));
        }
        const auto any = _mm256_or_si256(_mm256_or_si256(x[0], x[1]), _mm256_or_si256(x[2], x[3]));
        auto half = _mm_or_si128(_mm256_castsi256_si128(any), _mm256_extracti128_si256(any, 1));
        half = _mm_or_si128(half, _mm_srli_si128(half, 8));
        const auto quarter = uint64_t(_mm_cvtsi128_si64(half));
        const uint32_t width = bits(uint32_t(quarter | quarter >> 32));
        *widths++ = uint8_t(width);
        if (width == 0) continue;
        if (width > 16) {
            uint32_t group[GROUP];
            std::memcpy(group, x, sizeof group);
            to = pack_eights(group, width, EIGHTS, to);
            continue;
        }
        // Neighbours are put together: pairs in 64 bits, fours in 64 bits, eights in 128.
        const auto by_one = _mm_cvtsi32_si128(int32_t(width));
        const auto by_two = _mm_cvtsi32_si128(int32_t(2 * width));
        for (int64_t i = 0; i < EIGHTS; ++i, to += width) {
            const auto upper = _mm256_sll_epi64(_mm256_srli_epi64(x[i], 32), by_one);
            auto pairs = _mm256_or_si256(_mm256_and_si256(x[i], low_half), upper);
            pairs = _mm256_or_si256(pairs, _mm256_sll_epi64(_mm256_srli_si256(pairs, 8), by_two));
            const auto first = uint64_t(_mm_cvtsi128_si64(_mm256_castsi256_si128(pairs)));
            const auto second = uint64_t(_mm_cvtsi128_si64(_mm256_extracti128_si256(pairs, 1)));
            // Two shifts: one by 64 would be none.
            const uint64_t words[2] = {first | second << (2 * width) << (2 * width),
                                       second >> (64 - 4 * width)};
            std::memcpy(to, words, sizeof words);
        }
    }
    return pack_groups(from, n_eights, widths, to);
}

#endif

}  // namespace

Groups unpacker() {
#if MDIO_X86
    if (has_avx2()) return unpack_groups_avx2<false>;
#endif
    return unpack_groups<false>;
}

Groups adder() {
#if MDIO_X86
    if (has_avx2()) return unpack_groups_avx2<true>;
#endif
    return unpack_groups<true>;
}

Packed packed(const uint8_t* data, int64_t nbytes, int64_t n_rows, int64_t n_numbers) {
    const int64_t n_groups = groups_of(n_numbers);
    if (n_groups > MOST_GROUPS || (n_groups && n_rows > nbytes / n_groups))
        fail("packed integers end within the widths of their groups");
    Packed found{data, data + n_rows * n_groups, {0}, n_numbers};
    for (int64_t row = 0; row < n_rows; ++row) {
        const uint8_t* widths = found.widths_of(row);
        uint8_t widest = 0;
        for (int64_t g = 0; g < n_groups; ++g) widest = std::max(widest, widths[g]);
        if (widest > MAX_WIDTH)
            fail("a group of packed integers is wider than 32 bits");
        const int64_t n_missing = EIGHTS * n_groups - eights_of(n_numbers);
        const int64_t nbytes_row = EIGHTS * sum_of(widths, n_groups);
        found.begins.push_back(found.begins.back() + nbytes_row -
                               (n_groups ? n_missing * widths[n_groups - 1] : 0));
    }
    const int64_t expected = n_rows * n_groups + found.begins.back() + BEHIND;
    if (nbytes != expected) fail("packed integers do not take the bytes that their widths say");
    return found;
}

}  // namespace mdio

int64_t mdio_pack_limit(int64_t n_rows, int64_t n_numbers) {
    using namespace mdio;
    return n_rows * (groups_of(n_numbers) + 4 * EIGHT * eights_of(n_numbers)) + BEHIND;
}

int64_t mdio_pack(const int32_t* rows, int64_t n_rows, int64_t n_numbers, uint8_t* to) {
    using namespace mdio;
    auto pack_some = pack_groups;
#if MDIO_X86
    if (has_avx2()) pack_some = pack_groups_avx2;
#endif
    const int64_t n_groups = groups_of(n_numbers), n_whole = n_numbers / GROUP;
    uint8_t *widths = to, *groups = to + n_rows * n_groups;
    for (int64_t row = 0; row < n_rows; ++row, rows += n_numbers, widths += n_groups) {
        groups = pack_some(rows, EIGHTS * n_whole, widths, groups);
        int32_t rest[GROUP] = {};
        std::copy(rows + GROUP * n_whole, rows + n_numbers, rest);
        groups = pack_some(rest, eights_of(n_numbers) - EIGHTS * n_whole, widths + n_whole, groups);
    }
    std::memset(groups, 0, BEHIND);
    return groups + BEHIND - to;
}
