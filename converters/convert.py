"""From any layout to any writable one, in parallel."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from mdio.converters.pieces import PieceWorker, describe_piece
from mdio.converters.selection import AtomChoice, Selection, choose_atoms
from mdio.converters.topology import topologies
from mdio.converters.transform import TransformedLayout
from mdio.core.errors import OutputError, PlanError
from mdio.core.fingerprint import fingerprint
from mdio.core.publish import publish, temporary_for
from mdio.layouts.base import Layout, LayoutWriter, OutputMeta
from mdio.layouts.chain import open_source
from mdio.layouts.plan import DEFAULT_STRIPE_NBYTES, LayoutPlan, WriteOptions
from mdio.layouts.registry import layout_name_for_output, writer_class
from mdio.layouts.view import ViewLayout, select_frames
from mdio.parallel.executors import Executor, Processes, Serial

__all__ = ["Conversion", "ConversionOptions", "ConvertResult", "convert", "prepare"]

Progress = Callable[[int, int], None]
"""Called with frames and bytes (decoded) done since the last call."""
Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


@dataclass(frozen=True, kw_only=True)
class ConversionOptions:
    """Everything one can ask of a conversion besides source and output."""

    to: str | None = None
    """Layout; by default what the output's suffix says."""
    top: str | PathLike[str] | None = None
    """Topology, for selections and to check the number of atoms."""
    select: Selection | None = None
    """Atoms to keep."""
    groups: Mapping[str, Selection] = field(default_factory=dict)
    """Atom groups to store besides, by name."""
    start: int | None = None
    stop: int | None = None
    step: int | None = None
    begin_ps: float | None = None
    end_ps: float | None = None
    dt_ps: float | None = None
    precision: float | Literal["auto"] | None = None
    """Step of stored positions, angstrom; ``auto`` = what an XTC source holds; None = lossless."""
    compression: str | None = None
    pbc: str | None = None
    center: str | None = None
    chunk_frames: int | None = None
    chunk_atoms: int | None = None
    container: str | None = None
    segments: int | None = None
    stripe_nbytes: int = DEFAULT_STRIPE_NBYTES
    stripe_count: int | None = None


@dataclass(frozen=True)
class ConvertResult:
    """What a conversion has done."""

    out: str
    layout: str
    n_frames: int
    n_atoms: int
    nbytes_in: int
    nbytes_out: int
    seconds: float
    """From the first byte read to the published output; imports and topology are not counted."""
    workers: int
    plan: LayoutPlan
    topologies: tuple[str, ...] = ()
    """Topology files written beside the output."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(replace(self)), "plan": self.plan.to_json()}


def prepare(source: Paths, out: str | PathLike[str], options: ConversionOptions) -> Conversion:
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
    plan = writer.plan_for(view.info, wanted)
    paths = [source] if isinstance(source, str | PathLike) else list(source)
    files = [Path(path) for path in paths]
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
        beside = topologies(self.choice, self.out)
        # The same topology may serve several outputs: one that is there already stays.
        new = {path: data for path, data in beside.items() if not _holds(path, data)}
        with publish(
            self.out, force=force, sources=self.source_paths, companions=list(new)
        ) as temporary:
            self._check_room()
            for path, data in new.items():
                temporary_for(path).write_bytes(data)
            begun = time.perf_counter()
            writer = self.writer(temporary, self.plan, self._meta())
            try:
                nbytes = self._write(writer, executor, progress)
            except BaseException:
                writer.abort()
                raise
        return ConvertResult(
            out=str(self.out),
            layout=self.plan.layout,
            n_frames=self.plan.n_frames,
            n_atoms=self.plan.n_atoms,
            nbytes_in=self.view.source.info.nbytes,
            nbytes_out=nbytes,
            seconds=time.perf_counter() - begun,
            workers=executor.n_workers,
            plan=self.plan,
            topologies=tuple(str(path) for path in beside),
        )

    def _write(self, writer: LayoutWriter, executor: Executor, progress: Progress | None) -> int:
        writer.create()
        frame_nbytes = self.view.info.frame_nbytes
        nbytes = 0
        work = PieceWorker(self.view, writer)
        for _, (receipt, items) in executor.imap(work, self.plan.pieces(), describe=describe_piece):
            for item in items:
                writer.store(item)
            writer.commit(receipt)
            nbytes += receipt.nbytes
            if progress is not None:
                n_frames = receipt.stop - receipt.start
                progress(n_frames, n_frames * frame_nbytes)
        writer.finish()
        return nbytes

    def _check_room(self) -> None:
        """Refuse at once what cannot fit; compressed sizes are not known before."""
        if self.plan.compression is not None or self.plan.precision is not None:
            return
        free = shutil.disk_usage(self.out.absolute().parent).free
        if self.plan.nbytes > free:
            raise OutputError(
                f"{self.out}: needs {self.plan.nbytes} bytes, but only {free} are free there; "
                "free some room, choose another folder, or use --precision or --select"
            )

    def _meta(self) -> OutputMeta:
        info = self.view.source.info
        prints = [fingerprint(path) for path in self.source_paths]
        source = prints[0] if len(prints) == 1 else {"path": prints[0]["path"], "files": prints}
        return OutputMeta(
            uuid=str(uuid4()),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            source={
                **source,
                "layout": info.layout,
                "n_frames": info.n_frames,
                "transformed": self.transformed,
            },
            dt_ps=self.view.info.dt_ps,
            frames=self.view.runs,
            atoms=self.choice.kept,
            groups=self.choice.groups,
            source_precision=info.precision if info.compression == "xtc" else None,
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
