// CRC-32C (Castagnoli polynomial, reflected 0x82F63B78; RFC 3720, appendix B.4).
#include <array>
#include <cstring>

#include "cpu.h"
#include "kernels.h"

namespace mdio {
namespace {

constexpr uint32_t POLYNOMIAL = 0x82F63B78;
constexpr size_t LONG = 8192, SHORT = 256;  // bytes of each of the three strands

using Table = std::array<std::array<uint32_t, 256>, 8>;
using Operator = std::array<std::array<uint32_t, 256>, 4>;

// table[k][b]: the register after byte b and k zero bytes.
Table make_bytes_table() {
    Table table{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][byte] = crc;
    }
    for (size_t k = 1; k < 8; ++k)
        for (size_t byte = 0; byte < 256; ++byte) {
            const uint32_t crc = table[k - 1][byte];
            table[k][byte] = (crc >> 8) ^ table[0][crc & 255];
        }
    return table;
}

const Table& bytes_table() {
    static const Table table = make_bytes_table();
    return table;
}

uint32_t extend_plain(uint32_t crc, const uint8_t* data, size_t nbytes) {
    const Table& table = bytes_table();
    for (; nbytes >= 8; nbytes -= 8, data += 8) {
        uint32_t next = table[3][data[4]] ^ table[2][data[5]];
        next ^= table[1][data[6]] ^ table[0][data[7]];
        for (int k = 0; k < 4; ++k) next ^= table[7 - k][((crc >> (8 * k)) & 255) ^ data[k]];
        crc = next;
    }
    for (; nbytes; --nbytes, ++data) crc = (crc >> 8) ^ table[0][(crc ^ *data) & 255];
    return crc;
}

#if MDIO_X86

// What `nbytes` zero bytes make of a register, one table for each of its four bytes: the register
// after them is linear in the bits before.
Operator make_zeros_operator(size_t nbytes) {
    const Table& table = bytes_table();
    std::array<uint32_t, 32> bits;
    for (size_t bit = 0; bit < 32; ++bit) {
        uint32_t crc = uint32_t(1) << bit;
        for (size_t i = 0; i < nbytes; ++i) crc = (crc >> 8) ^ table[0][crc & 255];
        bits[bit] = crc;
    }
    Operator zeros{};
    for (size_t k = 0; k < 4; ++k)
        for (size_t byte = 0; byte < 256; ++byte)
            for (size_t bit = 0; bit < 8; ++bit)
                if (byte >> bit & 1) zeros[k][byte] ^= bits[8 * k + bit];
    return zeros;
}

uint32_t apply(const Operator& zeros, uint64_t crc) {
    return zeros[0][crc & 255] ^ zeros[1][crc >> 8 & 255] ^ zeros[2][crc >> 16 & 255] ^
           zeros[3][crc >> 24 & 255];
}

inline uint64_t load(const uint8_t* data) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    return word;
}

// The instruction takes one word a cycle but answers after three, so three strands run side by
// side; each is then moved past the bytes that follow it.
template <size_t STRAND>
MDIO_TARGET("sse4.2")
uint64_t extend_strands(uint64_t crc, const uint8_t*& data, size_t& nbytes, const Operator& zeros) {
    for (; nbytes >= 3 * STRAND; nbytes -= 3 * STRAND, data += 3 * STRAND) {
        uint64_t middle = 0, last = 0;
        for (size_t i = 0; i < STRAND; i += 8) {
            crc = _mm_crc32_u64(crc, load(data + i));
            middle = _mm_crc32_u64(middle, load(data + STRAND + i));
            last = _mm_crc32_u64(last, load(data + 2 * STRAND + i));
        }
        crc = apply(zeros, apply(zeros, crc) ^ middle) ^ last;
    }
    return crc;
}

MDIO_TARGET("sse4.2")
uint32_t extend_sse42(uint32_t start, const uint8_t* data, size_t nbytes) {
    static const Operator past_long = make_zeros_operator(LONG);
    static const Operator past_short = make_zeros_operator(SHORT);
    uint64_t crc = start;
    crc = extend_strands<LONG>(crc, data, nbytes, past_long);
    crc = extend_strands<SHORT>(crc, data, nbytes, past_short);
    for (; nbytes >= 8; nbytes -= 8, data += 8) crc = _mm_crc32_u64(crc, load(data));
    for (; nbytes; --nbytes, ++data) crc = _mm_crc32_u8(uint32_t(crc), *data);
    return uint32_t(crc);
}

#endif

}  // namespace

uint32_t crc32c(const void* data, size_t nbytes, uint32_t value) {
    const uint8_t* bytes = static_cast<const uint8_t*>(data);
#if MDIO_X86
    if (has_crc32()) return ~extend_sse42(~value, bytes, nbytes);
#endif
    return ~extend_plain(~value, bytes, nbytes);
}

}  // namespace mdio
