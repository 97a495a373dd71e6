// What a selection of atoms depends on: units that have to be decoded, and the atoms' ancestors.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "codes.h"
#include "rigid.h"

namespace mdio::rigid {

class NeededUnits {
  public:
    int64_t n_atoms = 0;  // up to the last requested one
    std::vector<bool> units, before;  // in requested frames, and in the frames before them

    // `atoms`: null for all. `decodes_before`: whether frames before the requested ones are decoded.
    NeededUnits(const Chunk& chunk, const int64_t* atoms, int64_t n, bool decodes_before);
    // Whether only the ancestors of the requested atoms are added up.
    bool is_sparse() const { return !steps_.empty(); }

    template <class Code>
    void write(const Vectors& vectors, const Code& code, char* to) const {
        uint32_t* row = rows_.data();  // of all steps, after that of the origin
        for (size_t s = 0; s < steps_.size(); ++s) {
            const uint32_t* from = row + 3 * steps_[s].parent;
            const auto slot = size_t(steps_[s].slot);
            for (size_t axis = 0; axis < 3; ++axis)
                row[3 * (s + 1) + axis] = from[axis] + uint32_t(vectors.axes[axis][slot]);
        }
        for (size_t i = 0; i < requested_steps_.size(); ++i)
            decode_row(row + 3 * requested_steps_[i], 3, code, to + 12 * i);
    }

  private:
    struct Step {
        int32_t parent, slot;  // number of the parent's step (0: the origin), and slot of the vector
    };
    std::vector<Step> steps_;
    std::vector<int32_t> requested_steps_;  // counted from 1
    mutable std::vector<uint32_t> rows_;
};

}  // namespace mdio::rigid
