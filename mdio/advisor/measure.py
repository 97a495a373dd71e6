"""Measuring the user's analysis on a sample of the source and of temporary trial conversions."""

from __future__ import annotations

import math
import os
import re
import resource
import shutil
import socket
import tempfile
import time
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
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
)
from mdio.advisor.probes import (
    SHARED_STORAGE_READERS,
    PreparedKernel,
    Probe,
    analysis_name,
    analysis_settings,
    bandwidths,
    free_nbytes,
    local_disk,
    probe,
    without_computing,
)
from mdio.advisor.profile import MODELLED_LAYOUTS
from mdio.analysis.driver import analyze
from mdio.analysis.kernels.kernel import (
    BlockFunction,
    Kernel,
    Prepared,
    SeriesKernel,
    make_kernel,
    prepared_for,
)
from mdio.analysis.reducers import Stack
from mdio.analysis.system import System
from mdio.converters.convert import convert
from mdio.converters.options import ConversionOptions
from mdio.converters.selection import open_with_topology
from mdio.core.errors import MdioError, OutputError, PlanError
from mdio.core.files.locks import is_running
from mdio.core.files.page_cache import drop_cache
from mdio.core.files.store import file_system_type, path_list, require_disk, to_path
from mdio.core.files.writing import free_memory
from mdio.core.frames import TrajectoryInfo
from mdio.core.signals import signals_as_exceptions
from mdio.core.timing import Stopwatch
from mdio.core.words import duration, human_nbytes
from mdio.layouts.base import Layout, container_format
from mdio.layouts.striping.file_systems import get_stripe
from mdio.parallel.executors import available_cores, pool_or_serial

PREFIX = ".mdio-advise-"
"""Prefix of the names of temporary folders."""
MIN_SLOPE = 0.6
"""Least seconds of a frame, as a share of the mean: at most the remainder is attributed to fixed
costs, since the difference of two noisy times is unreliable."""


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """Yield a temporary folder in `target`, and remove it however the work ends.

    Folders of killed processes of this host are removed first.
    """
    host = re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:40]
    for leftover in target.glob(f"{PREFIX}{host}-*"):
        pid = leftover.name.removeprefix(f"{PREFIX}{host}-").partition("-")[0]
        is_dead = pid.isdigit() and int(pid) != os.getpid() and not is_running(int(pid))
        if is_dead and leftover.lstat().st_uid == os.geteuid():
            shutil.rmtree(leftover, ignore_errors=True)
    with signals_as_exceptions():
        try:
            folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{host}-{os.getpid()}-", dir=target))
        except OSError as error:
            raise OutputError(
                f"{target}: no trial conversions can be made there ({error.strerror}); "
                "give another --target"
            ) from None
        owner_pid = os.getpid()
        try:
            yield folder
        finally:
            if os.getpid() == owner_pid:
                shutil.rmtree(folder, ignore_errors=True)


def convert_trial(
    candidate: Candidate,
    sources: Sequence[str],
    frames: range,
    out: Path,
    workers: int,
    overlap: str | None = None,
    top: str | PathLike[str] | None = None,
) -> tuple[float, int, float]:
    """Convert some frames; return the seconds, the bytes of the output, and seconds of CPU time."""
    cpu_before_s = _cpu_s()
    assert candidate.to is not None
    options: dict[str, Any] = dict(candidate.options)
    if candidate.group is not None:
        options["groups"] = {GROUP: candidate.group.indices}
    if candidate.chunk_frames is not None:
        options["chunk_frames"] = candidate.chunk_frames
    if candidate.segment_frames is not None:
        n_segments = math.ceil(len(frames) / candidate.segment_frames)
        options["segments"] = min(max(workers, n_segments), len(frames))
    if out.exists():
        shutil.rmtree(out) if out.is_dir() else out.unlink()
    with pool_or_serial(None, workers) as executor:
        result = convert(
            list(sources),
            out,
            top=top,
            executor=executor,
            **ConversionOptions.of(
                to=candidate.to, start=frames.start, stop=frames.stop, overlap=overlap, **options
            ).keywords(),
        )
    return result.seconds, result.nbytes_out, _cpu_s() - cpu_before_s


def _cpu_s() -> float:
    """Return the CPU time of this process and of its ended children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def fit_conversion(
    large: Sequence[float], small: Sequence[float], n_large: int, n_small: int, is_whole: bool
) -> tuple[Spread, Spread]:
    """Return the fixed seconds and those of each frame from conversions of two lengths.

    `large`, `small`: seconds of the repeats. `n_large`, `n_small`: frames of each. `is_whole`:
    whether the longer one has all frames, so that nothing is extrapolated.
    """
    large_s = Spread.of(large)
    if is_whole or not small or n_small >= n_large:
        return Spread.of([0.0]), large_s.scaled(1 / n_large)
    slope = (large_s.quartile - Spread.of(small).quartile) / (n_large - n_small)
    mean = large_s.quartile / n_large
    slope = min(max(slope, MIN_SLOPE * mean), mean)
    relative = slope / mean if mean > 0 else 1.0
    return Spread.of([large_s.quartile - slope * n_large]), large_s.scaled(relative / n_large)


StepProgress = Callable[[str, int, int], None]
"""Called with the next step, the number of steps done, and the number of all steps."""

LIGHT_S = 0.5
"""An analysis that computes the sample in this time is run on every candidate; others only read."""
TRIALS_PREFIX = "trial conversions and runs"
CONVERSIONS_SHARE, RUNS_SHARE = 0.35, 0.65
"""Shares of the time after which no further repeat is converted, or run."""
COLD_REPEAT_SHARE = 0.15
"""Share of the time that must remain for another repeat from disk."""
MIN_TIME_S, MAX_PASSES = 7.0, 7.0
"""Measuring takes at most as long as `MAX_PASSES` passes over the source, or `MIN_TIME_S` if that
is longer."""


@dataclass(frozen=True)
class Limits:
    """Limits of time and disk space for measurements."""

    seconds: float = 18.0
    """Nothing is started later, except the first trial of a candidate, until 1.5 times as long."""
    sample_nbytes: int = 64 << 20
    """Decoded bytes of the sample."""
    sample_s: float = 0.75
    """Seconds that reading the sample should take at most."""
    scratch_nbytes: int = 3 << 29
    """Bytes of all trial conversions together."""
    enough_s: float = 5.0
    """If all passes over the source as it is take less, nothing else is tried."""
    frame_s: float = 20.0
    """Time limit of the analysis of one frame."""
    repeats: int = 3
    """Least number of repeats."""
    max_repeats: int = 9
    """Most repeats, within `CONVERSIONS_SHARE` and `RUNS_SHARE` of the time."""


@dataclass
class CandidateRuns:
    """A candidate and the times of its trial conversions and runs."""

    candidate: Candidate
    paths: list[str]
    """Files that the analysis reads."""
    frames: range
    """The sample in these files."""
    out: Path | None = None
    """Output of trial conversions."""
    converting_s: dict[int, list[float]] = field(default_factory=dict)
    """Seconds of trial conversions, by their number of frames."""
    nbytes_frame: float = 0.0
    cpu_share: float = 1.0
    """Share of the last conversion's time in which its workers computed."""
    times: dict[tuple[int, str], list[dict[str, float]]] = field(default_factory=dict)
    """Times of repeats, by number of workers and state of the cache."""
    problem: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is a copy on a disk of this node."""
        return self.candidate.layout == "local-copy"

    @contextmanager
    def recording_problems(self) -> Iterator[None]:
        """Record an error as the problem of this candidate; raise it if this is the source."""
        try:
            yield
        except (MdioError, OSError) as error:
            if self.candidate.to is None:
                raise
            self.problem = " ".join(str(error).split())


class InterleavedRepeats:
    """Trial conversions and runs over one sample of frames.

    Each repeat runs all candidates, so that disturbances of the machine affect all alike.
    `ranks`: workers of the analysis, limited to the cores of this machine. `top`: a topology, if
    the source does not say how many atoms it has.
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
        top: str | PathLike[str] | None = None,
    ) -> None:
        self.paths = paths
        self._overlap = overlap
        self._verify = verify
        self._top = top
        self.frames = frames
        self.small_sample = frames[: max(1, len(frames) // 4)]
        self.limits = limits
        self.workers = min(ranks, available_cores())
        self.worker_counts = sorted({1, self.workers})
        self.cold_problem: str | None = None
        self.comp_frame_s: dict[int, Spread] = {}
        """Seconds of computing a frame, by number of workers."""
        self.startup_s: dict[int, Spread] = {}
        """Seconds of starting workers and gathering, by number of workers."""
        self._progress = progress
        self._started_at = time.monotonic()
        self._n_done = 0

    def run_source(self, source: CandidateRuns, prepared: Prepared, cost: Probe) -> None:
        """Run the analysis on the source alone, once from memory and once from disk."""
        self._begin_stage("the source as it is")
        is_light = cost.finished and cost.t_comp_frame_s * len(self.frames) <= LIGHT_S
        self._analysis = prepared if is_light else without_computing(prepared)
        self._run(source, "warm", first=True)
        self._run(source, "cold", first=True)
        self._is_light = is_light
        self._pool_times([source])
        if not is_light:
            self.comp_frame_s = self._measure_compute(source, prepared, cost)

    def limit_time(self, pass_s: float) -> None:
        """Limit the time of all measurements, given that of one pass."""
        seconds = min(self.limits.seconds, max(MIN_TIME_S, MAX_PASSES * pass_s))
        self.limits = replace(self.limits, seconds=seconds)
        self._begin_stage(f"{TRIALS_PREFIX}, for some {duration(seconds)}")

    def measure(self, candidate_runs: list[CandidateRuns]) -> None:
        """Convert, run from memory, run from disk; add the times to the runs and this object."""
        for repeat in self._repeats(CONVERSIONS_SHARE):
            self._begin_stage("trial conversions")
            for runs in candidate_runs:
                self._convert(runs, first=repeat == 0)
        self._n_done = self.limits.max_repeats
        for repeat in self._repeats(RUNS_SHARE):
            self._begin_stage("the analysis of each")
            for runs in candidate_runs:
                self._run(runs, "warm", first=repeat == 0)
        self._n_done = 2 * self.limits.max_repeats
        self._begin_stage("the analysis from disk")
        for repeat in range(self.limits.repeats):
            for runs in candidate_runs:
                self._run(runs, "cold", first=repeat == 0)
        self._pool_times(candidate_runs)

    def ratio(self, source: CandidateRuns) -> float | None:
        """Return t_comp/t_IO of one worker; None if reading took no time."""
        repeats = source.times.get((1, "warm"), [])
        io_s = Spread.of([times["t_io_frame_s"] for times in repeats]).quartile if repeats else 0.0
        return self.comp_frame_s[1].quartile / io_s if io_s > 0 else None

    def trial(self, runs: CandidateRuns, info: TrajectoryInfo, available_nbytes: int) -> Trial:
        """Return the measurements of one candidate."""
        candidate, group = runs.candidate, runs.candidate.group
        sample_runs: list[SampleRun] = []
        fixed_s = frame_s = Spread.of([0.0])
        for (workers, cache), repeats in sorted(runs.times.items()) if not runs.problem else ():
            times = {name: Spread.of([times[name] for times in repeats]) for name in repeats[0]}
            # Start-up and computing are measured on all layouts together.
            times["t_startup_s"] = self.startup_s[workers]
            times["t_comp_frame_s"] = self.comp_frame_s[workers]
            sample_runs.append(SampleRun(workers, cache, len(self.frames), **times))
        if runs.converting_s and not runs.problem:
            n_small, n_large = len(self.small_sample), len(self.frames)
            small, large = runs.converting_s[n_small], runs.converting_s[n_large]
            is_whole = n_large == info.n_frames
            fixed_s, frame_s = fit_conversion(large, small, n_large, n_small, is_whole)
        frame_nbytes = info.nbytes / info.n_frames if candidate.to is None else runs.nbytes_frame
        n_group = info.n_atoms if group is None else len(group.indices)
        read_nbytes = frame_nbytes
        if group is not None:  # positions alone, in as few bytes as those of all atoms
            read_nbytes = min(frame_nbytes * n_group / (info.n_atoms + n_group), 12.0 * n_group)
        options = {f"--{name}": str(value) for name, value in candidate.options.items()}
        options |= {} if group is None else {"--group": f"{GROUP}={group.selection}"}
        names = ("name", "layout", "behaves_like", "chunk_frames", "stripe_nbytes")
        return Trial(
            **{name: getattr(candidate, name) for name in names},
            nbytes=frame_nbytes * info.n_frames,
            read_nbytes_frame=read_nbytes,
            convert_options=options,
            groups={} if group is None else {GROUP: group.selection},
            precision=candidate.options.get("precision"),
            one_writer=False,
            fits=candidate.to is None or frame_nbytes * info.n_frames < available_nbytes,
            convert_workers=1 if runs.is_local else self.workers,
            convert_fixed_s=fixed_s,
            convert_frame_s=frame_s,
            runs=tuple(sample_runs),
            problem=runs.problem,
            convert_cpu_share=runs.cpu_share,
        )

    def _remaining_s(self) -> float:
        return self.limits.seconds - (time.monotonic() - self._started_at)

    def _repeats(self, share: float) -> Iterator[int]:
        """Yield numbers of repeats until there are enough, or their share of the time is used."""
        limits = self.limits
        for repeat in range(limits.max_repeats):
            if repeat >= limits.repeats and self._remaining_s() < (1 - share) * limits.seconds:
                return
            yield repeat

    def _begin_stage(self, text: str) -> None:
        if self._progress is not None:
            self._progress(text, self._n_done, 2 * self.limits.max_repeats + 1)
        self._n_done += 1

    def _convert(self, runs: CandidateRuns, first: bool) -> None:
        candidate = runs.candidate
        if candidate.to is None or runs.problem or runs.out is None:
            return
        if self._remaining_s() < self.limits.seconds * (-0.5 if first else 1 / 3):
            if first:
                runs.problem = "there was no time left to try it"
            return
        workers = 1 if runs.is_local else self.workers
        with runs.recording_problems():
            for frames in (self.small_sample, self.frames):
                seconds, nbytes, cpu_s = convert_trial(
                    candidate,
                    self.paths,
                    frames,
                    runs.out,
                    workers,
                    overlap=self._overlap,
                    top=self._top,
                )
                runs.converting_s.setdefault(len(frames), []).append(seconds)
                runs.nbytes_frame = nbytes / len(frames)
                runs.cpu_share = min(1.0, cpu_s / max(1e-9, workers * seconds))

    def _run(self, runs: CandidateRuns, cache: str, *, first: bool) -> None:
        """Run the analysis once with each number of workers, from memory or from disk."""
        is_cold = cache == "cold"
        needed_s = COLD_REPEAT_SHARE * self.limits.seconds if is_cold and not first else 0.0
        for workers in self.worker_counts:
            is_late = self._remaining_s() < needed_s and (is_cold or not first)
            if is_cold and not (runs.problem or is_late or self.cold_problem):
                problems = [drop_cache(to_path(path)) for path in runs.paths]
                self.cold_problem = next(filter(None, problems), None)
            if runs.problem or is_late or (is_cold and self.cold_problem):
                return
            with runs.recording_problems():
                if first and not is_cold:  # brings the bytes into memory
                    self._time_run(runs, self._analysis, workers)
                times = self._time_run(runs, self._analysis, workers)
                runs.times.setdefault((workers, cache), []).append(times)

    def _time_run(
        self, runs: CandidateRuns, prepared: Prepared, workers: int, frames: range | None = None
    ) -> dict[str, float]:
        """Run the analysis over frames, by default the sample; return the times of `SampleRun`."""
        frames = runs.frames if frames is None else frames
        with pool_or_serial(None, workers) as executor:
            result = analyze(
                runs.paths if len(runs.paths) > 1 else runs.paths[0],
                kernel=PreparedKernel(prepared),
                executor=executor,
                start=frames.start,
                stop=frames.stop,
                overlap=self._overlap,
                verify=self._verify,
                top=self._top if runs.candidate.to is None else None,
            )
        names = ("t_open_s", "t_io_s", "t_comp_s", "t_block_s")
        open_s, io_s, comp_s, blocks_s = (
            sum(getattr(rank, name) for rank in result.ranks) for name in names
        )
        slowest_s = max(rank.t_block_s for rank in result.ranks)
        return {
            "t_startup_s": max(0.0, result.seconds - slowest_s),
            "t_open_s": open_s / len(result.ranks),
            "t_io_frame_s": io_s / result.n_frames,
            "t_comp_frame_s": comp_s / result.n_frames,
            "t_rest_frame_s": max(0.0, blocks_s - io_s - comp_s - open_s) / result.n_frames,
        }

    def _pool_times(self, candidate_runs: list[CandidateRuns]) -> None:
        """Pool times that all layouts share: start-up and, if all of them compute, computing."""
        pooled: dict[str, dict[int, Spread]] = {}
        for name in ("t_startup_s", "t_comp_frame_s"):
            values: dict[int, list[float]] = {workers: [] for workers in self.worker_counts}
            for runs in candidate_runs:
                for (workers, _), repeats in runs.times.items():
                    values[workers] += [times[name] for times in repeats]
            pooled[name] = {workers: Spread.of(times) for workers, times in values.items()}
        self.startup_s = pooled["t_startup_s"]
        self.comp_frame_s = pooled["t_comp_frame_s"] if self._is_light else self.comp_frame_s

    def _measure_compute(
        self, source: CandidateRuns, prepared: Prepared, cost: Probe
    ) -> dict[int, Spread]:
        """Return the time of computing a frame, measured on few frames, of a slow analysis."""
        frame_s = cost.t_comp_frame_s
        spreads = {workers: Spread.of([frame_s]) for workers in self.worker_counts}
        if not cost.finished:
            return spreads
        for workers in self.worker_counts:
            frames = source.frames[: workers * max(1, int(LIGHT_S / frame_s))]
            if len(frames) * frame_s / workers > max(2 * LIGHT_S, self._remaining_s() / 4):
                continue
            repeats = [self._time_run(source, prepared, workers, frames) for _ in range(2)]
            spreads[workers] = Spread.of([times["t_comp_frame_s"] for times in repeats])
        return spreads


NARROWER_SELECTIONS = ("backbone and not name O", "backbone")
"""Selections of fewer atoms that suffice for some analyses, such as dihedrals of the backbone."""


def find_group(kernel: Kernel, system: System, prepared: Prepared) -> Group | None:
    """Return the atoms of an analysis as a selection and indices; None if it reads all atoms.

    The selection is the kernel's, or a narrower one that still has all atoms that are read.
    """
    select = getattr(kernel, "select", None)
    if prepared.atoms is None or not isinstance(select, str):
        return None
    best: Group | None = None
    for text in (select, *(f"({select}) and {addition}" for addition in NARROWER_SELECTIONS)):
        with suppress(MdioError):
            indices = system.select(text)
            has_all = indices is not None and np.isin(prepared.atoms, indices).all()
            if indices is not None and has_all and not (best and len(best.indices) <= len(indices)):
                best = Group(text, indices)
    return best


SPEED_TEST_NBYTES = 4 << 20
"""Decoded bytes that are read to choose the length of the sample."""
SMALL_SAMPLE_FRAMES = 16
"""Frames of the sample if the disk is too full for trial conversions."""
MAX_TRIAL_OUTPUTS = 12
"""Most trial conversions in the target folder at a time, groups and retries included."""


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
    shared_bandwidths: Sequence[Bandwidth] = (),
    forecast: Callable[[Measurements], Total] | None = None,
) -> Measurements:
    """Measure an analysis on a source and on candidates for its conversion.

    Parameters are those of `mdio.advisor.advise.advise`. `shared_bandwidths`: of several machines
    together. `forecast`: forecasts all passes from measurements of the source alone; the result
    limits the time of further measurements.
    """
    started_at = time.monotonic()
    limits = limits or Limits()
    paths = [str(path) for path in path_list(trajectory)]
    require_disk(target, "trial conversions need a folder on a disk; give it as --target")
    folder = Path(target)
    available_nbytes, memory = free_nbytes(folder, "--target"), free_memory()
    local_available_nbytes = (
        0 if local_folder is None else free_nbytes(Path(local_folder), "--local-dir")
    )
    kernel = make_kernel(analysis, select)
    if isinstance(kernel, SeriesKernel):
        raise PlanError(
            f"{analysis_name(analysis)} looks at all frames of an atom together, so trials of a "
            "few frames tell nothing; mdio convert --for timeseries is made for it"
        )
    notes: list[str] = []
    with open_with_topology(
        paths, top, overlap=overlap, fields=kernel.fields, verify=verify
    ) as layout:
        atom_count_top = top if "n_atoms" in layout.options else None
        info, container = layout.info, container_format(layout)
        if info.n_frames < 1:
            raise PlanError(f"{paths[0]}: it has no frames; there is nothing to advise on")
        system = System(layout, None if top is None else str(top))
        prepared = prepared_for(system, kernel)
        if getattr(kernel, "select", None) is None:  # as `analyze`
            system.read_topology()
        watch = Stopwatch()  # the second time: the topology is parsed once
        kernel.prepare(System(layout, None if top is None else str(top)))
        prepare_s = watch.lap()
        group = find_group(kernel, system, prepared)
        cost = probe(layout, prepared, limits.frame_s)
        frames = _sample(layout, available_nbytes, limits)
    if not cost.finished:
        notes.append(
            f"the analysis did not finish one frame in {limits.frame_s:g} s: computing is taken "
            "to last that long at least, and times are lower bounds"
        )
    if len(frames) == info.n_frames:
        notes.append("the sample is the whole trajectory")
    elif 0 < len(frames) == _max_sample_frames(info, available_nbytes):
        notes.append(
            f"{folder}: {human_nbytes(available_nbytes)} are free, room for trials of "
            f"{len(frames)} frames only, from which times are rough and mostly too long; name a "
            "larger folder (--target)"
        )
    trial_candidates = candidates(info, container, group, ranks, allow_lossy) if frames else []
    if not frames:
        notes.append(
            f"{folder}: {available_nbytes:,} bytes are free, too few for trial conversions; "
            "nothing but the source as it is could be measured"
        )
        frames = range(min(info.n_frames, SMALL_SAMPLE_FRAMES))
    repeats = InterleavedRepeats(
        paths, frames, ranks, limits, progress, overlap, verify, atom_count_top
    )
    modelled_layouts = {**MODELLED_LAYOUTS, "segments": "segments", "chain": "segments"}
    as_is = Candidate("as-is", "as-is", modelled_layouts.get(info.layout, "xtc-shared"))
    source = CandidateRuns(as_is, paths, frames)
    repeats.run_source(source, prepared, cost)
    files = [to_path(path) for path in paths]
    source_bandwidths = (
        *bandwidths(files, sorted({1, 2, *repeats.worker_counts, SHARED_STORAGE_READERS})),
        *shared_bandwidths,
    )
    options = {}
    for name, text in analysis_settings(kernel).items():
        try:
            options[name] = repr(literal_eval(text))
        except (ValueError, SyntaxError):  # an array, say
            notes.append(f"commands leave out {name}=, which only Python can give")
    options |= {} if overlap is None else {"--overlap": overlap}
    options |= {} if verify else {"--no-verify": ""}
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
            top=None if top is None else str(to_path(top).absolute()),
            target=str(folder.absolute()),
            n_selected=info.n_atoms if prepared.atoms is None else len(prepared.atoms),
            result_nbytes_frame=cost.result_nbytes_frame
            / (1 if isinstance(prepared.reducer, Stack) else info.n_frames),
            options=options,
            local_folder=None if local_folder is None else str(Path(local_folder).absolute()),
        ),
        host=Host(
            cores=available_cores(),
            memory_free_nbytes=memory,
            source_file_system=file_system_type(files[0]),
            source_stripe=getattr(get_stripe(files[0]), "layout", None),
            target_file_system=file_system_type(folder),
            target_stripe=getattr(get_stripe(folder), "layout", None),
            target_free_nbytes=available_nbytes,
            cold_problem=repeats.cold_problem,
            parallel_hdf5=_parallel_hdf5(),
        ),
        ratio_comp_io=repeats.ratio(source),
        trials=(repeats.trial(source, info, available_nbytes),),
        bandwidths=source_bandwidths,
        notes=tuple(notes),
        seconds=time.monotonic() - started_at,
        t_prepare_s=prepare_s,
    )
    if forecast is not None and trial_candidates:
        total = forecast(measurements)
        if total.total_s < limits.enough_s:
            note = (
                f"all passes over the source as it is take {duration(total.total_s)}: that is fast "
                "enough, and nothing else was tried (--passes says how many there will be)"
            )
            return replace(measurements, notes=(*notes, note))
        repeats.limit_time(total.run.t_total_s)
    candidate_runs = [source]
    with ExitStack() as stack:
        candidate_folders = [(candidate, folder) for candidate in trial_candidates]
        if trial_candidates and local_folder is not None and info.layout == container:
            # In a trial the sample is copied as one segment: the same file of fewer frames.
            copy = Candidate(
                "local-copy", "local-copy", "segments", to="segments", segment_frames=info.n_frames
            )
            candidate_folders.append((copy, Path(local_folder)))
        parents = {parent for _, parent in candidate_folders}
        folders = {parent: stack.enter_context(scratch(parent)) for parent in parents}
        for number, (candidate, parent) in enumerate(candidate_folders):
            out = folders[parent] / f"{number}.{candidate.to}"
            candidate_runs.append(CandidateRuns(candidate, [str(out)], range(len(frames)), out))
        repeats.measure(candidate_runs)
    return replace(
        measurements,
        host=replace(measurements.host, cold_problem=repeats.cold_problem),
        ratio_comp_io=repeats.ratio(source),
        trials=tuple(
            repeats.trial(runs, info, local_available_nbytes if runs.is_local else available_nbytes)
            for runs in candidate_runs
        ),
        seconds=time.monotonic() - started_at,
        local=None if local_folder is None else local_disk(Path(local_folder)),
    )


def _sample(layout: Layout, available_nbytes: int, limits: Limits) -> range:
    """Choose frames in the middle, within the limits; none if the disk is too full for trials."""
    info = layout.info
    n_test = max(1, min(info.n_frames, SPEED_TEST_NBYTES // info.frame_nbytes))
    layout.read(0, n_test)
    started_at = time.perf_counter()
    layout.read(0, n_test)
    frames_per_s = n_test / max(time.perf_counter() - started_at, 1e-9)
    n_frames = min(
        info.n_frames,
        max(2, limits.sample_nbytes // info.frame_nbytes),
        max(2, int(frames_per_s * limits.sample_s)),
        _max_sample_frames(info, min(available_nbytes, 2 * limits.scratch_nbytes)),
    )
    if n_frames < min(2, info.n_frames):
        return range(0)
    first = (info.n_frames - n_frames) // 2
    return range(first, first + n_frames)


def _max_sample_frames(info: TrajectoryInfo, available_nbytes: int) -> int:
    """Return of how many frames all trial outputs fit into half of `available_nbytes`."""
    return available_nbytes // 2 // (MAX_TRIAL_OUTPUTS * info.frame_nbytes)


def _parallel_hdf5() -> bool:
    try:
        import h5py
    except ImportError:
        return False
    return bool(h5py.get_config().mpi) and shutil.which("mpiexec") is not None
