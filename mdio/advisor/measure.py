"""Measuring: the user's analysis on a few frames of the source and of trial conversions.

Nothing of them stays behind.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from mdio._version import __version__
from mdio.advisor.forecast import Total
from mdio.advisor.measurements import (
    GROUP,
    Bandwidth,
    Candidate,
    Group,
    Host,
    Measurements,
    Question,
    SampleRun,
    Source,
    Spread,
    Trial,
    candidates,
    local_copy,
    source_candidate,
)
from mdio.advisor.probes import (
    REQUESTS,
    PreparedKernel,
    Probe,
    analysis_name,
    bandwidths,
    check_target,
    local_disk,
    probe,
    read_only,
    stripe_layout,
)
from mdio.analysis.driver import analyze
from mdio.analysis.kernels.kernel import BlockFunction, Kernel, Prepared, make_kernel
from mdio.analysis.system import System
from mdio.converters.convert import convert
from mdio.converters.options import ConversionOptions
from mdio.core.errors import MdioError, OutputError, PlanError
from mdio.core.files.page_cache import drop_cache
from mdio.core.files.store import file_system_type, need_disk, path_of
from mdio.core.files.writing import free_memory
from mdio.core.frames import TrajectoryInfo
from mdio.core.signals import terminations_raised
from mdio.core.timing import Stopwatch
from mdio.core.words import duration
from mdio.layouts.base import Layout, container_of
from mdio.layouts.views.opening import open_source
from mdio.parallel.executors import available_cores, running

PREFIX = ".mdio-advise-"
LEAST_SLOPE = 0.6
"""Of the mean seconds of a frame: more than the rest is not put down to fixed costs, since the
difference of two noisy times may be anything."""


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """Yield a new folder in `target` that is removed in the end, whatever ends the work.

    What killed processes of this host left behind goes first.

    Raises OutputError: it cannot be made.
    """
    host = re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:40]
    for old in target.glob(f"{PREFIX}{host}-*"):
        pid = old.name.removeprefix(f"{PREFIX}{host}-").partition("-")[0]
        # Ours only: another user may have given some folder such a name.
        if old.lstat().st_uid == os.geteuid() and pid.isdigit() and not _is_running(int(pid)):
            shutil.rmtree(old, ignore_errors=True)
    with terminations_raised():
        try:
            folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{host}-{os.getpid()}-", dir=target))
        except OSError as error:
            raise OutputError(
                f"{target}: no trial conversions can be made there ({error.strerror}); "
                "give another --target"
            ) from None
        owner = os.getpid()
        try:
            yield folder
        finally:
            if os.getpid() == owner:
                shutil.rmtree(folder, ignore_errors=True)


def convert_trial(
    candidate: Candidate,
    sources: Sequence[str],
    frames: range,
    out: Path,
    workers: int,
    n_segments: int | None,
    overlap: str | None = None,
) -> tuple[float, int]:
    """Convert some frames; return the seconds and the bytes of the output.

    Raises MdioError: as `mdio.convert`.
    """
    assert candidate.to is not None
    options: dict[str, Any] = dict(candidate.options)
    if candidate.group is not None:
        options["groups"] = {GROUP: candidate.group.indices}
    if candidate.chunk_frames is not None:
        options["chunk_frames"] = candidate.chunk_frames
    if n_segments is not None:
        options["segments"] = n_segments
    if out.exists():
        shutil.rmtree(out) if out.is_dir() else out.unlink()
    with running(None, workers) as executor:
        result = convert(
            list(sources),
            out,
            executor=executor,
            **ConversionOptions.of(
                to=candidate.to,
                start=frames.start,
                stop=frames.stop,
                overlap=overlap,
                **options,
            ).words(),
        )
    return result.seconds, result.nbytes_out


def fit_conversion(
    large: Sequence[float], small: Sequence[float], n_large: int, n_small: int, whole: bool
) -> tuple[Spread, Spread]:
    """Return the fixed seconds and those of each frame from conversions of two lengths.

    `large`, `small`: seconds of the repeats. `n_large`, `n_small`: frames of each. `whole`: whether
    the longer one is all there is: then nothing needs to be extrapolated.
    """
    long = Spread.of(large)
    if whole or not small or n_small >= n_large:
        return Spread.of([0.0]), long.scaled(1 / n_large)
    slope = (long.quartile - Spread.of(small).quartile) / (n_large - n_small)
    mean = long.quartile / n_large
    slope = min(max(slope, LEAST_SLOPE * mean), mean)
    relative = slope / mean if mean > 0 else 1.0
    return Spread.of([long.quartile - slope * n_large]), long.scaled(relative / n_large)


@dataclass(frozen=True, slots=True)
class RunTimes:
    """One run of the analysis; seconds."""

    n_frames: int
    startup_s: float
    open_s: float
    io_frame_s: float
    comp_frame_s: float
    rest_frame_s: float


def timed_run(
    trajectory: Sequence[str],
    prepared: Prepared,
    workers: int,
    frames: range,
    *,
    overlap: str | None = None,
    verify: bool = True,
) -> RunTimes:
    """Run the analysis over some frames and return the times of its parts.

    Raises MdioError: as `mdio.analyze`.
    """
    with running(None, workers) as executor:
        result = analyze(
            trajectory if len(trajectory) > 1 else trajectory[0],
            kernel=PreparedKernel(prepared),
            executor=executor,
            start=frames.start,
            stop=frames.stop,
            overlap=overlap,
            verify=verify,
        )
    n_frames = result.n_frames
    io = sum(rank.t_io_s for rank in result.ranks)
    comp = sum(rank.t_comp_s for rank in result.ranks)
    opening = [rank.t_open_s for rank in result.ranks]
    whole = sum(rank.t_block_s for rank in result.ranks)
    slowest = max(rank.t_block_s for rank in result.ranks)
    return RunTimes(
        n_frames=n_frames,
        startup_s=max(0.0, result.seconds - slowest),
        open_s=sum(opening) / len(opening),
        io_frame_s=io / n_frames,
        comp_frame_s=comp / n_frames,
        rest_frame_s=max(0.0, whole - io - comp - sum(opening)) / n_frames,
    )


StepProgress = Callable[[str, int, int], None]
"""Called with what comes next, the steps done, and all steps."""

LIGHT_S = 0.5
"""An analysis that computes the sample in this time is run whole on every candidate."""
MOST_TRIAL_SEGMENTS = 64
TRIALS = "trial conversions and runs"
CONVERTING, RUNNING = 0.35, 0.65
COLD_REPEATS = 0.15
"""Share of the time that must be left for another repeat from disk."""
LEAST_S, PASSES = 7.0, 7.0
"""Measuring takes no longer than so many passes over the source as it is, but at least so long."""


@dataclass(frozen=True)
class Limits:
    """How much measuring may take."""

    seconds: float = 18.0
    """Nothing begins later than this, or earlier where passes are short; but what nobody has tried
    yet may, until half as long again."""
    sample_nbytes: int = 64 << 20
    """Decoded bytes of the sample."""
    sample_s: float = 0.75
    """Reading the sample should take no longer than this."""
    scratch_nbytes: int = 3 << 29
    """Of all trial conversions together."""
    enough_s: float = 5.0
    """If all passes over the source as it is take less, nothing else is tried."""
    frame_s: float = 20.0
    """How long the analysis may take over a frame until it is left at that."""
    repeats: int = 3
    """Of everything, at least, ..."""
    most_repeats: int = 9
    """... and at most, while no more than `CONVERTING`, then `RUNNING`, of the time is used."""


@dataclass
class CandidateRuns:
    """A candidate, and what was seen of it so far."""

    candidate: Candidate
    paths: list[str]
    """What the analysis reads."""
    frames: range
    """The sample in it."""
    out: Path | None = None
    """Where trial conversions go."""
    large_s: list[float] = field(default_factory=list)
    small_s: list[float] = field(default_factory=list)
    nbytes_frame: float = 0.0
    raws: dict[tuple[int, str], list[RunTimes]] = field(default_factory=dict)
    problem: str | None = None


class InterleavedRepeats:
    """Trial conversions and runs over one sample of frames.

    What disturbs the machine for a while disturbs all candidates alike, since they take turns.

    `paths`: the source. `frames`: the sample in it. `ranks`: as many as will analyse; here no more
    than there are cores. `overlap`, `verify`: as for `mdio.analyze`.
    """

    def __init__(
        self,
        paths: list[str],
        frames: range,
        ranks: int,
        limits: Limits,
        progress: StepProgress | None,
        overlap: str | None = None,
        verify: bool = True,
    ) -> None:
        self.paths = paths
        self._overlap = overlap
        self._timed = partial(timed_run, overlap=overlap, verify=verify)
        self.frames = frames
        self.few = frames[: max(1, len(frames) // 4)]
        self.limits = limits
        self.workers = min(ranks, available_cores())
        self.counts = sorted({1, self.workers})
        self.cold_problem: str | None = None
        self.comp: dict[int, Spread] = {}
        self.startup: dict[int, Spread] = {}
        self._progress = progress
        self._begun = time.monotonic()
        self._n_done = 0

    def look(self, source: CandidateRuns, prepared: Prepared, found: Probe) -> None:
        """Run the analysis on the source alone, once from memory and once from disk."""
        self._step("the source as it is")
        light = found.finished and found.t_comp_frame_s * len(self.frames) <= LIGHT_S
        self._analysis = prepared if light else read_only(prepared)
        self._run(source, first=True)
        self._run_cold(source, first=True)
        self.startup = self._pooled([source], "startup_s")
        self.comp = (
            self._pooled([source], "comp_frame_s")
            if light
            else self._heavy(source, prepared, found)
        )
        self._light = light

    def shorten(self, pass_s: float) -> None:
        """Take no longer than it is worth, where one pass takes so long."""
        seconds = min(self.limits.seconds, max(LEAST_S, PASSES * pass_s))
        self.limits = replace(self.limits, seconds=seconds)
        self._step(f"{TRIALS}, for some {duration(seconds)}")

    def measure(self, tried: list[CandidateRuns]) -> None:
        """Convert, run from memory, run from disk; leave what was seen in `tried` and `comp`.

        `look` comes first.
        """
        for repeat in self._repeats(CONVERTING):
            self._step("trial conversions")
            for one in tried:
                self._convert(one, first=repeat == 0)
        self._n_done = self.limits.most_repeats
        for repeat in self._repeats(RUNNING):
            self._step("the analysis on each")
            for one in tried:
                self._run(one, first=repeat == 0)
        self._n_done = 2 * self.limits.most_repeats
        self._step("the analysis from disk")
        for repeat in range(self.limits.repeats):
            for one in tried:
                self._run_cold(one, first=repeat == 0)
        self.startup = self._pooled(tried, "startup_s")
        if self._light:
            self.comp = self._pooled(tried, "comp_frame_s")

    def ratio(self, source: CandidateRuns) -> float | None:
        """Return t_comp/t_IO of one worker; None if reading took no time."""
        raws = source.raws.get((1, "warm"), [])
        io = Spread.of([raw.io_frame_s for raw in raws]).quartile if raws else 0.0
        return self.comp[1].quartile / io if io > 0 else None

    def trial(self, one: CandidateRuns, info: TrajectoryInfo, free: int) -> Trial:
        """Return what was seen of one candidate."""
        candidate, group = one.candidate, one.candidate.group
        runs: list[SampleRun] = []
        fixed = frame = Spread.of([0.0])
        if one.problem is None:
            runs = [
                SampleRun(
                    workers,
                    cache,
                    n_frames=raws[0].n_frames,
                    # Start-up and computing are known from all layouts together.
                    t_startup_s=self.startup[workers],
                    t_open_s=Spread.of([raw.open_s for raw in raws]),
                    t_io_frame_s=Spread.of([raw.io_frame_s for raw in raws]),
                    t_comp_frame_s=self.comp[workers],
                    t_rest_frame_s=Spread.of([raw.rest_frame_s for raw in raws]),
                )
                for (workers, cache), raws in sorted(one.raws.items())
            ]
            if one.large_s:
                whole = len(self.frames) == info.n_frames
                lengths = len(self.frames), len(self.few)
                fixed, frame = fit_conversion(one.large_s, one.small_s, *lengths, whole)
        per_frame = info.nbytes / info.n_frames if candidate.to is None else one.nbytes_frame
        n_group = info.n_atoms if group is None else len(group.indices)
        read = per_frame
        if group is not None:  # positions alone, in as few bytes as those of all atoms
            read = min(per_frame * n_group / (info.n_atoms + n_group), 12.0 * n_group)
        return Trial(
            name=candidate.name,
            layout=candidate.layout,
            behaves_like=candidate.behaves_like,
            nbytes=per_frame * info.n_frames,
            read_nbytes_frame=read,
            convert_options=candidate.command_options,
            chunk_frames=candidate.chunk_frames,
            stripe_nbytes=candidate.stripe_nbytes,
            groups={} if group is None else {GROUP: group.selection},
            precision=candidate.options.get("precision"),
            one_writer=False,
            fits=candidate.to is None or per_frame * info.n_frames < free,
            convert_workers=self._writers(candidate),
            convert_fixed_s=fixed,
            convert_frame_s=frame,
            runs=tuple(runs),
            problem=one.problem,
        )

    def _left_s(self) -> float:
        return self.limits.seconds - (time.monotonic() - self._begun)

    def _repeats(self, share: float) -> Iterator[int]:
        """Count the repeats, until there are enough of them or their share of time is used."""
        limits = self.limits
        for repeat in range(limits.most_repeats):
            if repeat >= limits.repeats and self._left_s() < (1 - share) * limits.seconds:
                return
            yield repeat

    def _step(self, text: str) -> None:
        if self._progress is not None:
            self._progress(text, self._n_done, 2 * self.limits.most_repeats + 1)
        self._n_done += 1

    def _writers(self, candidate: Candidate) -> int:
        return 1 if candidate.layout == "local-copy" else self.workers

    def _convert(self, one: CandidateRuns, first: bool) -> None:
        candidate = one.candidate
        if candidate.to is None or one.problem or one.out is None:
            return
        if self._left_s() < self.limits.seconds * (-0.5 if first else 1 / 3):
            if first:
                one.problem = "there was no time left to try it"
            return
        for part, took_s in ((self.few, one.small_s), (self.frames, one.large_s)):
            n_segments = candidate.segments
            if n_segments is not None and n_segments > 1:
                share = n_segments * len(part) // max(1, len(self.frames))
                n_segments = min(max(self.workers, share), len(part), MOST_TRIAL_SEGMENTS)
            try:
                seconds, nbytes = convert_trial(
                    candidate,
                    self.paths,
                    part,
                    one.out,
                    self._writers(candidate),
                    n_segments,
                    self._overlap,
                )
            except (MdioError, OSError) as error:
                one.problem = " ".join(str(error).split())
                return
            took_s.append(seconds)
            one.nbytes_frame = nbytes / len(part)

    def _run(self, one: CandidateRuns, first: bool) -> None:
        for workers in self.counts:
            if one.problem or (not first and self._left_s() < 0):
                return
            try:
                if first:  # brings the bytes into memory
                    self._timed(one.paths, self._analysis, workers, one.frames)
                raw = self._timed(one.paths, self._analysis, workers, one.frames)
            except (MdioError, OSError) as error:
                if one.candidate.to is None:
                    raise
                one.problem = " ".join(str(error).split())
                return
            one.raws.setdefault((workers, "warm"), []).append(raw)

    def _run_cold(self, one: CandidateRuns, first: bool) -> None:
        needed_s = 0.0 if first else COLD_REPEATS * self.limits.seconds
        for workers in self.counts:
            if one.problem or self.cold_problem or self._left_s() < needed_s:
                return
            problems = [drop_cache(path_of(path)) for path in one.paths]
            problem = next((text for text in problems if text), None)
            if problem is not None:
                self.cold_problem = problem
                return
            raw = self._timed(one.paths, self._analysis, workers, one.frames)
            one.raws.setdefault((workers, "cold"), []).append(raw)

    def _pooled(self, tried: list[CandidateRuns], name: str) -> dict[int, Spread]:
        """Return what starting workers or computing takes: on all layouts alike, so all repeat."""
        found: dict[int, list[float]] = {workers: [] for workers in self.counts}
        for one in tried:
            for (workers, _), raws in one.raws.items():
                found[workers] += [float(getattr(raw, name)) for raw in raws]
        return {workers: Spread.of(values) for workers, values in found.items()}

    def _heavy(self, source: CandidateRuns, prepared: Prepared, found: Probe) -> dict[int, Spread]:
        """Return what computing a frame takes, from few frames: it takes long."""
        took_s = found.t_comp_frame_s
        spreads = {workers: Spread.of([took_s]) for workers in self.counts}
        if not found.finished:
            return spreads
        for workers in self.counts:
            frames = source.frames[: workers * max(1, int(LIGHT_S / took_s))]
            if len(frames) * took_s / workers > max(2 * LIGHT_S, self._left_s() / 4):
                continue
            raws = [self._timed(source.paths, prepared, workers, frames) for _ in range(2)]
            spreads[workers] = Spread.of([raw.comp_frame_s for raw in raws])
        return spreads


NARROWER = ("backbone and not name O", "backbone")
"""What analyses of a selection may need of it: dihedrals of the backbone."""


def find_group(kernel: Kernel, system: System, prepared: Prepared) -> Group | None:
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
    progress: StepProgress | None = None,
    overlap: str | None = None,
    verify: bool = True,
    known: Sequence[Bandwidth] = (),
    forecast: Callable[[Measurements], Total] | None = None,
) -> Measurements:
    """Measure how an analysis behaves on a source and on what it could be converted into.

    Parameters are those of `mdio.advisor.advise.advise`. `known`: what several machines got.
    `forecast`: of all passes over the source as it is, from what was measured of it alone; by it,
    measuring ends there, or takes no longer than it is worth.

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
    kernel = make_kernel(analysis, select)
    notes: list[str] = []
    with open_source(paths, overlap=overlap, fields=kernel.fields, verify=verify) as layout:
        info, container = layout.info, container_of(layout)
        if info.n_frames < 1:
            raise PlanError(f"{paths[0]}: it has no frames; there is nothing to advise on")
        system = System(layout, None if top is None else str(top))
        prepared = kernel.prepare(system)
        if getattr(kernel, "select", None) is None:  # as `analyze`
            system.read_topology()
        watch = Stopwatch()  # the second time: the topology is parsed once
        kernel.prepare(System(layout, None if top is None else str(top)))
        prepare_s = watch.lap()
        group = find_group(kernel, system, prepared)
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
    source = CandidateRuns(source_candidate(info), paths, frames)
    repeats.look(source, prepared, found)
    files = [path_of(path) for path in paths]
    got = (*bandwidths(files, sorted({1, 2, *repeats.counts, REQUESTS})), *known)
    repeat = getattr(kernel, "repeat", 1)
    measurements = Measurements(
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
            options={} if repeat == 1 else {"--repeat": str(repeat)},
            local_folder=None if local_folder is None else str(Path(local_folder).absolute()),
        ),
        host=Host(
            cores=available_cores(),
            memory_free_nbytes=memory,
            source_file_system=file_system_type(files[0]),
            source_stripe=stripe_layout(files[0]),
            target_file_system=file_system_type(folder),
            target_stripe=stripe_layout(folder),
            target_free_nbytes=free,
            cold_problem=repeats.cold_problem,
            parallel_hdf5=_parallel_hdf5(),
        ),
        ratio_comp_io=repeats.ratio(source),
        trials=(repeats.trial(source, info, free),),
        bandwidths=got,
        notes=tuple(notes),
        seconds=time.monotonic() - begun,
        t_prepare_s=prepare_s,
    )
    if forecast is not None and wanted:
        total = forecast(measurements)
        if total.total_s < limits.enough_s:
            note = (
                f"all passes over the source as it is take {duration(total.total_s)}: that is fast "
                "enough, and nothing else was tried (--passes says how many there will be)"
            )
            return replace(measurements, notes=(*notes, note))
        repeats.shorten(total.run.t_total_s)
    tried = [source]
    with ExitStack() as stack:
        if wanted:
            place = stack.enter_context(scratch(folder))
            tried += [_tried(one, place, number, frames) for number, one in enumerate(wanted)]
            if local_folder is not None and info.layout == container:  # one native file
                place = stack.enter_context(scratch(Path(local_folder)))
                tried.append(_tried(local_copy(), place, len(tried), frames))
        repeats.measure(tried)
    return replace(
        measurements,
        host=replace(measurements.host, cold_problem=repeats.cold_problem),
        ratio_comp_io=repeats.ratio(source),
        trials=tuple(repeats.trial(one, info, free) for one in tried),
        seconds=time.monotonic() - begun,
        local=None if local_folder is None else local_disk(Path(local_folder)),
    )


def _tried(candidate: Candidate, folder: Path, number: int, frames: range) -> CandidateRuns:
    out = folder / f"{number}.{candidate.to}"
    return CandidateRuns(candidate, [str(out)], range(len(frames)), out)


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
