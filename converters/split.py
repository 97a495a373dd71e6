"""Cut a trajectory into segments by copying bytes: every frame stays as it is, to the bit."""

from __future__ import annotations

from os import PathLike

from mdio.converters.convert import Paths, convert
from mdio.converters.options import ConvertResult, Progress
from mdio.parallel.executors import Executor

__all__ = ["split"]


def split(
    sources: Paths,
    out: str | PathLike[str],
    n_segments: int,
    *,
    force: bool = False,
    workers: int = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> ConvertResult:
    """Cut a trajectory into files of its own format, ``OUT/000/seg-000000.xtc`` and so on.

    Frames of XTC, TRR, DCD and NetCDF-3 files are copied as bytes; each segment is a valid file of
    the format, and the index of XTC and TRR segments comes from that of the source. Frames are
    decoded and written anew where copying would not do: DCD with fixed atoms, NetCDF-4, several
    DCD or NetCDF files, and formats of others (those become NetCDF).

    Parameters
    ----------
    sources
        A trajectory, or several files that are joined in order.
    out
        Folder to be, ``NAME.segments``.
    n_segments
        Number of segments; their frames differ by one at most.
    force
        Replace an existing output, once the new one is whole.
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
        More segments than frames.
    OutputError
        The output exists already or cannot be written.
    """
    return convert(
        sources,
        out,
        to="segments",
        segments=n_segments,
        force=force,
        workers=workers,
        executor=executor,
        progress=progress,
    )
