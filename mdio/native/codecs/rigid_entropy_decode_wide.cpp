// The entropy decoder, 16 lanes at a time; rigid_entropy_decode.cpp explains it.
#include <algorithm>

#include "rigid.h"

// Vectors that are uninitialised on purpose.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#if MDIO_X86

namespace mdio::rigid {
namespace {

constexpr int64_t WIDTH = 16;
constexpr int VECTORS = MAX_LANES / WIDTH;

// The lanes of one frame.
struct Lanes {
    __m512i x[VECTORS];
    const uint8_t* next;
};

// Tables in registers.
struct Tables {
    const uint32_t* entries;
    __m128i bits;
    __m512i mask;
};

MDIO_TARGET(MDIO_AVX512)
MDIO_INLINE __m512i entries_at(const uint32_t* tables, __m512i slot) {
    const auto low = _mm512_castsi256_si512(eight_entries(tables, _mm512_castsi512_si256(slot)));
    return _mm512_inserti64x4(low, eight_entries(tables, _mm512_extracti64x4_epi64(slot, 1)), 1);
}

MDIO_TARGET(MDIO_AVX512)
MDIO_INLINE __m512i sixteen_bytes(const uint8_t* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// Decodes one symbol of all lanes; if `is_last`, of the first `n`.
template <bool with_contexts, bool is_last>
MDIO_TARGET(MDIO_AVX512)
MDIO_INLINE void decode_step(Lanes& lanes, const Tables& tables, const uint8_t* contexts, int64_t n, uint8_t* to) {
    for (int v = 0; v < VECTORS; ++v) {
        const auto n_active = uint32_t(std::max<int64_t>(0, std::min(WIDTH, n - WIDTH * v)));
        const auto active = is_last ? __mmask16((1u << n_active) - 1) : __mmask16(0xFFFF);
        const auto x = lanes.x[v];
        auto slot = _mm512_and_si512(x, tables.mask);
        if (with_contexts)
            slot = _mm512_add_epi32(slot, _mm512_sll_epi32(sixteen_bytes(contexts + WIDTH * v), tables.bits));
        if (is_last) slot = _mm512_maskz_mov_epi32(active, slot);
        const auto entry = entries_at(tables.entries, slot);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + WIDTH * v), _mm512_cvtepi32_epi8(entry));
        const auto frequency = _mm512_and_si512(_mm512_srli_epi32(entry, 8), _mm512_set1_epi32(0xFFF));
        auto y = _mm512_mullo_epi32(frequency, _mm512_srl_epi32(x, tables.bits));
        y = _mm512_add_epi32(y, _mm512_srli_epi32(entry, 20));
        const auto low = _mm512_mask_cmplt_epu32_mask(active, y, _mm512_set1_epi32(int32_t(MIN_STATE)));
        const auto words = _mm512_cvtepu16_epi32(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes.next)));
        const auto filled = _mm512_or_si512(_mm512_slli_epi32(y, 16), _mm512_maskz_expand_epi32(low, words));
        y = _mm512_mask_mov_epi32(y, low, filled);
        lanes.x[v] = is_last ? _mm512_mask_mov_epi32(x, active, y) : y;
        lanes.next += 2 * __builtin_popcount(low);
    }
}

// Whether every lane can take a word.
MDIO_INLINE bool has_words(const Lanes& lanes, const FrameStream& frame) {
    return frame.words->end - lanes.next >= 2 * MAX_LANES;
}

template <bool with_contexts, int n_frames>
MDIO_TARGET(MDIO_AVX512)
MDIO_INLINE void decode_frames(const Block& block, const FrameStream* in) {
    const Block b = block;
    const Tables tables{b.tables, _mm_cvtsi32_si128(int32_t(b.bits)),
                        _mm512_set1_epi32(int32_t((1u << b.bits) - 1))};
    FrameStream frames[n_frames];
    Lanes lanes[n_frames];
    for (int k = 0; k < n_frames; ++k) {
        frames[k] = in[k];
        lanes[k].next = in[k].words->next;
        for (int v = 0; v < VECTORS; ++v)
            lanes[k].x[v] = _mm512_loadu_si512(in[k].words->states + WIDTH * v);
    }
    int64_t i = 0;
    for (; i + MAX_LANES <= b.n && has_words(lanes[0], frames[0]) &&
           has_words(lanes[n_frames - 1], frames[n_frames - 1]);
         i += MAX_LANES)
#pragma GCC unroll 2
        for (int k = 0; k < n_frames; ++k)
            decode_step<with_contexts, false>(lanes[k], tables, frames[k].contexts + i, MAX_LANES,
                                              frames[k].symbols + i);
    for (int k = 0; k < n_frames; ++k) {
        int64_t at = i;
        for (; at < b.n && has_words(lanes[k], frames[k]); at += MAX_LANES)
            decode_step<with_contexts, true>(lanes[k], tables, frames[k].contexts + at, b.n - at,
                                             frames[k].symbols + at);
        in[k].words->next = lanes[k].next;
        for (int v = 0; v < VECTORS; ++v)
            _mm512_storeu_si512(in[k].words->states + WIDTH * v, lanes[k].x[v]);
        decode_rest(b, in[k], at);
    }
}

template <bool with_contexts>
MDIO_TARGET(MDIO_AVX512)
void decode_lanes(const Block& block, const FrameStream* frames, int n_frames) {
    if (n_frames == FRAMES_AT_ONCE)
        decode_frames<with_contexts, FRAMES_AT_ONCE>(block, frames);
    else
        decode_frames<with_contexts, 1>(block, frames);
}

}  // namespace

void decode_wide(const Block& block, const FrameStream* frames, int n_frames) {
    (frames[0].contexts ? decode_lanes<true> : decode_lanes<false>)(block, frames, n_frames);
}

}  // namespace mdio::rigid

#endif
