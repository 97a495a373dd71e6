// Rows of integers, each group of them in just the bits that its largest needs;
// mdio/core/kernels/packed.py says how they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu.h"
#include "integers.h"

namespace mdio {

constexpr int64_t EIGHT = 8;       // numbers: those of w bits are w bytes
constexpr int64_t GROUP = 32;      // numbers
constexpr int64_t EIGHTS = GROUP / EIGHT;
constexpr int64_t MAX_WIDTH = 32;  // bits
constexpr int64_t BEHIND = 16;     // bytes after the last group, which loads may touch

inline int64_t eights_of(int64_t n_numbers) { return (n_numbers + EIGHT - 1) / EIGHT; }
inline int64_t groups_of(int64_t n_numbers) { return (n_numbers + GROUP - 1) / GROUP; }

// Sum of the widths of some groups, fewer than 2**27.
MDIO_INLINE int64_t sum_of(const uint8_t* widths, int64_t n) {
    uint32_t sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += widths[i];
    return sum;
}

struct Packed {
    const uint8_t* widths;        // of all rows
    const uint8_t* groups;
    std::vector<int64_t> begins;  // of each row among `groups`, in bytes, and the end of the last
    int64_t n_numbers;            // of a row

    int64_t n_groups() const { return groups_of(n_numbers); }
    int64_t n_eights() const { return eights_of(n_numbers); }
    const uint8_t* widths_of(int64_t row) const { return widths + row * n_groups(); }
    const uint8_t* groups_at(int64_t row) const { return groups + begins[std::size_t(row)]; }
};

// Checks what `mdio_pack` made, and fails.
Packed packed(const uint8_t* data, int64_t nbytes, int64_t n_rows, int64_t n_numbers);

// Rows are frames differenced along the frames, the first one along the atoms.
void sum_packed(const Packed& packed, const Coding& coding, const Output& out, const mdio_selection& which);
// Rows are frames differenced along the atoms; `room` is for NEIGHBOUR_ROWS rows of whole eights of numbers, and
// one more.
constexpr int64_t NEIGHBOUR_ROWS = 4;
void sum_packed_neighbours(const Packed& packed, const uint8_t* kept, uint32_t* room, const Coding& coding,
                           const Output& out, const mdio_selection& which);

// Unpacks or adds numbers from the beginning of a group on, and returns where what follows begins.
using Groups = const uint8_t* (*)(const uint8_t* from, const uint8_t* widths, int64_t n_eights,
                                  uint32_t* to);
Groups unpacker();
Groups adder();

}  // namespace mdio
