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

// Entries of a table.
template <bool gathers>
MDIO_TARGET(MDIO_AVX512)
MDIO_INLINE __m512i entries_at(const uint32_t* tables, __m512i slot) {
    if (gathers) return gathered(tables, slot);
    const auto low = _mm512_castsi256_si512(eight_entries(tables, _mm512_castsi512_si256(slot)));
    return _mm512_inserti64x4(low, eight_entries(tables, _mm512_extracti64x4_epi64(slot, 1)), 1);
}

MDIO_TARGET(MDIO_AVX512)
MDIO_INLINE __m512i sixteen_bytes(const uint8_t* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// Decodes one symbol of all lanes; if `is_last`, of the first `n`.
template <uint32_t bits, bool gathers, bool is_last>
MDIO_TARGET(MDIO_AVX512)
MDIO_INLINE void decode_step(Lanes& lanes, const uint32_t* tables, const uint8_t* contexts, int64_t n, uint8_t* to) {
    for (int v = 0; v < VECTORS; ++v) {
        const auto n_active = uint32_t(std::max<int64_t>(0, std::min(WIDTH, n - WIDTH * v)));
        const auto active = is_last ? __mmask16((1u << n_active) - 1) : __mmask16(0xFFFF);
        const auto x = lanes.x[v];
        auto slot = _mm512_and_si512(x, _mm512_set1_epi32((1 << bits) - 1));
        if (bits == CONTEXT_BITS)
            slot = _mm512_add_epi32(slot, _mm512_slli_epi32(sixteen_bytes(contexts + WIDTH * v), bits));
        if (is_last) slot = _mm512_maskz_mov_epi32(active, slot);
        const auto entry = entries_at<gathers>(tables, slot);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + WIDTH * v), _mm512_cvtepi32_epi8(entry));
        const auto frequency = _mm512_and_si512(_mm512_srli_epi32(entry, 8), _mm512_set1_epi32(0xFFF));
        auto y = _mm512_mullo_epi32(frequency, _mm512_srli_epi32(x, bits));
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

MDIO_TARGET(MDIO_AVX512)
MDIO_INLINE Lanes load_lanes(const Words& words) {
    return {{_mm512_loadu_si512(words.states), _mm512_loadu_si512(words.states + WIDTH)}, words.next};
}
MDIO_TARGET(MDIO_AVX512)
MDIO_INLINE void store_lanes(const Lanes& lanes, Words& words) {
    _mm512_storeu_si512(words.states, lanes.x[0]);
    _mm512_storeu_si512(words.states + WIDTH, lanes.x[1]);
    words.next = lanes.next;
}

template <uint32_t bits, bool gathers>
MDIO_TARGET(MDIO_AVX512)
void decode_lanes(const Block& block, const FrameStream* frames, int n_frames) {
    const Block b = block;
    const auto step = [&](Lanes& lanes, const FrameStream& in, int64_t i)
        __attribute__((always_inline, target(MDIO_AVX512))) {
        const uint8_t* contexts = bits == CONTEXT_BITS ? in.contexts + i : nullptr;
        decode_step<bits, gathers, false>(lanes, b.tables, contexts, MAX_LANES, in.symbols + i);
    };
    int64_t begin = 0;
    if (n_frames == FRAMES_AT_ONCE) {
        const FrameStream one = frames[0], other = frames[1];
        Lanes x = load_lanes(*one.words), y = load_lanes(*other.words);
        for (; begin + MAX_LANES <= b.n && has_words(x, one) && has_words(y, other); begin += MAX_LANES) {
            step(x, one, begin);
            step(y, other, begin);
        }
        store_lanes(x, *one.words);
        store_lanes(y, *other.words);
    }
    for (int k = 0; k < n_frames; ++k) {
        const FrameStream in = frames[k];
        Lanes x = load_lanes(*in.words);
        int64_t i = begin;
        for (; i + MAX_LANES <= b.n && has_words(x, in); i += MAX_LANES) step(x, in, i);
        for (; i < b.n && has_words(x, in); i += MAX_LANES)
            decode_step<bits, gathers, true>(x, b.tables, bits == CONTEXT_BITS ? in.contexts + i : nullptr, b.n - i,
                                             in.symbols + i);
        store_lanes(x, *in.words);
        decode_rest(b, in, i);
    }
}

}  // namespace

void decode_wide(const Block& block, const FrameStream* frames, int n_frames) {
    const bool has_contexts = frames[0].contexts != nullptr;
    if (has_fast_gathers())
        (has_contexts ? decode_lanes<CONTEXT_BITS, true> : decode_lanes<PLAIN_BITS, true>)(block, frames, n_frames);
    else
        (has_contexts ? decode_lanes<CONTEXT_BITS, false> : decode_lanes<PLAIN_BITS, false>)(block, frames, n_frames);
}

}  // namespace mdio::rigid

#endif
