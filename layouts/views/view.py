"""Some frames and some atoms of a layout, as a layout."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.blocks import FrameRuns
from mdio.core.boxes import does_cell_change
from mdio.core.errors import MdioError, PlanError
from mdio.core.files.in_flight import MAX_SEPARATE_RUNS, ByteRange, Opening
from mdio.core.frames import (
    FIELDS,
    AtomIndices,
    FrameBlock,
    FrameData,
    TrajectoryInfo,
    float32_spacing,
)
from mdio.core.topology import Topology
from mdio.core.words import number_text
from mdio.layouts.base import FormatFacts, Layout, StoredTimes
from mdio.layouts.manifest import runs_from_indices

FrameNumbers = range | NDArray[np.int64]

DENSE_STEP = 2
"""Up to this stride, reading all frames and dropping some is cheaper than reading single frames."""
TIME_ROUNDING_ULPS = 4
"""Error of a time in a file, in units in the last place of float32: the time is rounded, and so is
the time step from which it was computed."""


def select_frames(
    source: Layout,
    start: int | None = None,
    stop: int | None = None,
    step: int | None = None,
    begin_ps: float | None = None,
    end_ps: float | None = None,
    dt_ps: float | None = None,
    origin_ps: float | None = None,
) -> FrameNumbers:
    """Choose frames of `source` by number, and of these by time; raises PlanError.

    `start`, `stop`, `step`: as a Python slice, with a positive step. `begin_ps`, `end_ps`: times,
    both included (as ``-b`` and ``-e`` of GROMACS); the first frame between them is the first of
    `step`. `dt_ps`: of these, only frames at a multiple of this time after the first one kept, or
    after `origin_ps`.
    Returns frame numbers in `source`, ascending.
    """
    info = source.info
    if step is not None and step < 1:
        raise PlanError(f"--step is {step}; give a whole number of 1 or more")
    for name, time_ps in (("-b", begin_ps), ("-e", end_ps)):
        if time_ps is not None and math.isnan(time_ps):
            raise PlanError(f"{name} is not a number; give a time in ps")
    if dt_ps is not None and not 0 < dt_ps < math.inf:
        raise PlanError(f"--dt is {number_text(dt_ps)} ps; give a positive time")
    frames: FrameNumbers = range(*slice(start, stop).indices(info.n_frames))
    stride = min(step or 1, max(1, info.n_frames))  # arrays take no larger one than 64 bits
    if begin_ps is None and end_ps is None and dt_ps is None:
        frames = frames[::stride]
    elif len(frames):
        frames = np.asarray(frames, dtype=np.int64)
        time = read_times(source)[frames]
        tolerance_ps = time_tolerance_ps(time)
        keep = np.ones(len(frames), dtype=bool)
        if begin_ps is not None:
            keep &= time >= begin_ps - tolerance_ps
        if end_ps is not None:
            keep &= time <= end_ps + tolerance_ps
        if dt_ps is not None:
            keep &= np.isfinite(time)
        frames, time = frames[keep][::stride], time[keep][::stride]
        if dt_ps is not None and len(frames):
            ratio = (time - (time[0] if origin_ps is None else origin_ps)) / dt_ps
            frames = frames[np.abs(ratio - np.rint(ratio)) * dt_ps <= tolerance_ps]
    if len(frames) > 1 and not isinstance(frames, range) and len(set(np.diff(frames))) == 1:
        frames = range(int(frames[0]), int(frames[-1]) + 1, int(frames[1] - frames[0]))
    if not len(frames):
        bounds: dict[str, float | None] = {"start": start, "stop": stop, "step": step}
        bounds |= {"begin": begin_ps, "end": end_ps, "dt": dt_ps}
        given_bounds = {name: value for name, value in bounds.items() if value is not None}
        options = " ".join(f"--{name} {value:g}" for name, value in given_bounds.items())
        raise PlanError(
            f"{source.path}: no frames with {options}; it has frames 0 to {info.n_frames - 1}, "
            f"from {number_text(info.time_first_ps)} to {number_text(info.time_last_ps)} ps"
            if info.n_frames
            else f"{source.path}: it has no frames"
        )
    return frames


def clip_runs(
    runs: Sequence[tuple[Layout, int, int]], start: int, stop: int
) -> Iterator[tuple[Layout, int, int]]:
    """Yield those parts of `runs` (see `Layout.joined_layouts`) that are frames ``start:stop``."""
    for layout, run_start, run_stop in runs:
        begin, end = max(run_start, run_start + start), min(run_stop, run_start + stop)
        if begin < end:
            yield layout, begin, end
        n_frames = run_stop - run_start
        start, stop = start - n_frames, stop - n_frames


def time_tolerance_ps(time: NDArray[np.float64]) -> float:
    """Return the difference at which two times count as equal, since files round times.

    It is always less than half the spacing of frames, however long the trajectory is.
    """
    time = time[np.isfinite(time)]
    rounding = TIME_ROUNDING_ULPS * float32_spacing(np.abs(time).max(initial=0))
    gaps = np.abs(np.diff(time))
    gaps = gaps[gaps > 0]
    if not gaps.size:
        return rounding
    spacing = float(np.median(gaps))
    return min(max(rounding, 1e-3 * spacing), spacing / 4)


def note_on_dt(source: TrajectoryInfo, selected: TrajectoryInfo, dt_ps: float) -> str | None:
    """Return a note if the frames that ``dt_ps`` selected are not this time apart, else None."""
    option = f"--dt {number_text(dt_ps)}"
    if not math.isfinite(source.time_first_ps + source.time_last_ps):
        return None
    if source.n_frames > 1 and source.time_first_ps == source.time_last_ps:
        time = number_text(source.time_first_ps)
        return f"{option} leaves no frame out: the first and the last have the same time, {time} ps"
    latest_ps = max(abs(source.time_first_ps), abs(source.time_last_ps))
    ulp_ps = float32_spacing(latest_ps)
    digits = max(1, math.floor(-math.log10(ulp_ps)))
    tolerance_ps = max(1e-3 * dt_ps, 2 * TIME_ROUNDING_ULPS * ulp_ps)

    def spacing(info: TrajectoryInfo) -> tuple[float, str]:
        """Return how far frames are apart, ps, and that in words."""
        mean_ps = (info.time_last_ps - info.time_first_ps) / max(info.n_frames - 1, 1)
        is_even = abs(mean_ps - info.dt_ps) <= 2 * TIME_ROUNDING_ULPS * ulp_ps + 1e-3 * info.dt_ps
        spacing_ps = mean_ps if is_even else info.dt_ps
        pair = "" if is_even else "the first two "
        text = f", {pair}{number_text(round(spacing_ps, digits))} ps apart"
        return spacing_ps, text if info.n_frames > 1 else ""

    source_ps, _ = spacing(source)
    selected_ps, spacing_text = spacing(selected)
    ratio = dt_ps / source_ps if source_ps > 0 else 1.0
    tolerance = max(1e-3, ratio * ulp_ps / max(source_ps, ulp_ps) / max(source.n_frames - 1, 1))
    if abs(ratio - round(ratio)) > tolerance or round(ratio) < 1:
        return (
            f"{option} is not a multiple of the {number_text(round(source_ps, digits))} ps between "
            f"frames, and frames are not interpolated: at multiples of {number_text(dt_ps)} ps "
            f"after the first there are {selected.n_frames:,}{spacing_text}"
        )
    if selected.n_frames < 2 or abs(selected_ps - dt_ps) <= tolerance_ps:
        return None
    return (
        f"{option} chose {selected.n_frames:,} frames{spacing_text}: --step, or a gap in the "
        "source, leaves out others that it would choose"
    )


RUN_FRAMES = 65536
"""Frames whose boxes, times and steps are read at a time."""


def read_columns(source: Layout) -> FrameBlock:
    """Return boxes, times and steps of all frames, without atoms."""
    n_frames = source.info.n_frames
    edges = [*range(0, max(1, n_frames), RUN_FRAMES), n_frames]
    return FrameBlock.concatenate([source.read(a, b, atoms=[]) for a, b in pairwise(edges)])


def read_times(source: Layout) -> NDArray[np.float64]:
    """Return the times of all frames, ps, (F,)."""
    return read_columns(source).time


def notes_on_nojump(source: Layout, frames: FrameNumbers) -> list[str]:
    """Return a note if the unit cell changes: diffusion after ``nojump`` is then wrong.

    `frames`: the chosen ones, of which the first, the middle and the last are looked at.
    """
    boxes = [np.empty((0, 6), np.float32)]
    for frame in sorted({int(frames[index]) for index in (0, (len(frames) - 1) // 2, -1)}):
        with suppress(MdioError):  # frames that cannot be read are reported later
            boxes.append(source.read(frame, frame + 1, atoms=[]).box)
    if not does_cell_change(np.concatenate(boxes)):
        return []
    return [
        "the unit cell changes, so that displacements after --pbc nojump grow too large "
        "(10.1063/5.0008316); for diffusion take --pbc toroidal (in Python: pbc='toroidal')"
    ]


class ViewLayout(Layout):
    """The chosen frames and atoms of a source.

    `path`: of the source, for messages. `frames`, `atoms`: numbers in the source, in the order of
    the view; all by default. `unreadable`: runs of the source's frames that are left out since they
    cannot be read.
    """

    name = "view"
    facts = FormatFacts(options=frozenset({"source", "frames", "atoms", "unreadable"}))

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        source: Layout,
        frames: FrameNumbers | None = None,
        atoms: AtomIndices | None = None,
        unreadable: list[list[int]] | None = None,
        **options: Any,
    ) -> None:
        view_options: dict[str, Any] = {"frames": frames, "atoms": atoms, "unreadable": unreadable}
        super().__init__(path, source=source, **view_options, **options)
        self.source = source
        frames = range(source.info.n_frames) if frames is None else frames
        self.frames: FrameNumbers = frames
        self.atoms = atoms
        self.unreadable = unreadable
        self.first = frames.start if isinstance(frames, range) and frames.step == 1 else None
        """First of the source's frames, if the view is one run of them; else None."""

    def _open(self) -> TrajectoryInfo:
        info = self.source.info
        if self.atoms is None and self.first == 0 and len(self.frames) == info.n_frames:
            return info
        n_atoms = info.n_atoms if self.atoms is None else len(self.atoms)
        if not len(self.frames):
            return info.replace(n_frames=0, n_atoms=n_atoms, groups={})
        frame_numbers = [int(self.frames[i]) for i in (0, min(1, len(self.frames) - 1), -1)]
        first, second, last = (self.source.read(f, f + 1, atoms=[]) for f in frame_numbers)
        dt_ps = float(second.time[0] - first.time[0]) if len(self.frames) > 1 else info.dt_ps
        return info.replace(
            n_frames=len(self.frames),
            n_atoms=n_atoms,
            dt_ps=dt_ps,
            time_first_ps=float(first.time[0]),
            time_last_ps=float(last.time[0]),
            has_box=bool(first.box.any()),
            groups={},
            chunk_frames=info.chunk_frames if self.first == 0 else None,
        )

    def _close(self) -> None:
        self.source.close()

    @property
    def _inner_layouts(self) -> tuple[Layout, ...]:
        return (self.source,)

    @property
    def stored_times(self) -> StoredTimes:
        return self.source.stored_times

    @property
    def joined_layouts(self) -> list[tuple[Layout, int, int]]:
        """Layouts of which the view has unchanged runs of frames."""
        if self.atoms is not None or self.first is None:
            return super().joined_layouts
        return list(
            clip_runs(self.source.joined_layouts, self.first, self.first + len(self.frames))
        )

    def topology(self) -> Topology | None:
        topology = self.source.topology()
        return topology if topology is None or self.atoms is None else topology.take(self.atoms)

    def frame_data(self) -> FrameData:
        frames = np.asarray(self.frames, np.int64)
        return {name: values[frames] for name, values in self.source.frame_data().items()}

    def file_layouts(self) -> Iterator[Layout]:
        """Yield itself, since its frames are not all those of a file."""
        yield self

    @property
    def runs(self) -> list[list[int]]:
        """The source's frames as runs of (start, stop, step)."""
        if isinstance(self.frames, range):
            return [[self.frames.start, self.frames.stop, self.frames.step]]
        return runs_from_indices(self.frames)

    def _read_into(
        self, start: int, stop: int, atoms: AtomIndices | None, block: FrameBlock
    ) -> None:
        atoms, row = self._source_atoms(atoms), 0
        for first, end in self._source_runs(start, stop):
            if end - first > stop - start:
                dense = self.source.read(first, end, atoms=atoms)
                block.assign(dense.frames(np.asarray(self.frames[start:stop]) - first))
                return
            rows = block.frames(slice(row, row + end - first))
            self.source.read(first, end, atoms=atoms, out=rows)
            row += end - first

    def _source_runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield runs of the source's frames, as they are read for frames ``start:stop``.

        They are one run, with frames that are not in the view, if these are few.
        """
        if self.first is not None:
            yield self.first + start, self.first + stop
            return
        frames = np.asarray(self.frames[start:stop], dtype=np.int64)
        gaps = np.diff(frames)
        n_spanned = int(frames[-1]) + 1 - int(frames[0])
        if not self.unreadable and 0 < n_spanned <= DENSE_STEP * len(frames) and (gaps > 0).all():
            yield int(frames[0]), int(frames[0]) + n_spanned
            return
        for first, end in pairwise([0, *(np.flatnonzero(gaps != 1) + 1).tolist(), len(frames)]):
            yield int(frames[first]), int(frames[first]) + end - first

    def _ranges(self, start: int, stop: int, atoms: AtomIndices | None) -> Iterator[ByteRange]:
        """Yield ranges of the source, once for a chunk that holds several of the frames."""
        atoms = self._source_atoms(atoms)
        recent = deque[ByteRange](maxlen=len(FIELDS))
        for run in self._source_runs(start, stop):
            for byte_range in self.source.byte_ranges(*run, atoms):
                if byte_range not in recent:
                    recent.append(byte_range)
                    yield byte_range

    def _openings(self, runs: FrameRuns, atoms: AtomIndices | None) -> Iterator[Opening]:
        source_runs = (source_run for run in runs for source_run in self._source_runs(*run))
        yield from self.source._openings(
            list(islice(source_runs, MAX_SEPARATE_RUNS)), self._source_atoms(atoms)
        )

    def _source_atoms(self, atoms: AtomIndices | None) -> AtomIndices | None:
        if atoms is None or self.atoms is None:
            return self.atoms if atoms is None else atoms
        return self.atoms[atoms]
