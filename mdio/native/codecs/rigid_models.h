// Models of the atoms of a chunk: how each is best coded, judged from a few frames.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "rigid.h"

namespace mdio::rigid {

constexpr int64_t MAX_OFFSET = 16;  // atoms before an atom that are tried as its parent
constexpr int64_t MAX_PAIRS = 6;
constexpr int64_t SOLVENT_PAIRS = 4;  // enough for solvent in short chunks
constexpr float MAX_RIGID_LENGTH = 1000.0f;
constexpr int64_t REPEAT = 480;  // atoms: twice a multiple of the sizes of most molecules of solvent

// Approximate logarithm from the bits of a float: off by 0.09 at most, and the same on all machines.
MDIO_INLINE float log2_of(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, 4);
    return float(bits - (127 << 23)) * (1.0f / (1 << 23));
}

// Frames spread over a chunk, and the frames before them: rows of all atoms.
struct FramePairs {
    int64_t n = 0, n_for_solvent = 0, n_atoms = 0;
    const int32_t *now[MAX_PAIRS] = {}, *before[MAX_PAIRS] = {};
};

// The cheapest model of each atom: bits, logarithm of the size of its numbers, spread of its length. A
// GROUP of atoms may have the models of an earlier one.
struct AtomModels {
    std::vector<float> cost, size, spread, length, rigid_length;
    std::vector<int32_t> offset, kind, rigid_offset;
    std::vector<int32_t> rigid;  // bit k: whether the atom k before it stays at a fixed distance
    std::vector<size_t> shared;  // of groups: the first atom of the group that has their models
    std::vector<uint8_t> are_common;  // of groups: whether others may have their models

    void fit(size_t n) {
        for (auto* column : {&cost, &size, &spread, &length, &rigid_length}) column->resize(n);
        for (auto* column : {&offset, &kind, &rigid_offset, &rigid}) column->resize(n);
        shared.resize(n / GROUP);
        are_common.resize(n / GROUP);
    }
    // Where the models of an atom are.
    size_t of(size_t i) const { return shared[i / GROUP] + i % GROUP; }
    bool has_own(size_t i) const { return shared[i / GROUP] == i / GROUP * GROUP; }
};

}  // namespace mdio::rigid
