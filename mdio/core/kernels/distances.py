"""Periodic boundaries: which atoms are near others across them, molecules that are cut by them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import vectors_from_boxes
from mdio.core.kernels import backend, checks
from mdio.core.kernels.checks import Float32s, Float64s, Int64s


def within(
    positions: Float32s, boxes: Float32s, sources: Int64s, targets: Int64s, radius: float
) -> NDArray[np.bool_]:
    """Return which of `targets` lie within `radius` of any of `sources`, in every frame.

    `positions` ((F, A, 3) float32): coordinates; frames may lie anywhere. `boxes` ((F, 6) float32):
    unit cells, lengths and angles in degrees; all periodic images of the sources count. A row of
    zeros: there are none. `sources`, `targets` ((n,) int64): atoms; C-contiguous. One that is not
    at a finite place is near to nothing. `radius`: positive; in the unit of the positions. Atoms at
    just this distance are within. Returns (F, targets) bool. Raises ValueError: the radius is not
    positive, or larger than the smallest width of some frame's cell.
    """
    n_frames, n_atoms = checks.native_rows(positions, "positions").shape[:2]
    checks.indices(sources, n_atoms)
    checks.indices(targets, n_atoms)
    radius = checks.step_size(radius, "the radius")
    out = np.zeros((n_frames, len(targets)), np.bool_)
    if out.size:
        vectors = _vectors(boxes, n_frames)
        backend.module.within(positions, vectors, sources, targets, radius, out)
    return out


def cut_frames(
    positions: Float32s, boxes: Float32s, pairs: Int64s, near: float
) -> NDArray[np.bool_]:
    """Return in which frames the box cuts molecules, (F,) bool.

    `positions`, `boxes`: as for `within`. `pairs` ((n,) int64): atoms of which the next one is a
    neighbour, no further away than `near` in a molecule that is whole; C-contiguous. A frame is cut
    if one of them is further away, but no further over the sides of the box. Coordinates that are
    not a number do not count.
    """
    n_frames, n_atoms = checks.native_rows(positions, "positions").shape[:2]
    out = np.zeros(n_frames, bool)
    if n_atoms > 1 and len(pairs):
        checks.indices(pairs, n_atoms - 1)
        backend.module.cut_frames(positions, _vectors(boxes, n_frames), pairs, near, out)
    return out


def make_whole(positions: Float32s, boxes: Float32s, links: Int64s) -> None:
    """Move atoms by vectors of the cell, in place, so that no bond goes over its boundary.

    `positions` ((F, A, 3) float32). `boxes` ((F, 6) float32): unit cells, as for `within`; no row
    of zeros. `links` ((n, 2) int64): an atom that may move, and one that it is bound to and that
    stays or has been moved before; C-contiguous. The first comes to its image that is nearest to
    the other. Raises ValueError: a frame has no cell.
    """
    vectors = _checked(positions, boxes, links.reshape(-1))
    backend.module.make_whole(positions, vectors, links)


def put_in_cell(
    positions: Float32s, boxes: Float32s, atoms: Int64s, starts: Int64s, weights: Float64s
) -> None:
    """Move molecules by vectors of the cell, in place, so that their centres lie in it.

    `positions`, `boxes`: as for `make_whole`. `atoms` ((n,) int64): the molecules' atoms, one
    molecule after the other. `starts` ((M + 1,) int64): where each molecule begins among them; n
    last. `weights` ((n,) float64): of these atoms, for the centre; their sum is 1 in each molecule.
    Raises ValueError: a frame has no cell.
    """
    vectors = _of_molecules(positions, boxes, atoms, starts, weights)
    backend.module.put_in_cell(positions, vectors, atoms, starts, weights)


def gather(
    positions: Float32s, boxes: Float32s, atoms: Int64s, starts: Int64s, weights: Float64s
) -> None:
    """Move molecules by vectors of the cell, in place, so that they lie together.

    The one whose centre is next to the middle of the cell stays; then, one after the other, that
    whose centre is next to any of those that are there comes next to it, as with
    ``gmx trjconv -pbc cluster``. Arguments are those of `put_in_cell`.
    Raises ValueError: a frame has no cell.
    """
    vectors = _of_molecules(positions, boxes, atoms, starts, weights)
    backend.module.gather(positions, vectors, atoms, starts, weights)


def centre(positions: Float32s, boxes: Float32s, picked: Int64s) -> None:
    """Move all atoms, in place, so that the centre of those `picked` is the middle of the cell.

    `positions`, `boxes`: as for `make_whole`. `picked` ((n,) int64): at least one atom; the centre
    is that of geometry. Raises ValueError: a frame has no cell, or no atom is picked.
    """
    vectors = _checked(positions, boxes, picked)
    if not len(picked):
        raise ValueError("no atoms to centre")
    backend.module.centre(positions, vectors, picked)


def follow(
    positions: Float32s,
    boxes: Float32s,
    last: Float64s,
    shifts: NDArray[np.int32],
    *,
    known: bool,
    apply: bool = True,
) -> None:
    """Count over how many boundaries atoms go from frame to frame, and undo that in place.

    The method is that of equation B6 of Kulke and Vermaas, J. Chem. Theory Comput. 18, 6161 (2022),
    doi:10.1021/acs.jctc.2c00327, and of MDAnalysis' ``NoJump``; in cells whose vectors are longer
    than need be, an atom goes the shortest way instead.

    `positions`, `boxes`: as for `make_whole`; frames that follow each other. `last` ((A, 3)
    float64): where atoms were in the frame before, in units of its cell; becomes that of the last
    frame. `shifts` ((A, 3) int32): how often they have crossed each boundary until then; becomes
    that until the last frame. `known`: whether `last` is of the frame before; if not, `shifts` are
    those of the first frame. `apply`: whether positions are to be changed. Raises ValueError: a
    frame has no cell.
    """
    shape = positions.shape[1:]
    if not (last.shape == shifts.shape == shape and last.dtype == np.float64):
        raise ValueError(f"last and shifts must have the shape {shape}")
    vectors = _checked(positions, boxes, None)
    backend.module.follow(positions, vectors, last, checks.int32s(shifts, "shifts"), known, apply)


def _checked(positions: Float32s, boxes: Float32s, atoms: Int64s | None) -> Float64s:
    """Check what changes in place; return the vectors of the cells."""
    n_frames, n_atoms = checks.native_rows(positions, "positions").shape[:2]
    checks.output(positions, n_frames, n_atoms)
    checks.indices(atoms, n_atoms)
    vectors = _vectors(boxes, n_frames)
    if not np.all(vectors[:, 2, 2] > 0):
        raise ValueError(f"frame {int(np.argmin(vectors[:, 2, 2] > 0))} has no unit cell")
    return vectors


def _of_molecules(
    positions: Float32s, boxes: Float32s, atoms: Int64s, starts: Int64s, weights: Float64s
) -> Float64s:
    vectors = _checked(positions, boxes, atoms)
    if not (len(weights) == len(atoms) == starts[-1] and np.all(np.diff(starts) > 0)):
        raise ValueError("each molecule needs atoms, and each atom a weight")
    return vectors


def _vectors(boxes: Float32s, n_frames: int) -> Float64s:
    vectors = vectors_from_boxes(boxes).astype(np.float64)
    if len(vectors) != n_frames:
        raise ValueError(f"there are {len(vectors)} boxes for {n_frames} frames")
    return vectors
