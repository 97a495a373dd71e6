"""Kernels over the time series of each atom: mean square displacement, velocity autocorrelation.

Both are means over all pairs of frames that lie a lag apart, which Fourier transforms give for all
lags at once (Kneller et al. 1995, 10.1016/0010-4655(95)00048-K; Calandrini et al. 2011,
10.1051/sfn/201112010). The power spectra of atoms are summed, and the sum is transformed back to
lags once, in the end.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft  # now, so that it is not timed

from mdio.analysis.kernels.kernel import Prepared, SeriesKernel
from mdio.analysis.reducers import NUMBERS_IN_CACHE, Sum
from mdio.analysis.system import System
from mdio.core.boxes import does_cell_change, vectors_from_boxes, with_lengths_of_open_axes
from mdio.core.errors import BlockError, PlanError
from mdio.core.frames import FrameBlock, float32_spacing
from mdio.core.words import number_text
from mdio.layouts.views.options import FOLLOWS_ATOMS, TOROIDAL, TRANSLATION
from mdio.layouts.views.view import notes_on_nojump

Floats = NDArray[np.float64]

TRANSFORM_NBYTES = 16 << 20
"""Bytes of a transform that are in memory at a time."""
MAX_DEVIATION = 0.01
"""Largest deviation from evenly spaced times, as a share of the time step."""
GAP_FACTOR = 1.5
"""A step of time that is this many times the median is a gap."""


@dataclass(frozen=True, slots=True)
class Lags:
    """The lags between evenly spaced frames."""

    n_frames: int
    dt_ps: float
    n_lags: int
    """From 0 on, in frames."""

    @classmethod
    def of(cls, time: NDArray[np.float64], max_lag_ps: float | None) -> Lags:
        """Return the lags between frames at `time` (F,) in ps; raises PlanError: uneven."""
        n_frames = len(time)
        if n_frames < 2:
            raise PlanError("one frame alone has no lags; choose two or more")
        for frame in np.flatnonzero(~np.isfinite(time))[:1]:
            raise PlanError(
                f"frames must be evenly spaced in time, but frame {frame} of {n_frames} lies at "
                f"{time[frame]} ps; leave it out (--start, --stop)"
            )
        dt_ps = float(time[-1] - time[0]) / (n_frames - 1)
        deviation = np.abs(time - time[0] - dt_ps * np.arange(n_frames))
        tolerance = MAX_DEVIATION * dt_ps + 4 * float32_spacing(np.abs(time).max())
        if not dt_ps > 0 or deviation.max() > tolerance:
            raise PlanError(
                f"frames must be evenly spaced in time, but {_describe_uneven_times(time)}"
            )
        if max_lag_ps is None or max_lag_ps >= dt_ps * n_frames:
            return cls(n_frames, dt_ps, n_frames)
        return cls(n_frames, dt_ps, min(n_frames, int(max_lag_ps / dt_ps + 1e-6) + 1))

    @property
    def n_padded(self) -> int:
        """Length of transforms, padded so that no lag reaches around the end."""
        return int(next_fast_len(self.n_frames + self.n_lags - 1, real=True))

    @property
    def time(self) -> Floats:
        """The lags in ps, (n_lags,)."""
        return self.dt_ps * np.arange(self.n_lags, dtype=np.float64)

    def squares_and_spectrum(
        self, vectors: NDArray[np.float32], axes: list[int], *, about_mean: bool = False
    ) -> tuple[Floats, Floats]:
        """Return the squares of `vectors` (F, A, 3) at each frame, and their power spectrum.

        Both are summed over atoms and `axes`: (F,) and (n_padded // 2 + 1,). With `about_mean` the
        mean of each vector is subtracted: small numbers lose fewer digits.
        """
        n_padded = self.n_padded
        squares, power = np.zeros(self.n_frames), np.zeros(n_padded // 2 + 1)
        batch = max(1, TRANSFORM_NBYTES // (8 * n_padded * len(axes)))
        for first in range(0, vectors.shape[1], batch):
            part = vectors[:, first : first + batch].T  # a view, (3, atoms, F)
            series: Floats = np.empty((part.shape[1], len(axes), self.n_frames))
            for number, axis in enumerate(axes):
                series[:, number] = part[axis]
            series = series.reshape(-1, self.n_frames)
            if about_mean:
                series -= series.mean(axis=1, keepdims=True)
            squares += np.einsum("sf,sf->f", series, series)
            transform = rfft(series, n_padded, axis=1, overwrite_x=True)
            power += np.einsum("sk,sk->k", transform.real, transform.real)
            power += np.einsum("sk,sk->k", transform.imag, transform.imag)
        return squares, power

    def products(self, power: Floats) -> Floats:
        """Return the sums of products of vectors a lag apart, (n_lags,)."""
        return np.asarray(irfft(power, self.n_padded)[: self.n_lags])

    @property
    def n_pairs(self) -> Floats:
        """Number of pairs of frames for each lag, (n_lags,)."""
        return self.n_frames - np.arange(self.n_lags, dtype=np.float64)


def _describe_uneven_times(time: NDArray[np.float64]) -> str:
    """Return where frames at `time` (F,), in ps, lie unevenly, and what to do."""
    intervals = np.diff(time)
    median_interval = float(np.median(intervals))
    # Where the interval is least like the others.
    frame = int(np.abs(intervals - median_interval).argmax())
    time_before, time_after = time[frame : frame + 2]
    if not intervals.any():
        return (
            f"all {len(time):,} frames lie at {number_text(time_before)} ps, so that lags are not "
            "known; of a NetCDF file, --timestep (in Python: mdio.open(PATH, dt=)) sets the ps "
            "from frame to frame; what was converted from one is to be converted again with it"
        )
    if median_interval > 0 and intervals[frame] > GAP_FACTOR * median_interval:
        return (
            f"there is a gap between {number_text(time_before)} and {number_text(time_after)} ps, "
            f"while most are {number_text(median_interval)} ps apart; choose frames before or "
            f"after it (-e {number_text(time_before)} or -b {number_text(time_after)}), or give "
            "the part that is missing"
        )
    return (
        f"frame {frame + 1} of {len(time)} lies at {number_text(time_after)} ps, after one at "
        f"{number_text(time_before)} ps, and most lie {number_text(median_interval)} ps apart; "
        "choose frames of one run that do (--start, --stop, --step, --dt)"
    )


@dataclass(frozen=True)
class Lagged(SeriesKernel):
    """Means over all pairs of frames of some atoms: one value for each lag, as of `MSD`."""

    select: str | None = None
    max_lag_ps: float | None = None

    label: ClassVar[str]
    correlated: ClassVar[str]
    """What is correlated, in words."""

    def prepare(self, system: System) -> Prepared:
        """Find the atoms.

        Raises
        ------
        PlanError
            The longest lag is negative, or the trajectory lacks the kernel's fields.
        """
        if self.max_lag_ps is not None and not self.max_lag_ps >= 0:
            raise PlanError(f"the longest lag is {self.max_lag_ps} ps; give 0 or more")
        if system.is_superposed:
            system.notes.append(
                f"frames were superposed on a reference by a fit, so that {self.correlated} are "
                "not those of the simulation; give the trajectory from before the fit"
            )
        atoms = system.select(self.select)
        return Prepared(self.sums, atoms, Sum(), self.fields, labels=(self.label,))

    def lags(self, time: NDArray[np.float64]) -> Lags:
        """Return the lags between frames at `time`."""
        return Lags.of(time, self.max_lag_ps)

    def rows(
        self, sums: Floats, time: Floats, n_atoms: int
    ) -> tuple[NDArray[np.int64], Floats, Floats]:
        lags = self.lags(time)
        return np.arange(lags.n_lags), lags.time, self.means(sums, lags, n_atoms)

    @abstractmethod
    def means(self, sums: Floats, lags: Lags, n_atoms: int) -> Floats:
        """Return the value at each lag, (n_lags,), from the sums over all atoms."""


@dataclass(frozen=True)
class MSD(Lagged):
    """The mean square displacement of atoms over each lag: (lags,) float64, square angstrom.

    The mean over atoms and over all pairs of frames that lie the lag apart, as
    `MDAnalysis.analysis.msd.EinsteinMSD`. Atoms must not jump over the box: `pbc="nojump"`
    (``--pbc nojump``) removes jumps, here or in a conversion; ``toroidal`` where the unit cell
    changes. Rows of the result are lags: `frame` is the lag in frames, `time` in ps.

    Parameters
    ----------
    select
        Which atoms; all by default.
    max_lag_ps
        Longest lag, ps; by default from the first frame to the last. The longer, the fewer pairs of
        frames there are to average over.
    dims
        Axes along which displacements count; ``"xy"`` for a membrane.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> result = mdio.analyze(DCD, top=PSF, kernel=mdio.MSD("name CA", max_lag_ps=10))
    >>> result.values[:3].round(2)
    array([0.  , 0.15, 0.24])
    """

    dims: str = "xyz"

    label = "msd_angstrom2"
    correlated = "displacements"

    def prepare(self, system: System) -> Prepared:
        if "".join(sorted({*self.dims} & {*"xyz"})) != "".join(sorted(self.dims)) or not self.dims:
            raise PlanError(
                f"the dimensions are {self.dims!r}; give some of x, y and z, such as xy"
            )
        if TRANSLATION in system.stored_and_read("fit"):
            system.notes.append(
                "frames were moved onto a reference by a fit (translation), so that displacements "
                "are those relative to the atoms that were fitted"
            )
        pbc = system.stored_and_read("pbc")
        if "nojump" in pbc:
            system.notes += notes_on_nojump(system.layout, system.frames)
        quiet = system.is_superposed or bool({*pbc} & {*FOLLOWS_ATOMS})
        return replace(super().prepare(system), quiet=quiet)

    def sums(self, block: FrameBlock) -> Floats:
        """Return squares of positions and their spectrum."""
        axes = ["xyz".index(axis) for axis in self.dims]
        lags = self.lags(block.time)
        return np.concatenate(lags.squares_and_spectrum(block.positions, axes, about_mean=True))

    def means(self, sums: Floats, lags: Lags, n_atoms: int) -> Floats:
        """Return the mean of (x(t + lag) - x(t))^2, from its three terms."""
        squares, power = np.split(sums, [lags.n_frames])
        squares_before = np.concatenate([[0.0], np.cumsum(squares)])
        lag = np.arange(lags.n_lags)
        pair_squares = (
            squares_before[lags.n_frames - lag] + squares_before[-1] - squares_before[lag]
        )
        values = np.maximum(pair_squares - 2 * lags.products(power), 0) / (lags.n_pairs * n_atoms)
        values[0] *= 0  # exactly 0, or NaN if a position is NaN
        return np.asarray(values)

    def notes(self, block: FrameBlock) -> tuple[str, ...]:
        """Return a note on atoms that move by more than half of the box between two frames."""
        cells = vectors_from_boxes(with_lengths_of_open_axes(block.box)).astype(np.float64)
        frames = 1 + np.flatnonzero(cells[1:].any(axis=(1, 2)))
        batch = max(1, NUMBERS_IN_CACHE // max(1, block.positions[:1].size))
        for some in np.split(frames, range(batch, len(frames), batch)):
            displacements = block.positions[some] - block.positions[some - 1]
            in_cell = displacements @ np.linalg.inv(cells[some])  # in units of its vectors
            if (np.abs(in_cell) > 0.5).any():
                pbc = TOROIDAL if does_cell_change(block.box) else "nojump"
                return (
                    "atoms move by more than half of the box between two frames, so they seem to "
                    "be put back into the box, which makes displacements wrong; remove the jumps "
                    f"with --pbc {pbc} (in Python: pbc='{pbc}'), here or in mdio convert",
                )
        return ()


@dataclass(frozen=True)
class VACF(Lagged):
    """The velocity autocorrelation over each lag: (lags,) float64, (angstrom/ps)^2.

    The mean of v(t) v(t + lag) over atoms and over all pairs of frames that lie the lag apart;
    divided by its first value it begins with 1. Rows of the result are lags, as those of `MSD`.

    Parameters
    ----------
    select
        Which atoms; all by default.
    max_lag_ps
        Longest lag, ps; by default from the first frame to the last.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import GRO, TRR
    >>> result = mdio.analyze(TRR, top=GRO, kernel=mdio.VACF("name CA"), stop=5)
    >>> result.frame
    array([0, 1, 2, 3, 4])
    """

    fields = ("velocities",)
    label = "vacf_angstrom2_per_ps2"
    correlated = "velocities"

    def prepare(self, system: System) -> Prepared:
        if not system.layout.info.has_velocities:
            raise PlanError(
                f"{system.layout.path}: it has no velocities; give a trajectory that has them "
                "(TRR, NetCDF, H5MD, ...)"
            )
        return super().prepare(system)

    def sums(self, block: FrameBlock) -> Floats:
        """Return the spectrum of the velocities."""
        assert block.velocities is not None
        if np.isnan(block.velocities[:, :1]).any():
            n_lacking = int(np.isnan(block.velocities[:, 0, 0]).sum())
            raise BlockError(
                f"{n_lacking} of {block.n_frames} frames have no velocities; choose frames that "
                "have them (--step, --dt)"
            )
        return self.lags(block.time).squares_and_spectrum(block.velocities, [0, 1, 2])[1]

    def means(self, sums: Floats, lags: Lags, n_atoms: int) -> Floats:
        return lags.products(sums) / (lags.n_pairs * n_atoms)
