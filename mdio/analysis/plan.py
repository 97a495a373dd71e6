"""What is decided before the work starts: frames, blocks, and a kernel that knows its system."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import Kernel, Prepared
from mdio.analysis.reducers import Reducer, Stack
from mdio.analysis.results import AnalysisResult
from mdio.analysis.system import CutMolecules, System, cut_note
from mdio.core.blocks import aligned_blocks
from mdio.core.errors import AtomCountError, MdioError, OptionError, PlanError, error_text
from mdio.core.files.reading import reads
from mdio.core.timing import BlockTiming, Stopwatch, WorkerTiming
from mdio.core.words import plural, runs_text
from mdio.layouts.base import Layout
from mdio.layouts.manifest import runs_from_indices
from mdio.layouts.views.opening import open_source
from mdio.layouts.views.view import Frames, ViewLayout, note_on_dt, select_frames
from mdio.parallel.executors import Executor

if TYPE_CHECKING:
    from MDAnalysis import Universe

    from mdio.converters.periodic import TransformedLayout
    from mdio.core.cache import Cache
    from mdio.layouts.caching import CacheUnits

Trajectory = str | PathLike[str] | Sequence[str | PathLike[str]] | Layout


MOST_RUNS = 5
"""Runs of frames that a note names."""


def lost_names(result: AnalysisResult) -> tuple[str, ...]:
    """Return a note on names that a kernel gave to more or fewer columns or rows than there are."""
    if not result.values.size:  # ranks that do not own the result
        return ()
    n_rows, n_columns = result.columns.shape
    return tuple(
        f"the kernel named {len(names):,} {what}, but there are {n}; the names are left out"
        for names, n, what in (
            (result.labels, n_columns, "columns (labels)"),
            (result.row_labels, n_rows, "rows (row_labels)"),
        )
        if len(names) not in (0, n)
    )


def missing_values(result: AnalysisResult) -> tuple[str, ...]:
    """Return a note on values that are not numbers, such as those of frames without positions."""
    if result.values.dtype.kind not in "fc":
        return ()
    missing = np.isnan(result.values)
    n_missing = int(np.count_nonzero(missing))
    if not n_missing:
        return ()
    note = f"{n_missing:,} of {plural(missing.size, 'value')} are not numbers (NaN)"
    if result.over == "frame":
        frames = result.frame[missing.reshape(len(missing), -1).any(axis=1)]
        names = runs_text(runs_from_indices(frames), MOST_RUNS)
        note += f", in {plural(len(frames), 'frame')}: {names}"
    return (f"{note}; positions or velocities that a frame lacks are NaN",)


@dataclass(slots=True)
class Plan:
    """All that workers need; pickles, and then takes no open file along."""

    layout: Layout
    frames: range
    blocks: list[range]
    prepared: Prepared
    opened_s: float
    """How long opening took."""
    prepare_s: float
    """Topology, selection and reference; imports too, if they were the first."""
    is_ours: bool
    """Whether `layout` was opened here and is to be closed here."""
    chosen: Frames
    """Numbers of the frames in the trajectory; other than `frames` where these are of a view."""

    notes: tuple[str, ...] = ()
    """What was dropped where files were joined; what a time step could not do."""
    cache: Cache | None = None
    """Where nodes keep what is read."""
    units: CacheUnits | None = None
    """What they keep as one."""
    nbytes: tuple[int, int] = (0, 0)
    """Bytes that preparing took from files, and from the cache."""

    @property
    def frame_numbers(self) -> NDArray[np.int64]:
        """Numbers of the frames in the trajectory, (F,)."""
        return np.asarray(self.chosen, dtype=np.int64)

    def result(self, executor: Executor, **found: Any) -> AnalysisResult:
        """Return the result of what was `found`, with what is known of it beforehand."""
        prepared = self.prepared
        known: dict[str, Any] = {"executor": executor.name, "workers": executor.n_workers}
        known |= {"prepare_s": self.prepare_s, "per_frame": isinstance(prepared.reducer, Stack)}
        known |= {"labels": prepared.labels, "row_labels": prepared.row_labels}
        result = AnalysisResult(**{**known, "notes": self.notes, **found})
        cut = [frame for timing in result.timings for frame in timing.cut_frames]
        if cut and not isinstance(self.chosen, range):  # blocks are of a view, which numbers anew
            cut = self.frame_numbers[cut].tolist()
        of_blocks = [note for timing in result.timings for note in timing.notes]
        notes = [*result.notes, *of_blocks, *missing_values(result), *lost_names(result)]
        notes += [cut_note(cut, result.n_frames)] if cut else []
        result.notes = tuple(dict.fromkeys(notes))
        return result

    def count(self, timing: BlockTiming | WorkerTiming) -> None:
        """Add what preparing has read to what a block, or worker, has."""
        timing.nbytes_source += self.nbytes[0]
        timing.nbytes_cache += self.nbytes[1]

    def for_workers(self) -> Plan:
        """Return it with a layout that opens no more than it must."""
        return replace(self, layout=self.layout.preopened(), opened_s=0.0, nbytes=(0, 0))


def _universe_of(system: System) -> Universe:
    """Return the topology of the atoms that are read.

    Raises PlanError: it is that of the full system, of which a stored group is read.
    """
    universe = system.universe
    if len(universe.atoms) != system.layout.info.n_atoms:
        raise PlanError(
            f"{system.layout.path}: pbc, center and fit need the topology of the group that is "
            "read; leave the group out, or name the topology of its atoms"
        )
    return universe


@dataclass(frozen=True, slots=True)
class Request:
    """What `analyze` was asked for, but where to run it."""

    trajectory: Trajectory
    kernel: Kernel
    top: str | PathLike[str] | Universe | None = None
    group: str | None = None
    reducer: Reducer | None = None
    n_blocks: int = 1
    verify: bool = True
    """Whether what is read is compared with the checksums that the output holds."""
    overlap: str | None = None
    """What is done with frames whose times several files have."""
    choose: Callable[[Layout], Frames] = select_frames
    """How frames are chosen; by default, all are."""
    dt_ps: float | None = None
    """Time between them that was asked for."""
    cache: Cache | None = None
    """Where nodes keep what is read."""
    transformed: Mapping[str, Any] | None = None
    """What is done to frames; see `mdio.layouts.views.options.FrameChoice.transformed`."""

    def plan(self) -> Plan:
        """Open the trajectory, choose blocks, prepare the kernel.

        Raises PlanError, SourceError, CorruptLayoutError: as `mdio.analysis.driver.analyze`.
        """
        try:
            return self._plan()
        except AtomCountError:
            if self.top is None:
                raise
            from mdio.converters.selection import atom_count

            return self._plan(n_atoms=atom_count(self.top))

    def _plan(self, **options: Any) -> Plan:
        # This imports what reads it.
        layout = self._open(**options)
        watch = Stopwatch()
        is_ours = layout is not self.trajectory
        try:
            source, cache = layout, layout.kept[0][0].cache
            moved = self._moved(layout)
            layout = layout if moved is None else moved
            system = System(layout, self.top, self.group, source)
            if moved is not None:
                moved.load = partial(_universe_of, system)
            chosen = self.choose(layout)
            notes = layout.notes
            view = ViewLayout(layout.path, source=layout, frames=chosen)
            if self.dt_ps is not None:
                note = note_on_dt(layout.info, view.info, self.dt_ps)
                notes += () if note is None else (note,)
            if isinstance(chosen, range):
                frames = chosen
            else:  # they lie unevenly: a view numbers them anew
                layout, frames = view, range(len(chosen))
            edges = layout.boundaries()
            opened_s = watch.lap()
            before = reads.nbytes_source, reads.nbytes_cache
            prepared = self._prepared(system)
            notes += tuple(system.notes)
            if getattr(self.kernel, "select", None) is None:
                system.look()
                if self.group is None and hasattr(self.kernel, "select") and system.waters:
                    notes += (
                        f"all {layout.info.n_atoms:,} atoms are analysed, water too; --select "
                        "(select= in Python) takes fewer",
                    )
            elif isinstance(self.top, str | PathLike) and not system.looked:  # `all` needs none
                notes += (f"{self.top}: not looked at, since all atoms are analysed",)
            nbytes = reads.nbytes_source - before[0], reads.nbytes_cache - before[1]
            read = prepared.atoms
            if moved is not None:
                steps = moved.prepared(prepared.atoms)
                moved.load = None
                read = steps.needed
                notes += (f"{steps.note}",) if steps.note else ()
            is_whole = moved is not None and moved.makes_whole
            if self.kernel.needs_whole and source.info.has_box and not is_whole:
                prepared = replace(prepared, cut=CutMolecules.of(system, prepared.atoms))
            if self.reducer is not None:
                prepared = replace(prepared, reducer=self.reducer)
            units = None
            if cache is not None and (read is None or len(read)):
                from mdio.layouts.caching import units_of

                units = units_of(source, read)
                if layout is view:
                    units = replace(units, edges=np.searchsorted(chosen, units.edges))
                edges = np.unique(units.edges)
            return Plan(
                layout=layout,
                frames=frames,
                blocks=aligned_blocks(edges, frames, self.n_blocks),
                prepared=prepared,
                opened_s=opened_s,
                prepare_s=watch.lap(),
                is_ours=is_ours,
                chosen=chosen,
                notes=notes,
                cache=cache,
                units=units,
                nbytes=nbytes,
            )
        except BaseException:
            if is_ours:
                layout.close()
            raise

    def _prepared(self, system: System) -> Prepared:
        """Return the kernel that knows its system; raises PlanError if it fails."""
        try:
            return self.kernel.prepare(system)
        except (MdioError, MemoryError):
            raise
        except Exception as error:  # whatever a user's kernel raises
            name = type(self.kernel).__name__
            raise PlanError(
                f"{system.layout.path}: preparing {name} failed: {error_text(error)}"
            ) from error

    def _moved(self, layout: Layout) -> TransformedLayout | None:
        """Return the trajectory as its frames are moved; None if they are not."""
        if self.transformed is None:
            return None
        from mdio.converters.periodic import TransformedLayout

        top = self.top if isinstance(self.top, str | PathLike) else None
        return TransformedLayout(layout.path, source=layout, top=top, **self.transformed)

    def _open(self, **options: Any) -> Layout:
        trajectory, group = self.trajectory, self.group
        if isinstance(trajectory, Layout):
            if group is not None and trajectory.options.get("group") != group:
                raise PlanError(f"{trajectory.path}: open the layout with group={group!r} instead")
            if trajectory.verify and not self.verify:
                raise PlanError(f"{trajectory.path}: open the layout with verify=False instead")
            if self.cache not in (None, trajectory.kept[0][0].cache):
                raise PlanError(f"{trajectory.path}: open the layout with the cache instead")
            return trajectory
        if not isinstance(trajectory, str | PathLike) and not len(trajectory):
            raise PlanError("no trajectory is given; give at least one")
        if group is not None:
            options["group"] = group
        try:
            return open_source(
                trajectory,
                fields=self.kernel.fields,
                verify=self.verify,
                overlap=self.overlap,
                cache=self.cache,
                **options,
            )
        except OptionError as error:
            raise PlanError(
                f"no stored groups: {error}; leave out group {group!r} and select atoms instead"
            ) from error
