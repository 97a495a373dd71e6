"""Whole runs of the analysis, from ``mdio analyze --timings``: what they say of the forecasts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from mdio.advisor.decide.forecast import Forecaster
from mdio.advisor.model.fit import fit_profile
from mdio.advisor.model.profile import GATHER_NAMES, Profile, Task, json_at
from mdio.advisor.model.timings import TimingRow
from mdio.analysis.timings import SCHEMA
from mdio.core.errors import PlanError, SourceError
from mdio.core.words import plural

NUMBERS = ("n_frames", "t_total_s", "t_io_s", "t_comp_s", "t_open_s", "workers")


@dataclass(frozen=True)
class Calibration:
    """One run: seconds, summed over its workers but for the total."""

    layout: str
    """Name of the option that it ran on, ``as-is`` or a layout."""
    workers: int
    n_frames: int
    t_total_s: float
    t_io_s: float
    t_comp_s: float
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
    numbers = {name: _number(data, name, path) for name in NUMBERS}
    for name in ("n_frames", "t_total_s", "t_io_s", "t_comp_s", "workers"):
        if numbers[name] <= 0:
            raise SourceError(f"{path}: {name} is {numbers[name]:g}; expected more than 0")
    gather = GATHER_NAMES.get(str(data.get("gather") or "blocking"), "gather")
    return Calibration(
        layout,
        int(numbers["workers"]),
        int(numbers["n_frames"]),
        numbers["t_total_s"],
        numbers["t_io_s"],
        numbers["t_comp_s"],
        numbers["t_open_s"],
        gather,
    )


def _number(data: dict[str, Any], name: str, path: str) -> float:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise SourceError(f"{path}: {name} is {value!r}; expected a number of 0 or more")
    return float(value)


def calibrated(forecaster: Forecaster, calibrations: Sequence[Calibration]) -> Forecaster:
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
            cold = [run for run in trial.runs if run.cache == forecaster.cache_of(trial)]
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
