// The entropy decoder: interleaved range coding with asymmetric numeral systems (J. Duda,
// arXiv:1311.2540; in lanes as F. Giesen has it, arXiv:1402.3392). A state holds 16 to 32 bits; a
// lane whose state falls below takes the next word of 16 bits; lanes take them in order.
#include <bitset>
#include <cstring>

#include "memory.h"
#include "rigid.h"

namespace mdio::rigid {

// An entry of a table: 8 bits symbol, 12 bits frequency, 12 bits that are added.
MDIO_INLINE uint8_t symbol_of(uint32_t entry) { return uint8_t(entry); }

void decode_rest(const Block& b, const FrameStream& frame, int64_t first) {
    const uint32_t mask = (1u << b.bits) - 1;
    Words& words = *frame.words;
    for (int64_t i = first; i < b.n; ++i) {
        uint32_t& x = words.states[i & (b.lanes - 1)];
        const uint32_t context = frame.contexts ? frame.contexts[i] : 0;
        const uint32_t entry = b.tables[(context << b.bits) + (x & mask)];
        frame.symbols[i] = symbol_of(entry);
        x = (entry >> 8 & 0xFFF) * (x >> b.bits) + (entry >> 20);
        if (x < MIN_STATE) {
            if (words.end - words.next < 2)
                fail("the words of a frame end too early");
            x = x << 16 | uint32_t(words.next[0]) | uint32_t(words.next[1]) << 8;
            words.next += 2;
        }
    }
}

namespace {

#if MDIO_X86

// For each set of four lanes that take a word: offsets of the words of the last three lanes, and of the
// words after them; a byte each.
struct WordOffsets {
    uint32_t of_set[16];
};
constexpr WordOffsets word_offsets() {
    WordOffsets all{};
    for (uint32_t set = 0; set < 16; ++set)
        for (uint32_t lane = 0, n = 0; lane < 4; ++lane) {
            n += 2 * (set >> lane & 1);
            all.of_set[set] |= n << (8 * lane);
        }
    return all;
}
constexpr WordOffsets WORD_OFFSETS = word_offsets();

MDIO_INLINE int word_at(const uint8_t* from) {
    uint16_t word;
    std::memcpy(&word, from, 2);
    return word;
}

// Decodes a symbol of four lanes with SSE2, and returns the symbols.
template <uint32_t bits>
MDIO_INLINE __m128i decode_four(__m128i& x, const uint32_t* tables, const uint8_t* contexts, const uint8_t*& next) {
    const auto low_twelve = _mm_set1_epi32(0xFFF);
    alignas(16) uint32_t at[4];
    _mm_store_si128(reinterpret_cast<__m128i*>(at), _mm_and_si128(x, _mm_set1_epi32((1 << bits) - 1)));
    MDIO_IN_MEMORY(at);
    if (bits == CONTEXT_BITS)
        for (int k = 0; k < 4; ++k) at[k] += uint32_t(contexts[k]) << bits;
    const auto one = _mm_unpacklo_epi32(_mm_cvtsi32_si128(int32_t(tables[at[0]])),
                                        _mm_cvtsi32_si128(int32_t(tables[at[1]])));
    const auto other = _mm_unpacklo_epi32(_mm_cvtsi32_si128(int32_t(tables[at[2]])),
                                          _mm_cvtsi32_si128(int32_t(tables[at[3]])));
    const auto entry = _mm_unpacklo_epi64(one, other);
    // A product of 12 and 22 bits, from the two halves of the second.
    const auto frequency = _mm_and_si128(_mm_srli_epi32(entry, 8), low_twelve), rest = _mm_srli_epi32(x, bits);
    const auto halves = _mm_mullo_epi16(_mm_or_si128(frequency, _mm_slli_epi32(frequency, 16)), rest);
    const auto carried = _mm_slli_epi32(_mm_mulhi_epu16(frequency, rest), 16);
    const auto y = _mm_add_epi32(_mm_add_epi32(halves, carried), _mm_srli_epi32(entry, 20));
    const auto low = _mm_cmpeq_epi32(_mm_srli_epi32(y, 16), _mm_setzero_si128());
    const uint32_t offsets = WORD_OFFSETS.of_set[_mm_movemask_ps(_mm_castsi128_ps(low))];
    auto words = _mm_cvtsi32_si128(word_at(next));
    words = _mm_insert_epi16(words, word_at(next + (offsets & 255)), 2);
    words = _mm_insert_epi16(words, word_at(next + (offsets >> 8 & 255)), 4);
    words = _mm_insert_epi16(words, word_at(next + (offsets >> 16 & 255)), 6);
    next += offsets >> 24;
    const auto filled = _mm_or_si128(_mm_slli_epi32(y, 16), words);
    x = _mm_or_si128(_mm_andnot_si128(low, y), _mm_and_si128(low, filled));
    return _mm_and_si128(entry, _mm_set1_epi32(255));
}

template <int lanes, uint32_t bits>
void decode_lanes_plain(const Block& b, const FrameStream& frame) {
    const uint32_t* const tables = b.tables;
    const FrameStream in = frame;
    Words& words = *frame.words;
    __m128i x[lanes / 4];
    std::memcpy(x, words.states, sizeof x);
    const uint8_t* next = words.next;
    int64_t i = 0;
    for (; i + lanes <= b.n && words.end - next >= 2 * lanes; i += lanes)
#pragma GCC unroll 4
        for (int lane = 0; lane < lanes; lane += 8) {
            const uint8_t* contexts = bits == CONTEXT_BITS ? in.contexts + i + lane : in.symbols;
            const auto one = decode_four<bits>(x[lane / 4], tables, contexts, next);
            const auto other = decode_four<bits>(x[lane / 4 + 1], tables, contexts + 4, next);
            const auto symbols = _mm_packs_epi32(one, other);
            _mm_storel_epi64(reinterpret_cast<__m128i*>(in.symbols + i + lane), _mm_packus_epi16(symbols, symbols));
        }
    std::memcpy(words.states, x, sizeof x);
    words.next = next;
    decode_rest(b, frame, i);
}

#else

// All lanes at a time, while each may take a word: without branches, which would be mispredicted.
template <int lanes, uint32_t bits>
void decode_lanes_plain(const Block& b, const FrameStream& frame) {
    constexpr uint32_t mask = (1u << bits) - 1;
    const uint32_t* const tables = b.tables;
    const uint8_t* const contexts = frame.contexts;
    uint8_t* const symbols = frame.symbols;
    Words& words = *frame.words;
    uint32_t states[lanes];
    std::memcpy(states, words.states, sizeof states);
    const uint8_t* next = words.next;
    int64_t i = 0;
    for (; i + lanes <= b.n && words.end - next >= 2 * lanes; i += lanes)
        for (int lane = 0; lane < lanes; ++lane) {
            uint32_t x = states[lane], slot = x & mask;
            if (bits == CONTEXT_BITS) slot += uint32_t(contexts[i + lane]) << bits;
            const uint32_t entry = tables[slot];
            symbols[i + lane] = symbol_of(entry);
            x = (entry >> 8 & 0xFFF) * (x >> bits) + (entry >> 20);
            const uint32_t filled = x << 16 | uint32_t(next[0]) | uint32_t(next[1]) << 8;
            const auto is_low = uint32_t((uint64_t(x) - MIN_STATE) >> 63);
            states[lane] = x ^ ((x ^ filled) & (0 - is_low));
            next += 2 * is_low;
        }
    std::memcpy(words.states, states, sizeof states);
    words.next = next;
    decode_rest(b, frame, i);
}

#endif

void decode(const Block& block, const FrameStream* frames, int n_frames) {
    const bool is_most = block.lanes == MAX_LANES;
    for (int k = 0; k < n_frames; ++k)
        if (frames[k].contexts)
            (is_most ? decode_lanes_plain<32, CONTEXT_BITS> : decode_lanes_plain<8, CONTEXT_BITS>)(block, frames[k]);
        else
            (is_most ? decode_lanes_plain<32, PLAIN_BITS> : decode_lanes_plain<8, PLAIN_BITS>)(block, frames[k]);
}

#if MDIO_X86

struct Places {
    alignas(32) uint8_t from[256][8];
};

// For each set of eight lanes that take a word: which of the next eight each takes.
constexpr Places places() {
    Places all{};
    for (int set = 0; set < 256; ++set)
        for (int lane = 0, n = 0; lane < 8; ++lane)
            if (set >> lane & 1) all.from[set][lane] = uint8_t(n++);
    return all;
}
constexpr Places PLACES = places();

// The lanes of one frame.
template <int vectors>
struct Lanes {
    __m256i x[vectors];
    const uint8_t* next;
};

// The symbols of entries.
template <int vectors>
MDIO_TARGET("avx2")
MDIO_INLINE void store_symbols(const __m256i* entries, uint8_t* to) {
    const auto byte = _mm256_set1_epi32(255), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i x[4] = {};
    for (int v = 0; v < vectors; ++v) x[v] = _mm256_and_si256(entries[v], byte);
    const auto packed = _mm256_packus_epi16(_mm256_packus_epi32(x[0], x[1]), _mm256_packus_epi32(x[2], x[3]));
    const auto symbols = _mm256_permutevar8x32_epi32(packed, order);  // packing interleaves the halves
    if (vectors == 4)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), symbols);
    else
        _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(symbols));
}

// Decodes one symbol of all lanes; if `is_last`, of the first `n`.
template <int vectors, uint32_t bits, bool is_last>
MDIO_TARGET("avx2,popcnt")
MDIO_INLINE void decode_step(Lanes<vectors>& lanes, const uint32_t* tables, const uint8_t* contexts, int64_t n,
                             uint8_t* to) {
    const auto low_twelve = _mm256_set1_epi32(0xFFF);
    __m256i entries[vectors];
    for (int v = 0; v < vectors; ++v) {
        const auto x = lanes.x[v];
        const auto lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const auto active = _mm256_cmpgt_epi32(_mm256_set1_epi32(int32_t(n - 8 * v)), lane);
        auto slot = _mm256_and_si256(x, _mm256_set1_epi32((1 << bits) - 1));
        if (bits == CONTEXT_BITS) {
            const auto context = _mm256_cvtepu8_epi32(
                _mm_loadl_epi64(reinterpret_cast<const __m128i*>(contexts + 8 * v)));
            slot = _mm256_add_epi32(slot, _mm256_slli_epi32(context, bits));
        }
        if (is_last) slot = _mm256_and_si256(slot, active);
        const auto entry = entries[v] = eight_entries(tables, slot);
        const auto frequency = _mm256_and_si256(_mm256_srli_epi32(entry, 8), low_twelve);
        auto y = _mm256_mullo_epi32(frequency, _mm256_srli_epi32(x, bits));
        y = _mm256_add_epi32(y, _mm256_srli_epi32(entry, 20));
        auto low = _mm256_cmpeq_epi32(_mm256_srli_epi32(y, 16), _mm256_setzero_si256());
        if (is_last) low = _mm256_and_si256(low, active);
        const auto set = uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(low)));
        const auto words = _mm256_cvtepu16_epi32(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes.next)));
        const auto place = _mm256_cvtepu8_epi32(
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(PLACES.from[set])));
        const auto taken = _mm256_and_si256(_mm256_permutevar8x32_epi32(words, place), low);
        y = _mm256_or_si256(_mm256_sllv_epi32(y, _mm256_and_si256(low, _mm256_set1_epi32(16))), taken);
        lanes.x[v] = is_last ? _mm256_blendv_epi8(x, y, active) : y;
        lanes.next += 2 * __builtin_popcount(set);
    }
    store_symbols<vectors>(entries, to);
}

// Whether every lane can take a word; loads are of eight words.
template <int vectors>
MDIO_INLINE bool has_words(const Lanes<vectors>& lanes, const FrameStream& frame) {
    return frame.words->end - lanes.next >= 16 * vectors;
}

template <int vectors>
MDIO_TARGET("avx2")
MDIO_INLINE Lanes<vectors> load_lanes(const Words& words) {
    Lanes<vectors> lanes;
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
        lanes.x[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words.states) + v);
    lanes.next = words.next;
    return lanes;
}
template <int vectors>
MDIO_TARGET("avx2")
MDIO_INLINE void store_lanes(const Lanes<vectors>& lanes, Words& words) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(words.states) + v, lanes.x[v]);
    words.next = lanes.next;
}

template <int vectors, uint32_t bits>
MDIO_TARGET("avx2,popcnt")
void decode_lanes(const Block& block, const FrameStream* frames, int n_frames) {
    constexpr int64_t width = 8 * vectors;
    const Block b = block;
    const auto step = [&](Lanes<vectors>& lanes, const FrameStream& in, int64_t i)
        __attribute__((always_inline, target("avx2,popcnt"))) {
        const uint8_t* contexts = bits == CONTEXT_BITS ? in.contexts + i : nullptr;
        decode_step<vectors, bits, false>(lanes, b.tables, contexts, width, in.symbols + i);
    };
    int64_t begin = 0;
    if (n_frames == FRAMES_AT_ONCE) {
        const FrameStream one = frames[0], other = frames[1];
        Lanes<vectors> x = load_lanes<vectors>(*one.words), y = load_lanes<vectors>(*other.words);
        for (; begin + width <= b.n && has_words(x, one) && has_words(y, other); begin += width) {
            step(x, one, begin);
            step(y, other, begin);
        }
        store_lanes(x, *one.words);
        store_lanes(y, *other.words);
    }
    for (int k = 0; k < n_frames; ++k) {
        const FrameStream in = frames[k];
        Lanes<vectors> x = load_lanes<vectors>(*in.words);
        int64_t i = begin;
        for (; i + width <= b.n && has_words(x, in); i += width) step(x, in, i);
        for (; i < b.n && has_words(x, in); i += width)
            decode_step<vectors, bits, true>(x, b.tables, bits == CONTEXT_BITS ? in.contexts + i : nullptr, b.n - i,
                                             in.symbols + i);
        store_lanes(x, *in.words);
        decode_rest(b, in, i);
    }
}

void decode_avx2(const Block& block, const FrameStream* frames, int n_frames) {
    const bool with_contexts = frames[0].contexts != nullptr;
    if (block.lanes == MAX_LANES)
        (with_contexts ? decode_lanes<4, CONTEXT_BITS> : decode_lanes<4, PLAIN_BITS>)(block, frames, n_frames);
    else
        (with_contexts ? decode_lanes<1, CONTEXT_BITS> : decode_lanes<1, PLAIN_BITS>)(block, frames, n_frames);
}

#endif

}  // namespace

Decode decoder([[maybe_unused]] int64_t lanes) {
#if MDIO_X86
    if (has_avx512() && lanes == MAX_LANES) return decode_wide;
    if (has_avx2()) return decode_avx2;
#endif
    return decode;
}

}  // namespace mdio::rigid
