"""From what a few frames took to what all will take: on this machine, or on one with a profile.

On this machine nothing is modelled that was measured: a run with N workers is start-up, opening,
and the longest block's frames, each at the pace measured with N workers at work. With a machine
profile the scaling model takes over, with one worker's measured times as its workload.

Whole runs of the analysis, from ``mdio analyze --timings``: what they say of the forecasts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from mdio.advisor.closed_form import Prediction, Workload, predict
from mdio.advisor.fit import TimingRow, fit_profile
from mdio.advisor.measurements import Measurements, SampleRun, Spread, Trial
from mdio.advisor.profile import GATHER_NAMES, Profile, Task
from mdio.core.blocks import aligned_blocks
from mdio.core.errors import PlanError, SourceError
from mdio.core.timing import SCHEMA
from mdio.core.typed import Count, Positive, from_plain, json_at
from mdio.core.words import plural


@dataclass(frozen=True)
class Calibration:
    """One run: seconds, summed over its workers but for the total."""

    layout: str
    """Name of the option that it ran on, ``as-is`` or a layout."""
    workers: Count
    n_frames: Count
    t_total_s: Positive
    t_io_s: Positive
    t_comp_s: Positive
    t_open_s: float
    gather: str


def read_calibration(text: str) -> Calibration:
    """Read ``[LAYOUT=]T.json``, a file of ``mdio analyze --timings``; without LAYOUT, ``as-is``.

    Raises SourceError: it cannot be read, is no record of timings, or has a number that cannot be.
    """
    layout, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        layout, path = "as-is", text
    data = json_at(path, "give a file of --timings")
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise SourceError(f"{path}: no timings of schema {SCHEMA}; make them with --timings")
    names = {one.name for one in fields(Calibration)}
    plain = {name: value for name, value in data.items() if name in names}
    gather = GATHER_NAMES.get(str(data.get("gather") or "blocking"), "gather")
    return from_plain(Calibration, plain | {"layout": layout, "gather": gather}, path)


def calibrate(forecaster: Forecaster, calibrations: Sequence[Calibration]) -> Forecaster:
    """Return a forecaster that agrees better with these runs.

    On this machine reading and computing are scaled by the mean ratio of what runs and forecasts
    say; with a profile, the profile is fitted to the runs besides.

    Raises PlanError: a run is of a layout that was not measured.
    """
    measurements = forecaster.measurements
    io_factors, comp_factors = [], []
    for one in calibrations:
        trial = measurements.trial(one.layout)
        if trial is None or not trial.runs:
            known = ", ".join(trial.name for trial in measurements.trials if trial.runs)
            raise PlanError(
                f"--calibrate: no layout {one.layout!r} was measured; there are {known}"
            )
        if forecaster.profile is None:
            pace = forecaster.one_pass(trial, one.workers)
            share = one.workers / measurements.source.n_frames
            io_s, comp_s = pace.t_io_s * share, pace.t_comp_s * share
        else:
            cold = [run for run in trial.runs if run.cache == forecaster.cache_state(trial)]
            run = (cold or list(trial.runs))[0]
            io_s, comp_s = run.t_io_frame_s.quartile, run.t_comp_frame_s.quartile
        io_factors.append(one.t_io_s / one.n_frames / max(io_s, 1e-12))
        comp_factors.append(one.t_comp_s / one.n_frames / max(comp_s, 1e-12))
    scaled = replace(
        forecaster, io_factor=geometric_mean(io_factors), comp_factor=geometric_mean(comp_factors)
    )
    if forecaster.profile is None:
        return scaled
    return replace(scaled, profile=_fitted(scaled, forecaster.profile, calibrations))


def _fitted(
    forecaster: Forecaster, profile: Profile, calibrations: Sequence[Calibration]
) -> Profile:
    """Return the profile, fitted to runs of this very analysis."""
    measurements = forecaster.measurements
    n_frames = measurements.source.n_frames
    rows: dict[tuple[str, str, int], TimingRow] = {}
    for one in calibrations:
        trial = measurements.trial(one.layout)
        assert trial is not None
        scale = n_frames / one.n_frames
        row = TimingRow(
            layout=trial.behaves_like,
            gather=one.gather,
            workload_x=1.0,
            n_ranks=one.workers,
            t_total_max_s=one.t_total_s * scale,
            t_comp_mean_s=one.t_comp_s * scale / one.workers,
            t_io_mean_s=one.t_io_s * scale / one.workers,
            t_open_mean_s=one.t_open_s / one.workers,
            machine=profile.name,
        )
        rows[row.layout, row.gather, row.n_ranks] = row
    base = replace(profile, task=_task(forecaster))
    return fit_profile(
        list(rows.values()),
        name=profile.name,
        source=f"{profile.source}; calibrated with {plural(len(rows), 'run')}",
        cores_per_node=profile.cores_per_node,
        base=base,
    )


def _task(forecaster: Forecaster) -> Task:
    """Return this analysis as the task of a profile."""
    measurements = forecaster.measurements
    n_frames = measurements.source.n_frames
    source = measurements.trial("as-is")
    assert source is not None
    other = measurements.trial("h5md")
    if other is None or not other.runs:
        other = source
    pairs = {"xtc": source, "hdf5": other}
    runs = {name: trial.runs[0] for name, trial in pairs.items()}
    comp = runs["xtc"].t_comp_frame_s.quartile * forecaster.comp_factor * n_frames
    return Task(
        n_frames=n_frames,
        result_nbytes_per_frame=max(measurements.question.result_nbytes_frame, 1.0),
        nbytes={n: max(1.0, trial.read_nbytes_frame * n_frames) for n, trial in pairs.items()},
        t_io_s={
            n: max(1e-9, run.t_io_frame_s.quartile * forecaster.io_factor * n_frames)
            for n, run in runs.items()
        },
        t_open_s={n: max(1e-6, run.t_open_s.quartile) for n, run in runs.items()},
        t_rest_s={n: run.t_rest_frame_s.quartile * n_frames for n, run in runs.items()},
        t_comp_fixed_s=1e-3 * max(comp, 1e-9),
        t_comp_repeat_s=max(comp, 1e-9),
    )


GATHER_OF = {"gather": "blocking", "global-array": "one-sided"}
"""What the command line calls the gathers of the model."""

CACHES = ("auto", "cold", "warm")
"""Where passes read: what fits into memory from there, all from storage, all from memory."""
EXTRAPOLATION = 0.05
"""Error of a whole trajectory's time from a sample's, beyond what repeats show."""
FITS_MEMORY = 0.5
"""What is at most this share of the free memory is read from there in all passes but the first."""
MAX_BLOCKS = 4096
"""Beyond, blocks are taken to be equal."""


@dataclass(frozen=True, kw_only=True)
class Forecast(Prediction):
    """One pass over the trajectory: a prediction, its start-up, and the gather it is for."""

    t_startup_s: float = 0.0
    gather: str = "blocking"


@dataclass(frozen=True, slots=True)
class Total:
    """Converting once and analysing some times, s."""

    convert_s: float
    run: Forecast
    total_s: float
    low_s: float
    high_s: float

    @property
    def relative(self) -> float:
        """Half of the band as a share of the total."""
        return (self.high_s - self.low_s) / (2 * self.total_s) if self.total_s > 0 else 0.0


@dataclass(frozen=True)
class Forecaster:
    """Predicts for one set of measurements, here or on the machine of a profile."""

    measurements: Measurements
    profile: Profile | None = None
    io_factor: float = 1.0
    """How much slower than in the sample frames are read, as calibration runs say."""
    comp_factor: float = 1.0
    """The same of computing."""
    cache: str = "auto"
    """One of `CACHES`."""
    nodes: int = 1
    """Machines like this one over which ranks are spread."""

    def cache_state(self, trial: Trial) -> str:
        """Return whether passes over a whole layout read it from memory or from storage."""
        if self.cache != "auto":
            return self.cache
        memory = FITS_MEMORY * self.nodes * self.measurements.host.memory_free_nbytes
        return "warm" if self._nbytes(trial) <= memory else "cold"

    @property
    def storage_nbytes_per_s(self) -> float | None:
        """What all readers together got from the source's storage; None if that is not known."""
        return max(
            (one.nbytes_per_s for one in self.measurements.bandwidths if one.cache == "cold"),
            default=None,
        )

    def one_pass(self, trial: Trial, n_ranks: int) -> Forecast:
        """Return what one analysis of the whole trajectory takes."""
        if self.profile is None:
            return self._here(trial, n_ranks)
        return self._there(trial, n_ranks, self.profile)

    def total(
        self, trial: Trial, n_ranks: int, passes: int, n_converting: int | None = None
    ) -> Total:
        """Return what converting, on as many ranks if not on others, and `passes` analyses take."""
        run = self.one_pass(trial, n_ranks)
        convert, spread = self._convert(trial, n_converting or n_ranks)
        return Total(
            convert_s=convert,
            run=run,
            total_s=convert + passes * run.t_total_s,
            low_s=convert * max(0.0, 1 - spread) + passes * run.low_s,
            high_s=convert * (1 + spread) + passes * run.high_s,
        )

    def _nbytes(self, trial: Trial) -> float:
        """Return the bytes that one pass reads."""
        return trial.read_nbytes_frame * self.measurements.source.n_frames

    def _wires_s(self, trial: Trial) -> float:
        """Return the least time in which storage gives what a cold pass reads; 0 if unknown.

        Trials are too small to tell: a file system's client may have them in memory. Storage that
        is shared gives all ranks together what it gave the requests that were tried.
        """
        host, rate = self.measurements.host, self.storage_nbytes_per_s
        elsewhere = trial.layout == "local-copy" or (
            trial.layout != "as-is" and host.target_file_system != host.source_file_system
        )
        return 0.0 if rate is None or elsewhere else self._nbytes(trial) / rate

    def _runs(self, trial: Trial, cache: str) -> list[SampleRun]:
        runs = [run for run in trial.runs if run.cache == cache] or list(trial.runs)
        return sorted(runs, key=lambda run: run.workers)

    def _beyond_sample(self) -> float:
        source = self.measurements.source
        return 0.0 if source.sample_frames >= source.n_frames else EXTRAPOLATION

    def _here(self, trial: Trial, n_ranks: int) -> Forecast:
        cache = self.cache_state(trial)
        runs = self._runs(trial, cache)
        here = -(-n_ranks // self.nodes)
        below = max((run for run in runs if run.workers <= here), key=_workers, default=runs[0])
        above = min((run for run in runs if run.workers >= here), key=_workers, default=runs[-1])
        span = above.workers - below.workers
        weight = (here - below.workers) / span if span > 0 else 0.0
        crowd = max(1.0, here / runs[-1].workers)  # more workers than cores take turns

        def between(name: str) -> float:
            one, other = getattr(below, name).quartile, getattr(above, name).quartile
            return float(one + weight * (other - one))

        n_frames = self.measurements.source.n_frames
        even = n_frames / n_ranks
        longest = _longest_block(n_frames, n_ranks, trial.chunk_frames)
        io = between("t_io_frame_s") * self.io_factor * crowd * even
        if cache == "cold":
            io = max(io, self._wires_s(trial))
        comp = between("t_comp_frame_s") * self.comp_factor * crowd * even
        rest = between("t_rest_frame_s") * crowd * even
        startup = between("t_startup_s") * crowd + self.measurements.t_prepare_s
        opening = between("t_open_s")
        imbalance = (io + comp + rest) * (longest / even - 1)
        total = startup + opening + io + comp + rest + imbalance
        relative = _relative(above) if weight > 0.5 else _relative(below)
        relative = math.hypot(relative, self._beyond_sample())
        return Forecast(
            n_ranks=n_ranks,
            t_startup_s=startup,
            t_open_s=opening,
            t_io_s=io,
            t_comp_s=comp,
            t_rest_s=rest,
            t_imbalance_s=imbalance,
            t_contention_s=0.0,
            t_gather_s=0.0,
            t_total_s=total,
            low_s=total * max(0.0, 1 - relative),
            high_s=total * (1 + relative),
        )

    def _there(self, trial: Trial, n_ranks: int, profile: Profile) -> Forecast:
        runs = self._runs(trial, "cold")
        one = runs[0]
        source = self.measurements.source
        n_frames = source.n_frames
        result_nbytes = self.measurements.question.result_nbytes_frame
        tiny = 1e-12  # the model wants work that takes time
        workload = Workload(
            n_frames=n_frames,
            nbytes=max(1.0, trial.read_nbytes_frame * n_frames),
            t_comp_s=max(tiny, one.t_comp_frame_s.quartile * self.comp_factor * n_frames),
            t_io_s=max(tiny, one.t_io_frame_s.quartile * self.io_factor * n_frames),
            t_open_s=one.t_open_s.quartile,
            t_rest_s=one.t_rest_frame_s.quartile * n_frames,
            result_nbytes_per_frame=result_nbytes,
        )
        found = {
            gather: predict(profile, trial.behaves_like, gather, n_ranks, workload)
            for gather in GATHER_OF
        }
        gather = min(found, key=lambda name: found[name].t_total_s)
        best = found[gather]
        relative = math.hypot(_relative(one), self._beyond_sample())
        prepare_s = self.measurements.t_prepare_s
        parts = {
            **asdict(best),
            "t_total_s": best.t_total_s + prepare_s,
            "low_s": max(0.0, best.low_s - relative * best.t_total_s) + prepare_s,
            "high_s": best.high_s + relative * best.t_total_s + prepare_s,
        }
        return Forecast(**parts, t_startup_s=prepare_s, gather=GATHER_OF[gather])

    def _convert(self, trial: Trial, n_ranks: int) -> tuple[float, float]:
        """Return the seconds to convert the whole, and their relative error."""
        if trial.layout == "as-is":
            return 0.0, 0.0
        n_frames = self.measurements.source.n_frames
        seconds = trial.convert_frame_s.quartile * n_frames
        if trial.layout == "local-copy":
            seconds = max(seconds, self._copy_to_nodes(trial, n_ranks))
        elif not trial.one_writer or (self.profile and self.measurements.host.parallel_hdf5):
            here = self.nodes * self.measurements.host.cores
            cores = n_ranks if self.profile else min(n_ranks, here)
            seconds *= trial.convert_workers / cores
        if self.profile is not None:
            both_ways = self.measurements.source.nbytes + trial.nbytes
            seconds = max(seconds, both_ways / self.profile.storage.aggregate_bytes_per_s)
        elif self.storage_nbytes_per_s is not None and self.cache == "cold":
            seconds = max(seconds, self.measurements.source.nbytes / self.storage_nbytes_per_s)
        relative = math.hypot(trial.convert_frame_s.relative, 2 * self._beyond_sample())
        return trial.convert_fixed_s.quartile + seconds, min(relative, 1.0)

    def _copy_to_nodes(self, trial: Trial, n_ranks: int) -> float:
        """Return the seconds until every node has its own copy."""
        if self.profile is None:
            return 0.0
        storage = self.profile.storage
        nodes = math.ceil(n_ranks / self.profile.cores_per_node)
        rate = min(storage.node_bytes_per_s, storage.aggregate_bytes_per_s / nodes)
        return trial.nbytes / rate


def _workers(run: SampleRun) -> int:
    return run.workers


def _relative(run: SampleRun) -> float:
    """Return the spread of a run's loop as a share of it."""
    parts: Sequence[Spread] = (run.t_io_frame_s, run.t_comp_frame_s, run.t_rest_frame_s)
    whole = sum(part.quartile for part in parts)
    half = math.hypot(*(part.median - part.low for part in parts))
    return min(half / whole, 1.0) if whole > 0 else 0.0


def _longest_block(n_frames: int, n_ranks: int, chunk_frames: int | None) -> float:
    """Return the frames of the longest block: blocks end where chunks do."""
    if n_ranks > MAX_BLOCKS:
        return n_frames / n_ranks
    if n_ranks >= n_frames:
        return 1.0
    edges = np.append(np.arange(0, n_frames, chunk_frames or 1), n_frames)
    if chunk_frames is None:
        return float(-(-n_frames // n_ranks))
    return float(max(len(block) for block in aligned_blocks(edges, range(n_frames), n_ranks)))
