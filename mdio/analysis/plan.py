"""Plans of analyses: frames, blocks, and a kernel prepared for its system."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import Kernel, Prepared, SeriesKernel, prepared_for
from mdio.analysis.reducers import Mean, Moments, Reducer, Stack
from mdio.analysis.results import AnalysisResult
from mdio.analysis.system import System
from mdio.core.blocks import aligned_blocks
from mdio.core.errors import AtomCountError, MdioError, OptionError, PlanError, error_text
from mdio.core.files.reading import reads
from mdio.core.frames import notes_on_times
from mdio.core.timing import BlockTiming, Stopwatch, WorkerTiming
from mdio.core.words import MAX_RUNS, plural, runs_text
from mdio.layouts.base import Layout
from mdio.layouts.foreign.universe import topology_of
from mdio.layouts.manifest import runs_from_indices
from mdio.layouts.views.opening import open_source
from mdio.layouts.views.view import FrameNumbers, ViewLayout, note_on_dt, select_frames
from mdio.parallel.executors import Executor

if TYPE_CHECKING:
    from MDAnalysis import Universe

    from mdio.converters.periodic import TransformedLayout
    from mdio.core.cache import Cache
    from mdio.layouts.caching import CacheUnits

Trajectory = str | PathLike[str] | Sequence[str | PathLike[str]] | Layout


def _notes_on_names(result: AnalysisResult) -> tuple[str, ...]:
    """Return a note on names that a kernel gave to more or fewer columns or rows than there are."""
    if not result.values.size:  # ranks that do not own the result
        return ()
    n_rows, n_columns = result.columns.shape
    return tuple(
        f"the kernel named {len(names):,} {noun}, but there are {count}; the names are left out"
        for names, count, noun in (
            (result.labels, n_columns, "columns (labels)"),
            (result.row_labels, n_rows, "rows (row_labels)"),
            (result.row_residues, n_rows, "residues (row_residues)"),
        )
        if len(names) not in (0, count)
    )


def _notes_on_missing_values(result: AnalysisResult) -> tuple[str, ...]:
    """Return a note if there are no values, or some are no numbers."""
    shape = result.values.shape
    if shape[:1] > (0,) and not result.values.size:
        return (f"there are no values: the kernel's rows have the shape {shape[1:]}",)
    if result.values.dtype.kind not in "fc":
        return ()
    missing = np.isnan(result.values)
    n_missing = int(np.count_nonzero(missing))
    if not n_missing:
        return ()
    note = f"{n_missing:,} of {plural(missing.size, 'value')} are not numbers (NaN)"
    if result.over == "frame":
        frames = result.frame[missing.reshape(len(missing), -1).any(axis=1)]
        names = runs_text(runs_from_indices(frames), MAX_RUNS)
        note += f", in {plural(len(frames), 'frame')}: {names}"
    else:
        note += "; a frame may make all of them so: mdio analyze rgyr of these atoms names it, if "
        return (f"{note}it lacks positions; else the kernel makes them (0/0)",)
    return (
        f"{note}; frames that lack positions or velocities make them, or the kernel does (0/0)",
    )


@dataclass(slots=True)
class Plan:
    """A planned analysis, as workers get it; pickles without open files."""

    layout: Layout
    frames: range
    blocks: list[range]
    prepared: Prepared
    open_s: float
    prepare_s: float
    """Seconds for topology, selection and reference, with imports if not imported before."""
    has_opened_layout: bool
    """Whether `layout` was opened for this plan and has to be closed with it."""
    source_frames: FrameNumbers
    """Numbers of the frames in the trajectory; other than `frames` if `layout` is a view."""

    notes: tuple[str, ...] = ()
    """Notes for the user, such as on frames dropped where files were joined."""
    cache: Cache | None = None
    """Cache of each node, if there is one."""
    units: CacheUnits | None = None
    """Units of the cache."""
    prepare_nbytes: tuple[int, int] = (0, 0)
    """Bytes read to prepare, from files and from the cache."""

    def close(self) -> None:
        """Close the layout, if it was opened for this plan."""
        if self.has_opened_layout:
            self.layout.close()

    @property
    def frame_numbers(self) -> NDArray[np.int64]:
        """Numbers of the frames in the trajectory, (F,)."""
        return np.asarray(self.source_frames, dtype=np.int64)

    def result(self, executor: Executor, **fields: Any) -> AnalysisResult:
        """Return a result with these `fields`, completed from the plan."""
        prepared = self.prepared
        defaults: dict[str, Any] = {
            "executor": executor.name,
            "workers": executor.n_workers,
            "prepare_s": self.prepare_s,
            "per_frame": isinstance(prepared.reducer, Stack),
            "labels": prepared.labels,
            "quantity": prepared.quantity,
            "row_labels": prepared.row_labels,
            "row_residues": prepared.row_residues,
            "notes": self.notes,
        }
        result = AnalysisResult(**defaults | fields)
        n_rows, n_columns = result.columns.shape
        labels_name_rows = not result.per_frame and n_rows == len(result.labels) != n_columns
        if labels_name_rows and not result.row_labels:  # the reducer made a row of each column
            result.row_labels, result.labels = result.labels, ()
        notes = [*result.notes, *(note for timing in result.timings for note in timing.notes)]
        notes += [*_notes_on_missing_values(result), *_notes_on_names(result)]
        if result.of_frames is None:  # else they are lags
            lacks_first_frame = bool(result.frame[:1].any())
            notes += notes_on_times(result.time, result.frame, lacks_first_frame=lacks_first_frame)
        notes += self.notes_on_doubt(result.timings, result.n_frames, per_frame=result.per_frame)
        result.notes = tuple(dict.fromkeys(filter(None, notes)))
        return result

    def notes_on_doubt(
        self, timings: Sequence[BlockTiming], n_frames: int, *, per_frame: bool = True
    ) -> tuple[str, ...]:
        """Return a note on the frames whose values are in doubt, of the blocks of these timings."""
        finder = self.prepared.doubt_finder
        doubtful = [frame for timing in timings for frame in timing.doubtful_frames]
        if finder is None or not doubtful:
            return ()
        if not isinstance(self.source_frames, range):  # a view renumbers frames
            doubtful = self.frame_numbers[doubtful].tolist()
        note = finder.note(doubtful, n_frames, per_frame=per_frame)
        return (note,) if note else ()

    def add_prepare_nbytes(self, timing: BlockTiming | WorkerTiming) -> None:
        """Add the bytes that were read to prepare to those of a block or worker."""
        timing.nbytes_source += self.prepare_nbytes[0]
        timing.nbytes_cache += self.prepare_nbytes[1]

    def for_workers(self) -> Plan:
        """Return a plan for other processes, with a layout that opens as few files as possible."""
        return replace(self, layout=self.layout.with_metadata(), open_s=0.0, prepare_nbytes=(0, 0))


def _load_universe(system: System) -> Universe:
    """Return the Universe of the atoms that are read."""
    universe = system.universe
    if len(universe.atoms) != system.layout.info.n_atoms:
        raise PlanError(
            f"{system.layout.path}: pbc, center and fit need the topology of the stored group; "
            "select its atoms with --select in place of --group, or, unless bonds are needed that "
            "they do not have, name the topology of these atoms alone"
        )
    return universe


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of `analyze`, without those on where to run."""

    trajectory: Trajectory
    kernel: Kernel
    top: str | PathLike[str] | Universe | None = None
    group: str | None = None
    reducer: Reducer | None = None
    n_blocks: int = 1
    verify: bool = True
    """Whether stored bytes are compared with their checksums."""
    overlap: str | None = None
    """Treatment of frames whose times several files have."""
    choose_frames: Callable[[Layout], FrameNumbers] = select_frames
    """Returns the numbers of the frames to analyse; by default all."""
    dt_ps: float | None = None
    """Requested time between frames."""
    cache: Cache | None = None
    transformed: Mapping[str, Any] | None = None
    """Transformations of frames; see `mdio.layouts.views.options.FrameOptions.transformation`."""

    def plan(self) -> Plan:
        """Open the trajectory, choose blocks, prepare the kernel."""
        try:
            return self._plan()
        except AtomCountError:
            if self.top is None:
                raise
            from mdio.converters.selection import atom_count

            return self._plan(n_atoms=atom_count(self.top))

    def _plan(self, **options: Any) -> Plan:
        layout = self._open(**options)  # not timed: it imports the format's library
        watch = Stopwatch()
        has_opened_layout = layout is not self.trajectory
        try:
            source, cache = layout, layout.joined_layouts[0][0].cache
            transformed: TransformedLayout | None = None
            if self.transformed is not None:
                from mdio.converters.periodic import TransformedLayout, notes_on_cut

                top = self.top if isinstance(self.top, str | PathLike) else None
                layout = transformed = TransformedLayout(
                    layout.path, source=layout, top=top, **self.transformed
                )
            system = System(layout, self.top, self.group, source)
            if transformed is not None:
                transformed.load_universe = partial(_load_universe, system)
                if self.group and self.top is not None and any(transformed.selections.values()):
                    _load_universe(system)  # numbers in the full system are others in the group
            source_frames = system.frames = self.choose_frames(layout)
            notes = layout.notes
            view = ViewLayout(layout.path, source=layout, frames=source_frames)
            if self.dt_ps is not None:
                note = note_on_dt(layout.info, view.info, self.dt_ps)
                notes += () if note is None else (note,)
            if isinstance(source_frames, range):
                frames = source_frames
            else:  # a view renumbers unevenly spaced frames
                layout, frames = view, range(len(source_frames))
            boundaries = layout.boundaries()
            open_s = watch.lap()
            source_nbytes, cache_nbytes = reads.nbytes_source, reads.nbytes_cache
            prepared = self._prepare_kernel(system)
            if getattr(self.kernel, "select", None) is None:
                system.read_topology()
                if self.group is None and hasattr(self.kernel, "select") and system.waters:
                    notes += (
                        f"all {layout.info.n_atoms:,} atoms are analysed, water too; --select "
                        "(select= in Python) takes fewer",
                    )
            prepare_nbytes = (
                reads.nbytes_source - source_nbytes,
                reads.nbytes_cache - cache_nbytes,
            )
            atoms = prepared.atoms
            if transformed is not None:
                transform = transformed.prepare_transform(prepared.atoms)
                atoms = transform.read_atoms
                notes += (*((transform.note,) if transform.note else ()), *transform.notes)
                # Where the fitted atoms are analysed, the analysis looks at all frames for cuts.
                select = getattr(self.kernel, "select", None)
                is_checked = self.kernel.needs_whole and transformed.is_fitted_by(select)
                checked_frames = source_frames[:0] if is_checked else source_frames
                cut_notes = notes_on_cut(
                    transformed, prepared.atoms, checked_frames, system.residues
                )
                notes += tuple(cut_notes)
                if isinstance(self.kernel, SeriesKernel) and "universe" in vars(transformed):
                    # Workers prepare the transform of each batch of atoms by themselves.
                    transformed.options["top"] = topology_of(transformed.universe)
                transformed.load_universe = None
            if self.kernel.needs_whole or prepared.is_direct:
                finder = system.cut_molecules(prepared.atoms)
                prepared = replace(prepared, doubt_finder=finder)
                if finder is not None and system.reference is not None:
                    notes += finder.notes_on_reference(*system.reference)
            elif prepared.doubt_finder is None and "positions" in prepared.fields:
                from mdio.layouts.cut_molecules import NoPositionsFinder

                prepared = replace(prepared, doubt_finder=NoPositionsFinder())
            if isinstance(self.top, str | PathLike) and not system.topology_is_read:
                notes += (f"{self.top}: not read, since the atoms are known without it",)
            notes += tuple(system.notes)
            if self.reducer is not None:
                keeps_columns = isinstance(self.reducer, Mean | Stack)
                labels = prepared.labels if keeps_columns else ()
                quantity = prepared.quantity if keeps_columns else ""
                is_of_angles = prepared.quantity.endswith(("_degrees", "_radians"))
                if isinstance(self.reducer, Moments) and is_of_angles:
                    notes += (
                        "means and deviations of angles are those of their numbers, so that 179 "
                        "and -179 degrees give 0 and 179; average their cos and sin instead "
                        "(dihedrals: degrees=False)",
                    )
                prepared = replace(prepared, reducer=self.reducer, labels=labels, quantity=quantity)
            units = None
            if cache is not None and (atoms is None or len(atoms)):
                from mdio.layouts.caching import cache_units

                units = cache_units(source, atoms)
                if layout is view:
                    units = replace(units, edges=np.searchsorted(source_frames, units.edges))
                boundaries = np.unique(units.edges)
            return Plan(
                layout=layout,
                frames=frames,
                blocks=aligned_blocks(boundaries, frames, self.n_blocks),
                prepared=prepared,
                open_s=open_s,
                prepare_s=watch.lap(),
                has_opened_layout=has_opened_layout,
                source_frames=source_frames,
                notes=notes,
                cache=cache,
                units=units,
                prepare_nbytes=prepare_nbytes,
            )
        except BaseException:
            if has_opened_layout:
                layout.close()
            raise

    def _prepare_kernel(self, system: System) -> Prepared:
        """Return the kernel, prepared for the system; raises PlanError if it fails."""
        try:
            prepared = prepared_for(system, self.kernel)
            if prepared.atoms is not None:
                system.layout._atom_indices(prepared.atoms, system.layout.info.n_atoms)
            return prepared
        except (MdioError, MemoryError):
            raise
        except Exception as error:  # a user's kernel raises anything
            name = type(self.kernel).__name__
            raise PlanError(
                f"{system.layout.path}: preparing {name} failed: {error_text(error)}"
            ) from error

    def _open(self, **options: Any) -> Layout:
        trajectory, group = self.trajectory, self.group
        if isinstance(trajectory, Layout):
            if group is not None and trajectory.options.get("group") != group:
                raise PlanError(f"{trajectory.path}: open the layout with group={group!r} instead")
            if trajectory.verify and not self.verify:
                raise PlanError(f"{trajectory.path}: open the layout with verify=False instead")
            if self.overlap not in (None, getattr(trajectory, "overlap", None)):
                overlap = self.overlap
                raise PlanError(f"{trajectory.path}: open the layout with {overlap=} instead")
            if self.cache not in (None, trajectory.joined_layouts[0][0].cache):
                raise PlanError(f"{trajectory.path}: open the layout with the cache instead")
            return trajectory
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
            if group is None or "'group'" not in str(error):
                raise
            path = str(error).partition(": ")[0]  # of several files, the one that has none
            raise PlanError(
                f"{path}: this format has no stored groups; leave out --group {group} and choose "
                "atoms with --select (select=), or store the group first, with mdio convert "
                f"--group {group}=SEL into zarr or h5md"
            ) from error
