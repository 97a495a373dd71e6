// The frames of a chunk as integers.
#pragma once

#include <algorithm>
#include <vector>

#include "integers.h"
#include "rigid_learn.h"

namespace mdio::rigid {

// The integers of a chunk's frames, of which some are kept at hand and the others found in one row after
// the other: less memory is gone through. Before each row there is an atom at the origin, and behind it
// room for one number more.
class Rows {
  public:
    // Whether the frames that are kept have integers.
    bool begin(const Frames& positions, const Coding& coding) {
        positions_ = positions, coding_ = coding;
        const int64_t n_frames = positions.n_frames;
        kept_.assign(size_t(n_frames), nullptr);
        const int64_t n_pairs = std::min(n_frames - 1, MOST_PAIRS);
        const bool is_short = n_frames < 2 * MOST_PAIRS;  // pairs share frames
        pairs_ = {n_pairs, is_short ? std::min(n_pairs, FEW_PAIRS) : n_pairs, positions.n_atoms};
        int64_t n_kept = 1;  // the first is the one for the others
        const auto keep = [&](int64_t f) {
            const int32_t*& row = kept_[size_t(f)];
            return row ? row : row = found(f, n_kept++);
        };
        for (int64_t k = 0; k < pairs_.n; ++k) {
            // The first two lie far from each other.
            const int64_t far = std::max<int64_t>(1, pairs_.n / 2), at = k == 1 ? far : k == far ? 1 : k;
            const int64_t f = 1 + at * (n_frames - 1) / pairs_.n;
            pairs_.before[k] = keep(f - 1), pairs_.now[k] = keep(f);
            if (!pairs_.before[k] || !pairs_.now[k]) return false;
        }
        return true;
    }
    const Pairs& pairs() const { return pairs_; }
    // Null where there are none; what is given lasts until the next one.
    const int32_t* row(int64_t f) { return kept_[size_t(f)] ? kept_[size_t(f)] : found(f, 0); }

  private:
    const int32_t* found(int64_t f, int64_t n) {
        const int64_t width = 3 * positions_.n_atoms;
        if (rows_.size() <= size_t(n)) rows_.resize(size_t(n + 1));
        auto& row = rows_[size_t(n)];
        if (row.size() < size_t(width + 4)) row.resize(size_t(width + 4));
        std::fill_n(row.begin(), 3, 0);
        row[size_t(width + 3)] = 0;
        int32_t* to = row.data() + 3;
        return quantise_row(positions_.data + f * positions_.stride, width, coding_, to) ? to : nullptr;
    }

    Frames positions_{};
    Coding coding_{};
    std::vector<std::vector<int32_t>> rows_;
    std::vector<const int32_t*> kept_;  // of each frame
    Pairs pairs_;
};

}  // namespace mdio::rigid
