// What a few frames of a chunk tell of its atoms.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu.h"

namespace mdio::rigid {

constexpr float LONGEST = 1000.0f;  // of a rigid length

// Base 2, from the bits of a float: to 0.09, which is enough here and the same everywhere.
MDIO_INLINE float log2_of(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    return float(bits - (127 << 23)) * (1.0f / (1 << 23));
}

// How each atom is told in the fewest bits; logarithms of sizes, and what lengths spread by.
struct Best {
    std::vector<float> cost, size, spread, length;
    std::vector<int32_t> back, kind;
    std::vector<float> rigid_length;
    std::vector<int32_t> rigid_back;
    std::vector<uint32_t> rigid;  // a bit for each atom before this one that stays at its distance
};

struct Samples {
    int64_t n;
    std::vector<int32_t> at[3], moved[3];  // of each pair, all atoms: the second frame, less the first
};

Samples samples_of(const uint32_t* x, int64_t n_frames, int64_t n_atoms);
Best best_of(const Samples& samples, int64_t n_atoms);

}  // namespace mdio::rigid
