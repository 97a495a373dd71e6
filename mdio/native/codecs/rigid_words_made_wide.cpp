// The entropy coder, forwards, 16 lanes at a time; rigid_words_made.cpp has it in words.
#include "rigid_encode.h"

#if MDIO_X86

// GCC takes vectors that are not set on purpose for a mistake.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace mdio::rigid {
namespace {

constexpr int64_t WIDTH = 16;
constexpr int VECTORS = 2;
static_assert(VECTORS * WIDTH == MOST_LANES);

// Entries of 16 symbols.
MDIO_TARGET(MDIO_AVX512)
MDIO_INLINE __m512i entries_of(const uint32_t* entries, __m128i symbols, __m128i contexts) {
    const auto one = eight_at(entries, _mm_unpacklo_epi8(symbols, contexts));
    const auto other = eight_at(entries, _mm_unpackhi_epi8(symbols, contexts));
    return _mm512_inserti64x4(_mm512_castsi256_si512(one), other, 1);
}

// The states of 16 lanes after a symbol of each that is active, and before it the words they give.
MDIO_TARGET(MDIO_AVX512)
MDIO_INLINE __m512i encoded(__m512i x, const Stream& s, int64_t first, __mmask16 active, uint8_t*& to) {
    const auto one = _mm512_set1_epi32(1), twelve = _mm512_set1_epi32(0xFFF);
    const auto by = _mm_cvtsi32_si128(int32_t(s.bits)), to_top = _mm_cvtsi32_si128(int32_t(32 - s.bits));
    const auto entry = entries_of(s.entries, _mm_maskz_loadu_epi8(active, s.symbols + first),
                                  _mm_maskz_loadu_epi8(active, s.contexts + first));
    const auto frequency = _mm512_and_si512(entry, twelve);
    const __mmask16 full = _mm512_mask_cmpge_epu32_mask(active, _mm512_srl_epi32(x, to_top), frequency);
    const auto words = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, x));
    const int n_words = __builtin_popcount(full);
    to -= 2 * n_words;
    _mm256_mask_storeu_epi16(to, __mmask16((1u << n_words) - 1), words);
    const auto y = _mm512_mask_srli_epi32(x, full, x, 16);
    // A quotient of less than 2^22 is at most one off, of three roundings in float32. What is divided does
    // not wait for the state.
    const auto inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_cvtepi32_ps(frequency));
    const auto quotient = _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_cvtepu32_ps(y), inverse));
    const auto rest = _mm512_sub_epi32(y, _mm512_mullo_epi32(quotient, frequency));
    // The quotient in the place of the state, and the rest: without waiting for that to be put right.
    const auto gap = _mm512_sub_epi32(_mm512_sll_epi32(one, by), frequency);
    const auto before = _mm512_and_si512(_mm512_srli_epi32(entry, 12), twelve);
    auto z = _mm512_add_epi32(_mm512_add_epi32(y, before), _mm512_mullo_epi32(quotient, gap));
    z = _mm512_mask_sub_epi32(z, _mm512_movepi32_mask(rest), z, gap);
    z = _mm512_mask_add_epi32(z, _mm512_cmpge_epi32_mask(rest, frequency), z, gap);
    return _mm512_mask_mov_epi32(x, active, z);
}

}  // namespace

MDIO_TARGET(MDIO_AVX512)
void encode_wide(Encoding& e, const Stream& given, int64_t, int64_t n) {
    const Stream s = given;
    __m512i x[VECTORS];
    for (int v = 0; v < VECTORS; ++v) x[v] = _mm512_loadu_si512(e.states + WIDTH * v);
    uint8_t* to = e.to;
    int64_t i = n / MOST_LANES * MOST_LANES;
    const uint32_t active = (1u << (n - i)) - 1;
    if (active >> WIDTH) x[1] = encoded(x[1], s, i + WIDTH, __mmask16(active >> WIDTH), to);
    if (active) x[0] = encoded(x[0], s, i, __mmask16(active), to);
    while (i > 0) {
        i -= MOST_LANES;
        for (int v = VECTORS; v-- > 0;) x[v] = encoded(x[v], s, i + WIDTH * v, __mmask16(0xFFFF), to);
    }
    e.to = to;
    for (int v = 0; v < VECTORS; ++v) _mm512_storeu_si512(e.states + WIDTH * v, x[v]);
}

}  // namespace mdio::rigid

#endif
