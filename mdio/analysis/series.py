"""Runs kernels over atoms: all frames of a batch of atoms at a time, in parallel.

Memory stays bounded for any number of atoms. If a layout's chunks are a few atoms wide, a batch is
some columns of chunks, and everything is read once; otherwise every batch reads all frames, so that
batches are as large as memory allows. Batches are the same for any number of workers, and their
sums are added in order, so that the result is the same, too.
"""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import SeriesKernel
from mdio.analysis.plan import Plan, Request
from mdio.analysis.results import AnalysisResult
from mdio.analysis.work import READ_NBYTES, Progress
from mdio.core.blocks import sub_blocks
from mdio.core.errors import PlanError
from mdio.core.files.reading import reads
from mdio.core.frames import AtomIndices, FrameBlock, TrajectoryInfo
from mdio.core.timing import BlockTiming, Stopwatch
from mdio.core.words import human_nbytes, number_text
from mdio.layouts.base import Layout, cache_notes
from mdio.layouts.views.view import ViewLayout
from mdio.parallel.executors import Executor, results_of

NARROW_NBYTES = 32 << 20
"""Largest time series of a batch if chunks are a few atoms wide."""
WIDE_NBYTES = 256 << 20
"""Largest time series of a batch otherwise."""

NumberedAtoms = tuple[int, AtomIndices]


class BatchResult(NamedTuple):
    """The result of a batch."""

    sums: NDArray[np.float64]
    time: NDArray[np.float64]
    """Times of all frames, ps, from the first batch; empty from others."""
    timing: BlockTiming


def batch_label(batch: NumberedAtoms) -> str:
    """Return the label of a batch, for messages."""
    number, atoms = batch
    return f"batch {number} (atoms {atoms.min()} to {atoms.max()})"


def cut_into_batches(
    atoms: AtomIndices, info: TrajectoryInfo, n_frames: int, n_fields: int
) -> list[AtomIndices]:
    """Cut atoms into batches, between chunks of atoms if these are narrow enough."""
    width = info.chunk_atoms or info.n_atoms
    is_narrow = width < info.n_atoms
    max_atoms = max(1, (NARROW_NBYTES if is_narrow else WIDE_NBYTES) // (12 * n_frames * n_fields))
    if is_narrow and width <= max_atoms:
        last_of_chunk = np.flatnonzero(np.diff(atoms // width))
        boundaries = np.concatenate([[0], last_of_chunk + 1, [len(atoms)]])
    else:
        boundaries = np.arange(len(atoms) + 1)
    return [
        atoms[run.start : run.stop] for run in sub_blocks(boundaries, range(len(atoms)), max_atoms)
    ]


class SeriesWork:
    """Reads and sums one batch of atoms; opens the trajectory once in each process."""

    def __init__(
        self, layout: Layout, frames: range, kernel: SeriesKernel, *, quiet: bool = False
    ) -> None:
        self.layout, self.frames, self.kernel, self.quiet = layout, frames, kernel, quiet

    def __call__(self, batch: NumberedAtoms) -> BatchResult:
        """Return the sums of one batch."""
        number, atoms = batch
        frames = self.frames
        timing = BlockTiming(number, frames)
        source_nbytes, cache_nbytes = reads.nbytes_source, reads.nbytes_cache
        block_watch, watch = Stopwatch(), Stopwatch()
        info = self.layout.info
        timing.t_open_s = watch.lap()
        loop = Stopwatch()
        block = self._read(atoms, info)
        timing.t_io_s = watch.lap()
        timing.nbytes_read = block.nbytes
        timing.nbytes_source = reads.nbytes_source - source_nbytes
        timing.nbytes_cache = reads.nbytes_cache - cache_nbytes
        time = block.time[: None if number == 0 else 0].copy()  # a kernel may change them
        try:
            sums = self.kernel.sums(block)
        except PlanError as error:
            raise PlanError(f"{self.layout.path}: {error}") from error
        notes = () if self.quiet else self.kernel.notes(block)
        timing.notes = (*cache_notes(self.layout), *notes)
        timing.t_comp_s = watch.lap()
        timing.t_all_frame_s, timing.t_block_s = loop.lap(), block_watch.lap()
        return BatchResult(sums, time, timing)

    def _read(self, atoms: AtomIndices, info: TrajectoryInfo) -> FrameBlock:
        fields = self.kernel.fields
        block = FrameBlock.empty(
            len(self.frames), len(atoms), velocities="velocities" in fields and info.has_velocities
        )
        view = ViewLayout(self.layout.path, source=self.layout, frames=self.frames)
        max_frames = max(1, 4 * READ_NBYTES // (12 * len(atoms) * len(fields)))
        boundaries = np.searchsorted(np.asarray(self.frames), self.layout.boundaries())
        for run in sub_blocks(np.unique(boundaries), range(len(self.frames)), max_frames):
            rows = block.frames(slice(run.start, run.stop))
            view.read(run.start, run.stop, atoms=atoms, out=rows)
        return block


def analyze_series(
    request: Request, kernel: SeriesKernel, executor: Executor, progress: Progress | None
) -> AnalysisResult:
    """Run a kernel over atoms (under MPI on all ranks); see `mdio.analysis.driver.analyze`."""
    if request.reducer is not None:
        raise PlanError(
            f"{type(kernel).__name__} combines its batches of atoms itself; leave out the reducer"
        )
    with closing(executor.from_owner(request.plan)) as plan:
        return _analyze(plan, kernel, executor, progress)


def _analyze(
    plan: Plan, kernel: SeriesKernel, executor: Executor, progress: Progress | None
) -> AnalysisResult:
    watch = Stopwatch()
    info, prepared, n_frames = plan.layout.info, plan.prepared, len(plan.frames)
    atoms = np.arange(info.n_atoms) if prepared.atoms is None else prepared.atoms
    batches = cut_into_batches(atoms, info, n_frames, 1 + (kernel.fields != ("positions",)))
    notes = plan.notes
    if len(batches) > 1 and (info.chunk_atoms or info.n_atoms) == info.n_atoms:
        notes += (
            f"{info.path}: all frames are read {len(batches)} times, since "
            f"{human_nbytes(WIDE_NBYTES)} of time series are held at a time; an output of mdio "
            "convert --for timeseries is read once",
        )
    layout = plan.layout if executor.shares_memory else plan.for_workers().layout
    work = SeriesWork(layout, plan.frames, kernel, quiet=prepared.quiet)
    # Sums are added in the order of batches.
    unmerged: dict[int, BatchResult] = {}
    time, sums = np.empty(0), np.zeros(0)
    timings: list[BlockTiming] = []
    for number, batch_result in results_of(executor, work, enumerate(batches), batch_label):
        batch_result.timing.record_arrival()
        unmerged[number] = batch_result
        while (result := unmerged.pop(len(timings), None)) is not None:
            sums = result.sums if not timings else sums + result.sums
            time = result.time if not timings else time
            timings.append(result.timing)
            if progress is not None:  # each batch counts as a share of the frames
                n_before, n_after = (
                    n_frames * n_batches // len(batches)
                    for n_batches in (len(timings) - 1, len(timings))
                )
                progress(n_after - n_before, result.timing.nbytes_read)
    if timings:
        max_lag_ps, span_ps = getattr(kernel, "max_lag_ps", None), float(time[-1] - time[0])
        frame, time, values = kernel.rows(sums, time, len(atoms))
        if max_lag_ps is not None and span_ps * (1 + 1e-6) < max_lag_ps < np.inf:
            notes += (
                f"lags of up to {number_text(max_lag_ps)} ps were asked for, but the frames span "
                f"{number_text(span_ps)} ps: that is the longest lag",
            )
        elif max_lag_ps is not None and len(time) == 1:
            notes += (
                f"lags of up to {number_text(max_lag_ps)} ps were asked for, but frames lie "
                f"{number_text(span_ps / (n_frames - 1))} ps apart: lag 0 alone is left",
            )
        plan.add_prepare_nbytes(timings[0])
    else:  # a rank that gets no results
        frame, values = np.empty(0, np.int64), np.empty(0)
    return plan.result(
        executor,
        frame=frame,
        time=time,
        values=values,
        timings=timings,
        seconds=plan.open_s + watch.lap(),
        per_frame=True,
        of_frames=n_frames,
        notes=notes,
    )
