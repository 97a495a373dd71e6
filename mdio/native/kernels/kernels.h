// The kernels: pointers in, numbers out. Shapes, dtypes and indices have been checked in Python
// (mdio/core/kernels/checks.py); mdio/core/kernels/ says what each does.
//
// Frames are `stride` bytes apart and need no alignment; within one, an atom is three float32.
// `atoms` is null for all atoms, else `n_out` indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "integers.h"

namespace mdio {

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

// `reference` is contiguous (atoms, 3); `weights` may be null.
void rmsd(const Frames& positions, const double* reference, const double* weights, bool superpose,
          double* out);

// `quads` is contiguous (n, 4); `out` (frames, n, 2). `longest`: of each frame, its longest bond.
void dihedrals(const Frames& positions, const int64_t* quads, int64_t n, double* out,
               double* longest);

struct Indices {
    const int64_t* data;
    int64_t n;
};

// Whether atoms `pairs` and those behind them lie further apart than `near`, and nearer over the box;
// `cells` as the vectors below.
void cut_frames(const Frames& positions, const double* cells, const Indices& pairs, double near,
                bool* out);
// Of each pair its distance to the nearest image, `out` (frames, n); `vectors` as below.
void distances(const Frames& positions, const double* vectors, const Indices& first,
               const int64_t* second, double* out);
// Of each frame, the longest distance of atoms `pairs` from those behind them.
void longest_distances(const Frames& positions, const Indices& pairs, double* out);

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
            int64_t* shifts, bool known, bool apply);
// Likewise, where `last` are positions, and `shifts` what jumps have added, in 1/2^20 angstrom.
void follow_steps(const Output& positions, int64_t n_frames, const double* vectors, double* last,
                  int64_t* shifts, bool known, bool apply);

// Of each frame 12 sums over the atoms that are picked: of x, y and z, and of each of these times
// each axis of `reference`, a row an atom.
void fit_sums(const Frames& positions, const Indices& picked, const double* reference,
              double* out);
// Each vector, a row, less `from` of its frame, times the rotation (3, 3) of its frame, plus `to`.
void turn(const Output& vectors, int64_t n_frames, const double* rotations, const double* from,
          const double* to);

}  // namespace mdio
