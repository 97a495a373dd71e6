// Frames of integers, from their differences.
#pragma once

#include <algorithm>
#include <vector>

#include "rigid_learn.h"

namespace mdio::rigid {

// The integers of a chunk's frames, of which some are kept at hand and the others summed up in one row
// after the other: less memory is gone through. Before each row there is an atom at the origin, and behind
// it room for one number more.
class Rows {
  public:
    void begin(const int32_t* deltas, int64_t n_frames, int64_t n_atoms) {
        deltas_ = deltas, n_atoms_ = n_atoms;
        kept_.assign(size_t(n_frames), nullptr);
        pairs_ = {std::min(n_frames - 1, MOST_PAIRS), n_atoms};
        int64_t n_kept = 1;  // the first is the one for the others
        const auto keep = [&](int64_t f) {
            if (!kept_[size_t(f)]) kept_[size_t(f)] = room(n_kept++);
        };
        int64_t frames[MOST_PAIRS];
        for (int64_t k = 0; k < pairs_.n; ++k) {
            // The first two lie far from each other.
            const int64_t far = std::max<int64_t>(1, pairs_.n / 2), at = k == 1 ? far : k == far ? 1 : k;
            frames[k] = 1 + at * (n_frames - 1) / pairs_.n;
            keep(frames[k] - 1);
            keep(frames[k]);
        }
        const int64_t last = *std::max_element(frames, frames + pairs_.n);
        last_ = nullptr;
        for (int64_t f = 0; f <= last; ++f) sum(f);
        for (int64_t k = 0; k < pairs_.n; ++k)
            pairs_.now[k] = kept_[size_t(frames[k])], pairs_.before[k] = kept_[size_t(frames[k] - 1)];
        last_ = nullptr;
    }
    const Pairs& pairs() const { return pairs_; }
    // Frame after frame.
    const int32_t* next(int64_t f) {
        if (!kept_[size_t(f)]) return sum(f);
        return last_ = kept_[size_t(f)];
    }

  private:
    int32_t* room(int64_t n) {
        const size_t size = size_t(3 * n_atoms_ + 4);
        if (rows_.size() <= size_t(n)) rows_.resize(size_t(n + 1));
        auto& row = rows_[size_t(n)];
        if (row.size() < size) row.resize(size);
        std::fill_n(row.begin(), 3, 0);
        row[size - 1] = 0;
        return row.data() + 3;
    }
    const int32_t* sum(int64_t f) {
        int32_t* to = kept_[size_t(f)] ? kept_[size_t(f)] : room(0);
        const int32_t* from = deltas_ + 3 * n_atoms_ * f;
        const int32_t* last = last_;
        if (!last)
            std::copy_n(from, 3 * n_atoms_, to);
        else if (last == to)
            for (int64_t i = 0; i < 3 * n_atoms_; ++i) to[i] = int32_t(uint32_t(to[i]) + uint32_t(from[i]));
        else
            for (int64_t i = 0; i < 3 * n_atoms_; ++i) to[i] = int32_t(uint32_t(last[i]) + uint32_t(from[i]));
        return last_ = to;
    }

    const int32_t* deltas_ = nullptr;
    int64_t n_atoms_ = 0;
    std::vector<std::vector<int32_t>> rows_;
    std::vector<int32_t*> kept_;  // of each frame
    const int32_t* last_ = nullptr;
    Pairs pairs_;
};

}  // namespace mdio::rigid
