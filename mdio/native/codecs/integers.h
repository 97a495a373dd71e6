// What Python calls besides the library: integers to coordinates where Blosc has packed them.
#pragma once

#include "mdio_codecs.h"

namespace mdio {

using Frames = mdio_frames;
using Output = mdio_output;
using Coding = mdio_coding;

// The integers of `n` numbers as they are.
bool quantise_row(const char* from, int64_t n, const Coding& coding, int32_t* to);
// `deltas` is contiguous (frames, atoms, 3) int32, and need not be aligned.
void dequantise(const char* deltas, int64_t n_atoms, const Coding& coding, const Output& out,
                const int64_t* atoms, int64_t first, int64_t last);

// Differences along the atoms: contiguous (frames, atoms, 3), sorted; `kept`, a byte an atom.
struct Neighbours {
    const int32_t* differences;
    const uint8_t* kept;
    int64_t n_frames;
    int64_t n_atoms;
};
void sum_neighbours(const Neighbours& from, const Coding& coding, const Output& out, const int64_t* atoms);

// `from` of `unfold` holds uint32 (wide) or uint16, and need not be aligned.
bool folds_to_16_bits(const int32_t* from, int64_t n);
void fold(const int32_t* from, int64_t n, uint16_t* to);
void fold(const int32_t* from, int64_t n, uint32_t* to);
void unfold(const char* from, bool wide, int64_t n, int32_t* to);

}  // namespace mdio
