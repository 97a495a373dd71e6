// What some atoms need of a chunk: units that have to be decoded, and atoms that theirs are told from.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "codes.h"
#include "rigid.h"

namespace mdio::rigid {

class Needs {
  public:
    int64_t n_atoms = 0;               // up to the last of them
    std::vector<bool> units, carried;  // in frames that are asked for, and in those before them

    // `atoms`: null for all. `carries`: whether frames before those that are asked for are decoded.
    Needs(const Chunk& chunk, const int64_t* atoms, int64_t n, bool carries);
    // Whether few atoms are added up one by one.
    bool is_sparse() const { return !steps_.empty(); }

    template <class Code>
    void write(const Vectors& vectors, const Code& code, char* to) const {
        uint32_t* row = rows_.data();  // of all steps, behind the origin
        for (size_t s = 0; s < steps_.size(); ++s) {
            const uint32_t* from = row + 3 * steps_[s].parent;
            const auto slot = size_t(steps_[s].slot);
            for (size_t axis = 0; axis < 3; ++axis)
                row[3 * (s + 1) + axis] = from[axis] + uint32_t(vectors.axes[axis][slot]);
        }
        for (size_t i = 0; i < asked_.size(); ++i) decode_row(row + 3 * asked_[i], 3, code, to + 12 * i);
    }

  private:
    struct Step {
        int32_t parent, slot;  // the step before (0: the origin), and where the vector is
    };
    std::vector<Step> steps_;
    std::vector<int32_t> asked_;  // steps, from 1 on
    mutable std::vector<uint32_t> rows_;
};

}  // namespace mdio::rigid
