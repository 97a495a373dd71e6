"""Measuring: the user's analysis on a few frames of the source and of trial conversions."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path

import numpy as np

from mdio._version import __version__
from mdio.advisor.measure.measurements import (
    Bandwidth,
    Candidate,
    Group,
    Host,
    Measurements,
    Question,
    Source,
    as_is,
    candidates,
    local_copy,
)
from mdio.advisor.measure.probes import (
    REQUESTS,
    analysis_name,
    bandwidths,
    check_target,
    local_disk,
    probe,
    stripe_of,
)
from mdio.advisor.measure.trials import InterleavedRepeats, Limits, Progress, Tried, scratch
from mdio.analysis.kernels.kernel import BlockFunction, Kernel, Prepared, as_kernel
from mdio.analysis.system import System
from mdio.core.errors import MdioError, PlanError
from mdio.core.files.direct import free_memory
from mdio.core.files.remote.paths import path_of
from mdio.core.files.store import file_system_type, need_disk
from mdio.layouts.base import Layout, container_of
from mdio.layouts.views.opening import open_source
from mdio.parallel.executors import available_cores

NARROWER = ("backbone and not name O", "backbone")
"""What analyses of a selection may need of it: dihedrals of the backbone."""


def group_of(kernel: Kernel, system: System, prepared: Prepared) -> Group | None:
    """Return the atoms of an analysis as a selection and indices; None if it reads all atoms.

    The selection is the kernel's own, or a narrower one that still covers what is read.
    """
    own = getattr(kernel, "select", None)
    if prepared.atoms is None or not isinstance(own, str):
        return None
    n_read = len(np.unique(prepared.atoms))
    best: Group | None = None
    for text in (own, *(f"({own}) and {narrower}" for narrower in NARROWER)):
        if best is not None and len(best.indices) == n_read:
            break
        try:
            indices = system.select(text)
        except MdioError:
            continue
        if indices is None or not np.isin(prepared.atoms, indices).all():
            continue
        if best is None or len(indices) < len(best.indices):
            best = Group(text, indices)
    return best


WARM_NBYTES = 4 << 20
"""Decoded bytes that are read to learn how long the sample may be."""
FEW_FRAMES = 16
"""Frames of the source that are analysed where there is no room for trial conversions."""
COPIES = 12
"""Trial conversions that may lie in the target folder at once, groups and retries included."""


def measure(
    trajectory: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    analysis: str | Kernel | BlockFunction,
    select: str | None = None,
    top: str | PathLike[str] | None = None,
    target: str | PathLike[str] = ".",
    ranks: int = 1,
    allow_lossy: float | None = None,
    local_folder: str | PathLike[str] | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
    overlap: str | None = None,
    verify: bool = True,
    known: Sequence[Bandwidth] = (),
) -> Measurements:
    """Measure how an analysis behaves on a source and on what it could be converted into.

    Parameters are those of `mdio.advisor.advise.advise`. `known`: what several machines got.

    Raises PlanError, SourceError: what cannot be opened, selected or imported. BlockError: the
    analysis itself fails. OutputError: the target folder is missing or cannot be written to.
    """
    begun = time.monotonic()
    limits = limits or Limits()
    single = isinstance(trajectory, str | PathLike)
    paths = [str(trajectory)] if single else [str(path) for path in trajectory]  # type: ignore[union-attr]
    need_disk(target, "trial conversions need a folder on a disk; give it as --target")
    folder = Path(target)
    free, memory = check_target(folder), free_memory()
    if local_folder is not None:
        check_target(Path(local_folder))
    kernel = as_kernel(analysis, select)
    notes: list[str] = []
    with open_source(paths, overlap=overlap, fields=kernel.fields, verify=verify) as layout:
        info, container = layout.info, container_of(layout)
        if info.n_frames < 1:
            raise PlanError(f"{paths[0]}: it has no frames; there is nothing to advise on")
        system = System(layout, None if top is None else str(top))
        prepared = kernel.prepare(system)
        if getattr(kernel, "select", None) is None:  # as `analyze`
            system.look()
        group = group_of(kernel, system, prepared)
        found = probe(layout, prepared, limits.frame_s)
        frames = _sample(layout, free, limits)
    if not found.finished:
        notes.append(
            f"the analysis did not finish one frame in {limits.frame_s:g} s: computing is taken "
            "to last that long at least, and times are lower bounds"
        )
    if len(frames) == info.n_frames:
        notes.append("the sample is the whole trajectory")
    wanted = candidates(info, container, group, ranks, allow_lossy) if frames else []
    if not frames:
        notes.append(
            f"{folder}: {free:,} bytes are free, too few for trial conversions; nothing but the "
            "source as it is could be measured"
        )
        frames = range(min(info.n_frames, FEW_FRAMES))
    repeats = InterleavedRepeats(paths, frames, ranks, limits, progress, overlap, verify)
    tried = [Tried(as_is(info), paths, frames)]
    with ExitStack() as stack:
        if wanted:
            place = stack.enter_context(scratch(folder))
            tried += [_tried(one, place, number, frames) for number, one in enumerate(wanted)]
            if local_folder is not None and info.layout == container:  # one native file
                place = stack.enter_context(scratch(Path(local_folder)))
                tried.append(_tried(local_copy(), place, len(tried), frames))
        repeats.measure(tried, prepared, found)
    files = [path_of(path) for path in paths]
    return Measurements(
        version=__version__,
        source=Source(
            tuple(str(path.absolute()) for path in files),
            info.layout,
            info.n_frames,
            info.n_atoms,
            info.nbytes,
            len(frames),
        ),
        question=Question(
            analysis=analysis_name(analysis),
            select=getattr(kernel, "select", None),
            top=None if top is None else str(path_of(top).absolute()),
            target=str(folder.absolute()),
            n_selected=info.n_atoms if prepared.atoms is None else len(prepared.atoms),
            result_nbytes_frame=found.result_nbytes_frame,
            options=_options(kernel),
            local_folder=None if local_folder is None else str(Path(local_folder).absolute()),
        ),
        host=Host(
            cores=available_cores(),
            memory_free_nbytes=memory,
            source_file_system=file_system_type(files[0]),
            source_stripe=stripe_of(files[0]),
            target_file_system=file_system_type(folder),
            target_stripe=stripe_of(folder),
            target_free_nbytes=free,
            cold_problem=repeats.cold_problem,
            parallel_hdf5=_parallel_hdf5(),
        ),
        ratio_comp_io=repeats.ratio(tried[0]),
        trials=tuple(repeats.trial(one, info, free) for one in tried),
        bandwidths=(*bandwidths(files, sorted({1, 2, *repeats.counts, REQUESTS})), *known),
        notes=tuple(notes),
        seconds=time.monotonic() - begun,
        local=None if local_folder is None else local_disk(Path(local_folder)),
    )


def _tried(candidate: Candidate, folder: Path, number: int, frames: range) -> Tried:
    out = folder / f"{number}.{candidate.to}"
    return Tried(candidate, [str(out)], range(len(frames)), out)


def _sample(layout: Layout, free: int, limits: Limits) -> range:
    """Choose frames in the middle: few enough for time and room; none if there is no room."""
    info = layout.info
    few = max(1, min(info.n_frames, WARM_NBYTES // info.frame_nbytes))
    layout.read(0, few)
    begun = time.perf_counter()
    layout.read(0, few)
    frames_per_s = few / max(time.perf_counter() - begun, 1e-9)
    room = min(limits.scratch_nbytes, free // 2) // (COPIES * info.frame_nbytes)
    n_frames = min(
        info.n_frames,
        max(2, limits.sample_nbytes // info.frame_nbytes),
        max(2, int(frames_per_s * limits.sample_s)),
        room,
    )
    if n_frames < min(2, info.n_frames):
        return range(0)
    first = (info.n_frames - n_frames) // 2
    return range(first, first + n_frames)


def _parallel_hdf5() -> bool:
    """Return whether ranks can write one HDF5 file together."""
    try:
        import h5py
    except ImportError:
        return False
    return bool(h5py.get_config().mpi) and shutil.which("mpiexec") is not None


def _options(kernel: Kernel) -> dict[str, str]:
    """Return what else ``mdio analyze`` is to be told."""
    repeat = getattr(kernel, "repeat", 1)
    return {"--repeat": str(repeat)} if repeat != 1 else {}
