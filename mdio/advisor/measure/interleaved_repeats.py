"""Repeats of measuring, interleaved: every candidate in turn, within limits of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mdio.advisor.measure.candidates import GROUP, Candidate
from mdio.advisor.measure.kernel_probe import Probe, read_only
from mdio.advisor.measure.measurements import Run, Spread, Trial
from mdio.advisor.measure.trial import Raw, convert_trial, fit_conversion, run_of, timed_run
from mdio.analysis.kernels.kernel import Prepared
from mdio.core.errors import MdioError
from mdio.core.files.page_cache import drop_cache
from mdio.core.files.remote.paths import path_of
from mdio.core.frames import TrajectoryInfo
from mdio.parallel.executors import available_cores

Progress = Callable[[str, int, int], None]
"""Called with what comes next, the steps done, and all steps."""

LIGHT_S = 0.5
"""An analysis that computes the sample in this time is run whole on every candidate."""
MOST_TRIAL_SEGMENTS = 64
CONVERTING, RUNNING = 0.35, 0.65
COLD_REPEATS = 0.15
"""Share of the time that must be left for another repeat from disk."""


@dataclass(frozen=True)
class Limits:
    """How much measuring may take."""

    seconds: float = 75.0
    """Nothing begins later than this."""
    sample_nbytes: int = 128 << 20
    """Decoded bytes of the sample."""
    sample_s: float = 1.5
    """Reading the sample should take no longer than this."""
    scratch_nbytes: int = 3 << 29
    """Of all trial conversions together."""
    frame_s: float = 20.0
    """How long the analysis may take over a frame until it is left at that."""
    repeats: int = 3
    """Of everything, at least, ..."""
    most_repeats: int = 9
    """... and at most, while no more than `CONVERTING`, then `RUNNING`, of the time is used."""


@dataclass
class Tried:
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
    raws: dict[tuple[int, str], list[Raw]] = field(default_factory=dict)
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
        progress: Progress | None,
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

    def measure(self, tried: list[Tried], prepared: Prepared, found: Probe) -> None:
        """Convert, run from memory, run from disk; leave what was seen in `tried` and `comp`."""
        for repeat in self._repeats(CONVERTING):
            self._step("trial conversions")
            for one in tried:
                self._convert(one, first=repeat == 0)
        light = found.finished and found.t_comp_frame_s * len(self.frames) <= LIGHT_S
        analysis = prepared if light else read_only(prepared)
        self._n_done = self.limits.most_repeats
        for repeat in self._repeats(RUNNING):
            self._step("the analysis on each")
            for one in tried:
                self._run(one, analysis, first=repeat == 0)
        self._n_done = 2 * self.limits.most_repeats
        self._step("the analysis from disk")
        for repeat in range(self.limits.repeats):
            for one in tried:
                self._run_cold(one, analysis, first=repeat == 0)
        self.startup = self._pooled(tried, "startup_s")
        if light:
            self.comp = self._pooled(tried, "comp_frame_s")
        else:
            self.comp = self._heavy(tried[0], prepared, found)

    def ratio(self, source: Tried) -> float | None:
        """Return t_comp/t_IO of one worker; None if reading took no time."""
        raws = source.raws.get((1, "warm"), [])
        io = Spread.of([raw.io_frame_s for raw in raws]).quartile if raws else 0.0
        return self.comp[1].quartile / io if io > 0 else None

    def trial(self, one: Tried, info: TrajectoryInfo, free: int) -> Trial:
        """Return what was seen of one candidate."""
        candidate, group = one.candidate, one.candidate.group
        runs: list[Run] = []
        fixed = frame = Spread.of([0.0])
        if one.problem is None:
            runs = [
                run_of(raws, workers, cache, self.startup[workers], self.comp[workers])
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

    def _convert(self, one: Tried, first: bool) -> None:
        candidate = one.candidate
        if candidate.to is None or one.problem or one.out is None:
            return
        if self._left_s() < (0 if first else self.limits.seconds / 3):
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

    def _run(self, one: Tried, analysis: Prepared, first: bool) -> None:
        for workers in self.counts:
            if one.problem or (not first and self._left_s() < 0):
                return
            try:
                if first:  # brings the bytes into memory
                    self._timed(one.paths, analysis, workers, one.frames)
                raw = self._timed(one.paths, analysis, workers, one.frames)
            except (MdioError, OSError) as error:
                if one.candidate.to is None:
                    raise
                one.problem = " ".join(str(error).split())
                return
            one.raws.setdefault((workers, "warm"), []).append(raw)

    def _run_cold(self, one: Tried, analysis: Prepared, first: bool) -> None:
        needed_s = 0.0 if first else COLD_REPEATS * self.limits.seconds
        for workers in self.counts:
            if one.problem or self.cold_problem or self._left_s() < needed_s:
                return
            problems = [drop_cache(path_of(path)) for path in one.paths]
            problem = next((text for text in problems if text), None)
            if problem is not None:
                self.cold_problem = problem
                return
            raw = self._timed(one.paths, analysis, workers, one.frames)
            one.raws.setdefault((workers, "cold"), []).append(raw)

    def _pooled(self, tried: list[Tried], name: str) -> dict[int, Spread]:
        """Return what starting workers or computing takes: on all layouts alike, so all repeat."""
        found: dict[int, list[float]] = {workers: [] for workers in self.counts}
        for one in tried:
            for (workers, _), raws in one.raws.items():
                found[workers] += [float(getattr(raw, name)) for raw in raws]
        return {workers: Spread.of(values) for workers, values in found.items()}

    def _heavy(self, source: Tried, prepared: Prepared, found: Probe) -> dict[int, Spread]:
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
