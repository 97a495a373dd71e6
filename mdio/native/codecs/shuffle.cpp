// HDF5's shuffle filter: all first bytes of the items, then all second ones, and so on.
#include <algorithm>
#include <cstring>

#include "cpu.h"
#include "mdio_codecs.h"

namespace mdio {
namespace {

constexpr size_t RUN = 4096;  // items that are worked on together, so that they stay in cache

void shuffle_from(size_t start, const uint8_t* data, size_t n, size_t itemsize, uint8_t* out) {
    for (; start < n; start += RUN) {
        const size_t stop = std::min(n, start + RUN);
        for (size_t byte = 0; byte < itemsize; ++byte)
            for (size_t i = start; i < stop; ++i) out[byte * n + i] = data[i * itemsize + byte];
    }
}

void unshuffle_from(size_t start, const uint8_t* data, size_t n, size_t itemsize, uint8_t* out) {
    for (; start < n; start += RUN) {
        const size_t stop = std::min(n, start + RUN);
        for (size_t byte = 0; byte < itemsize; ++byte)
            for (size_t i = start; i < stop; ++i) out[i * itemsize + byte] = data[byte * n + i];
    }
}

#if MDIO_X86

MDIO_TARGET("avx2,fma") inline __m256i load(const uint8_t* data) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
}

MDIO_TARGET("avx2,fma") inline void store(uint8_t* data, __m256i value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(data), value);
}

// Eight items: first bytes in the first quarter, second bytes in the second quarter, ...
MDIO_TARGET("avx2,fma") inline __m256i quarters(__m256i items) {
    const __m256i within = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0,
                                            4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i across = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(items, within), across);
}

// Both work on 32 items of 4 bytes at a time and return how many items they have done.

MDIO_TARGET("avx2,fma")
size_t shuffle_fours(const uint8_t* data, size_t n, uint8_t* out) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m256i a = quarters(load(data + 4 * i)), b = quarters(load(data + 4 * i + 32));
        const __m256i c = quarters(load(data + 4 * i + 64)), d = quarters(load(data + 4 * i + 96));
        const __m256i ab02 = _mm256_unpacklo_epi64(a, b), ab13 = _mm256_unpackhi_epi64(a, b);
        const __m256i cd02 = _mm256_unpacklo_epi64(c, d), cd13 = _mm256_unpackhi_epi64(c, d);
        store(out + i, _mm256_permute2x128_si256(ab02, cd02, 0x20));
        store(out + n + i, _mm256_permute2x128_si256(ab13, cd13, 0x20));
        store(out + 2 * n + i, _mm256_permute2x128_si256(ab02, cd02, 0x31));
        store(out + 3 * n + i, _mm256_permute2x128_si256(ab13, cd13, 0x31));
    }
    return i;
}

MDIO_TARGET("avx2,fma")
size_t unshuffle_fours(const uint8_t* data, size_t n, uint8_t* out) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m256i first = load(data + i), second = load(data + n + i);
        const __m256i third = load(data + 2 * n + i), fourth = load(data + 3 * n + i);
        const __m256i low01 = _mm256_unpacklo_epi8(first, second);
        const __m256i high01 = _mm256_unpackhi_epi8(first, second);
        const __m256i low23 = _mm256_unpacklo_epi8(third, fourth);
        const __m256i high23 = _mm256_unpackhi_epi8(third, fourth);
        const __m256i a = _mm256_unpacklo_epi16(low01, low23);    // items 0-3 and 16-19
        const __m256i b = _mm256_unpackhi_epi16(low01, low23);    // items 4-7 and 20-23
        const __m256i c = _mm256_unpacklo_epi16(high01, high23);  // items 8-11 and 24-27
        const __m256i d = _mm256_unpackhi_epi16(high01, high23);  // items 12-15 and 28-31
        store(out + 4 * i, _mm256_permute2x128_si256(a, b, 0x20));
        store(out + 4 * i + 32, _mm256_permute2x128_si256(c, d, 0x20));
        store(out + 4 * i + 64, _mm256_permute2x128_si256(a, b, 0x31));
        store(out + 4 * i + 96, _mm256_permute2x128_si256(c, d, 0x31));
    }
    return i;
}

#else

size_t shuffle_fours(const uint8_t*, size_t, uint8_t*) { return 0; }
size_t unshuffle_fours(const uint8_t*, size_t, uint8_t*) { return 0; }

#endif

}  // namespace
}  // namespace mdio

void mdio_shuffle(const uint8_t* data, size_t nbytes, size_t itemsize, uint8_t* out) {
    if (nbytes == 0) return;  // pointers may be null then
    const size_t n = nbytes / itemsize;
    const size_t done = itemsize == 4 && mdio::has_avx2() ? mdio::shuffle_fours(data, n, out) : 0;
    mdio::shuffle_from(done, data, n, itemsize, out);
    std::memcpy(out + n * itemsize, data + n * itemsize, nbytes - n * itemsize);
}

void mdio_unshuffle(const uint8_t* data, size_t nbytes, size_t itemsize, uint8_t* out) {
    if (nbytes == 0) return;  // pointers may be null then
    const size_t n = nbytes / itemsize;
    const size_t done = itemsize == 4 && mdio::has_avx2() ? mdio::unshuffle_fours(data, n, out) : 0;
    mdio::unshuffle_from(done, data, n, itemsize, out);
    std::memcpy(out + n * itemsize, data + n * itemsize, nbytes - n * itemsize);
}
