// From vectors to coordinates: atoms added up from their parents, in their own order.
#pragma once

#include "integers.h"
#include "rigid.h"

namespace mdio::rigid {

class CoordinateWriter {
  public:
    // For the first `n_atoms` atoms of a chunk.
    CoordinateWriter(const Chunk& chunk, int64_t n_atoms);
    // Fills these atoms of two frames, one after the other. Where there is one, `frames` has it twice, and the second
    // of `to` is null.
    template <class Code>
    void write(const Vectors* const frames[FRAMES_AT_ONCE], const Code& code, char* const to[FRAMES_AT_ONCE]);

  private:
    template <class Code>
    void write_plain(const Vectors& vectors, const Code& code, char* to);
    template <class Code>
    void write_avx2(const Vectors* const frames[FRAMES_AT_ONCE], const Code& code, char* const to[FRAMES_AT_ONCE]);

    const Chunk& chunk_;
    int64_t n_atoms_;
    // Of an atom, in bytes: where its vector is among those of its run, which are sorted by classes that begin at
    // multiples of 4, and its parent's row.
    struct Source {
        uint16_t vector, parent;
    };
    std::vector<Source> sources_;  // with AVX2
    std::vector<int32_t> vectors_;
};

}  // namespace mdio::rigid
