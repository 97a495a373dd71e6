// What a few frames of a chunk tell of its atoms.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu.h"

namespace mdio::rigid {

constexpr int64_t BACK = 16;         // atoms that are tried as parents
constexpr int64_t MOST_PAIRS = 6;
constexpr int64_t FEW_PAIRS = 4;     // tell enough of solvent in short chunks
constexpr float LONGEST = 1000.0f;   // of a rigid length

// Base 2, from the bits of a float: to 0.09, which is enough here and the same everywhere.
MDIO_INLINE float log2_of(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    return float(bits - (127 << 23)) * (1.0f / (1 << 23));
}

// Frames from all over a chunk, and those before them: rows of all atoms.
struct Pairs {
    int64_t n = 0, n_of_solvent = 0, n_atoms = 0;
    const int32_t *now[MOST_PAIRS] = {}, *before[MOST_PAIRS] = {};
};

// How each atom is told in the fewest bits; logarithms of sizes, and what lengths spread by.
struct Best {
    std::vector<float> cost, size, spread, length, rigid_length;
    std::vector<int32_t> back, kind, rigid_back;
    std::vector<int32_t> rigid;  // a bit for each atom before this one that stays at its distance

    void fit(size_t n) {
        for (auto* of : {&cost, &size, &spread, &length, &rigid_length}) of->resize(n);
        for (auto* of : {&back, &kind, &rigid_back, &rigid}) of->resize(n);
    }
};

}  // namespace mdio::rigid
