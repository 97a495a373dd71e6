"""Cut a trajectory into segments by copying bytes: every frame stays as it is, to the bit."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from mdio.converters.convert import Paths, convert
from mdio.converters.options import ConvertResult, Progress
from mdio.core.errors import PlanError
from mdio.layouts.registry import output_suffixes, writer_class
from mdio.parallel.executors import Executor


def check_suffix(out: str | PathLike[str]) -> None:
    """Refuse a name that says another layout; raises PlanError."""
    named = output_suffixes().get(Path(out).suffix.lower())
    if named is not None and writer_class(named).facts.copier is None:
        raise PlanError(
            f"{out}: the suffix says {named}, but split makes a folder of segments; call it "
            f"{Path(out).with_suffix('.segments')}, or make {named} with `mdio convert`"
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
    fixed atoms, NetCDF-4, several DCD or NetCDF files; formats of others become NetCDF.

    Parameters
    ----------
    sources
        A trajectory, or several files that are joined in the order of their times.
    out
        Folder to make, ``NAME.segments``.
    n_segments
        Number of segments; their frames differ by one at most.
    overlap
        Which of the frames with equal times to keep; see `mdio.convert`.
    force
        Replace an existing output, once the new one is complete.
    resume
        Go on with what an earlier run of the same split left; begin if it left nothing.
    salvage
        Split the complete frames of a source that ends within a frame.
    workers
        Worker processes.
    executor
        Instead of `workers`: where to run.
    progress
        Called with (frames, decoded bytes) done since the last call.

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
        to="segments",
        segments=n_segments,
        overlap=overlap,
        force=force,
        resume=resume,
        salvage=salvage,
        workers=workers,
        executor=executor,
        progress=progress,
    )
