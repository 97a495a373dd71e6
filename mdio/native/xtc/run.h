// A run of consecutive frames in one buffer, decoded by one thread or several.
#pragma once

#include <cstdint>

#include "format.h"

namespace mdio::xtc {

struct Run {
    const std::uint8_t* data;     // first byte of the first frame; PADDING bytes follow the last
    std::int64_t first;           // number of the first frame, for messages
    const std::int64_t* offsets;  // n_frames + 1, in the file
    std::int64_t n_frames;
    std::int64_t n_atoms;
    Selection selection;
    float* positions;     // angstrom
    std::int64_t stride;  // floats from frame to frame
    float* vectors_nm;    // 9 each
    double* time_ps;
    std::int64_t* step;
};

// Throws std::invalid_argument for the first frame that does not decode.
void decode_run(const Run& run, int n_threads);

}  // namespace mdio::xtc
