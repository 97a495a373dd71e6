// Parts of the encoder: bits, contexts, and the entropy coder forwards.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "rigid.h"

namespace mdio::rigid {

constexpr int32_t MOST_SYMBOL = 254;  // that is not ESCAPE

// The low bits of numbers, eight of which take `width` bytes: how many are packed. Writes up to 16 bytes further.
int64_t pack_eights(const int32_t* numbers, int64_t n, uint32_t width, uint8_t* to);

// Numbers of a few bits, one after the other, into memory that goes BEHIND bytes further.
class BitWriter {
  public:
    explicit BitWriter(uint8_t* to) : to_(to) {}
    MDIO_INLINE void put(uint32_t value, uint32_t width) {
        word_ |= uint64_t(value) << n_bits_;
        n_bits_ += width;
        std::memcpy(to_, &word_, 8);
        to_ += n_bits_ / 8;
        word_ >>= n_bits_ / 8 * 8;
        n_bits_ %= 8;
    }
    static constexpr int64_t BEHIND = 16;  // bytes, that may be written behind the last
    // The low bits of numbers, 32 at most of each, from a whole byte on.
    void put_all(const int32_t* numbers, int64_t n, uint32_t width) {
        if (width == 0) return;
        const int64_t n_packed = width > MOST_RAW ? 0 : pack_eights(numbers, n, width, to_);
        to_ += n_packed / 8 * width;
        const auto mask = uint32_t((uint64_t(1) << width) - 1);
        for (int64_t i = n_packed; i < n; ++i) put(uint32_t(numbers[i]) & mask, width);
        finish();
    }
    void finish() {
        if (n_bits_) *to_++ = uint8_t(word_);
        word_ = n_bits_ = 0;
    }
    uint8_t* end() const { return to_; }

  private:
    uint8_t* to_;
    uint64_t word_ = 0;
    uint32_t n_bits_ = 0;
};

// A frame, all but for the entropy coder.
struct Coded {
    std::vector<uint8_t> symbols[STREAMS], contexts[STREAMS], raw, escaped;
    std::vector<int32_t> vectors;       // of a key frame, as they are
    std::vector<size_t> escaped_until;  // of each section

    void begin(int64_t n) {
        for (auto& s : symbols) s.resize(size_t(n + MOST_LANES));  // loaded for all lanes at once
        for (auto& c : contexts) c.resize(size_t(n + MOST_LANES));
        escaped.clear();
        vectors.clear();
        escaped_until.clear();
    }
};

// The vectors of a class in one frame and the one before, and of its second atoms.
struct Source {
    Kind kind;
    int64_t n;
    float other;
    const int32_t *now[3], *before[3];  // of the class
    const int32_t *all[3], *seconds;
    const uint8_t* in_row;
    const float* squares;
};

// The numbers that tell them, and the contexts of SPHERE and CIRCLE; where they cannot, `bad` is 1.
struct Told {
    int32_t* of[STREAMS];
    uint8_t *bad, *contexts[STREAMS];
};

// Whether a stream's numbers are around zero; else they are symbols already.
constexpr bool is_centred(Kind kind, int stream) {
    return kind < SPHERE || (kind == SPHERE ? stream < 2 : stream == 1);
}

// What the contexts of SPHERE and CIRCLE depend on, in the reader's words: also of atoms that are escaped.
struct Contexts {
    Kind kind;
    int64_t n;
    int raw[2];
    float other;
    const uint8_t* symbols[2];
    const int32_t* numbers[2];  // of which the low bits are
    const int32_t *all[3], *seconds;
    const uint8_t* in_row;
    const float* squares;
};

// Where in a row an atom of a slot is, and where its parent.
struct Place {
    int32_t atom, parent;
};
// The vectors of all slots of a frame.
void load_vectors(const int32_t* row, const Place* places, int64_t n_slots, Vectors& to);
// Counts symbols, in either half: by streams where there is one context of each, else by tables.
constexpr size_t n_counts(Kind kind) { return 2 * 256 * size_t(kind < SPHERE ? STREAMS : tables_of(kind)); }
void count(Kind kind, const uint8_t* const symbols[STREAMS], const uint8_t* const contexts[STREAMS], int64_t n,
           uint32_t* counts);
void set_frequencies(Class& c, const uint32_t* counts);

// How many low bits of a stream's numbers are stored as they are: as few symbols as lose little. `share`:
// of all frames, those that the numbers are of.
uint8_t raw_bits(const std::vector<int32_t>& numbers, double share);

// From behind: the states, and where the words begin.
struct Encoding {
    uint32_t states[MOST_LANES];
    uint8_t* to;
};
// Symbols, and what encodes them: 256 entries of each context.
struct Stream {
    const uint32_t *entries, *reciprocals;
    const uint8_t *symbols, *contexts;
    uint32_t bits;
};
#if MDIO_X86
// Entries of eight symbols: each has its symbol, and above it its context.
MDIO_TARGET("avx2")
MDIO_INLINE __m256i eight_at(const uint32_t* entries, __m128i symbols) {
    alignas(16) uint16_t at[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(at), symbols);
    const uint32_t low[4] = {at[0], at[1], at[2], at[3]}, high[4] = {at[4], at[5], at[6], at[7]};
    return _mm256_set_m128i(four_entries(entries, high), four_entries(entries, low));
}
#endif
// 32 lanes, with AVX-512.
void encode_wide(Encoding& e, const Stream& s, int64_t lanes, int64_t n);

class Coder {
  public:
    explicit Coder(const Chunk& chunk);
    // The states and the words of some units of a frame, which lie at the end of `room`: where they begin.
    const uint8_t* encode(const Coded& coded, bool is_key, int64_t begin, int64_t end, std::vector<uint8_t>& room) const;

  private:
    struct Tables {
        std::vector<uint32_t> entries, reciprocals;  // 256 of each table
    };
    const Chunk& chunk_;
    std::vector<Tables> tables_;  // of each class
};

}  // namespace mdio::rigid
