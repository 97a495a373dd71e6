"""Coordinates in and out of raw file buffers: interleaved, swapped, scaled, picked."""

from __future__ import annotations

from mdio.core.kernels import backend, checks
from mdio.core.kernels.checks import Float32s, Int64s


def planar_to_xyz(
    planar: Float32s, out: Float32s, atoms: Int64s | None = None, swap: bool = False
) -> None:
    """Interleave coordinates that are stored as all x, all y, all z (DCD).

    `planar` ((F, 3, A) float32): contiguous along the atoms; frames and axes may lie anywhere
    (record markers between them) and need no alignment. Bytes are swapped if its dtype is of the
    other byte order. `out` ((F, k, 3) float32): filled. `atoms` ((k,) int64, optional): which
    atoms; all by default. `swap`: whether the bytes are the other way round than the dtype says.
    """
    planar, swapped = checks.coordinates(planar, "planar")
    n_frames, n_axes, n_atoms = planar.shape
    if n_axes != 3:
        raise ValueError(f"planar has shape {planar.shape}; it must be (frames, 3, atoms)")
    if planar.size and n_atoms > 1 and planar.strides[2] != 4:
        raise ValueError("planar must be contiguous along its atoms; pass a copy")
    atoms, n_out = checks.indices(atoms, n_atoms)
    out = checks.output(out, n_frames, n_out)
    if out.size:
        backend.module.planar_to_xyz(planar, out, atoms, swap != swapped)


def swap_to_native(
    src: Float32s, out: Float32s, atoms: Int64s | None = None, scale: float | None = None
) -> None:
    """Copy coordinates out of a raw file buffer: swap bytes if need be, pick atoms, convert units.

    `src` ((F, A, 3) float32): big-endian (``>f4``: NetCDF-3 records, TRR) or little-endian, as its
    dtype says; frames may lie anywhere and need no alignment. `out` ((F, k, 3) float32): filled.
    `atoms` ((k,) int64, optional): which atoms; all by default. `scale`: multiplies every number,
    as float32 by float32 (10 makes nm to angstrom).
    """
    src, swapped = checks.atom_rows(src, "src")
    atoms, n_out = checks.indices(atoms, src.shape[1])
    out = checks.output(out, src.shape[0], n_out)
    if out.size:
        backend.module.copy_atoms(src, out, atoms, swapped, 1.0 if scale is None else scale)


def gather_atoms(src: Float32s, atoms: Int64s, out: Float32s) -> None:
    """Copy some atoms of every frame: ``np.take(src, atoms, axis=1, out=out)``.

    `src` ((F, A, 3) float32): frames may lie anywhere. `atoms` ((k,) int64): which atoms. `out`
    ((F, k, 3) float32): filled.
    """
    src = checks.native_rows(src, "src")
    indices, n_out = checks.indices(atoms, src.shape[1])
    out = checks.output(out, src.shape[0], n_out)
    if out.size:
        backend.module.copy_atoms(src, out, indices, False, 1.0)


def xyz_to_planar(src: Float32s, planar: Float32s) -> None:
    """Undo `planar_to_xyz`, for all atoms.

    `src` ((F, A, 3) float32): frames may lie anywhere. `planar` ((F, 3, A) float32): filled.
    Contiguous along the atoms; frames and axes may lie anywhere (record markers between them) and
    need no alignment.
    """
    src = checks.native_rows(src, "src")
    planar, swapped = checks.coordinates(planar, "planar")
    n_frames, n_atoms, _ = src.shape
    if planar.shape != (n_frames, 3, n_atoms) or swapped:
        raise ValueError(f"planar has shape {planar.shape}; it must be {(n_frames, 3, n_atoms)}")
    if planar.size and n_atoms > 1 and planar.strides[2] != 4:
        raise ValueError("planar must be contiguous along its atoms")
    if not planar.flags.writeable:
        raise ValueError("planar is read-only")
    if planar.size:
        backend.module.xyz_to_planar(src, planar)
