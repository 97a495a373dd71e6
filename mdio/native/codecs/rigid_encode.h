// Parts of the encoder: bits, contexts, and the entropy encoder.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "rigid.h"

namespace mdio::rigid {

constexpr int32_t MAX_SYMBOL = 254;  // below ESCAPE

// Packs the low `width` bits of numbers, eight at a time, and returns how many; writes up to 16 bytes after them.
int64_t pack_eights(const int32_t* numbers, int64_t n, uint32_t width, uint8_t* to);

// Writes numbers of a few bits one after the other; PADDING bytes after the last may be overwritten.
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
    static constexpr int64_t PADDING = 16;  // bytes
    // The low `width` bits of numbers, 32 at most, from a byte boundary on.
    void put_all(const int32_t* numbers, int64_t n, uint32_t width) {
        if (width == 0) return;
        const int64_t n_packed = width > MAX_RAW_BITS ? 0 : pack_eights(numbers, n, width, to_);
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

// A frame before entropy coding.
struct CodedFrame {
    std::vector<uint16_t> symbols[STREAMS];  // below their contexts, 256 a context
    std::vector<uint8_t> raw, escaped;
    std::vector<int32_t> vectors;  // of a key frame, stored as they are
    std::vector<size_t> escaped_ends;  // of each section

    void begin(int64_t n) {
        for (auto& s : symbols) s.resize(size_t(n + MAX_LANES));  // loads are of all lanes
        escaped.clear();
        vectors.clear();
        escaped_ends.clear();
    }
};

// The vectors of some atoms of a class in a frame and the one before, and of their second atoms.
struct ClassVectors {
    Kind kind;
    int64_t n;
    float second_square;
    const int32_t *now[3], *before[3];  // of the class
    const int32_t *all[3], *second_slots;
    const uint8_t* are_adjacent;
    const float* squared_lengths;
};

// Their three numbers, and the symbols of these above `raw` low bits, with contexts. `bad`: 1 where numbers are out of
// range, or have no symbol.
struct VectorNumbers {
    int raw[STREAMS];
    int32_t* numbers[STREAMS];
    uint8_t* bad;
    uint16_t* symbols[STREAMS];
};

// Whether a stream's numbers are distributed around zero; else they are symbols already.
constexpr bool is_centred(Kind kind, int stream) {
    return kind < SPHERE || (kind == SPHERE ? stream < 2 : stream == 1);
}

// What the contexts of SPHERE and CIRCLE depend on, as the decoder knows it, also of escaped atoms.
struct Contexts {
    Kind kind;
    int64_t n;
    int raw[2];
    float second_square;
    uint16_t* symbols[STREAMS];  // whose contexts are set
    const int32_t* numbers[2];  // whose low bits are used
    const int32_t *all[3], *second_slots;
    const uint8_t* are_adjacent;
    const float* squared_lengths;
};

// Where the coordinates of a slot's atom and of its parent are in a row.
struct Place {
    int32_t atom, parent;
};
// The first slots of groups, about in the order of their atoms: in this order a row is read from its begin to its end.
std::vector<int32_t> groups_along_row(const std::vector<Place>& places, int64_t n_atoms);
// Fills the vectors of groups of a frame.
void load_vectors(const int32_t* row, const Place* places, const std::vector<int32_t>& groups, Vectors& to);
// Counts symbols in two halves of `counts`: by streams where each has one context, else by tables.
constexpr size_t n_counts(Kind kind) { return 2 * 256 * size_t(kind < SPHERE ? STREAMS : tables_of(kind)); }
void count(Kind kind, const uint16_t* const symbols[STREAMS], int64_t n, uint32_t* counts);
void set_frequencies(Class& c, const uint32_t* counts);

// Returns how many low bits of a stream's numbers are best stored as they are. `share`: the share of all
// frames that `numbers` come from.
uint8_t raw_bits(const std::vector<int32_t>& numbers, double share);

// States, and where the words written so far begin: they are written backwards.
struct EncoderState {
    uint32_t states[MAX_LANES];
    uint8_t* to;
};
// Symbols with contexts, and the tables that encode them: 256 entries a context.
struct Stream {
    const uint32_t *entries, *reciprocals;
    const uint16_t* symbols;
    uint32_t bits;
};
#if MDIO_X86
// Entries of eight symbols.
MDIO_TARGET("avx2")
MDIO_INLINE __m256i eight_at(const uint32_t* entries, const uint16_t* at) {
    const uint32_t eight[8] = {at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]};
    return eight_entries(entries, eight);
}
#endif
// 32 lanes, with AVX-512.
void encode_wide(EncoderState& e, const Stream& s, int64_t lanes, int64_t n);

class EntropyCoder {
  public:
    explicit EntropyCoder(const Chunk& chunk);
    // Writes states and words of units begin:end of a frame at the end of `buffer`, and returns where they begin.
    const uint8_t* encode(const CodedFrame& coded, bool is_key, int64_t begin, int64_t end,
                          std::vector<uint8_t>& buffer) const;

  private:
    struct Tables {
        std::vector<uint32_t> entries, reciprocals;  // 256 of each table
    };
    const Chunk& chunk_;
    std::vector<Tables> tables_;  // of each class
};

}  // namespace mdio::rigid
