"""From any layout to any writable one, in parallel."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

from mdio.converters.byte_conversion import ByteConversion, byte_conversion
from mdio.converters.options import ConversionOptions, ConvertResult, Progress
from mdio.converters.pieces import PieceWorker, describe_piece
from mdio.converters.provenance import check_room, output_meta
from mdio.converters.selection import AtomChoice, choose_atoms
from mdio.converters.topology import topologies
from mdio.converters.transform import TransformedLayout
from mdio.core.errors import PlanError
from mdio.core.publish import publish, temporary_for
from mdio.layouts.base import Layout, LayoutWriter
from mdio.layouts.chain import open_source
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.registry import layout_name_for_output, writer_class
from mdio.layouts.view import ViewLayout, select_frames
from mdio.parallel.executors import Executor, Processes, Serial

__all__ = ["Conversion", "ConversionOptions", "ConvertResult", "convert", "prepare"]

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def prepare(
    source: Paths, out: str | PathLike[str], options: ConversionOptions
) -> Conversion | ByteConversion:
    """Open the source and plan the output; nothing is written.

    Raises
    ------
    SourceError, UnknownLayoutError, PlanError
        What cannot be read, written, or does not fit together.
    """
    target = Path(out)
    layout_name = layout_name_for_output(target, options.to)
    writer = writer_class(layout_name)
    origin = open_source(source)
    choice = choose_atoms(origin, options.top, options.select, options.groups)
    whole: Layout = origin
    transformed = None
    if options.pbc is not None or options.center is not None:
        if options.top is None:
            raise PlanError("--pbc and --center need a topology; name one with -s/--top FILE")
        transformed = {"pbc": options.pbc, "center": options.center}
        whole = TransformedLayout(origin.path, source=origin, top=str(options.top), **transformed)
    frames = select_frames(
        origin,
        options.start,
        options.stop,
        options.step,
        options.begin_ps,
        options.end_ps,
        options.dt_ps,
    )
    view = ViewLayout(origin.path, source=whole, frames=frames, atoms=choice.kept)
    wanted = WriteOptions(
        compression=options.compression,
        precision=options.precision,
        chunk_frames=options.chunk_frames,
        chunk_atoms=options.chunk_atoms,
        stripe_nbytes=options.stripe_nbytes,
        stripe_count=options.stripe_count,
        segments=options.segments,
        container=options.container,
        groups={name: len(atoms) for name, atoms in choice.groups.items()},
    )
    paths = [source] if isinstance(source, str | PathLike) else list(source)
    files = [Path(path) for path in paths]
    as_it_is = choice.kept is None and transformed is None and options.precision is None
    if layout_name == "segments" and as_it_is and not choice.groups and view.first is not None:
        copied = byte_conversion(target, files, origin.info, view.info, view.first, wanted)
        if copied is not None:
            return copied
    plan = writer.plan_for(view.info, wanted)
    return Conversion(target, view, choice, plan, writer, files, transformed)


class Conversion:
    """A planned conversion: look at `plan`, then `run` it."""

    def __init__(
        self,
        out: Path,
        view: ViewLayout,
        choice: AtomChoice,
        plan: LayoutPlan,
        writer: type[LayoutWriter],
        source_paths: Sequence[Path],
        transformed: Mapping[str, str | None] | None = None,
    ) -> None:
        self.out = out
        self.view = view
        self.choice = choice
        self.plan = plan
        self.writer = writer
        self.source_paths = source_paths
        self.transformed = transformed
        self.beside = topologies(choice, out)

    def run(
        self,
        executor: Executor,
        *,
        force: bool = False,
        progress: Progress | None = None,
    ) -> ConvertResult:
        """Convert, and publish the output when it is whole.

        Raises
        ------
        OutputError
            The output exists, the disk is full, ...
        SourceError
            The source turns out damaged on the way.
        """
        stack = ExitStack()
        begun = 0.0

        def begin() -> PieceWorker:
            nonlocal begun
            temporary = self._publication(stack, force)
            begun = time.perf_counter()
            meta = output_meta(
                self.source_paths,
                self.view.source.info,
                dt_ps=self.view.info.dt_ps,
                frames=self.view.runs,
                atoms=self.choice.kept,
                groups=self.choice.groups,
                transformed=self.transformed,
            )
            writer = self.writer(temporary, self.plan, meta)
            stack.push(lambda kind, *_: writer.abort() if kind is not None else None)
            writer.create()
            return PieceWorker(self.view, writer)

        def end() -> ConvertResult:
            work.writer.finish()
            stack.close()
            return self._result(nbytes, time.perf_counter() - begun, executor.n_workers)

        with stack:
            work = executor.from_owner(begin)
            nbytes = self._write(work, executor, progress)
            return executor.from_owner(end)

    def _publication(self, stack: ExitStack, force: bool) -> Path:
        """Enter `publish`, write the topologies, and return the temporary path."""
        # The same topology may serve several outputs: one that is there already stays.
        new = {path: data for path, data in self.beside.items() if not _holds(path, data)}
        temporary = stack.enter_context(
            publish(self.out, force=force, sources=self.source_paths, companions=list(new))
        )
        if self.plan.compression is None and self.plan.precision is None:
            check_room(self.out, self.plan.nbytes)  # other sizes are not known before
        for path, data in new.items():
            temporary_for(path).write_bytes(data)
        return temporary

    def _write(self, work: PieceWorker, executor: Executor, progress: Progress | None) -> int:
        """Do this process' share, and store and commit in the owner what others have encoded."""
        frame_nbytes = self.view.info.frame_nbytes
        nbytes = 0
        for _, (receipt, items) in executor.imap(work, self.plan.pieces(), describe=describe_piece):
            for item in items:
                work.writer.store(item)
            work.writer.commit(receipt)
            nbytes += receipt.nbytes
            if progress is not None:
                n_frames = receipt.stop - receipt.start
                progress(n_frames, n_frames * frame_nbytes)
        return nbytes

    def _result(self, nbytes: int, seconds: float, workers: int) -> ConvertResult:
        return ConvertResult(
            out=str(self.out),
            layout=self.plan.layout,
            n_frames=self.plan.n_frames,
            n_atoms=self.plan.n_atoms,
            nbytes_in=self.view.source.info.nbytes,
            nbytes_out=nbytes,
            seconds=seconds,
            workers=workers,
            plan=self.plan,
            topologies=tuple(str(path) for path in self.beside),
        )


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def convert(
    source: Paths,
    out: str | PathLike[str],
    *,
    workers: int = 1,
    executor: Executor | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> ConvertResult:
    """Convert a trajectory into another layout.

    Parameters
    ----------
    source
        Trajectory of any layout, or several files that are joined in order.
    out
        Output; its suffix names the layout (``.segments``, ``.h5md``, ``.zarr``; ``.xtc``,
        ``.trr``, ``.dcd``, ``.ncdf`` for one native file) unless ``to=`` does.
    workers
        Worker processes.
    executor
        Instead of `workers`: where to run.
    force
        Replace an existing output, once the new one is whole.
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
    >>> from MDAnalysisTests.datafiles import PSF, DCD
    >>> import tempfile, pathlib
    >>> out = pathlib.Path(tempfile.mkdtemp()) / "adk.zarr"
    >>> mdio.convert(DCD, out, top=PSF, groups={"ca": "name CA"}).n_frames
    98
    """
    conversion = prepare(source, out, ConversionOptions(**options))
    if executor is not None:
        return conversion.run(executor, force=force, progress=progress)
    with Processes(workers) if workers > 1 else Serial() as chosen:
        return conversion.run(chosen, force=force, progress=progress)
