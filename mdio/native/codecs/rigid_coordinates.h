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
    // With AVX2, of runs of atoms: how many are of each class, and the place of each atom's vector among those
    // of its run, which are sorted by classes that begin at multiples of 4.
    std::vector<uint16_t> counts_, places_;
    std::vector<int32_t> vectors_;
};

}  // namespace mdio::rigid
