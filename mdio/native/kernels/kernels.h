// The kernels: pointers in, numbers out. Shapes, dtypes and indices have been checked in Python
// (mdio/core/kernels/checks.py); mdio/core/kernels/ says what each does.
//
// Frames are `stride` bytes apart and need no alignment; within one, an atom is three float32.
// `atoms` is null for all atoms, else `n_out` indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "packed.h"

namespace mdio {

struct Frames {
    const char* data;
    int64_t n_frames;
    int64_t n_atoms;
    int64_t stride;
};

struct Output {
    char* data;
    int64_t n_atoms;
    int64_t stride;
};

uint32_t crc32c(const void* data, size_t nbytes, uint32_t value);
// Of consecutive pieces joined; n_pieces + 1 edges.
uint32_t crc32c_joined(const uint32_t* crcs, const int64_t* edges, size_t n_pieces);
// By each set of instructions that this processor has: for tests.
std::vector<uint32_t> crc32c_all_ways(const void* data, size_t nbytes, uint32_t value);

// Axes are `axis_stride` bytes apart, frames `stride`; contiguous along the atoms.
void planar_to_xyz(const Frames& planar, int64_t axis_stride, const Output& out,
                   const int64_t* atoms, bool swap);
// The way back, of all atoms: planes `axis_stride` bytes apart, frames `out.stride`.
void xyz_to_planar(const Frames& src, const Output& out, int64_t axis_stride);
void copy_atoms(const Frames& src, const Output& out, const int64_t* atoms, bool swap,
                float scale);

// `deltas` is contiguous (frames, atoms, 3) int32; it need not be aligned where it is only read.
// The quantising ones return whether it could be done.
bool quantise_deltas(const Frames& positions, double step, int32_t* deltas);
bool quantise_xtc(const Frames& positions, float precision, int32_t* deltas);
// The integers of `n` numbers as they are.
struct Coding {
    double number;  // the step; or the precision of an XTC
    bool is_xtc;
};
bool quantise_row(const char* from, int64_t n, const Coding& coding, int32_t* to);
void dequantise_deltas(const char* deltas, int64_t n_atoms, double step, const Output& out,
                       const int64_t* atoms, int64_t first, int64_t last);
void dequantise_xtc(const char* deltas, int64_t n_atoms, float precision, const Output& out,
                    const int64_t* atoms, int64_t first, int64_t last);

// Differences along the atoms: contiguous (frames, atoms, 3), sorted; `kept`, a byte an atom.
struct Neighbours {
    const int32_t* differences;
    const uint8_t* kept;
    int64_t n_frames;
    int64_t n_atoms;
};

// `deltas` are those along the frames. Fills `kept`; returns whether these differences are likely
// to take fewer bits. The second function puts them in the place of `deltas`.
bool choose_neighbours(const int32_t* deltas, int64_t n_frames, int64_t n_atoms, uint8_t* kept);
void difference_neighbours(int32_t* deltas, int64_t n_frames, int64_t n_atoms,
                           const uint8_t* kept);
void sum_neighbours_step(const Neighbours& from, double step, const Output& out,
                         const int64_t* atoms);
void sum_neighbours_xtc(const Neighbours& from, double precision, const Output& out,
                        const int64_t* atoms);

// Packs rows of integers into `to`, which has room for the widest, and returns how many bytes.
int64_t pack(const int32_t* rows, int64_t n_rows, int64_t n_numbers, uint8_t* to);
// Checks what `pack` made; throws std::invalid_argument.
Packed packed(const uint8_t* data, int64_t nbytes, int64_t n_rows, int64_t n_numbers);

// Rows are frames differenced along the frames, the first one along the atoms.
void sum_packed_step(const Packed& packed, double step, const Output& out, const int64_t* atoms,
                     int64_t first, int64_t last);
void sum_packed_xtc(const Packed& packed, double precision, const Output& out,
                    const int64_t* atoms, int64_t first, int64_t last);

// Rows are frames differenced along the atoms.
struct PackedNeighbours {
    const Packed& packed;
    const uint8_t* kept;
    uint32_t* room;  // for NEIGHBOUR_ROWS rows of whole eights of numbers, and one more
};
constexpr int64_t NEIGHBOUR_ROWS = 4;

void sum_packed_neighbours_step(const PackedNeighbours& from, double step, const Output& out,
                                const int64_t* atoms, int64_t first, int64_t last);
void sum_packed_neighbours_xtc(const PackedNeighbours& from, double precision, const Output& out,
                               const int64_t* atoms, int64_t first, int64_t last);

// Chunks by what stays the same; mdio/core/kernels/rigid.py says how.
struct RigidChunk {
    const uint8_t* description;
    int64_t description_nbytes;
    const uint8_t* data;
    int64_t nbytes;
    int64_t n_frames;
    int64_t n_atoms;
};
struct RigidBytes {
    std::string description;
    std::vector<uint8_t> data;
};
// What frames and atoms are read at random by: key frames, which need none before, and at least so many atoms
// that have words of their own; 0: none.
struct RigidCut {
    int64_t key_every = 0, least = 0;
};
// There are at least two frames. Null, where the coordinates have no integers; what is given lasts until the
// next call of this thread.
const RigidBytes* encode_rigid(const Frames& positions, const Coding& coding, const RigidCut& cut = {});
// Throw std::invalid_argument for bytes that do not fit together.
void decode_rigid_step(const RigidChunk& from, double step, const Output& out,
                       const int64_t* atoms, int64_t first, int64_t last);
void decode_rigid_xtc(const RigidChunk& from, double precision, const Output& out,
                      const int64_t* atoms, int64_t first, int64_t last);

// `from` of `unfold` holds uint32 (wide) or uint16, and need not be aligned.
bool folds_to_16_bits(const int32_t* from, int64_t n);
void fold(const int32_t* from, int64_t n, uint16_t* to);
void fold(const int32_t* from, int64_t n, uint32_t* to);
void unfold(const char* from, bool wide, int64_t n, int32_t* to);

void shuffle(const uint8_t* data, size_t nbytes, size_t itemsize, uint8_t* out);
void unshuffle(const uint8_t* data, size_t nbytes, size_t itemsize, uint8_t* out);

// `reference` is contiguous (atoms, 3); `weights` may be null.
void rmsd(const Frames& positions, const double* reference, const double* weights, bool superpose,
          double* out);

// `quads` is contiguous (n, 4); `out` (frames, n, 2). Returns the longest bond.
double dihedrals(const Frames& positions, const int64_t* quads, int64_t n, double* out);

struct Indices {
    const int64_t* data;
    int64_t n;
};

// Whether atoms `pairs` and those behind them lie further apart than `near`, and nearer over the box;
// `cells` as the vectors below.
void cut_frames(const Frames& positions, const double* cells, const Indices& pairs, double near,
                bool* out);

// `vectors` is contiguous (frames, 3, 3), a lower triangle, zeros where there is no cell; `out`
// (frames, targets).
void within(const Frames& positions, const double* vectors, const Indices& sources,
            const Indices& targets, double radius, bool* out);

// Of what follows, `vectors` are as above, of cells that there are; positions change in place.
// `links` is contiguous (n, 2): an atom, and one that it is bound to and that is right by then.
void make_whole(const Output& positions, int64_t n_frames, const double* vectors,
                const int64_t* links, int64_t n);

// `starts` has n + 1 numbers; `weights` are those of `atoms`, with a sum of 1 for each molecule.
struct Molecules {
    const int64_t* atoms;
    const int64_t* starts;
    const double* weights;
    int64_t n;
};
void put_in_cell(const Output& positions, int64_t n_frames, const double* vectors,
                 const Molecules& molecules);
void gather(const Output& positions, int64_t n_frames, const double* vectors,
            const Molecules& molecules);
void centre(const Output& positions, int64_t n_frames, const double* vectors,
            const Indices& picked);

// `last` and `shifts` are contiguous (atoms, 3): where atoms were in the frame before, if that is
// `known`, in units of its cell, and over how many boundaries they have gone.
void follow(const Output& positions, int64_t n_frames, const double* vectors, double* last,
            int32_t* shifts, bool known, bool apply);

}  // namespace mdio
