"""Kernels of coordinates: copies out of raw file buffers, RMSD and fits, angles, periodic cells.

Coordinates are interleaved, byte-swapped, scaled and selected by atom on their way in and out.

Dihedral angles are given as cosines and sines, so that no angle has to be computed. With the bonds
a, b, c from atom to atom, x = (a x b) . (b x c) and y = |b| a . (b x c) are the cosine and the sine
times a common factor (Blondel & Karplus 1996,
10.1002/(SICI)1096-987X(19960715)17:9<1132::AID-JCC5>3.0.CO;2-T, with the sign of IUPAC).

For periodic cells: which atoms are near others across a boundary, and which molecules it cuts.

Arguments, all in one unit of length: `positions` and `src`, (F, A, 3) float32, whose frames may
have any distance in memory; `planar`, (F, 3, A) float32, contiguous along the atoms, whose frames
and axes may have any distance (record markers lie between them) and need no alignment; `atoms`,
(k,) int64, all by default; `out`, filled, (F, k, 3) float32 of coordinates; `boxes`, (F, 6)
float32, lengths and angles in degrees, a row of zeros where there is none. Functions that move
molecules within cells raise ValueError for a frame without a cell. Arrays of indices are
C-contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mdio.core.boxes import open_axes, vectors_from_boxes, with_lengths_of_open_axes
from mdio.core.kernels import backend, checks
from mdio.core.kernels.checks import Float32s, Float64s, Int64s


def planar_to_xyz(planar: Float32s, out: Float32s, atoms: Int64s | None = None) -> None:
    """Interleave coordinates that are stored as all x, all y, all z (DCD).

    Bytes are swapped if the dtype of `planar` is of the other byte order.
    """
    planar, is_swapped = checks.planes(planar)
    n_frames, _, n_atoms = planar.shape
    atoms, n_out = checks.indices(atoms, n_atoms)
    out = checks.output(out, n_frames, n_out)
    if out.size:
        backend.module.planar_to_xyz(planar, out, atoms, is_swapped)


def swap_to_native(
    src: Float32s, out: Float32s, atoms: Int64s | None = None, scale: float | None = None
) -> None:
    """Copy coordinates out of a raw file buffer: swap bytes, select atoms and convert units.

    `src`: big-endian (``>f4``: NetCDF-3 records, TRR) or little-endian, as its dtype says; needs no
    alignment. `scale`: multiplies every number, as float32 by float32 (10 makes nm to angstrom).
    """
    src, is_swapped = checks.atom_rows(src, "src")
    atoms, n_out = checks.indices(atoms, src.shape[1])
    out = checks.output(out, src.shape[0], n_out)
    if out.size:
        backend.module.copy_atoms(src, out, atoms, is_swapped, 1.0 if scale is None else scale)


def gather_atoms(src: Float32s, atoms: Int64s, out: Float32s) -> None:
    """Copy some atoms of every frame: ``np.take(src, atoms, axis=1, out=out)``."""
    src = checks.native_rows(src, "src")
    indices, n_out = checks.indices(atoms, src.shape[1])
    out = checks.output(out, src.shape[0], n_out)
    if out.size:
        backend.module.copy_atoms(src, out, indices, False, 1.0)


def xyz_to_planar(src: Float32s, planar: Float32s) -> None:
    """Undo `planar_to_xyz`, for all atoms: fill `planar`."""
    src = checks.native_rows(src, "src")
    planar, is_swapped = checks.planes(planar)
    n_frames, n_atoms, _ = src.shape
    if planar.shape != (n_frames, 3, n_atoms) or is_swapped:
        raise ValueError(f"planar has shape {planar.shape}; it must be {(n_frames, 3, n_atoms)}")
    if not planar.flags.writeable:
        raise ValueError("planar is read-only")
    if planar.size:
        backend.module.xyz_to_planar(src, planar)


def rmsd(
    positions: Float32s,
    reference: Float64s,
    weights: Float64s | None = None,
    superpose: bool = True,
    out: Float64s | None = None,
) -> Float64s:
    """Return the root-mean-square deviation of every frame from a reference, (F,) float64.

    `reference`, (A, 3) float64: need not be centred. `weights`, (A,) float64: not negative, such as
    masses; only their ratios matter. `superpose`: whether to take the minimum over all translations
    and proper rotations (centres, weighted if there are weights, are removed from both; then the
    QCP method: Theobald 2005, 10.1107/S0108767305015266; Liu et al. 2010, 10.1002/jcc.21439). If
    not, the coordinates are compared as they are. `out`: filled and returned.
    Returns ``sqrt(sum(w (x - r)**2) / sum(w))``, as MDAnalysis' ``rms.rmsd(x, r, w,
    center=superpose, superposition=superpose)``; not finite for frames with a number that is not.
    Raises ValueError: no atoms, a reference that is not finite, weights that are negative or sum to
    zero.
    """
    n_frames, n_atoms = checks.native_rows(positions, "positions").shape[:2]
    reference = np.ascontiguousarray(reference, np.float64)
    if n_atoms == 0 or reference.shape != (n_atoms, 3):
        raise ValueError(f"reference has shape {reference.shape} for {n_atoms} atoms")
    if not np.isfinite(reference).all():
        raise ValueError("the reference has numbers that are not finite")
    if weights is not None:
        weights = np.ascontiguousarray(weights, np.float64)
        if weights.shape != (n_atoms,):
            raise ValueError(f"weights have shape {weights.shape} for {n_atoms} atoms")
        if not (weights.min() >= 0 and 0 < weights.sum() < np.inf):
            raise ValueError("weights must not be negative, and some must be positive")
    out = np.empty(n_frames) if out is None else out
    checks.array(out, "out", np.float64, (n_frames,), is_output=True)
    if out.size:
        backend.module.rmsd(positions, reference, weights, superpose, out)
    return out


def dihedrals(positions: Float32s, quads: Int64s, out: Float64s) -> Float64s:
    """Fill `out` with the cosine and the sine of dihedral angles in every frame.

    Bonds are taken as they are, whatever the box. `quads`, (n, 4) int64: the four atoms of each
    angle. `out`, (F, 2 n) float64: of each angle the cosine, then the sine; not a number where the
    four atoms lie on a line, or a coordinate is not finite.
    Returns (F,) float64: the longest bond of each frame: bonds much shorter than the box do not
    reach through it. Bonds that are not a number do not count.
    """
    n_frames, n_atoms = checks.native_rows(positions, "positions").shape[:2]
    checks.array(quads, "quads", np.int64, (None, 4))
    checks.indices(quads.reshape(-1), n_atoms)
    checks.array(out, "out", np.float64, (n_frames, 2 * len(quads)), is_output=True)
    longest = np.zeros(n_frames)
    if out.size:
        backend.module.dihedrals(positions, quads, out, longest)
    return longest


def within(
    positions: Float32s, boxes: Float32s, sources: Int64s, targets: Int64s, radius: float
) -> NDArray[np.bool_]:
    """Return which of `targets` lie within `radius` of any of `sources`, (F, targets) bool.

    `boxes`: all periodic images of the sources count. `sources`, `targets`, (n,) int64: atoms; one
    whose coordinates are not finite is near to nothing. `radius`: atoms at just this distance are
    within.
    Raises ValueError: the radius is not positive, or larger than the smallest width of some frame's
    cell.
    """
    n_frames, n_atoms = checks.native_rows(positions, "positions").shape[:2]
    checks.indices(sources, n_atoms)
    checks.indices(targets, n_atoms)
    radius = checks.step_size(radius, "the radius")
    out = np.zeros((n_frames, len(targets)), np.bool_)
    if out.size:
        if open_axes(boxes).any():
            # With images further away than any of these atoms is.
            places = positions[:, np.union1d(sources, targets)].astype(np.float64)
            extents = np.ptp(np.where(np.isfinite(places), places, 0), axis=1)
            boxes = with_lengths_of_open_axes(boxes, extents + 2 * radius + 1)
        vectors = _vectors(boxes, n_frames)
        backend.module.within(positions, vectors, sources, targets, radius, out)
    return out


def cut_frames(
    positions: Float32s, boxes: Float32s, atoms: Int64s, limit: float
) -> NDArray[np.bool_]:
    """Return in which frames the box cuts molecules, (F,) bool.

    `atoms`, (n,) int64: atoms of which the next one is a neighbour, no further away than `limit` in
    a molecule that is whole. A frame is cut if one of them is further away, but no further over the
    sides of the box. Coordinates that are not a number do not count.
    """
    n_frames, n_atoms = checks.native_rows(positions, "positions").shape[:2]
    out = np.zeros(n_frames, bool)
    if n_atoms > 1 and len(atoms):
        checks.indices(atoms, n_atoms - 1)
        vectors = _vectors(with_lengths_of_open_axes(boxes), n_frames)
        backend.module.cut_frames(positions, vectors, atoms, limit, out)
    return out


def distances(
    positions: Float32s,
    boxes: Float32s,
    first: Int64s,
    second: Int64s,
    out: Float64s | None = None,
) -> Float64s:
    """Return the distances of atoms `first` from `second`, (n,) int64, in every frame, (F, n).

    To the nearest image, in cells of all shapes; without images where there is no cell. `out`:
    filled and returned; float64.
    """
    n_frames, n_atoms = checks.native_rows(positions, "positions").shape[:2]
    for atoms in (first, second):
        checks.indices(atoms, n_atoms)
        checks.array(atoms, "atoms", np.int64, (len(first),))
    vectors = _vectors(with_lengths_of_open_axes(boxes), n_frames)
    out = np.empty((n_frames, len(first))) if out is None else out
    checks.array(out, "out", np.float64, (n_frames, len(first)), is_output=True)
    backend.module.distances(positions, vectors, first, second, out)
    return out


def longest_distances(positions: Float32s, atoms: Int64s) -> Float64s:
    """Return, of each frame, the longest distance of `atoms` from the next one, (F,) float64.

    `atoms`, (n,) int64. Coordinates that are not a number do not count.
    """
    n_frames, n_atoms = checks.native_rows(positions, "positions").shape[:2]
    checks.indices(atoms, n_atoms - 1)
    out = np.zeros(n_frames)
    backend.module.longest_distances(positions, atoms, out)
    return out


def make_whole(positions: Float32s, boxes: Float32s, links: Int64s) -> None:
    """Move atoms by vectors of the cell, in place, so that no bond goes over its boundary.

    `links`, (n, 2) int64: an atom that may move, and one that it is bound to and that stays or has
    been moved before. The first comes to its image that is nearest to the other.
    """
    vectors = _cell_vectors(positions, boxes, links.reshape(-1))
    backend.module.make_whole(positions, vectors, links)


def put_in_cell(
    positions: Float32s, boxes: Float32s, atoms: Int64s, starts: Int64s, weights: Float64s
) -> None:
    """Move molecules by vectors of the cell, in place, so that their centres lie in it.

    `atoms`, (n,): the molecules' atoms, one molecule after the other. `starts`, (M + 1,) int64:
    where each molecule begins among them; n last. `weights`, (n,) float64: of these atoms, for the
    centre; their sum is 1 in each molecule.
    """
    vectors = _check_molecules(positions, boxes, atoms, starts, weights)
    backend.module.put_in_cell(positions, vectors, atoms, starts, weights)


def gather(
    positions: Float32s, boxes: Float32s, atoms: Int64s, starts: Int64s, weights: Float64s
) -> None:
    """Move molecules by vectors of the cell, in place, so that they lie together.

    The molecule whose centre is nearest to the middle of the cell stays. Then, one by one, the
    molecule whose centre is nearest to any of those already placed is moved to it, as with ``gmx
    trjconv -pbc cluster``. Arguments are those of `put_in_cell`.
    """
    vectors = _check_molecules(positions, boxes, atoms, starts, weights)
    backend.module.gather(positions, vectors, atoms, starts, weights)


def centre(positions: Float32s, boxes: Float32s, atoms: Int64s) -> None:
    """Move all atoms, in place, so that the centre of `atoms` is the middle of the cell.

    `atoms`, (n,) int64: at least one atom, else ValueError; the centre is that of geometry.
    """
    vectors = _cell_vectors(positions, boxes, atoms)
    if not len(atoms):
        raise ValueError("no atoms to centre")
    backend.module.centre(positions, vectors, atoms)


def follow(
    positions: Float32s,
    boxes: Float32s,
    last: Float64s,
    shifts: NDArray[np.int64],
    *,
    has_last: bool,
    apply: bool = True,
    by_steps: bool = False,
) -> None:
    """Find where atoms jump over boundaries from frame to frame, and undo that in place.

    The method is that of equation B6 of Kulke and Vermaas, J. Chem. Theory Comput. 18, 6161 (2022),
    doi:10.1021/acs.jctc.2c00327, and of MDAnalysis' ``NoJump``; in cells that are not rectangular,
    an atom goes the shortest way instead. With `by_steps` it is the toroidal-view-preserving scheme
    of von Bülow, Bullerjahn and Hummer, J. Chem. Phys. 153, 021101 (2020), doi:10.1063/5.0008316:
    each step from frame to frame is the shortest in the cell of the later frame, and all are added.
    `last`, (A, 3) float64: where atoms were in the frame before, in units of its cell (by steps:
    angstrom), or in the last one in which they had a finite place; NaN if there was none. Becomes
    that of the last frame. `shifts`, (A, 3) int64: how often they have crossed each boundary until
    then (by steps: what the jumps have added, 1/2^20 angstrom); becomes that until the last frame.
    `has_last`: whether `last` is of frames before; if not, `shifts` are those of the first frame.
    `apply`: whether positions are changed.
    """
    checks.array(last, "last", np.float64, positions.shape[1:], is_output=True)
    checks.array(shifts, "shifts", np.int64, positions.shape[1:], is_output=True)
    vectors = _cell_vectors(positions, boxes, None)
    kernel = backend.module.follow_steps if by_steps else backend.module.follow
    kernel(positions, vectors, last, shifts, has_last, apply)


def best_fits(
    positions: Float32s, atoms: Int64s, reference: Float64s, *, rotate: bool = True
) -> tuple[Float64s, Float64s]:
    """Return what lays `atoms` of each frame on a centred reference as closely as possible.

    These are the centres of the atoms, (F, 3), which are subtracted, and then rotations, (F, 3, 3),
    by which row vectors are multiplied from the right: the sum of squared distances is least
    (Kabsch 1976, 10.1107/S0567739476001873). Rotations are NaN in a frame in which coordinates of
    `atoms` are not finite. `atoms`, (n,) int64: at least one atom. `reference`, (n, 3) float64:
    where they are to lie, centred. `rotate`: if not, nothing is rotated.
    Raises ValueError: there are no `atoms`, or a reference that is not finite or of another shape.
    """
    n_frames, n_atoms = checks.native_rows(positions, "positions").shape[:2]
    checks.indices(atoms, n_atoms)
    reference = np.ascontiguousarray(reference, np.float64)
    if not len(atoms) or reference.shape != (len(atoms), 3) or not np.isfinite(reference).all():
        raise ValueError(f"a reference of shape {reference.shape} for {len(atoms)} atoms")
    sums = np.empty((n_frames, 12))
    backend.module.fit_sums(positions, atoms, reference, sums)
    is_finite = np.isfinite(sums).all(axis=1)
    rotations = np.tile(np.eye(3), (n_frames, 1, 1))
    if rotate:
        left, _, right = np.linalg.svd(sums[is_finite, 3:].reshape(-1, 3, 3))
        # Where the best map would be a mirror image, the axis of least weight is turned.
        left[:, :, 2] *= np.sign(np.linalg.det(left) * np.linalg.det(right))[:, np.newaxis]
        rotations[is_finite] = left @ right
    rotations[~is_finite] = np.nan
    return sums[:, :3] / len(atoms), rotations


def fit(
    positions: Float32s,
    atoms: Int64s,
    reference: Float64s,
    *,
    rotate: bool = True,
    along: Sequence[Float32s] = (),
) -> None:
    """Move all atoms, in place, so that `atoms` lie on a reference as closely as possible.

    Each frame is fitted by itself, as in `best_fits`, whose `reference` need not be centred here. A
    frame in which coordinates of `atoms` are not finite becomes NaN. `along`, (F, A, 3) float32
    each: vectors of the atoms, which turn with them.
    """
    for array in (positions, *along):
        checks.output(array, *positions.shape[:2])
    target = reference.mean(axis=0)
    origins, rotations = best_fits(positions, atoms, reference - target, rotate=rotate)
    backend.module.turn(positions, rotations, np.ascontiguousarray(origins), target)
    for array in along if rotate else ():
        backend.module.turn(array, rotations, np.zeros((len(array), 3)), np.zeros(3))


def _cell_vectors(positions: Float32s, boxes: Float32s, atoms: Int64s | None) -> Float64s:
    """Check positions that are changed in place, and return the vectors of the cells."""
    n_frames, n_atoms = checks.native_rows(positions, "positions").shape[:2]
    checks.output(positions, n_frames, n_atoms)
    checks.indices(atoms, n_atoms)
    vectors = _vectors(boxes, n_frames)
    if not np.all(vectors[:, 2, 2] > 0):
        raise ValueError(f"frame {int(np.argmin(vectors[:, 2, 2] > 0))} has no unit cell")
    return vectors


def _check_molecules(
    positions: Float32s, boxes: Float32s, atoms: Int64s, starts: Int64s, weights: Float64s
) -> Float64s:
    """Check molecules that are moved in place, and return the vectors of the cells."""
    vectors = _cell_vectors(positions, boxes, atoms)
    if not (len(weights) == len(atoms) == starts[-1] and np.all(np.diff(starts) > 0)):
        raise ValueError("each molecule needs atoms, and each atom a weight")
    return vectors


def _vectors(boxes: Float32s, n_frames: int) -> Float64s:
    vectors = vectors_from_boxes(boxes).astype(np.float64)
    if len(vectors) != n_frames:
        raise ValueError(f"there are {len(vectors)} boxes for {n_frames} frames")
    return vectors
