// CRC-32C (Castagnoli polynomial, reflected 0x82F63B78; RFC 3720, appendix B.4).
#include <array>
#include <cstring>
#include <vector>

#include "cpu.h"
#include "kernels.h"

namespace mdio {
namespace {

constexpr uint32_t POLYNOMIAL = 0x82F63B78;
constexpr size_t LONG = 8192, SHORT = 256;  // bytes of each of the three strands

using Table = std::array<std::array<uint32_t, 256>, 8>;
using Operator = std::array<std::array<uint32_t, 256>, 4>;
using Bits = std::array<uint32_t, 32>;

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

// The product of two polynomials, modulo the one of the checksum; bits are reversed, 1 << 31 is 1.
uint32_t times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a; a <<= 1) {
        if (a >> 31) product ^= b;
        b = (b >> 1) ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

// What each bit of a register becomes after so many zero bytes: the register is linear in them.
Bits past(uint64_t nbytes) {
    uint32_t moved = uint32_t(1) << 31;
    for (uint32_t square = uint32_t(1) << 23; nbytes; nbytes >>= 1, square = times(square, square))
        if (nbytes & 1) moved = times(moved, square);
    Bits bits;
    for (size_t bit = 32; bit--; moved = (moved >> 1) ^ (moved & 1 ? POLYNOMIAL : 0))
        bits[bit] = moved;
    return bits;
}

#if MDIO_X86

// What zero bytes make of a register, one table for each of its four bytes.
Operator make_zeros_operator(uint64_t nbytes) {
    const Bits bits = past(nbytes);
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

// x^n modulo the polynomial, bits in reflected order, moved up by one as a carry-less product of
// two reflected numbers wants it.
constexpr uint64_t power(unsigned n) {
    uint32_t x = 0x80000000;
    for (; n; --n) x = (x >> 1) ^ (x & 1 ? POLYNOMIAL : 0);
    return uint64_t(x) << 1;
}

// Carry-less multiplication moves 16 bytes over the 256 that follow, after which they need only be
// added to what is there (Gopal et al., Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction, Intel 2009; here with wider registers). The last 256 bytes go through the other way.
constexpr size_t FOLD = 256;
constexpr uint64_t OVER_LOW = power(8 * FOLD + 32), OVER_HIGH = power(8 * FOLD - 32);
// What is summed has mostly left the nearer caches: asked for two pages ahead, since the processor itself
// asks no further than the end of a page, it comes a quarter to a half faster.
constexpr size_t AHEAD = 8192;

MDIO_TARGET("avx2,vpclmulqdq")
void fold_256(const uint8_t*& data, size_t& nbytes, uint8_t* folded) {
    constexpr size_t WIDTH = 32, N = FOLD / WIDTH;
    const __m256i over = _mm256_set_epi64x(OVER_HIGH, OVER_LOW, OVER_HIGH, OVER_LOW);
    __m256i x[N];
    for (size_t i = 0; i < N; ++i) std::memcpy(&x[i], folded + WIDTH * i, WIDTH);
    const size_t ahead = nbytes > AHEAD ? AHEAD : 0;
    for (; nbytes >= FOLD; nbytes -= FOLD, data += FOLD)
        for (size_t i = 0; i < N; ++i) {
            _mm_prefetch(reinterpret_cast<const char*>(data + ahead + WIDTH * i), _MM_HINT_T0);
            __m256i next;
            std::memcpy(&next, data + WIDTH * i, WIDTH);
            next = _mm256_xor_si256(next, _mm256_clmulepi64_epi128(x[i], over, 0x00));
            x[i] = _mm256_xor_si256(next, _mm256_clmulepi64_epi128(x[i], over, 0x11));
        }
    for (size_t i = 0; i < N; ++i) std::memcpy(folded + WIDTH * i, &x[i], WIDTH);
}

MDIO_TARGET("avx512f,vpclmulqdq")
void fold_512(const uint8_t*& data, size_t& nbytes, uint8_t* folded) {
    constexpr size_t WIDTH = 64, N = FOLD / WIDTH;
    const __m512i over = _mm512_set4_epi64(OVER_HIGH, OVER_LOW, OVER_HIGH, OVER_LOW);
    __m512i x[N];
    for (size_t i = 0; i < N; ++i) x[i] = _mm512_loadu_si512(folded + WIDTH * i);
    const size_t ahead = nbytes > AHEAD ? AHEAD : 0;
    for (; nbytes >= FOLD; nbytes -= FOLD, data += FOLD)
        for (size_t i = 0; i < N; ++i) {
            _mm_prefetch(reinterpret_cast<const char*>(data + ahead + WIDTH * i), _MM_HINT_T0);
            constexpr int SUM_OF_THREE = 0x96;
            x[i] = _mm512_ternarylogic_epi64(_mm512_loadu_si512(data + WIDTH * i),
                                             _mm512_clmulepi64_epi128(x[i], over, 0x00),
                                             _mm512_clmulepi64_epi128(x[i], over, 0x11),
                                             SUM_OF_THREE);
        }
    for (size_t i = 0; i < N; ++i) _mm512_storeu_si512(folded + WIDTH * i, x[i]);
}

template <void (*fold)(const uint8_t*&, size_t&, uint8_t*)>
uint32_t extend_folded(uint32_t crc, const uint8_t* data, size_t nbytes) {
    if (nbytes >= 2 * FOLD) {
        uint8_t folded[FOLD];
        std::memcpy(folded, data, FOLD);
        uint32_t first;
        std::memcpy(&first, folded, 4);
        first ^= crc;
        std::memcpy(folded, &first, 4);
        data += FOLD;
        nbytes -= FOLD;
        fold(data, nbytes, folded);
        crc = extend_sse42(0, folded, FOLD);
    }
    return extend_sse42(crc, data, nbytes);
}

// Where a carry-less product takes as long as the instruction for as many bytes, different parts of the
// processor do the two: the first part of a block is folded while three strands behind it go through the
// instruction; then all are joined.
constexpr size_t TURNS = 64, WORDS = 10;  // of a block; of a strand in each turn
constexpr size_t FOLDED = TURNS * FOLD, STRAND = TURNS * WORDS * 8, BLOCK = FOLDED + 3 * STRAND;

MDIO_TARGET("sse4.2,avx2,vpclmulqdq")
uint32_t extend_both_ways(uint32_t start, const uint8_t* data, size_t nbytes) {
    static const Operator past_strand = make_zeros_operator(STRAND);
    constexpr size_t WIDTH = 32, N = FOLD / WIDTH;
    const __m256i over = _mm256_set_epi64x(OVER_HIGH, OVER_LOW, OVER_HIGH, OVER_LOW);
    uint64_t crc = start;
    for (; nbytes >= BLOCK; nbytes -= BLOCK, data += BLOCK) {
        __m256i x[N] = {_mm256_zextsi128_si256(_mm_cvtsi32_si128(int(crc)))};
        uint64_t strands[3] = {};
        const uint8_t* words = data + FOLDED;
        for (size_t turn = 0; turn < TURNS; ++turn) {
            for (size_t i = 0; i < N; ++i) {
                __m256i next;
                std::memcpy(&next, data + FOLD * turn + WIDTH * i, WIDTH);
                if (turn) {
                    next = _mm256_xor_si256(next, _mm256_clmulepi64_epi128(x[i], over, 0x00));
                    x[i] = _mm256_clmulepi64_epi128(x[i], over, 0x11);
                }
                x[i] = _mm256_xor_si256(next, x[i]);
            }
            for (size_t i = 0; i < WORDS; ++i, words += 8)
                for (size_t k = 0; k < 3; ++k)
                    strands[k] = _mm_crc32_u64(strands[k], load(words + k * STRAND));
        }
        uint8_t folded[FOLD];
        std::memcpy(folded, x, FOLD);
        crc = extend_sse42(0, folded, FOLD);
        for (const uint64_t strand : strands) crc = apply(past_strand, crc) ^ strand;
    }
    return extend_folded<fold_256>(uint32_t(crc), data, nbytes);
}

#endif

using Extend = uint32_t (*)(uint32_t, const uint8_t*, size_t);

// All ways that this processor has, the fastest last.
std::vector<Extend> ways() {
    std::vector<Extend> found = {extend_plain};
#if MDIO_X86
    if (__builtin_cpu_supports("sse4.2")) {
        found.push_back(extend_sse42);
        if (__builtin_cpu_supports("vpclmulqdq")) {
            if (__builtin_cpu_supports("avx2")) {
                found.push_back(extend_folded<fold_256>);
                found.push_back(extend_both_ways);
            }
            if (__builtin_cpu_supports("avx512f")) found.push_back(extend_folded<fold_512>);
        }
    }
#endif
    return found;
}

}  // namespace

uint32_t crc32c(const void* data, size_t nbytes, uint32_t value) {
    static const Extend fastest = ways().back();
    const Extend extend = plain_only ? extend_plain : fastest;
    return ~extend(~value, static_cast<const uint8_t*>(data), nbytes);
}

uint32_t crc32c_joined(const uint32_t* crcs, const int64_t* edges, size_t n_pieces) {
    uint32_t joined = 0;
    int64_t nbytes = -1;  // nearly all pieces have one size
    Bits moved{};
    for (size_t i = 0; i < n_pieces; ++i) {
        if (edges[i + 1] - edges[i] != nbytes) {
            nbytes = edges[i + 1] - edges[i];
            moved = past(uint64_t(nbytes));
        }
        uint32_t sum = crcs[i];
        for (size_t bit = 0; bit < 32; ++bit) sum ^= moved[bit] & -(joined >> bit & 1);
        joined = sum;
    }
    return joined;
}

std::vector<uint32_t> crc32c_all_ways(const void* data, size_t nbytes, uint32_t value) {
    std::vector<uint32_t> found;
    for (const Extend extend : ways())
        found.push_back(~extend(~value, static_cast<const uint8_t*>(data), nbytes));
    return found;
}

}  // namespace mdio
