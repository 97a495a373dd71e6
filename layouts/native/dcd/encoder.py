"""Bytes of DCD files: CHARMM flavour, little-endian, with unit cell.

The format (Fortran records of three planes of coordinates) is described at
https://www.ks.uiuc.edu/Research/vmd/plugins/molfile/dcdplugin.html; what stands in the fields
follows MDAnalysis: cells as ``A, cos(gamma), B, cos(beta), cos(alpha), C`` (NAMD since 2.5), time
steps in AKMA units.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from mdio.core.frames import FrameBlock
from mdio.core.kernels import xyz_to_planar
from mdio.core.units import AKMA_TO_PS
from mdio.layouts.native.encoder import Bytes, Encoder

CELL_ORDER = [0, 5, 1, 4, 3, 2]
TITLE = b"written by mdio"
TITLE_NBYTES = 80
HEADER = struct.Struct("<i4s9if10i2i")
"""Marker, CORD, frames, istart, nsavc, 6 unused, delta, cell flag, 8 unused, version, marker (84);
then marker and number of titles of the next record."""
INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True)
class DCDEncoder(Encoder):
    """DCD: positions and cells, and only times that are equally spaced.

    The time of a frame is not stored: readers compute it from the number of the first step, the
    steps between frames and the time step, in single precision. Where times are not equally
    spaced (`lost` tells), they run evenly from the first to the last, or by 1 ps if these are equal
    or the last is before the first.
    """

    @property
    def header_nbytes(self) -> int:
        """Bytes of the three header records."""
        return 92 + (4 + 4 + TITLE_NBYTES + 4) + 12

    @property
    def frame_nbytes(self) -> int:
        """Bytes of the cell record and the three planes."""
        return 56 + 3 * (4 * self.n_atoms + 8)

    def header(self, time: NDArray[np.float64], step: NDArray[np.int64]) -> bytes:
        """Return the header of a file with these frames; see the base class."""
        istart, nsavc, dt_ps = _clock(time, step)
        first = HEADER.pack(
            84, b"CORD", len(time), istart, nsavc, *[0] * 6,
            dt_ps / AKMA_TO_PS / nsavc, 1, *[0] * 8, 24, 84, 4 + TITLE_NBYTES,
        )  # fmt: skip
        title = struct.pack(f"<i{TITLE_NBYTES}si", 1, TITLE, 4 + TITLE_NBYTES)
        return first + title + struct.pack("<3i", 4, self.n_atoms, 4)

    def frames(self, block: FrameBlock, out: Bytes | None = None) -> Bytes:
        """Return the records of all frames; see the base class."""
        n_frames, n_atoms = block.n_frames, self.n_atoms
        if out is None:
            out = np.empty(n_frames * self.frame_nbytes, np.uint8)
        words = out.view("<i4").reshape(n_frames, -1)
        words[:, [0, 13]] = 48
        words[:, 1:13] = _cells(block.box).view("<i4")
        planes = words[:, 14:].reshape(n_frames, 3, n_atoms + 2)
        planes[:, :, [0, -1]] = 4 * n_atoms
        xyz_to_planar(block.positions, planes[:, :, 1:-1].view("<f4"))
        return out

    def lost(self, time: NDArray[np.float64], step: NDArray[np.int64]) -> str | None:  # noqa: ARG002
        """Return a sentence if these times are not equally spaced, with the first that differs."""
        even = time[0] + _dt(time) * np.arange(len(time))  # what `_clock` makes of them
        # Times may come from a format in single precision, and go into one.
        room = 4e-7 * np.abs(time).max() + 1e-6 * _dt(time)
        differ = ~(np.abs(time - even) <= room)  # NaN too
        if not differ.any():
            return None
        first = int(np.argmax(differ))
        grow = time[-1] > time[0]
        how = (
            "they are evened out"
            if grow
            else "they do not grow, so they cannot be evened out and are counted again"
        )
        return (
            f"dcd cannot hold times that are not equally spaced: {how}; the file says {even[0]:g} "
            f"to {even[-1]:g} ps, every {_dt(time):g} ps. Frame {first} is the first to differ, at "
            f"{even[first]:g} ps instead of {time[first]:g} ps; h5md, zarr, trr and ncdf hold any "
            "times"
        )


def _cells(box: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return cells (F, 6) as DCD has them, in the arithmetic of MDAnalysis' writer."""
    cells = np.take(box, CELL_ORDER, axis=1)
    angles = [1, 3, 4]
    cells[:, angles] = np.sin(np.deg2rad(np.float32(90.0) - cells[:, angles]))
    return np.ascontiguousarray(cells, "<f8")


def _dt(time: NDArray[np.float64]) -> float:
    """Return the mean time between frames; 1 ps if there is none, as MDAnalysis has it."""
    if len(time) < 2 or not time[-1] > time[0]:
        return 1.0
    return float(time[-1] - time[0]) / (len(time) - 1)


def _clock(time: NDArray[np.float64], step: NDArray[np.int64]) -> tuple[int, int, float]:
    """Choose (istart, nsavc, dt) with ``(frame + istart / nsavc) * dt`` the times of the frames.

    The source's own steps are kept where they say the same as its times; otherwise the ratio of
    the first time to dt is written as the nearest simple fraction.
    """
    dt_ps = _dt(time)
    offset = float(time[0]) / dt_ps
    if len(step) > 1:
        stride = int(step[1] - step[0])
        even = bool((np.diff(step) == stride).all())
        fits = even and 0 < stride <= INT32_MAX and abs(int(step[0])) <= INT32_MAX
        if fits and abs(int(step[0]) / stride - offset) <= 1e-6 * max(1.0, abs(offset)):
            return int(step[0]), stride, dt_ps
    ratio = Fraction(offset).limit_denominator(1000)
    if abs(ratio.numerator) > INT32_MAX:
        ratio = Fraction(max(-INT32_MAX, min(INT32_MAX, round(offset))))
    return ratio.numerator, ratio.denominator, dt_ps
