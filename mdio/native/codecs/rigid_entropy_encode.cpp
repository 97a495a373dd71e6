// The entropy encoder: symbols from the last to the first, since decoding begins at the other end.
#include <algorithm>
#include <utility>

#include "fold.h"
#include "rigid_encode.h"

namespace mdio::rigid {
namespace {

// An entry: frequency and the sum of those before it, 12 bits each, and the shift of quotients; and the
// reciprocal, with which quotients are at most one too small.
uint32_t entry_of(uint32_t frequency, uint32_t before) {
    const uint32_t shift = frequency > 1 ? bits(frequency - 1) : 0;
    return frequency | before << 12 | shift << 24;
}
uint32_t reciprocal_of(uint32_t frequency) {
    const uint32_t shift = frequency > 1 ? bits(frequency - 1) : 0;
    return uint32_t((uint64_t(1) << (31 + shift)) / frequency);
}

// One lane at a time.
void encode_plain(EncoderState& e, const Stream& s, int64_t lanes, int64_t n) {
    uint8_t* to = e.to;
    for (int64_t i = n; i-- > 0;) {
        const uint32_t at = s.symbols[i], entry = s.entries[at];
        const uint32_t frequency = entry & 0xFFF;
        uint32_t x = e.states[i & (lanes - 1)];
        const bool full = x >> (32 - s.bits) >= frequency;
        to[-2] = uint8_t(x), to[-1] = uint8_t(x >> 8);
        to -= full ? 2 : 0;
        x = full ? x >> 16 : x;
        uint32_t quotient = uint32_t(uint64_t(x) * s.reciprocals[at] >> (31 + (entry >> 24)));
        uint32_t rest = x - quotient * frequency;
        if (rest >= frequency) ++quotient, rest -= frequency;
        e.states[i & (lanes - 1)] = (quotient << s.bits) + rest + (entry >> 12 & 0xFFF);
    }
    e.to = to;
}

#if MDIO_X86

struct Ranks {
    alignas(32) uint8_t from[256][8];
};

// For each set of eight lanes that emit a word: the lanes of the set, in the last of eight bytes.
constexpr Ranks ranks() {
    Ranks all{};
    for (int set = 0; set < 256; ++set)
        for (int lane = 7, n = 7; lane >= 0; --lane)
            if (set >> lane & 1) all.from[set][n--] = uint8_t(lane);
    return all;
}
constexpr Ranks RANKS = ranks();

// Unsigned integers to floats, rounded once.
MDIO_TARGET("avx2")
MDIO_INLINE __m256 floats_of(__m256i x) {
    // 2^23 plus the low half, and 2^39 plus the high half times 2^16.
    const auto low = _mm256_blend_epi16(x, _mm256_set1_epi32(0x4B000000), 0xAA);
    const auto high = _mm256_or_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(0x53000000));
    const auto both = _mm256_set1_ps(549755813888.0f + 8388608.0f);
    return _mm256_add_ps(_mm256_castsi256_ps(low), _mm256_sub_ps(_mm256_castsi256_ps(high), both));
}

// Encodes a symbol of each active of 8 lanes: writes their words, and returns the new states.
template <bool is_last>
MDIO_TARGET("avx2,popcnt")
MDIO_INLINE __m256i encode_step(__m256i x, const Stream& s, int64_t first, int64_t n, uint8_t*& to) {
    const auto low_twelve = _mm256_set1_epi32(0xFFF), one = _mm256_set1_epi32(1);
    const auto by = _mm_cvtsi32_si128(int32_t(s.bits)), to_top = _mm_cvtsi32_si128(int32_t(32 - s.bits));
    const auto entry = eight_at(s.entries, s.symbols + first);
    auto active = _mm256_set1_epi32(-1);
    if (is_last) {
        const auto lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        active = _mm256_cmpgt_epi32(_mm256_set1_epi32(int32_t(n - first)), lane);
    }
    const auto frequency = _mm256_and_si256(entry, low_twelve);
    // Both are below 2^31: the frequency is not above what is shifted down.
    auto full = _mm256_cmpgt_epi32(_mm256_add_epi32(_mm256_srl_epi32(x, to_top), one), frequency);
    if (is_last) full = _mm256_and_si256(full, active);
    const auto set = uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(full)));
    const auto rank = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(RANKS.from[set])));
    auto words = _mm256_permutevar8x32_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0xFFFF)), rank);
    words = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to - 16), _mm256_castsi256_si128(words));
    to -= 2 * __builtin_popcount(set);
    const auto y = _mm256_blendv_epi8(x, _mm256_srli_epi32(x, 16), full);
    // A quotient of less than 2^22 is at most one off after three roundings to float32. The reciprocal does
    // not depend on the state.
    const auto inverse = _mm256_div_ps(_mm256_set1_ps(1.0f), _mm256_cvtepi32_ps(frequency));
    auto quotient = _mm256_cvttps_epi32(_mm256_mul_ps(floats_of(y), inverse));
    const auto rest = _mm256_sub_epi32(y, _mm256_mullo_epi32(quotient, frequency));
    const auto less = _mm256_srai_epi32(rest, 31), enough = _mm256_cmpgt_epi32(frequency, rest);
    quotient = _mm256_add_epi32(_mm256_add_epi32(quotient, one), _mm256_add_epi32(less, enough));
    // The new state from quotient and rest, computed before both are corrected, and corrected with them.
    const auto gap = _mm256_sub_epi32(_mm256_sll_epi32(one, by), frequency);
    const auto before = _mm256_and_si256(_mm256_srli_epi32(entry, 12), low_twelve);
    const auto z = _mm256_add_epi32(_mm256_add_epi32(y, before), _mm256_mullo_epi32(quotient, gap));
    return is_last ? _mm256_blendv_epi8(x, z, active) : z;
}

template <int vectors>
MDIO_TARGET("avx2,popcnt")
MDIO_INLINE void encode_vectors(EncoderState& e, const Stream& stream, int64_t n) {
    constexpr int64_t lanes = 8 * vectors;
    const Stream s = stream;
    __m256i x[vectors];
    for (int v = 0; v < vectors; ++v)
        x[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(e.states) + v);
    uint8_t* to = e.to;
    int64_t i = n / lanes * lanes;
    for (int v = vectors; v-- > 0;)
        if (i + 8 * v < n) x[v] = encode_step<true>(x[v], s, i + 8 * v, n, to);
    while (i > 0) {
        i -= lanes;
        for (int v = vectors; v-- > 0;) x[v] = encode_step<false>(x[v], s, i + 8 * v, n, to);
    }
    e.to = to;
    for (int v = 0; v < vectors; ++v)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(e.states) + v, x[v]);
}

MDIO_TARGET("avx2,popcnt")
void encode_avx2(EncoderState& e, const Stream& s, int64_t lanes, int64_t n) {
    if (lanes == 32)
        encode_vectors<4>(e, s, n);
    else
        encode_vectors<1>(e, s, n);
}

#endif

}  // namespace

EntropyCoder::EntropyCoder(const Chunk& chunk) : chunk_(chunk), tables_(chunk.classes.size()) {
    for (size_t number = 0; number < tables_.size(); ++number) {
        const Class& c = chunk.classes[number];
        Tables& tables = tables_[number];
        tables.entries.resize(256 * c.frequencies.size());
        tables.reciprocals.resize(256 * c.frequencies.size());
        for (size_t t = 0; t < c.frequencies.size(); ++t) {
            uint32_t sum = 0;
            for (size_t s = 0; s < 256; ++s) {
                const uint32_t frequency = c.frequencies[t][s];
                if (frequency == 0) continue;  // most symbols do not occur
                tables.entries[256 * t + s] = entry_of(frequency, sum);
                if (!has_avx2()) tables.reciprocals[256 * t + s] = reciprocal_of(frequency);
                sum += frequency;
            }
        }
    }
}

const uint8_t* EntropyCoder::encode(const CodedFrame& coded, bool is_key, int64_t begin, int64_t end,
                             std::vector<uint8_t>& buffer) const {
    // A symbol takes a word at most; stores are of whole vectors.
    buffer.resize(size_t(2 * STREAMS * chunk_.n_atoms + 4 * chunk_.lanes + 32));
    EncoderState encoding{{}, buffer.data() + buffer.size()};
    std::fill_n(encoding.states, MAX_LANES, MIN_STATE);
    auto encode_stream = encode_plain;
#if MDIO_X86
    if (has_avx2()) encode_stream = encode_avx2;
    if (has_avx512() && chunk_.lanes == MAX_LANES) encode_stream = encode_wide;
#endif
    for (int64_t u = end; u-- > begin;) {
        const Unit& unit = chunk_.units[size_t(u)];
        const Class& c = chunk_.classes[unit.of_class];
        if (is_key && is_temporal(c.kind)) continue;
        const Tables& tables = tables_[unit.of_class];
        for (int s = STREAMS; s-- > 0;) {
            const StreamTables use = STREAM_TABLES[c.kind][s];
            const int64_t at = c.begin + unit.begin;
            const Stream stream{tables.entries.data() + 256 * use.first,
                                tables.reciprocals.data() + 256 * use.first, coded.symbols[s].data() + at, use.bits};
            encode_stream(encoding, stream, chunk_.lanes, unit.n);
        }
    }
    uint8_t* to = encoding.to;
    const uint32_t* states = encoding.states;
    to -= 4 * chunk_.lanes;
    for (int64_t lane = 0; lane < chunk_.lanes; ++lane)
        for (int i = 0; i < 4; ++i) to[4 * lane + i] = uint8_t(states[lane] >> (8 * i));
    return to;
}

}  // namespace mdio::rigid
