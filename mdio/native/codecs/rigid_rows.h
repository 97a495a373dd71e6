// The frames of a chunk as integers.
#pragma once

#include <algorithm>
#include <vector>

#include "integers.h"
#include "rigid_models.h"

namespace mdio::rigid {

// The integers of a chunk's frames: the frames of `pairs` are kept, others computed on demand into one
// row, which stays in the cache. Before each row there is an atom at the origin, and after it one number.
class Rows {
  public:
    // Returns whether the frames that are kept have integers.
    bool begin(const Frames& positions, const Coding& coding) {
        positions_ = positions, coding_ = coding;
        const int64_t n_frames = positions.n_frames;
        kept_rows_.assign(size_t(n_frames), nullptr);
        const int64_t n_pairs = std::min(n_frames - 1, MAX_PAIRS);
        const bool is_short = n_frames < 2 * MAX_PAIRS;
        pairs_ = {n_pairs, is_short ? std::min(n_pairs, SOLVENT_PAIRS) : n_pairs, positions.n_atoms};
        int64_t n_kept = 1;  // the first row is for frames that are not kept
        const auto keep = [&](int64_t f) {
            const int32_t*& row = kept_rows_[size_t(f)];
            return row ? row : row = quantised(f, n_kept++);
        };
        for (int64_t k = 0; k < pairs_.n; ++k) {
            // In short chunks pairs share frames, at the begin and at the end.
            const int64_t in_short = k < (n_pairs + 1) / 2 ? 1 + k : n_frames - n_pairs + k;
            const int64_t f = is_short ? in_short : 1 + k * (n_frames - 1) / n_pairs;
            pairs_.before[k] = keep(f - 1), pairs_.now[k] = keep(f);
            if (!pairs_.before[k] || !pairs_.now[k]) return false;
        }
        return true;
    }
    const FramePairs& pairs() const { return pairs_; }
    // Null if the frame has no integers; valid until the next call.
    const int32_t* row(int64_t f) { return kept_rows_[size_t(f)] ? kept_rows_[size_t(f)] : quantised(f, 0); }

  private:
    const int32_t* quantised(int64_t f, int64_t n) {
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
    std::vector<const int32_t*> kept_rows_;  // of each frame, or null
    FramePairs pairs_;
};

}  // namespace mdio::rigid
