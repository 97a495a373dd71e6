// Big-endian words at any byte, and division by a number known beforehand.
#pragma once

#include <cstdint>
#include <cstring>

namespace mdio::xtc {

inline std::uint64_t load_be64(const std::uint8_t* p) {
    std::uint64_t word;
    std::memcpy(&word, p, sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

inline std::uint32_t load_be32(const std::uint8_t* p) {
    std::uint32_t word;
    std::memcpy(&word, p, sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap32(word);
#endif
    return word;
}

inline float load_float(const std::uint8_t* p) {
    const std::uint32_t word = load_be32(p);
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}

inline void store_be64(std::uint8_t* p, std::uint64_t word) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    std::memcpy(p, &word, sizeof word);
}

inline void store_be32(std::uint8_t* p, std::uint32_t word) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap32(word);
#endif
    std::memcpy(p, &word, sizeof word);
}

inline void store_float(std::uint8_t* p, float value) {
    std::uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    store_be32(p, word);
}

// How many bits a number takes; 0 for 0.
inline int bit_length(std::uint64_t value) {
    return value == 0 ? 0 : 64 - __builtin_clzll(value);
}

// Division by `divisor` >= 1 as a multiplication. With s = ceil(log2(divisor)) the factor
// m = ceil(2^(63 + s) / divisor) is below 2^64 and m * divisor exceeds 2^(63 + s) by less than
// 2^s, so floor(2 v m / 2^64 / 2^s) is floor(v / divisor) for every v < 2^63.
struct Reciprocal {
    std::uint64_t factor;
    std::uint32_t divisor;
    std::uint32_t shift;

    explicit Reciprocal(std::uint32_t by = 1) : divisor(by), shift(bit_length(by - 1u)) {
        using Wide = unsigned __int128;
        factor = static_cast<std::uint64_t>(((Wide(1) << (63 + shift)) + by - 1) / by);
    }

    std::uint64_t divide(std::uint64_t value) const {
        using Wide = unsigned __int128;
        return static_cast<std::uint64_t>((Wide(value << 1) * factor) >> 64) >> shift;
    }
};

}  // namespace mdio::xtc
