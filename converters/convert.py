"""From any layout to any writable one, in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from mdio.converters.append import prepare_append
from mdio.converters.options import ConversionOptions, ConvertResult, Progress
from mdio.converters.selection import check_whole, choose_atoms, open_with_topology, readable
from mdio.converters.storage import goes_direct, telling_file_system
from mdio.converters.strategies.copied import ByteConversion, byte_conversion
from mdio.converters.strategies.decoded import Conversion
from mdio.converters.strategies.mpio import MPIOConversion, check_mpio
from mdio.converters.strategies.parts import PartsConversion, check_per_rank, parts_reason
from mdio.converters.striping import StripeRequest
from mdio.converters.transform import TransformedLayout
from mdio.core.errors import PlanError
from mdio.core.files.fingerprint import SourceStates
from mdio.core.words import plural
from mdio.layouts.base import Layout
from mdio.layouts.contiguous import refuse_contiguous
from mdio.layouts.plan import WriteOptions
from mdio.layouts.registry import layout_name_for_output, writer_class
from mdio.layouts.views.view import Frames, ViewLayout, note_on_dt, select_frames
from mdio.parallel.executors import Executor, Processes, Serial

__all__ = [
    "Conversion",
    "ConversionOptions",
    "ConvertResult",
    "append",
    "convert",
    "planned",
    "prepare",
]

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
CHUNKED = ("h5md", "zarr")


def prepare(
    source: Paths,
    out: str | PathLike[str],
    options: ConversionOptions,
    executor: Executor | None = None,
) -> Conversion | ByteConversion:
    """Open the source and plan the output for `executor` (one process); nothing is written.

    Raises
    ------
    SourceError, UnknownLayoutError, PlanError
        What cannot be read, written, or does not fit together.
    """
    if options.append:
        return prepare_append(source, out, options, executor or Serial())
    target = Path(out)
    layout_name = layout_name_for_output(target, options.to)
    if options.per_rank:
        check_per_rank(options, layout_name)
    if options.mpio is not None:
        check_mpio(options, layout_name)
    if options.contiguous:
        refuse_contiguous(layout_name)
    if layout_name != "segments" and (options.container, options.segments) != (None, None):
        raise PlanError(
            f"{out}: --container and --segments belong to the layout segments, not to {layout_name}"
        )
    if layout_name not in CHUNKED and (options.chunk_frames, options.chunk_atoms) != (None, None):
        raise PlanError(
            f"{out}: --chunk-frames and --chunk-atoms belong to the layouts h5md and zarr, not to "
            f"{layout_name}"
        )
    how = {"verify": options.verify, "overlap": options.overlap}
    how |= {"salvage": True} if options.salvage else {}
    origin = open_with_topology(source, options.top, **how)
    try:
        made = planned(origin, source, target, layout_name, options, executor or Serial())
        if options.growing:
            paths = [source] if isinstance(source, str | PathLike) else source
            made.states = SourceStates(paths, may_grow=True)
        return made
    except BaseException:
        origin.close()
        raise


def planned(
    origin: Layout,
    source: Paths,
    target: Path,
    layout_name: str,
    options: ConversionOptions,
    executor: Executor,
    frames: Frames | None = None,
) -> Conversion | ByteConversion:
    """Plan with the opened source, which stays open unless bytes can be copied."""
    writer = writer_class(layout_name)
    choice = choose_atoms(origin, options.top, options.select, options.groups)
    whole: Layout = origin
    transformed = None
    if options.pbc is not None or options.center is not None:
        if options.top is None:
            raise PlanError("--pbc and --center need a topology; name one with -s/--top FILE")
        transformed = {"pbc": options.pbc, "center": options.center}
        whole = TransformedLayout(origin.path, source=origin, top=str(options.top), **transformed)
    if frames is None:
        frames = select_frames(
            origin,
            options.start,
            options.stop,
            options.step,
            options.begin_ps,
            options.end_ps,
            options.dt_ps,
        )
    unreadable: list[list[int]] = []
    if options.salvage:
        frames, unreadable = readable(origin, frames)
    view = ViewLayout(
        origin.path, source=whole, frames=frames, atoms=choice.kept, unreadable=unreadable
    )
    note = None if options.dt_ps is None else note_on_dt(origin.info, view.info, options.dt_ps)
    notes = origin.notes if note is None else (*origin.notes, note)
    if unreadable:
        n_lost = sum(len(range(*run)) for run in unreadable)
        which = ", ".join(f"{a}" if b == a + 1 else f"{a} to {b - 1}" for a, b, _ in unreadable)
        whole_ones = f"{plural(origin.info.n_frames - n_lost, 'whole frame')}"
        lost = f"{origin.path}: {plural(n_lost, 'frame')} of it cannot be read (number {which})"
        notes = (*notes, f"{lost}; left out, beside {whole_ones}")
    if options.growing:  # what is not complete is to come
        notes = ()
    elif not options.salvage:
        check_whole(origin.info, options.stop, options.end_ps)
    striping = StripeRequest(options.stripe_nbytes, options.stripe_count, options.progressive)
    wanted = WriteOptions(
        compression=None if options.compression in ("auto", "none") else options.compression,
        file_system=telling_file_system(target, options.compression),
        precision=options.precision,
        chunk_frames=options.chunk_frames,
        chunk_atoms=options.chunk_atoms,
        contiguous=options.contiguous,
        stripe_nbytes=striping.nbytes_for(target),
        stripe_count=options.stripe_count,
        segments=options.segments,
        container=options.container or (origin.container if layout_name == "segments" else None),
        groups={name: len(atoms) for name, atoms in choice.groups.items()},
        expected_frames=options.expected_frames,
    )
    paths = [source] if isinstance(source, str | PathLike) else list(source)
    files = [Path(path) for path in paths]
    as_it_is = choice.kept is None and transformed is None and options.precision is None
    if layout_name == "segments" and as_it_is and not choice.groups and view.first is not None:
        copied = byte_conversion(
            target, files, origin, view.info, view.first, wanted, striping, choice.files
        )
        if copied is not None:
            origin.close()
            copied.plan = copied.plan.replace(
                notes=(*copied.plan.notes, *notes), source_density=origin.info.density
            )
            return copied
    plan = writer.plan_for(view.info, wanted)
    plan = plan.replace(notes=(*plan.notes, *notes), source_density=origin.info.density)
    if plan.direct is not None and options.mpio is None:
        plan = plan.replace(direct=goes_direct(options.direct, plan, target))
    made_of = writer, files, striping, transformed, origin.joined
    if options.mpio is None:
        reason = parts_reason(options, plan, executor) if layout_name == "h5md" else None
        if reason is None:
            return Conversion(target, view, choice, plan, *made_of)
        parted = PartsConversion(target, view, choice, plan, *made_of)
        parted.divide(executor.n_workers, reason)
        return parted
    shared = MPIOConversion(target, view, choice, plan, *made_of)
    shared.write_with(options)
    return shared


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
        (see ``overlap=`` of `ConversionOptions`).
    out
        Output; its suffix names the layout (``.segments``, ``.h5md``, ``.zarr``; ``.xtc``,
        ``.trr``, ``.dcd``, ``.ncdf`` for one native file) unless ``to=`` does.
    workers
        Worker processes.
    executor
        Instead of `workers`: where to run.
    force
        Replace an existing output, once the new one is complete.
    resume
        Go on with what a former run of the same conversion left; begin if it left nothing.
    progress
        Called with (frames, decoded bytes) done since the last call.
    **options
        The fields of `ConversionOptions`: ``top``, ``select``, ``groups``, ``precision``, ...

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
    wanted = ConversionOptions(**options)
    if executor is not None:
        conversion = prepare(source, out, wanted, executor)
        return conversion.run(executor, force=force, resume=resume, progress=progress)
    with Processes(workers) if workers > 1 else Serial() as chosen:
        conversion = prepare(source, out, wanted, chosen)
        return conversion.run(chosen, force=force, resume=resume, progress=progress)


def append(
    sources: Paths, out: str | PathLike[str], *, workers: int = 1, **options: Any
) -> ConvertResult:
    """Add the frames of a continuation to an output of mdio (zarr, segments or h5md).

    They are stored as those that are there. Until all are, `out` stays as it is; then the new
    output takes its place in one step. Shards and segments that are full, and parts, become those
    of the new one without being read.

    Parameters
    ----------
    sources
        One or several files that go on where `out` ends. Frames that `out` has already are left
        out, if their coordinates are the same too.
    out
        The output.
    workers
        Worker processes.
    **options
        ``overlap`` (as for `convert`: by default the continuation wins where it has other frames
        for times that `out` has), ``salvage``, ``verify``; ``top`` for an output that was made with
        ``pbc`` or ``center``; ``executor`` and ``progress``.

    Returns
    -------
    ConvertResult

    Raises
    ------
    SourceError
        A source is damaged, has other atoms, or adds nothing.
    PlanError
        `out` is none of these layouts, or by a version of mdio to whose outputs nothing can be
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
    return convert(sources, out, workers=workers, append=True, **options)
