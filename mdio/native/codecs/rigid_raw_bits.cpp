// The low bits of a class's numbers, which do not go through the entropy coder: how many, and how they are packed.
#include <algorithm>
#include <array>
#include <cmath>

#include "rigid_encode.h"

namespace mdio::rigid {
namespace {

// Counts of each symbol.
using Counts = std::array<uint32_t, 256>;

// Counts of numbers without their lowest `finest` bits, from which those of symbols follow for up to DEPTH bits more.
class FineCounts {
  public:
    FineCounts(const std::vector<int32_t>& numbers, uint32_t coarsest)
        : finest_(coarsest > DEPTH ? coarsest - DEPTH : 0), n_(uint32_t(numbers.size())) {
        for (const int32_t v : numbers) ++bins_[std::min(uint32_t(v >> finest_) + FIRST, FAR)];
    }
    bool has(uint32_t bits) const { return bits >= finest_; }
    Counts at(uint32_t bits) const {
        Counts counts{};
        const uint32_t more = bits - finest_;
        uint32_t n = 0;
        const uint32_t* bin = bins_.data() + FIRST - (uint32_t(ZERO_SYMBOL) << more);
        for (uint32_t s = 0; s < ESCAPE; ++s, bin += 1u << more) {
            for (uint32_t k = 0; k < 1u << more; ++k) counts[s] += bin[k];
            n += counts[s];
        }
        counts[ESCAPE] = n_ - n;
        return counts;
    }

  private:
    static constexpr uint32_t DEPTH = 3, FAR = 256 << DEPTH, FIRST = FAR / 2;  // bins of far numbers, of zero
    uint32_t finest_, n_;
    std::array<uint32_t, FAR + 1> bins_{};
};

// The same with one bit more, if nothing is escaped.
Counts count_with_one_bit_more(const Counts& of) {
    Counts counts{};
    for (int32_t s = 0; s <= MAX_SYMBOL; ++s) counts[size_t(((s - ZERO_SYMBOL) >> 1) + ZERO_SYMBOL)] += of[size_t(s)];
    return counts;
}

// Stores eight packed numbers: the bits of the first four in `low`, of the others in `high`.
MDIO_INLINE void put_halves(uint64_t low, uint64_t high, uint32_t width, uint8_t* to) {
    const uint32_t half = 4 * width;
    const uint64_t both[2] = {half == 64 ? low : low | high << half, high >> (64 - half)};
    std::memcpy(to, both, sizeof both);
}

int64_t pack_plain(const int32_t* numbers, int64_t n, uint32_t width, uint8_t* to) {
    const uint32_t mask = (1u << width) - 1;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8, to += width) {
        uint64_t low = 0, high = 0;
        for (uint32_t k = 0; k < 4; ++k) {
            low |= uint64_t(uint32_t(numbers[i + k]) & mask) << (k * width);
            high |= uint64_t(uint32_t(numbers[i + 4 + k]) & mask) << (k * width);
        }
        put_halves(low, high, width, to);
    }
    return i;
}

#if MDIO_X86
MDIO_TARGET("avx2")
int64_t pack_avx2(const int32_t* numbers, int64_t n, uint32_t width, uint8_t* to) {
    const auto mask = _mm256_set1_epi32(int32_t((1u << width) - 1));
    const auto to_two = _mm_cvtsi32_si128(int32_t(32 - width)), to_four = _mm_cvtsi32_si128(int32_t(2 * width));
    int64_t i = 0;
    for (; i + 8 <= n; i += 8, to += width) {
        const auto x = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers + i)), mask);
        // Of each two numbers, the second is shifted to follow the first; numbers have 16 bits at most.
        const auto first = _mm256_blend_epi32(x, _mm256_setzero_si256(), 0xAA);
        const auto pairs = _mm256_or_si256(first, _mm256_srl_epi64(x, to_two));
        const auto four = _mm256_or_si256(pairs, _mm256_sll_epi64(_mm256_unpackhi_epi64(pairs, pairs), to_four));
        put_halves(uint64_t(_mm_cvtsi128_si64(_mm256_castsi256_si128(four))),
                   uint64_t(_mm_cvtsi128_si64(_mm256_extracti128_si256(four, 1))), width, to);
    }
    return i;
}
#endif

}  // namespace

int64_t pack_eights(const int32_t* numbers, int64_t n, uint32_t width, uint8_t* to) {
#if MDIO_X86
    if (has_avx2()) return pack_avx2(numbers, n, width, to);
#endif
    return pack_plain(numbers, n, width, to);
}

uint8_t raw_bits(const std::vector<int32_t>& numbers, double share) {
    if (numbers.empty()) return 0;
    uint32_t largest = 0;  // absolute values; of negative numbers less one
    for (const int32_t v : numbers) largest = std::max(largest, uint32_t(v ^ (v >> 31)));
    uint32_t safe_bits = 0;  // least bits with which nothing is escaped, at most MAX_RAW_BITS
    while (safe_bits < MAX_RAW_BITS && largest >> safe_bits > uint32_t(ZERO_SYMBOL) - 1) ++safe_bits;
    const auto n = double(numbers.size());
    double best = 0;
    uint32_t raw = 0;
    std::array<double, 64> logarithms{};  // of small counts: log2 is slow
    const auto log_of = [&](uint32_t count) {
        if (count >= logarithms.size()) return std::log2(n / count);
        double& logarithm = logarithms[count];
        return logarithm == 0 ? logarithm = std::log2(n / count) : logarithm;
    };
    const auto cost_of = [&](const Counts& counts, uint32_t bits) {
        double cost = n * bits + 30.0 * counts[ESCAPE];
        for (const uint32_t count : counts)
            if (count) cost += count * log_of(count) + 6.0 * share;
        return cost;
    };
    FineCounts fine(numbers, safe_bits);
    Counts counts = fine.at(safe_bits);
    best = cost_of(counts, raw = safe_bits);
    for (uint32_t bits = safe_bits; bits-- > 0;) {
        if (!fine.has(bits)) fine = FineCounts(numbers, bits);
        const Counts fewer = fine.at(bits);
        if (30.0 * fewer[ESCAPE] > best) break;  // with fewer bits, more are escaped
        const double cost = cost_of(fewer, bits);
        if (cost <= best) best = cost, raw = bits;
    }
    // Once there are few symbols, more bits cost more.
    for (uint32_t bits = safe_bits + 1; bits <= MAX_RAW_BITS && counts[ESCAPE] == 0; ++bits) {
        const double cost = cost_of(counts = count_with_one_bit_more(counts), bits);
        if (cost > best) break;
        if (cost < best) best = cost, raw = bits;
    }
    return uint8_t(raw);
}

}  // namespace mdio::rigid
