"""Cut a trajectory into segments by copying bytes: every frame stays as it is, to the bit."""

from __future__ import annotations

import shutil
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any
from uuid import uuid4

from mdio.converters.byte_frames import ByteFrames, byte_frames
from mdio.converters.convert import convert
from mdio.converters.copy_segments import SegmentCopier
from mdio.core.errors import OutputError, SourceError
from mdio.core.fingerprint import fingerprint
from mdio.core.frames import TrajectoryInfo
from mdio.core.publish import publish
from mdio.layouts.base import Layout, OutputMeta
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.registry import open_layout
from mdio.layouts.segments import SegmentsLayout
from mdio.layouts.segments_writer import plan_segments, write_manifest

__all__ = ["SplitResult", "split"]

Progress = Callable[[int, int], None]
"""Called with frames and bytes (decoded) done since the last call."""
Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


@dataclass(frozen=True)
class SplitResult:
    """What a split has done."""

    out: str
    layout: str
    n_frames: int
    n_atoms: int
    nbytes_in: int
    nbytes_out: int
    seconds: float
    """From the first byte read to the published output."""
    workers: int
    plan: LayoutPlan
    copied: bool
    """Whether bytes were copied; otherwise frames were decoded and written anew."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(replace(self)), "plan": self.plan.to_json()}


def split(
    sources: Paths,
    out: str | PathLike[str],
    n_segments: int,
    *,
    force: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> SplitResult:
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
        Threads that copy (worker processes, where frames are decoded).
    progress
        Called with (frames, decoded bytes) done since the last call.

    Returns
    -------
    SplitResult

    Raises
    ------
    SourceError
        The source is missing or damaged.
    PlanError
        More segments than frames.
    OutputError
        The output exists already or cannot be written.
    """
    paths = [sources] if isinstance(sources, str | PathLike) else list(sources)
    given = [Path(path) for path in paths]
    layouts = list(_files(given))
    try:
        info = _joined_info(layouts)
        frames = _all_bytes(layouts)
        if frames is None:
            return _decode(given, out, n_segments, force=force, workers=workers, progress=progress)
        plan = plan_segments(info, WriteOptions(container=layouts[0].name, segments=n_segments))
        first_times_ps = _first_times_ps(layouts, plan)
    finally:
        for layout in layouts:
            layout.close()
    plan = plan.replace(nbytes=sum(int(one.edges[-1]) for one in frames))
    target = Path(out)
    with publish(target, force=force, sources=given) as temporary:
        _check_room(target, plan.nbytes)
        begun = time.perf_counter()
        copier = SegmentCopier(temporary, plan, frames, first_times_ps)
        segments = copier.run(workers, progress, info.frame_nbytes)
        write_manifest(
            temporary,
            plan,
            _meta(given, info),
            segments,
            time_last_ps=info.time_last_ps,
            has_box=info.has_box,
        )
    return SplitResult(
        out=str(target),
        layout=plan.layout,
        n_frames=info.n_frames,
        n_atoms=info.n_atoms,
        nbytes_in=info.nbytes,
        nbytes_out=sum(segment.nbytes for segment in segments),
        seconds=time.perf_counter() - begun,
        workers=workers,
        plan=plan,
        copied=True,
    )


def _files(paths: Sequence[Path]) -> Iterator[Layout]:
    """Open every file; of segments, every segment."""
    for path in paths:
        layout = open_layout(path)
        if isinstance(layout, SegmentsLayout):
            for segment in layout.segments:
                yield open_layout(path / segment.file, layout=layout.container)
            layout.close()
        else:
            yield layout


def _joined_info(layouts: Sequence[Layout]) -> TrajectoryInfo:
    infos = [layout.info for layout in layouts]
    for info in infos:
        if info.n_atoms != infos[0].n_atoms:
            raise SourceError(
                f"{info.path}: {info.n_atoms} atoms, but {infos[0].path} has {infos[0].n_atoms}; "
                "only files of the same atoms can be joined"
            )
    return infos[0].replace(
        n_frames=sum(info.n_frames for info in infos),
        time_last_ps=infos[-1].time_last_ps,
        has_velocities=any(info.has_velocities for info in infos),
        has_forces=any(info.has_forces for info in infos),
        nbytes=sum(info.nbytes for info in infos),
    )


def _all_bytes(layouts: Sequence[Layout]) -> list[ByteFrames] | None:
    """Return the frames of all files as bytes; None if these cannot be copied together."""
    if len({layout.name for layout in layouts}) > 1:
        return None
    found = [byte_frames(layout) for layout in layouts]
    frames = [one for one in found if one is not None]
    headed = any(one.header is not None for one in frames)
    return None if len(frames) < len(found) or (headed and len(frames) > 1) else frames


def _first_times_ps(layouts: Sequence[Layout], plan: LayoutPlan) -> list[float]:
    """Return the time of the first frame of each segment."""
    starts = list(accumulate(plan.segment_frames, initial=0))[:-1]
    edges = list(accumulate((layout.info.n_frames for layout in layouts), initial=0))
    times = []
    for start in starts:
        number = bisect_right(edges, start) - 1
        frame = start - edges[number]
        times.append(float(layouts[number].read(frame, frame + 1, atoms=[]).time[0]))
    return times


def _decode(
    paths: list[Path], out: str | PathLike[str], n_segments: int, **how: Any
) -> SplitResult:
    source: Paths = paths[0] if len(paths) == 1 else paths
    done = convert(source, out, to="segments", segments=n_segments, **how)
    return SplitResult(
        out=done.out,
        layout=done.layout,
        n_frames=done.n_frames,
        n_atoms=done.n_atoms,
        nbytes_in=done.nbytes_in,
        nbytes_out=done.nbytes_out,
        seconds=done.seconds,
        workers=done.workers,
        plan=done.plan,
        copied=False,
    )


def _check_room(target: Path, nbytes: int) -> None:
    free = shutil.disk_usage(target.absolute().parent).free
    if nbytes > free:
        raise OutputError(
            f"{target}: needs {nbytes} bytes, but only {free} are free there; free some room or "
            "choose another folder"
        )


def _meta(paths: Sequence[Path], info: TrajectoryInfo) -> OutputMeta:
    prints = [fingerprint(path) for path in paths]
    source = prints[0] if len(prints) == 1 else {"path": prints[0]["path"], "files": prints}
    return OutputMeta(
        uuid=str(uuid4()),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source={**source, "layout": info.layout, "n_frames": info.n_frames},
        dt_ps=info.dt_ps,
        frames=[[0, info.n_frames, 1]],
        source_precision=info.precision,
    )
