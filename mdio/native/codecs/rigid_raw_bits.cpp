// How many low bits of a class's numbers do not go through the entropy coder.
#include <algorithm>
#include <array>
#include <cmath>

#include "rigid_encode.h"

namespace mdio::rigid {
namespace {

// How often each symbol is there, if so many low bits are stored as they are.
using Counts = std::array<uint32_t, 256>;
Counts counted(const std::vector<int32_t>& numbers, uint32_t bits) {
    Counts counts{};
    for (const int32_t v : numbers) {
        const uint32_t symbol = uint32_t(v >> bits) + uint32_t(MIDDLE);
        ++counts[symbol > uint32_t(MOST_SYMBOL) ? ESCAPE : symbol];
    }
    return counts;
}
// The same with one bit more, where nothing is escaped.
Counts halved(const Counts& of) {
    Counts counts{};
    for (int32_t s = 0; s <= MOST_SYMBOL; ++s) counts[size_t(((s - MIDDLE) >> 1) + MIDDLE)] += of[size_t(s)];
    return counts;
}

}  // namespace

uint8_t raw_bits(const std::vector<int32_t>& numbers, double share) {
    if (numbers.empty()) return 0;
    uint32_t most = 0;  // from zero, or from -1
    for (const int32_t v : numbers) most = std::max(most, uint32_t(v ^ (v >> 31)));
    uint32_t enough = 0;  // bits with which nothing is escaped, if there are
    while (enough < MOST_RAW && most >> enough > uint32_t(MIDDLE) - 1) ++enough;
    const auto n = double(numbers.size());
    double best = 0;
    uint32_t raw = 0;
    const auto cost_of = [&](const Counts& counts, uint32_t bits) {
        double cost = n * bits + 30.0 * counts[ESCAPE];
        for (const uint32_t count : counts)
            if (count) cost += count * std::log2(n / count) + 6.0 * share;
        return cost;
    };
    Counts counts = counted(numbers, enough);
    best = cost_of(counts, raw = enough);
    for (uint32_t bits = enough; bits-- > 0;) {
        const Counts fewer = counted(numbers, bits);
        if (30.0 * fewer[ESCAPE] > best) break;  // with less bits more are
        const double cost = cost_of(fewer, bits);
        if (cost <= best) best = cost, raw = bits;
    }
    // Once symbols are few, more bits only cost more.
    for (uint32_t bits = enough + 1; bits <= MOST_RAW && counts[ESCAPE] == 0; ++bits) {
        const double cost = cost_of(counts = halved(counts), bits);
        if (cost > best) break;
        if (cost < best) best = cost, raw = bits;
    }
    return uint8_t(raw);
}

}  // namespace mdio::rigid
