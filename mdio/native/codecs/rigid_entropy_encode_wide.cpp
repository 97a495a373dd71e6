// The entropy encoder, 16 lanes at a time; rigid_entropy_encode.cpp explains it.
#include "rigid_encode.h"

#if MDIO_X86

// Vectors that are uninitialised on purpose.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace mdio::rigid {
namespace {

constexpr int64_t WIDTH = 16;
constexpr int VECTORS = 2;
static_assert(VECTORS * WIDTH == MAX_LANES);

// Entries of 16 symbols.
MDIO_TARGET(MDIO_AVX512)
MDIO_INLINE __m512i entries_of(const uint32_t* entries, const uint16_t* at) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(eight_at(entries, at)), eight_at(entries, at + 8), 1);
}

// Encodes a symbol of each active of 16 lanes: writes their words, and returns the new states.
MDIO_TARGET(MDIO_AVX512)
MDIO_INLINE __m512i encode_step(__m512i x, const Stream& s, int64_t first, __mmask16 active, uint8_t*& to) {
    const auto one = _mm512_set1_epi32(1), low_twelve = _mm512_set1_epi32(0xFFF);
    const auto by = _mm_cvtsi32_si128(int32_t(s.bits)), to_top = _mm_cvtsi32_si128(int32_t(32 - s.bits));
    const auto entry = entries_of(s.entries, s.symbols + first);
    const auto frequency = _mm512_and_si512(entry, low_twelve);
    const __mmask16 full = _mm512_mask_cmpge_epu32_mask(active, _mm512_srl_epi32(x, to_top), frequency);
    // Words are moved to the last places, since a store that is masked takes longer than one of all 16.
    const int n_words = __builtin_popcount(full);
    const auto lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const auto last = _mm512_add_epi32(lane, _mm512_set1_epi32(n_words));
    const auto words = _mm512_permutexvar_epi32(last, _mm512_maskz_compress_epi32(full, x));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to - 2 * WIDTH), _mm512_cvtepi32_epi16(words));
    to -= 2 * n_words;
    const auto y = _mm512_mask_srli_epi32(x, full, x, 16);
    // A quotient of less than 2^22 is at most one off after three roundings to float32. The reciprocal does
    // not depend on the state.
    const auto inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_cvtepi32_ps(frequency));
    const auto quotient = _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_cvtepu32_ps(y), inverse));
    const auto rest = _mm512_sub_epi32(y, _mm512_mullo_epi32(quotient, frequency));
    // The new state from quotient and rest, computed before both are corrected, and corrected with them.
    const auto gap = _mm512_sub_epi32(_mm512_sll_epi32(one, by), frequency);
    const auto before = _mm512_and_si512(_mm512_srli_epi32(entry, 12), low_twelve);
    auto z = _mm512_add_epi32(_mm512_add_epi32(y, before), _mm512_mullo_epi32(quotient, gap));
    z = _mm512_mask_sub_epi32(z, _mm512_movepi32_mask(rest), z, gap);
    z = _mm512_mask_add_epi32(z, _mm512_cmpge_epi32_mask(rest, frequency), z, gap);
    return _mm512_mask_mov_epi32(x, active, z);
}

}  // namespace

MDIO_TARGET(MDIO_AVX512)
void encode_wide(EncoderState& e, const Stream& stream, int64_t, int64_t n) {
    const Stream s = stream;
    __m512i x[VECTORS];
    for (int v = 0; v < VECTORS; ++v) x[v] = _mm512_loadu_si512(e.states + WIDTH * v);
    uint8_t* to = e.to;
    int64_t i = n / MAX_LANES * MAX_LANES;
    const uint32_t active = (1u << (n - i)) - 1;
    if (active >> WIDTH) x[1] = encode_step(x[1], s, i + WIDTH, __mmask16(active >> WIDTH), to);
    if (active) x[0] = encode_step(x[0], s, i, __mmask16(active), to);
    while (i > 0) {
        i -= MAX_LANES;
        for (int v = VECTORS; v-- > 0;) x[v] = encode_step(x[v], s, i + WIDTH * v, __mmask16(0xFFFF), to);
    }
    e.to = to;
    for (int v = 0; v < VECTORS; ++v) _mm512_storeu_si512(e.states + WIDTH * v, x[v]);
}

}  // namespace mdio::rigid

#endif
