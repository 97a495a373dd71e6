"""Forecasts of whole runs from a sample of frames: on this machine, or on one with a profile.

On this machine, a run with N workers is start-up, opening, and the frames of the longest block at
the pace that was measured with N workers. With a machine profile the scaling model is used, with
one worker's measured times as its workload.

Whole runs of the analysis, from ``mdio analyze --timings``, calibrate the forecasts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from mdio.advisor.closed_form import Prediction, Workload, predict
from mdio.advisor.measurements import Measurements, SampleRun, Spread, Trial
from mdio.advisor.profile import Profile
from mdio.core.blocks import aligned_blocks
from mdio.core.errors import PlanError, SourceError
from mdio.core.json_dataclasses import Count, Positive, dataclass_from_json, load_json
from mdio.core.timing import SCHEMA


@dataclass(frozen=True)
class Calibration:
    """One run: seconds, summed over its workers."""

    layout: str
    """Name of the option that it ran on, ``as-is`` or a layout."""
    workers: Count
    n_frames: Count
    t_io_s: Positive
    t_comp_s: Positive


def read_calibration(text: str) -> Calibration:
    """Read ``[LAYOUT=]T.json``, a file of ``mdio analyze --timings``; without LAYOUT, ``as-is``."""
    layout, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        layout, path = "as-is", text
    data = load_json(path, "give a file of --timings")
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise SourceError(f"{path}: no timings of schema {SCHEMA}; make them with --timings")
    names = {field.name for field in fields(Calibration)}
    values = {name: value for name, value in data.items() if name in names}
    return dataclass_from_json(Calibration, values | {"layout": layout}, path)


def calibrate(forecaster: Forecaster, calibrations: Sequence[Calibration]) -> Forecaster:
    """Return a forecaster that is scaled to these runs.

    Reading and computing are scaled by the mean ratio of runs and forecasts.
    """
    measurements = forecaster.measurements
    io_factors, comp_factors = [], []
    for calibration in calibrations:
        trial = measurements.trial(calibration.layout)
        if trial is None or not trial.runs:
            names = ", ".join(trial.name for trial in measurements.trials if trial.runs)
            raise PlanError(
                f"--calibrate: no layout {calibration.layout!r} was measured; there are {names}"
            )
        forecast = forecaster.one_pass(trial, calibration.workers)
        frames_per_rank = measurements.source.n_frames / calibration.workers
        io_s, comp_s = forecast.t_io_s / frames_per_rank, forecast.t_comp_s / frames_per_rank
        io_factors.append(calibration.t_io_s / calibration.n_frames / max(io_s, 1e-12))
        comp_factors.append(calibration.t_comp_s / calibration.n_frames / max(comp_s, 1e-12))
    return replace(
        forecaster, io_factor=geometric_mean(io_factors), comp_factor=geometric_mean(comp_factors)
    )


GATHER_NAMES = {"gather": "blocking", "global-array": "one-sided"}
"""Names of the model's gathers on the command line."""

EXTRAPOLATION = 0.05
"""Relative error of extrapolating from a sample to the whole trajectory, besides its repeats."""
MEMORY_SHARE = 0.5
"""Share of the free memory: layouts that fit into it are read from memory after the first pass."""


@dataclass(frozen=True, kw_only=True)
class Forecast(Prediction):
    """One pass over the trajectory: a prediction, with the time to start up, and its gather."""

    t_startup_s: float = 0.0
    gather: str = "blocking"


@dataclass(frozen=True, slots=True)
class Total:
    """Seconds to convert once and run all passes, with their range."""

    convert_s: float
    run: Forecast
    total_s: float
    low_s: float
    high_s: float

    @property
    def relative(self) -> float:
        """Half of the range as a share of the total."""
        return (self.high_s - self.low_s) / (2 * self.total_s) if self.total_s > 0 else 0.0


@dataclass(frozen=True)
class Forecaster:
    """Predicts for one set of measurements, here or on the machine of a profile."""

    measurements: Measurements
    profile: Profile | None = None
    io_factor: float = 1.0
    """Time of reading a frame in calibration runs, relative to the sample's."""
    comp_factor: float = 1.0
    """Time of computing a frame in calibration runs, relative to the sample's."""
    cache: str = "auto"
    """Passes read from storage (cold) or memory (warm); auto: from memory if the layout fits."""
    nodes: int = 1
    """Machines like this one over which ranks are spread."""

    def cache_state(self, trial: Trial) -> str:
        """Return ``warm`` if passes over a whole layout read it from memory, else ``cold``."""
        if self.cache != "auto":
            return self.cache
        memory = MEMORY_SHARE * self.nodes * self.measurements.host.memory_free_nbytes
        return "warm" if self._nbytes(trial) <= memory else "cold"

    @property
    def storage_nbytes_per_s(self) -> float | None:
        """Bandwidth of the source's storage for all readers together; None if unknown."""
        bandwidths = self.measurements.bandwidths
        rates = (bandwidth.nbytes_per_s for bandwidth in bandwidths if bandwidth.cache == "cold")
        return max(rates, default=None)

    def one_pass(self, trial: Trial, n_ranks: int) -> Forecast:
        """Return the forecast of one analysis of the whole trajectory."""
        if self.profile is None:
            return self._measured_pass(trial, n_ranks)
        return self._modelled_pass(trial, n_ranks, self.profile)

    def total(
        self, trial: Trial, n_ranks: int, passes: int, n_converting: int | None = None
    ) -> Total:
        """Return the time of converting, on `n_converting` or else `n_ranks`, and of all passes."""
        run = self.one_pass(trial, n_ranks)
        convert_s, error = self._convert(trial, n_converting or n_ranks)
        return Total(
            convert_s=convert_s,
            run=run,
            total_s=convert_s + passes * run.t_total_s,
            low_s=convert_s * max(0.0, 1 - error) + passes * run.low_s,
            high_s=convert_s * (1 + error) + passes * run.high_s,
        )

    def _nbytes(self, trial: Trial) -> float:
        return trial.read_nbytes_frame * self.measurements.source.n_frames

    def _min_io_s(self, trial: Trial) -> float:
        """Return the time of a cold pass at the bandwidth of the storage; 0 if it is unknown.

        Trials do not show this time: their files are so small that a file system's client may have
        them in memory. Shared storage is assumed to give all ranks together the bandwidth that it
        gave the readers of the measurement.
        """
        host, rate = self.measurements.host, self.storage_nbytes_per_s
        is_elsewhere = trial.layout == "local-copy" or (
            trial.layout != "as-is" and host.target_file_system != host.source_file_system
        )
        return 0.0 if rate is None or is_elsewhere else self._nbytes(trial) / rate

    def _runs(self, trial: Trial, cache: str) -> list[SampleRun]:
        runs = [run for run in trial.runs if run.cache == cache] or list(trial.runs)
        return sorted(runs, key=lambda run: run.workers)

    def _extrapolation_error(self) -> float:
        source = self.measurements.source
        return 0.0 if source.sample_frames >= source.n_frames else EXTRAPOLATION

    def _measured_pass(self, trial: Trial, n_ranks: int) -> Forecast:
        cache = self.cache_state(trial)
        runs = self._runs(trial, cache)
        n_workers = -(-n_ranks // self.nodes)
        lower_run = next((run for run in reversed(runs) if run.workers <= n_workers), runs[0])
        upper_run = next((run for run in runs if run.workers >= n_workers), runs[-1])
        worker_gap = upper_run.workers - lower_run.workers
        weight = (n_workers - lower_run.workers) / worker_gap if worker_gap > 0 else 0.0
        # More workers than cores take turns.
        cores = max(runs[-1].workers, self.measurements.host.cores)
        slowdown = max(1.0, n_workers / cores)

        def interpolate(name: str) -> float:
            low, high = getattr(lower_run, name).quartile, getattr(upper_run, name).quartile
            return float(low + weight * (high - low))

        n_frames = self.measurements.source.n_frames
        frames_per_rank = n_frames / n_ranks
        longest_block = _longest_block(n_frames, n_ranks, trial.chunk_frames)
        io_s = interpolate("t_io_frame_s") * self.io_factor * slowdown * frames_per_rank
        if cache == "cold":
            io_s = max(io_s, self._min_io_s(trial))
        comp_s = interpolate("t_comp_frame_s") * self.comp_factor * slowdown * frames_per_rank
        rest_s = interpolate("t_rest_frame_s") * slowdown * frames_per_rank
        startup_s = interpolate("t_startup_s") * slowdown + self.measurements.t_prepare_s
        open_s = interpolate("t_open_s")
        imbalance_s = (io_s + comp_s + rest_s) * (longest_block / frames_per_rank - 1)
        total_s = startup_s + open_s + io_s + comp_s + rest_s + imbalance_s
        relative = _relative_spread(upper_run) if weight > 0.5 else _relative_spread(lower_run)
        relative = math.hypot(relative, self._extrapolation_error())
        return Forecast(
            n_ranks=n_ranks,
            t_startup_s=startup_s,
            t_open_s=open_s,
            t_io_s=io_s,
            t_comp_s=comp_s,
            t_rest_s=rest_s,
            t_imbalance_s=imbalance_s,
            t_contention_s=0.0,
            t_gather_s=0.0,
            t_total_s=total_s,
            low_s=total_s * max(0.0, 1 - relative),
            high_s=total_s * (1 + relative),
        )

    def _modelled_pass(self, trial: Trial, n_ranks: int, profile: Profile) -> Forecast:
        run = self._runs(trial, "cold")[0]
        workload = self.workload(trial, run)
        predictions = {
            gather: predict(profile, trial.behaves_like, gather, n_ranks, workload)
            for gather in GATHER_NAMES
        }
        gather = min(predictions, key=lambda name: predictions[name].t_total_s)
        best = predictions[gather]
        relative = math.hypot(_relative_spread(run), self._extrapolation_error())
        prepare_s = self.measurements.t_prepare_s
        parts = {
            **asdict(best),
            "t_total_s": best.t_total_s + prepare_s,
            "low_s": max(0.0, best.low_s - relative * best.t_total_s) + prepare_s,
            "high_s": best.high_s + relative * best.t_total_s + prepare_s,
        }
        return Forecast(**parts, t_startup_s=prepare_s, gather=GATHER_NAMES[gather])

    def workload(self, trial: Trial, run: SampleRun) -> Workload:
        """Return one pass over a layout as one rank of a `run` does it alone."""
        n_frames = self.measurements.source.n_frames
        min_s = 1e-12  # the model needs times above 0
        return Workload(
            n_frames=n_frames,
            nbytes=max(1.0, self._nbytes(trial)),
            t_comp_s=max(min_s, run.t_comp_frame_s.quartile * self.comp_factor * n_frames),
            t_io_s=max(min_s, run.t_io_frame_s.quartile * self.io_factor * n_frames),
            t_open_s=run.t_open_s.quartile,
            t_rest_s=run.t_rest_frame_s.quartile * n_frames,
            result_nbytes_per_frame=self.measurements.question.result_nbytes_frame,
        )

    def _convert(self, trial: Trial, n_ranks: int) -> tuple[float, float]:
        """Return the seconds to convert the whole trajectory, and their relative error."""
        if trial.layout == "as-is":
            return 0.0, 0.0
        n_frames = self.measurements.source.n_frames
        seconds = trial.convert_frame_s.quartile * n_frames
        # The time that workers wait for storage does not depend on their number on a node.
        nodes = math.ceil(n_ranks / self.profile.cores_per_node) if self.profile else 1
        if trial.layout == "local-copy":
            if self.profile is not None:  # every node gets its own copy
                storage = self.profile.storage
                rate = min(storage.node_bytes_per_s, storage.aggregate_bytes_per_s / nodes)
                seconds = max(seconds, trial.nbytes / rate)
        elif not trial.one_writer or (self.profile and self.measurements.host.parallel_hdf5):
            n_cores = self.nodes * self.measurements.host.cores
            cores = n_ranks if self.profile else min(n_ranks, n_cores)
            share = trial.convert_cpu_share
            seconds *= share * trial.convert_workers / cores + (1 - share) / nodes
        if self.profile is not None:
            nbytes = self.measurements.source.nbytes + trial.nbytes
            seconds = max(seconds, nbytes / self.profile.storage.aggregate_bytes_per_s)
        elif self.storage_nbytes_per_s is not None and self.cache == "cold":
            seconds = max(seconds, self.measurements.source.nbytes / self.storage_nbytes_per_s)
        relative = math.hypot(trial.convert_frame_s.relative, 2 * self._extrapolation_error())
        return trial.convert_fixed_s.quartile + seconds, min(relative, 1.0)


def _relative_spread(run: SampleRun) -> float:
    parts: Sequence[Spread] = (run.t_io_frame_s, run.t_comp_frame_s, run.t_rest_frame_s)
    loop_s = sum(part.quartile for part in parts)
    spread_s = math.hypot(*(part.median - part.low for part in parts))
    return min(spread_s / loop_s, 1.0) if loop_s > 0 else 0.0


def _longest_block(n_frames: int, n_ranks: int, chunk_frames: int | None) -> float:
    """Return the frames of the longest block: blocks end where chunks do."""
    if n_ranks >= n_frames:
        return 1.0
    edges = np.append(np.arange(0, n_frames, chunk_frames or 1), n_frames)
    if chunk_frames is None:
        return float(-(-n_frames // n_ranks))
    return float(max(len(block) for block in aligned_blocks(edges, range(n_frames), n_ranks)))
