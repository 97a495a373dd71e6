"""Converts, appends and splits trajectories of any layout, in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from mdio.converters.append import prepare_append
from mdio.converters.opening import add_writer_frames, topology_for
from mdio.converters.options import (
    OPTION_OBJECTS,
    OPTIONS,
    ConversionOptions,
    ConvertResult,
    Progress,
    Storage,
)
from mdio.converters.periodic import TransformedLayout, notes_on_cut, notes_on_transform
from mdio.converters.selection import (
    PDB_NAME_LETTERS,
    check_not_truncated,
    choose_atoms,
    notes_on_cut_names,
    notes_on_missing_bonds,
    open_with_topology,
    split_readable,
    stored_universe,
)
from mdio.converters.storage import (
    check_stripes,
    choose_direct,
    file_system_for,
    is_written_by_owner,
    measure_codec_shares,
    plan_for_owner,
    planned_stripe_nbytes,
)
from mdio.converters.strategies.choice import check_options, choose_strategy
from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.job import Job, RepairedOutput
from mdio.converters.strategies.structure import (
    STRUCTURE_LAYOUT,
    STRUCTURE_PRECISIONS,
    StructureConversion,
    check_structure,
    is_structure,
)
from mdio.core.errors import PlanError
from mdio.core.files.fingerprint import SourceStates
from mdio.core.files.locks import State
from mdio.core.files.store import AnyPath, Paths, path_list, to_path
from mdio.core.frames import TrajectoryInfo
from mdio.core.options import takes_options
from mdio.core.words import list_text, plural, runs_text
from mdio.layouts.base import Layout, container_format
from mdio.layouts.cut_molecules import has_box
from mdio.layouts.manifest import FULL_SYSTEM, indices_from_runs, runs_from_indices
from mdio.layouts.native import NATIVE_FORMATS
from mdio.layouts.plan import COMPRESSION_NOTE, LayoutPlan, StorageOptions, WriteOptions
from mdio.layouts.registry import (
    layout_class,
    layout_name_for_output,
    output_suffixes,
    writer_class,
)
from mdio.layouts.striping.file_systems import no_stripes_note
from mdio.layouts.views.options import FOLLOWS_ATOMS
from mdio.layouts.views.view import FrameNumbers, ViewLayout, note_on_dt, select_frames
from mdio.parallel.executors import Executor, Serial, pool_or_serial


def prepare(
    source: Paths,
    out: str | PathLike[str],
    options: ConversionOptions,
    executor: Executor | None = None,
) -> Conversion:
    """Open the source and plan the output for `executor` (one process); nothing is written."""
    paths = path_list(source)
    if options.running.append:
        return prepare_append(paths, out, options)
    target = to_path(out)
    structure = is_structure(target, options.storage.to)
    if structure:
        check_structure(target, options)
    layout_name = STRUCTURE_LAYOUT
    if not structure:
        layout_name = layout_name_for_output(
            target, options.storage.to, one_frame_suffixes=STRUCTURE_PRECISIONS
        )
    check_options(options, layout_name, target)
    open_options = {"verify": options.sources.verify, "overlap": options.sources.overlap}
    open_options |= {"salvage": True} if options.sources.salvage else {}
    open_options |= options.sources.source_options
    layout = open_with_topology(paths, options.sources.top, **open_options)
    try:
        conversion = plan_conversion(
            layout, paths, target, layout_name, options, executor or Serial()
        )
        if options.running.source_grows:
            conversion.source_states = SourceStates(paths, may_grow=True)
        return StructureConversion(conversion.job) if structure else conversion
    except BaseException:
        layout.close()
        raise


def checked_plan(plan: LayoutPlan, info: TrajectoryInfo, requested: WriteOptions) -> LayoutPlan:
    """Return a writer's plan, with a note on fields that it leaves out without a note of its own.

    Raises PlanError: the writer, which may be of another package, has ignored what it cannot store:
    groups of atoms, rounded positions, or compression.
    """
    stored = {array.group for array in plan.arrays}
    if unstored_groups := [name for name in requested.groups if name not in stored]:
        raise PlanError(
            f"{plan.layout} stores no atom groups, so --group {unstored_groups[0]} does not fit; "
            "leave it out, or take zarr or h5md"
        )
    if isinstance(requested.precision, float | int) and plan.precision is None:
        raise PlanError(
            f"{plan.layout} stores unrounded floats, so --precision {requested.precision:g} does "
            "not fit; leave it out, or take zarr, h5md or xtc"
        )
    if requested.compression is not None and not plan.arrays and plan.compression is None:
        raise PlanError(
            f"{plan.layout} files are not compressed; leave out --compression "
            f"{requested.compression}, or write h5md or zarr"
        )
    stored_fields = {array.field for array in plan.arrays} or set(plan.native.fields)
    left_out_fields = [name for name in info.fields[1:] if name not in stored_fields]
    left_out_fields = [
        name for name in left_out_fields if not any(name in note for note in plan.notes)
    ]
    if not left_out_fields:
        return plan
    note = f"{plan.layout} holds no {' and no '.join(left_out_fields)}: left out"
    return plan.replace(notes=(*plan.notes, note))


def _notes_on_lost_integers(source: TrajectoryInfo, view: TrajectoryInfo) -> tuple[str, ...]:
    """Return a note if atoms were moved away from the integers that the source holds."""
    if not source.xtc_integers or view.xtc_integers or not source.nbytes_per_atom:
        return ()
    times_larger = 12 / source.nbytes_per_atom  # three float32
    return (
        f"{COMPRESSION_NOTE}atoms are moved, so that they are no longer at the integers of the "
        f"XTC; unrounded floats are stored, which are {times_larger:.1f} times as large; "
        "--precision 0.01 stores integers again, and moves none by more than 0.005 angstrom",
    )


def _notes_on_restarted_steps(source: Layout) -> tuple[str, ...]:
    """Return a note if files that hold no steps, but number frames, are joined."""
    for (previous, _, stop), (following, first, _) in pairwise(source.joined_layouts):
        if (
            previous.facts.step_is_frame_number
            and following.facts.step_is_frame_number
            and first < stop
        ):
            return (
                f"steps start again in {following.path}: as in {previous.path}, they are the "
                "numbers of its frames, since the format holds none",
            )
    return ()


def plan_conversion(
    source: Layout,
    paths: Sequence[AnyPath],
    target: Path,
    layout_name: str,
    options: ConversionOptions,
    executor: Executor,
    frames: FrameNumbers | None = None,
    repaired: RepairedOutput | None = None,
    former_state: State | None = None,
) -> Conversion:
    """Plan the conversion of an opened source, which stays open, into the output `target`.

    `paths`: the source's files. `frames`: numbers of the frames to convert; None = those of
    `options`. `repaired`: the output that is repaired, if any. `former_state`: that of the
    output that is replaced.
    """
    sources, selection = options.sources, options.selection
    storage, running = options.storage, options.running
    writer = writer_class(layout_name)
    selected_atoms = choose_atoms(source, sources.top, selection.select, selection.groups)
    transformed_source: Layout = source
    transform_options, transform_notes = selection.transformation(selection.select), []
    if transform_options is not None:
        top = (
            sources.top if repaired is None else topology_for(repaired.former, source, sources.top)
        )
        transformed_source = transformed_layout = TransformedLayout(
            source.path, source=source, top=top, **transform_options
        )
        transform_options |= transformed_layout.selections
        if selected_atoms.universe is not None:
            transformed_layout.universe = selected_atoms.universe
    if frames is None:
        frames = select_frames(source, **selection.frames)
    if transform_options is not None:
        transform_notes = notes_on_transform(
            transformed_layout, selected_atoms.atoms, frames, executor.n_workers
        )
        if repaired is None:
            transform_notes += notes_on_cut(
                transformed_layout,
                selected_atoms.atoms,
                frames,
                selected_atoms.residues,
                are_stored=True,
            )
    keeps_topology = storage.topology and layout_class(layout_name).facts.keeps_topology
    topology = selected_atoms.topology if keeps_topology else None
    needs_topology_beside = selected_atoms.atoms is not None and not keeps_topology
    if not storage.topology:
        selected_atoms.universe = None  # so that no topology is written beside the output
    elif needs_topology_beside and selected_atoms.source_topology is not None:
        selected_atoms.universe = stored_universe(selected_atoms.source_topology, source)
    if needs_topology_beside and storage.topology and not is_structure(target, storage.to):
        kept_topology, holder = selected_atoms.topology, "the matching topology"
        transform_notes += notes_on_cut_names(kept_topology, holder, PDB_NAME_LETTERS)
        transform_notes += notes_on_missing_bonds(kept_topology, holder)
    unreadable: list[list[int]] = []
    if repaired is not None:
        topology = repaired.meta.topology or topology
        repaired.meta = replace(repaired.meta, topology=topology)
        unreadable = repaired.manifest["source"].get("unreadable_frames") or []
    elif sources.salvage:
        frames, unreadable = split_readable(source, frames)
        pbc = selection.pbc
        if unreadable and pbc in FOLLOWS_ATOMS:
            raise PlanError(
                f"{source.path}: --pbc {pbc} follows atoms through all frames, and frame "
                f"{unreadable[0][0]} cannot be read; convert with --salvage alone, then the output "
                f"with --pbc {pbc}"
            )
    atoms = selected_atoms.atoms
    view = ViewLayout(
        source.path, source=transformed_source, frames=frames, atoms=atoms, unreadable=unreadable
    )
    if repaired is not None:
        view = add_writer_frames(repaired.former, view)
    notes = [*source.notes]
    if selection.dt_ps is not None:
        notes += filter(None, [note_on_dt(source.info, view.info, selection.dt_ps)])
    notes = list(dict.fromkeys([*notes, *transform_notes, *selected_atoms.notes]))
    stretches = source.unreadable_stretches if unreadable else ()
    if unreadable:
        single_frames = np.setdiff1d(
            indices_from_runs(unreadable), [stretch.frame for stretch in stretches]
        )
        kept_text = f"{plural(len(frames), 'whole frame')} kept"
        notes += [f"{stretch}; left out, {kept_text}" for stretch in stretches]
        if len(single_frames):
            numbers = f"number {runs_text(runs_from_indices(single_frames))}"
            name = source.path if len(paths) == 1 else "the joined files"
            text = f"{name}: {plural(len(single_frames), 'frame')} cannot be read ({numbers})"
            notes.append(f"{text}; left out, {kept_text}")
    if (
        layout_class(layout_name).facts.can_choose_n_files
        and sources.top
        and selected_atoms.atoms is None
    ):
        notes.append(f"{layout_name} hold no topology: give it with -s/--top again to read it")
    if running.source_grows:  # incomplete frames will be completed
        notes = []
    elif not sources.salvage and repaired is None:  # which has its frames, not the last ones
        check_not_truncated(source.info, selection.stop, selection.end_ps)
    if repaired is None:  # older versions requested any size
        check_stripes(storage)
    storage_options = {field.name: getattr(storage, field.name) for field in fields(StorageOptions)}
    if storage_options["container"] is None and writer.facts.copier is not None:
        storage_options["container"] = container_format(source)
    packs_integers = writer.facts.packs_integers and repaired is None
    nbytes_per_atom = source.info.nbytes_per_atom
    codec_shares = (
        measure_codec_shares(view, selected_atoms.groups, storage, nbytes_per_atom)
        if packs_integers
        else {}
    )
    write_options = WriteOptions(
        **storage_options,
        compression=None if storage.compression in ("auto", "none") else storage.compression,
        file_system=file_system_for(target, storage.compression),
        pattern=storage.pattern or "blocks",
        topology_nbytes=0 if topology is None else len(topology.to_bytes()),
        stripe_nbytes=planned_stripe_nbytes(storage, target),
        groups={name: len(atoms) for name, atoms in selected_atoms.groups.items()},
        codec_shares=codec_shares,
    )
    # Later frames may have cells, though the first, of all or of those chosen, has none.
    info = view.info.replace(has_box=view.info.has_box or has_box(source))
    plan = checked_plan(writer.plan_for(info, write_options), info, write_options)
    native_format = NATIVE_FORMATS.get(plan.container or "")
    max_step = None if native_format is None else native_format.max_step
    if max_step is not None and repaired is None and container_format(source) is None:
        last = int(view.frames[-1])
        step = int(source.read(last, last + 1, atoms=[]).step[0])
        if step > max_step:  # told now, and not after hours
            raise PlanError(
                f"{source.path}: {plan.container} holds 32-bit steps up to {max_step}, but the "
                f"last one is {step}; write h5md or zarr"
            )
    notes += filter(None, [no_stripes_note(target)])
    stores_floats = plan.precision is None and plan.compression is None
    if writer.facts.packs_integers and stores_floats and storage.precision != "none":
        notes += _notes_on_lost_integers(source.info, view.info)
    if not layout_class(storage_options["container"] or layout_name).facts.step_is_frame_number:
        notes += _notes_on_restarted_steps(source)
    left_out_groups = [name for name in source.info.groups if name not in selected_atoms.groups]
    if left_out_groups and plan.arrays and selected_atoms.atoms is None and repaired is None:
        notes.append(
            f"{source.path}: its stored groups ({list_text(left_out_groups)}) are left out; store "
            "them again with --group NAME=SELECTION"
        )
    plan = plan.replace(notes=(*plan.notes, *notes), source_nbytes_per_atom=nbytes_per_atom)
    shares = filter(None, codec_shares.get(FULL_SYSTEM, ()))
    min_share = min(shares, default=0.0) / 2  # a few frames say little about the others
    if plan.container is not None and plan.keeps_integers:
        is_whole = selected_atoms.atoms is None and plan.n_frames == source.info.n_frames
        min_share = 1.0 if is_whole and len(paths) == 1 else 0.5  # several may overlap
    if repaired is not None:
        plan = plan.replace(**repaired.plan_values)
    if plan.writing.direct is not None and running.mpio is None:
        plan = plan.replace(direct=choose_direct(running.direct, plan, target))
    if running.mpio is None and is_written_by_owner(plan, target, executor):
        # Where each piece is a file that is written as a whole, pieces stay as they are.
        plan = (
            plan.replace(by_owner=True) if writer.facts.writes_files_once else plan_for_owner(plan)
        )
    job = Job(
        out=target,
        files=[to_path(path) for path in paths],
        view=view,
        selected_atoms=selected_atoms,
        plan=plan,
        writer=writer,
        options=options,
        nbytes_in=source.info.nbytes,
        transformed=transform_options,
        joined=getattr(source, "joined", None),
        topology=topology,
        repaired=repaired,
        former_state=former_state,
        unreadable_stretches=stretches,
        min_nbytes=min_share * (nbytes_per_atom or 0.0) * plan.n_frames * plan.n_atoms,
    )
    return choose_strategy(job)


@takes_options(*OPTIONS, objects=OPTION_OBJECTS)
def convert(
    source: Paths,
    out: str | PathLike[str],
    *,
    workers: int = 1,
    executor: Executor | None = None,
    force: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> ConvertResult:
    """Convert a trajectory into another layout.

    Parameters
    ----------
    source
        Trajectory of any layout, or several files that are joined in the order of their times
        (see ``overlap``).
    out
        Output; its suffix names the layout (``.segments``, ``.h5md``, ``.zarr``; ``.xtc``,
        ``.trr``, ``.dcd``, ``.ncdf`` for one native file) unless ``to=`` does. One frame may also
        become a structure file, ``.gro`` or ``.pdb``.
    workers
        Worker processes.
    executor
        Instead of `workers`: where to run.
    force
        Replace an existing output, once the new one is complete.
    resume
        Continue an earlier run of the same conversion; begin if there is none; do nothing if it
        made all of `out` (a native file: if it holds the same frames).
    progress
        Called with (frames, decoded bytes) done since the last call.
    **options
        <options>

    Returns
    -------
    ConvertResult

    Raises
    ------
    SourceError
        The source is missing, damaged, or does not fit its topology.
    PlanError
        Options that do not fit together or leave nothing.
    OutputError
        The output exists already or cannot be written.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD, PSF
    >>> mdio.convert(DCD, "adk.zarr", top=PSF, groups={"ca": "name CA"}).n_frames
    98
    >>> dict(mdio.open("adk.zarr").info.groups)
    {'ca': 214}
    """
    conversion_options = ConversionOptions.of(**options)
    with pool_or_serial(executor, workers) as pool:
        pool.agree("convert", source, out)
        conversion = prepare(source, out, conversion_options, pool)
        return conversion.run(pool, force=force, resume=resume, progress=progress)


@takes_options(*OPTIONS, objects=OPTION_OBJECTS)
def append(
    sources: Paths,
    out: str | PathLike[str],
    *,
    workers: int = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> ConvertResult:
    """Add the frames of a continuation to an output of mdio (zarr, segments or h5md).

    They are stored with the options of `out`, which stays as it is until all are stored; then the
    new output takes its place in one step. Full shards and segments, and parts, are not read, but
    reused in the new output.

    Parameters
    ----------
    sources
        One or several files that continue `out`. Frames that `out` has already are left out, if
        their coordinates are the same, too.
    out
        The output.
    workers, executor, progress
        As for `convert`.
    **options
        ``overlap`` (as for `convert`: by default, where both have frames of the same times, those
        of the continuation are kept), ``salvage`` (of a source that is cut at its end), ``verify``;
        ``top`` for an output of some atoms that was made with ``pbc``, ``center`` or
        ``fit_select``.

    Returns
    -------
    ConvertResult

    Raises
    ------
    SourceError
        A source is damaged, has other atoms, or adds nothing.
    PlanError
        `out` has another layout, or was made by a version of mdio to whose outputs nothing can be
        added.
    OutputError
        The new output cannot be written.

    Examples
    --------
    >>> import mdio, pathlib, tempfile
    >>> from MDAnalysisTests.datafiles import XTC
    >>> out = pathlib.Path(tempfile.mkdtemp()) / "md.zarr"
    >>> mdio.convert(XTC, out, stop=4).n_frames
    4
    >>> mdio.append(XTC, out).n_frames
    10
    """
    return convert(
        sources, out, append=True, workers=workers, executor=executor, progress=progress, **options
    )


def check_suffix(out: str | PathLike[str]) -> None:
    """Refuse an output of `split` whose suffix is that of another layout; raises PlanError."""
    layout = output_suffixes().get(Path(out).suffix.lower())
    if layout is not None and writer_class(layout).facts.copier is None:
        raise PlanError(
            f"{out}: the suffix says {layout}, but split makes a folder of segments; call it "
            f"{Path(out).with_suffix('.segments')}, or make {layout} with `mdio convert`"
        )


def split(
    sources: Paths,
    out: str | PathLike[str],
    n_segments: int,
    *,
    overlap: str | None = None,
    force: bool = False,
    resume: bool = False,
    salvage: bool = False,
    workers: int = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> ConvertResult:
    """Cut a trajectory into files of its own format, ``OUT/000/seg-000000.xtc`` and so on.

    Frames of XTC, TRR, DCD and NetCDF-3 files are copied as bytes; each segment is a valid file of
    the format, and the index of XTC and TRR segments comes from that of the source. Frames are
    decoded and encoded again, in the format of the source, where copying would not do: DCD with
    fixed atoms, NetCDF-4, several DCD or NetCDF files; the integers of an XTC in other layouts
    become XTC again; all else becomes NetCDF.

    Parameters
    ----------
    sources
        A trajectory, or several files that are joined in the order of their times.
    out
        Folder to make, ``NAME.segments``.
    n_segments
        Number of segments; their frames differ by one at most.
    overlap, force, resume, salvage, workers, executor, progress
        As for `mdio.convert`.

    Returns
    -------
    ConvertResult
        Its `copied` says whether bytes were copied.

    Raises
    ------
    SourceError
        The source is missing or damaged.
    PlanError
        More segments than frames, or a suffix of another layout.
    OutputError
        The output exists already or cannot be written.

    Examples
    --------
    >>> import mdio
    >>> from MDAnalysisTests.datafiles import DCD
    >>> mdio.split(DCD, "adk.segments", 4).copied
    True
    >>> mdio.open("adk.segments").info.n_frames
    98
    """
    check_suffix(out)
    return convert(
        sources,
        out,
        storage=Storage(to="segments", segments=n_segments),
        overlap=overlap,
        force=force,
        resume=resume,
        salvage=salvage,
        workers=workers,
        executor=executor,
        progress=progress,
    )
