// Frames of an open file, by pread. Errors are std::invalid_argument (see format.h), or
// std::system_error where the file cannot be read.
#pragma once

#include <cstdint>
#include <vector>

#include "format.h"

namespace mdio::xtc {

// Bytes where the frames of a file of `nbytes` begin, and the atoms that all of them have.
struct Frames {
    std::vector<std::int64_t> offsets;
    std::int64_t n_atoms = 0;
};

Frames scan(int fd, std::int64_t nbytes);

// The header of each of `n_frames` frames; frame i lies from offsets[i] to offsets[i + 1].
void read_headers(int fd, std::int64_t first, const std::int64_t* offsets, std::int64_t n_frames,
                  std::int64_t n_atoms, float* vectors_nm, double* time_ps, std::int64_t* step);

}  // namespace mdio::xtc
