// Chunks of integers, coded by what stays nearly constant: lengths, triangles, bonds that turn slowly.
//
// Each atom is stored as a vector from an atom before it, its parent (or from the origin). Atoms
// whose vectors are coded in the same way form a class, and have three numbers a frame, of which the high
// bits go through an entropy coder; docs/rigid.md describes the format.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu.h"
#include "integers.h"
#include "memory.h"

namespace mdio::rigid {

constexpr int STREAMS = 3;
constexpr int64_t MAX_CLASSES = 64;
constexpr uint32_t ESCAPE = 255;  // symbol of the first stream: the atom is among the escaped ones
constexpr int32_t ZERO_SYMBOL = 127;  // the symbol of numbers whose high bits are zero
constexpr uint32_t MAX_RAW_BITS = 16;  // low bits of a number that are stored as they are
constexpr uint32_t MIN_STATE = 1u << 16;  // least state of the entropy coder, and the state after the last symbol
constexpr int64_t MAX_LANES = 32;
constexpr int64_t GROUP = 16;  // classes of sorted atoms begin at multiples of it
constexpr int64_t BLOCK = 1024;  // atoms of a class whose three streams are coded together
constexpr int64_t ROW_RUN = 512;  // atoms, whose part of a row stays in the first-level cache
constexpr uint32_t SECTIONED = 128;  // added to the lanes in a description: there are key frames and sections

enum Kind : uint8_t { FREE, TIME, SWING, SPHERE, CIRCLE, KINDS };

// Frequency tables of a stream: number of the first, how many there are (one a context), their bits.
struct StreamTables {
    uint32_t first;
    uint32_t contexts;
    uint32_t bits;
};

constexpr uint32_t PLAIN_BITS = 12, CONTEXT_BITS = 10;
constexpr StreamTables STREAM_TABLES[KINDS][STREAMS] = {
    {{0, 1, PLAIN_BITS}, {0, 1, PLAIN_BITS}, {0, 1, PLAIN_BITS}},  // FREE
    {{0, 1, PLAIN_BITS}, {0, 1, PLAIN_BITS}, {0, 1, PLAIN_BITS}},  // TIME
    {{0, 1, PLAIN_BITS}, {0, 1, PLAIN_BITS}, {1, 1, PLAIN_BITS}},  // SWING
    {{0, 1, PLAIN_BITS}, {1, 8, CONTEXT_BITS}, {9, 4, CONTEXT_BITS}},  // SPHERE
    {{0, 3, CONTEXT_BITS}, {3, 6, CONTEXT_BITS}, {9, 16, CONTEXT_BITS}},  // CIRCLE
};

constexpr uint32_t tables_of(Kind kind) {
    return STREAM_TABLES[kind][STREAMS - 1].first + STREAM_TABLES[kind][STREAMS - 1].contexts;
}
constexpr uint32_t bits_of(Kind kind, uint32_t table) {
    for (const StreamTables& use : STREAM_TABLES[kind])
        if (table >= use.first && table < use.first + use.contexts) return use.bits;
    return 0;
}
constexpr bool is_temporal(Kind kind) { return kind == TIME || kind == SWING; }
constexpr bool has_length(Kind kind) { return kind >= SWING; }

using Frequencies = std::array<uint32_t, 256>;

struct Class {
    Kind kind = FREE;
    uint8_t shift = 0;  // of the lengths of atoms; NO_LENGTHS: all have the same
    std::array<uint8_t, STREAMS> raw{};  // low bits of each stream's numbers
    uint32_t length = 0;  // squared; or 16 times the shortest, where atoms have theirs
    uint32_t second_square = 0;  // squared distance to the second atom (CIRCLE)
    std::array<int32_t, 3> lowest{};  // of the first frame's vectors (TIME, SWING), and their bits
    std::array<uint8_t, 3> widths{};
    int64_t begin = 0, n = 0;  // where its sorted atoms begin, a multiple of GROUP; how many
    int64_t first_unit = 0;  // of its blocks
    std::array<int64_t, STREAMS> raw_begin{}, key_raw_begin{};  // where its low bits begin in a frame, a key frame
    const std::array<int64_t, STREAMS>& raw_begin_of(bool is_key) const { return is_key ? key_raw_begin : raw_begin; }
    std::vector<Frequencies> frequencies;
    std::unique_ptr<uint32_t[]> tables;  // to decode, one after the other

    // The tables of all contexts of a stream.
    const uint32_t* table(int stream) const {
        uint32_t at = 0;
        for (uint32_t t = 0; t < STREAM_TABLES[kind][stream].first; ++t) at += 1u << bits_of(kind, t);
        return tables.get() + at;
    }
};
constexpr uint8_t NO_LENGTHS = 255;

struct Atoms {
    std::vector<uint8_t> classes, parent_offsets, second_offsets, lengths;  // one byte an atom
};

// A block of a class. Sections have their own words, and can be decoded without those before.
struct Unit {
    size_t of_class;
    int64_t begin, n;  // of its class's atoms
    int64_t section;
};
struct Section {
    int64_t end = 0;  // of its units
    bool is_temporal = true;  // it has no symbols in key frames
};

struct Chunk {
    int64_t n_atoms = 0, lanes = 0;
    bool is_sectioned = false;  // whether there are several sections and key frames, else one of each
    int64_t key_every = 0;  // frames; 0: only the first is one
    int64_t min_section_atoms = 0;  // atoms of a section; 0: there is one
    std::vector<Unit> units;
    std::vector<Section> sections;
    std::vector<Class> classes;
    Atoms atoms;
    std::vector<int32_t> slots;  // of atoms, among the sorted ones
    std::vector<int32_t> run_slots;  // of runs of atoms and behind the last: of each class, its next atom's
    std::vector<int32_t, AlignedMemory<int32_t>> second_slots;  // of sorted atoms, among the sorted ones (CIRCLE)
    std::vector<uint8_t> are_adjacent;  // of groups: whether their second atoms follow each other
    std::vector<float, AlignedMemory<float>> squared_lengths;  // of sorted atoms: of their length
    bool is_temporal = false;

    void sort();  // fills the last six from the first, or fails
    void divide();  // fills units and sections
    int64_t raw_nbytes(bool is_key) const;  // of a frame
    bool is_key(int64_t f) const { return f == 0 || (key_every && f % key_every == 0); }
    int64_t key_before(int64_t f) const { return key_every ? f - f % key_every : 0; }
    // Whether a section has words in a frame; where it has none it takes no room.
    bool has_words(const Section& section, bool is_key) const {
        return !is_sectioned || !is_key || !section.is_temporal;
    }
    // -1: the origin.
    int64_t parent_of(int64_t i) const {
        const uint8_t offset = atoms.parent_offsets[size_t(i)];
        return offset ? i - offset : -1;
    }
    int64_t n_slots() const { return int64_t(squared_lengths.size()); }
};

// The description of a chunk as bytes, and back; fails if these are damaged.
std::string write_description(const Chunk& chunk);
Chunk parse_description(const uint8_t* data, int64_t nbytes, int64_t n_atoms);

// Frequencies in proportion to `counts` that sum up to 1 << bits; ESCAPE always has one.
Frequencies normalised(const std::array<uint32_t, 256>& counts, uint32_t bits);

// Finds parents and classes from pairs of frames; frequencies are still missing. `models` is filled.
struct FramePairs;
struct AtomModels;
Chunk find_classes(const FramePairs& pairs, int64_t n_frames, AtomModels& models);

// One frame's vectors, sorted: x, y and z of all.
struct Vectors {
    std::vector<int32_t, AlignedMemory<int32_t>> axes[3];
    explicit Vectors(int64_t n) { fit(n); }
    void fit(int64_t n) {
        for (auto& axis : axes) axis.resize(size_t(n + 3));  // read four at a time, from any slot
    }
};

// Words and states of the entropy coder; `end`: the end of the bytes that may be loaded.
struct Words {
    const uint8_t* next;
    const uint8_t* end;
    uint32_t states[MAX_LANES];
};
// Decodes a stream of a block in one frame, or two at once, whose words do not depend on each other.
// `contexts` are null where there is one table (of PLAIN_BITS). Up to MAX_LANES symbols are written after the last one.
constexpr int FRAMES_AT_ONCE = 2;
struct Block {
    int64_t lanes;
    const uint32_t* tables;
    uint32_t bits;
    int64_t n;
};
struct FrameStream {
    Words* words;
    const uint8_t* contexts;
    uint8_t* symbols;
};
using Decode = void (*)(const Block& block, const FrameStream* frames, int n_frames);
Decode decoder(int64_t lanes);
// Decodes from symbol `first` on, one lane at a time.
void decode_rest(const Block& block, const FrameStream& frame, int64_t first);
// 32 lanes, with AVX-512.
void decode_wide(const Block& block, const FrameStream* frames, int n_frames);

#if MDIO_X86
// Lanes that are stored are to be loaded again: compilers would take them from the register, in more instructions.
#define MDIO_IN_MEMORY(lanes) __asm__("" : "+m"(lanes))

// Entries of a table, loaded one by one: the gather instruction is slower on many processors. Each goes to all
// lanes, which takes no more than a load, and one lane is kept.
MDIO_TARGET("avx2")
MDIO_INLINE __m256i eight_entries(const uint32_t* table, const uint32_t* at) {
    const auto all_of = [=](int lane) __attribute__((always_inline, target("avx2"))) {
        return _mm256_set1_epi32(int32_t(table[at[lane]]));
    };
    const auto ab = _mm256_blend_epi32(all_of(0), all_of(1), 0x02), cd = _mm256_blend_epi32(all_of(2), all_of(3), 0x08);
    const auto ef = _mm256_blend_epi32(all_of(4), all_of(5), 0x20), gh = _mm256_blend_epi32(all_of(6), all_of(7), 0x80);
    const auto low = _mm256_blend_epi32(ab, cd, 0x0C), high = _mm256_blend_epi32(ef, gh, 0xC0);
    return _mm256_blend_epi32(low, high, 0xF0);
}
MDIO_TARGET("avx2")
MDIO_INLINE __m256i eight_entries(const uint32_t* table, __m256i slots) {
    alignas(32) uint32_t at[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(at), slots);
    MDIO_IN_MEMORY(at);
    return eight_entries(table, at);
}
// Numbers of 32 bits, loaded by the gather instruction. The mask is unknown to the compiler: GCC would not zero the
// register for the numbers, so that one instruction would wait for the other.
MDIO_TARGET(MDIO_AVX512)
MDIO_INLINE __m512i gathered(const void* from, __m512i at) {
    __mmask16 all = 0xFFFF;
    __asm__("" : "+k"(all));
    return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), all, at, from, 4);
}
#endif

}  // namespace mdio::rigid
