// Chunks of `mdio_rigid_encode` back to coordinates.
#include <algorithm>
#include <cstring>
#include <utility>

#include "codes.h"
#include "memory.h"
#include "rigid_selection.h"
#include "rigid_part.h"
#include "rigid_coordinates.h"

namespace mdio {
namespace rigid {
namespace {

struct Cursor {
    const uint8_t* next;
    const uint8_t* end;

    const uint8_t* take(int64_t n) {
        if (end - next < n) fail("a frame ends too early");
        next += n;
        return next - n;
    }
};

// Words and escaped vectors of a section in a frame.
struct SectionBytes {
    const uint8_t *words, *escaped, *end;
};
struct FrameBytes {
    std::vector<const uint8_t*> raw_bits;
    std::vector<SectionBytes> sections;  // of all frames
    const uint8_t* end;  // of the bytes that may be loaded
};

// A frame that is being decoded, and its memory.
struct FrameDecoder {
    Vectors vectors{0};
    // Of a block. Small, so that those of FRAMES_AT_ONCE frames and a table stay in the first-level cache.
    uint8_t symbols[STREAMS][BLOCK] = {}, contexts[BLOCK] = {};
    uint16_t raw[STREAMS][BLOCK] = {}, zeros[BLOCK] = {};
    Words words{};
    Cursor escaped{};
    const uint8_t *raw_bits = nullptr, *end = nullptr, *words_end = nullptr;
    bool is_key = false;

    void begin(const SectionBytes& section_bytes, int64_t lanes) {
        escaped = {section_bytes.escaped, section_bytes.end};
        words_end = section_bytes.escaped;
        Cursor states{section_bytes.words, section_bytes.escaped};
        for (int64_t lane = 0; lane < lanes; ++lane) {
            const uint8_t* from = states.take(4);
            words.states[lane] = 0;
            for (int i = 0; i < 4; ++i) words.states[lane] |= uint32_t(from[i]) << (8 * i);
        }
        words.next = states.next;
        words.end = end;  // loads may extend into the next section
    }
    void finish(int64_t lanes, bool is_whole) const {
        const bool done = std::all_of(words.states, words.states + lanes,
                                      [](uint32_t x) { return x == MIN_STATE; });
        if (words.next > words_end || (is_whole && !(done && words.next == words_end && escaped.next == escaped.end)))
            fail("the words of a frame do not end where they should");
    }
};

struct FrameDecoders {
    FrameDecoder of[FRAMES_AT_ONCE];  // kept between calls: new memory costs a tenth of decoding
};

MDIO_INLINE uint64_t bits_at(const uint8_t* from, int64_t nbytes, int64_t bit) {
    uint64_t word = 0;
    const int64_t byte = bit / 8;
    std::memcpy(&word, from + byte, size_t(std::min<int64_t>(8, nbytes - byte)));
    return word >> (bit % 8);
}

// Numbers of `width` bits, 32 at most.
template <class Number>
void unpack_from(const uint8_t* from, int64_t nbytes, uint32_t width, int64_t first, int64_t n, Number* to) {
    if (width == 0) return void(std::fill(to + first, to + n, Number(0)));
    const uint64_t mask = (uint64_t(1) << width) - 1;
    int64_t i = first;
    for (; i < n && i * width / 8 + 8 <= nbytes; ++i) {
        uint64_t word;
        std::memcpy(&word, from + i * width / 8, 8);
        to[i] = Number(word >> (i * width % 8) & mask);
    }
    for (; i < n; ++i) to[i] = Number(bits_at(from, nbytes, i * width) & mask);
}

#if MDIO_X86
// 32 numbers lie in 4 * `width` bytes: each in the 16 bits that begin at a multiple of 16, and the 16 bits after these.
MDIO_TARGET(MDIO_AVX512)
int64_t unpack_avx512(const uint8_t* from, int64_t nbytes, uint32_t width, int64_t n, uint16_t* to) {
    alignas(64) static constexpr uint16_t COUNT[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                                       16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
    const auto bit = _mm512_mullo_epi16(_mm512_load_si512(COUNT), _mm512_set1_epi16(int16_t(width)));
    const auto low = _mm512_srli_epi16(bit, 4), high = _mm512_add_epi16(low, _mm512_set1_epi16(1));
    const auto right = _mm512_and_si512(bit, _mm512_set1_epi16(15));
    const auto left = _mm512_sub_epi16(_mm512_set1_epi16(16), right);
    const auto mask = _mm512_set1_epi16(int16_t((1u << width) - 1));
    int64_t i = 0;
    for (const uint8_t* at = from; i + 32 <= n && at + 64 <= from + nbytes; i += 32, at += 4 * width) {
        const auto all = _mm512_loadu_si512(at);
        const auto one = _mm512_srlv_epi16(_mm512_permutexvar_epi16(low, all), right);
        const auto other = _mm512_sllv_epi16(_mm512_permutexvar_epi16(high, all), left);
        _mm512_storeu_si512(to + i, _mm512_and_si512(_mm512_or_si512(one, other), mask));
    }
    return i;
}

// Eight numbers lie in the first 16 of `width` bytes, at most.
MDIO_TARGET("avx2")
int64_t unpack_avx2(const uint8_t* from, int64_t nbytes, uint32_t width, int64_t n, uint16_t* to) {
    alignas(32) uint8_t bytes[32];  // the bytes of each number; 255 gives a zero
    alignas(32) int32_t shifts[8];
    for (uint32_t i = 0; i < 32; ++i) {
        const uint32_t byte = i / 4 * width / 8 + i % 4;
        bytes[i] = byte < 16 ? uint8_t(byte) : 255;
        shifts[i / 4] = int32_t(i / 4 * width % 8);
    }
    const auto pick = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
    const auto shift = _mm256_load_si256(reinterpret_cast<const __m256i*>(shifts));
    const auto mask = _mm256_set1_epi32(int32_t((1u << width) - 1));
    int64_t i = 0;
    for (const uint8_t* at = from; i + 8 <= n && at + 16 <= from + nbytes; i += 8, at += width) {
        const auto all = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
        const auto x = _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(all, pick), shift), mask);
        const auto eight = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), eight);
    }
    return i;
}
#endif

// The same, eight at a time.
int64_t unpack_plain(const uint8_t* from, int64_t nbytes, uint32_t width, int64_t n, uint16_t* to) {
    const uint32_t half = 4 * width;  // bits of four numbers
    const uint64_t mask = (uint64_t(1) << width) - 1;
    int64_t i = 0;
    for (const uint8_t* at = from; i + 8 <= n && at + 16 <= from + nbytes; i += 8, at += width) {
        uint64_t one, other;
        std::memcpy(&one, at, 8);
        std::memcpy(&other, at + half / 8, 8);
        other >>= half % 8;
        for (uint32_t k = 0; k < 4; ++k) {
            to[i + k] = uint16_t(one >> (k * width) & mask);
            to[i + 4 + k] = uint16_t(other >> (k * width) & mask);
        }
    }
    return i;
}

// Unpacks the low bits of a block.
void unpack(const uint8_t* bytes, int64_t nbytes, uint32_t width, int64_t n, uint16_t* to) {
#if MDIO_X86
    if (has_avx512()) {
        const int64_t done = unpack_avx512(bytes, nbytes, width, n, to), at = done / 8 * width;
        bytes += at, nbytes -= at, n -= done, to += done;
    }
    if (has_avx2()) return unpack_from(bytes, nbytes, width, unpack_avx2(bytes, nbytes, width, n, to), n, to);
#endif
    unpack_from(bytes, nbytes, width, unpack_plain(bytes, nbytes, width, n, to), n, to);
}

// A signed number in groups of seven bits.
int32_t read_folded(Cursor& from) {
    uint64_t folded = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        const uint8_t byte = *from.take(1);
        folded |= uint64_t(byte & 127) << shift;
        if (byte < 128) break;
    }
    return int32_t(uint32_t(folded >> 1) ^ (0u - uint32_t(folded & 1)));
}

Part part_of(const Chunk& chunk, const Class& c, int64_t begin, int64_t n, FrameDecoder& decoder,
             const FrameDecoder& before) {
    const auto at = size_t(c.begin + begin);
    Part p{c.kind, n, {}, float(c.second_square), {}, {}, &decoder.vectors.axes[0][at],
           &decoder.vectors.axes[1][at], &decoder.vectors.axes[2][at], {}, {}, chunk.second_slots.data() + at,
           chunk.are_adjacent.data() + at / GROUP, chunk.squared_lengths.data() + at};
    for (int stream = 0; stream < STREAMS; ++stream) {
        const uint32_t bits = c.raw[size_t(stream)];
        p.raw_bits[stream] = int(bits);
        p.symbols[stream] = decoder.symbols[stream];
        p.raw[stream] = bits ? decoder.raw[stream] : decoder.zeros;
        p.before[stream] = &before.vectors.axes[stream][at];
        p.all[stream] = decoder.vectors.axes[stream].data();
        const uint8_t* from = decoder.raw_bits + c.raw_begin_of(decoder.is_key)[size_t(stream)] + begin / 8 * bits;
        // Loads may extend into the bytes that follow.
        if (bits) unpack(from, decoder.end - from, bits, n, decoder.raw[stream]);
    }
    return p;
}

void read_escaped(const Part& p, Cursor& escaped) {
    const uint8_t *symbols = p.symbols[0], *end = symbols + p.n;
    for (const uint8_t* at = symbols;; ++at) {
        at = static_cast<const uint8_t*>(std::memchr(at, ESCAPE, size_t(end - at)));
        if (!at) return;
        for (int32_t* axis : {p.x, p.y, p.z}) axis[at - symbols] = read_folded(escaped);
    }
}

// `decoders`: of consecutive frames; `before`: of the frame before the first.
void decode_block(const Chunk& chunk, const Class& c, int64_t begin, int64_t n, FrameDecoder* const decoders[],
                  const FrameDecoder* before, int n_frames) {
    Part parts[FRAMES_AT_ONCE];
    for (int k = 0; k < n_frames; ++k)
        parts[k] = part_of(chunk, c, begin, n, *decoders[k], k ? *decoders[k - 1] : *before);
    const Steps& step = steps();
    const Decode decode_words = decoder(chunk.lanes);
    const auto decode = [&](int stream, void (*contexts)(const Part&, uint8_t*)) {
        FrameStream in[FRAMES_AT_ONCE] = {};
        for (int k = 0; k < n_frames; ++k) {
            if (contexts) contexts(parts[k], decoders[k]->contexts);
            in[k] = {&decoders[k]->words, contexts ? decoders[k]->contexts : nullptr, decoders[k]->symbols[stream]};
        }
        decode_words({chunk.lanes, c.table(stream), STREAM_TABLES[c.kind][stream].bits, n}, in, n_frames);
    };
    const bool has_contexts = c.kind >= SPHERE;
    decode(0, c.kind == CIRCLE ? step.contexts[0] : nullptr);
    decode(1, has_contexts ? step.contexts[1] : nullptr);
    decode(2, has_contexts ? step.contexts[2] : nullptr);
    for (int k = 0; k < n_frames; ++k) {
        step.finish(parts[k]);
        read_escaped(parts[k], decoders[k]->escaped);
    }
}

// Unpacks the vectors of a key frame.
void unpack_key_unit(const Class& c, const Unit& unit, FrameDecoder& decoder) {
    for (size_t axis = 0; axis < 3; ++axis) {
        int32_t* to = &decoder.vectors.axes[axis][size_t(c.begin + unit.begin)];
        const uint32_t width = c.widths[axis], lowest = uint32_t(c.lowest[axis]);
        const uint8_t* from = decoder.raw_bits + c.key_raw_begin[axis] + unit.begin / 8 * width;
        if (width > MAX_RAW_BITS) {
            unpack_from(from, decoder.end - from, width, 0, unit.n, to);
            for (int64_t i = 0; i < unit.n; ++i) to[i] = int32_t(uint32_t(to[i]) + lowest);
        } else {
            uint16_t* above = decoder.raw[0];
            unpack(from, decoder.end - from, width, unit.n, above);
            for (int64_t i = 0; i < unit.n; ++i) to[i] = int32_t(above[i] + lowest);
        }
    }
}

// Decodes needed units of some frames, of which only the first may be a key frame.
void decode_frames(const Chunk& chunk, const FrameBytes& frames, int64_t first, FrameDecoder* const decoders[],
                   const FrameDecoder* before, int n_frames, const std::vector<bool>& needed) {
    const auto n_sections = int64_t(chunk.sections.size());
    for (int k = 0; k < n_frames; ++k) {
        decoders[k]->raw_bits = frames.raw_bits[size_t(first + k)];
        decoders[k]->end = frames.end;
        decoders[k]->is_key = chunk.is_key(first + k);
    }
    const bool is_key = decoders[0]->is_key;
    int64_t begin = 0;
    for (int64_t number = 0; number < n_sections; ++number) {
        const Section& section = chunk.sections[size_t(number)];
        int64_t end = section.end;
        while (end > begin && !needed[size_t(end - 1)]) --end;
        const bool is_requested = end > begin;
        const int n_plain = chunk.has_words(section, is_key) ? 0 : 1;
        for (int k = n_plain; is_requested && k < n_frames; ++k)
            decoders[k]->begin(frames.sections[size_t((first + k) * n_sections + number)], chunk.lanes);
        for (int64_t u = begin; u < end; ++u) {
            const Unit& unit = chunk.units[size_t(u)];
            const Class& c = chunk.classes[unit.of_class];
            const bool is_key_unit = is_key && is_temporal(c.kind);
            if (is_key_unit) unpack_key_unit(c, unit, *decoders[0]);
            if (n_frames > is_key_unit)
                decode_block(chunk, c, unit.begin, unit.n, decoders + is_key_unit, is_key_unit ? decoders[0] : before,
                             n_frames - is_key_unit);
        }
        for (int k = n_plain; is_requested && k < n_frames; ++k) decoders[k]->finish(chunk.lanes, end == section.end);
        begin = section.end;
    }
}

FrameBytes find_frames(const Chunk& chunk, const uint8_t* data, int64_t nbytes, int64_t n_frames) {
    const auto n_sections = int64_t(chunk.sections.size());
    if (nbytes / 8 / n_sections < n_frames) fail("the sizes of the frames are not all there");
    Cursor all{data + 8 * n_frames * n_sections, data + nbytes};
    FrameBytes frames{{}, {}, all.end};
    frames.sections.reserve(size_t(n_frames * n_sections));
    const int64_t n_raw[] = {chunk.raw_nbytes(false), chunk.raw_nbytes(true)};
    for (int64_t f = 0; f < n_frames; ++f) {
        const bool is_key = chunk.is_key(f);
        frames.raw_bits.push_back(all.take(n_raw[is_key]));
        for (const Section& section : chunk.sections) {
            uint32_t sizes[2] = {};
            for (int i = 0; i < 8; ++i) sizes[i / 4] |= uint32_t(*data++) << (8 * (i % 4));
            const uint8_t* words = all.take(sizes[0]);
            const uint8_t* escaped = all.take(sizes[1]);
            if (!chunk.has_words(section, is_key) && all.next != words) fail("a section has words without need");
            frames.sections.push_back({words, escaped, all.next});
        }
    }
    if (all.next != all.end) fail("there are bytes behind the last frame");
    return frames;
}

template <class Code>
void decode(const mdio_rigid& from, const Code& code, const Output& out, const mdio_selection& selection,
            FrameDecoders& kept) {
    const auto [atoms, first, last] = selection;
    const Chunk chunk = parse_description(from.description, from.description_nbytes, from.n_atoms);
    const FrameBytes frames = find_frames(chunk, from.data, from.nbytes, from.n_frames);
    FrameDecoder* decoders[FRAMES_AT_ONCE] = {&kept.of[0], &kept.of[1]};
    for (FrameDecoder* decoder : decoders) decoder->vectors.fit(chunk.n_slots());
    const int64_t begin = chunk.is_temporal ? chunk.key_before(first) : first;
    const NeededUnits needed(chunk, atoms, out.n_atoms, begin < first);
    CoordinateWriter writer(chunk, needed.is_sparse() ? 0 : needed.n_atoms);
    std::vector<char> full_frames[FRAMES_AT_ONCE];  // from which the requested atoms are copied
    if (atoms && !needed.is_sparse())
        for (auto& decoder : full_frames) decoder.resize(size_t(12 * needed.n_atoms));
    int n = 0;
    for (int64_t f = begin; f < last; f += n) {
        const bool is_requested = f >= first;
        int64_t end = std::min(f + FRAMES_AT_ONCE, is_requested ? last : first);
        if (chunk.key_every) end = std::min(end, chunk.key_before(f) + chunk.key_every);
        n = int(end - f);
        // Frames before the requested ones are decoded as far as these depend on them.
        decode_frames(chunk, frames, f, decoders, decoders[1], n, is_requested ? needed.units : needed.before);
        char* to[FRAMES_AT_ONCE] = {};
        for (int k = 0; is_requested && k < n; ++k) {
            to[k] = out.data + (f + k - first) * out.stride;
            if (needed.is_sparse()) needed.write(decoders[k]->vectors, code, to[k]);
        }
        if (is_requested && !needed.is_sparse()) {
            char* all[FRAMES_AT_ONCE] = {};
            for (int k = 0; k < n; ++k) all[k] = atoms ? full_frames[k].data() : to[k];
            const Vectors* vectors[FRAMES_AT_ONCE] = {&decoders[0]->vectors, &decoders[n - 1]->vectors};
            writer.write(vectors, code, all);
            for (int k = 0; atoms && k < n; ++k)
                for (int64_t i = 0; i < out.n_atoms; ++i) std::memcpy(to[k] + 12 * i, all[k] + 12 * atoms[i], 12);
        }
        if (n == 1) std::swap(decoders[0], decoders[1]);  // the last frame is in the second
    }
}

}  // namespace
}  // namespace rigid
}  // namespace mdio

mdio_status mdio_rigid_decode(mdio_memory* memory, const mdio_rigid* from, mdio_coding coding,
                              const mdio_selection* selection, const mdio_output* out) {
    using namespace mdio;
    if (const char* what = wrong_with(from->n_frames, from->n_atoms, coding, *selection, *out))
        return wrong(*memory, what);
    return guarded(*memory, [&] {
        auto& decoders = mdio_memory::kept<rigid::FrameDecoders>(memory->decoding);
        if (coding.is_xtc)
            rigid::decode(*from, xtc(float(coding.number)), *out, *selection, decoders);
        else
            rigid::decode(*from, Step{coding.number}, *out, *selection, decoders);
        return MDIO_OK;
    });
}
