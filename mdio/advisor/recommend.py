"""From measurements to advice. Pure: numbers in, `Advice` out; no disk, no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mdio.advisor.advice import Advice, Option, Recommended, Rule
from mdio.advisor.calibrate import Calibration, calibrated
from mdio.advisor.candidates import segments_for
from mdio.advisor.commands import commands_for
from mdio.advisor.forecast import Forecaster, Total
from mdio.advisor.measured import Measurements, Trial
from mdio.advisor.profile import Profile
from mdio.core.errors import PlanError

__all__ = ["COMPUTE_BOUND", "IO_BOUND", "PAPERS_RATIO", "recommend"]

PAPERS_RATIO = 100.0
"""From this t_comp/t_IO on, Khoshlessan et al. call an analysis compute-bound."""
IO_BOUND, COMPUTE_BOUND = 1.0, 10.0
"""Below one, reading takes most of the time; above the other, no layout can save a tenth."""

LEAST_NOISE, MOST_NOISE = 0.02, 0.05
"""Options whose totals differ by less than the first share are alike; by more than the second they
are not, however noisy their measurements were: noise errs both ways, what is given away does not.
"""

SIMPLER = ("as-is", "local-copy", "segments")
"""What is taken of options that are alike: the first of these, which keep the source's own bytes,
or else the one that is faster."""

ENOUGH = 1.05
"""More ranks do not help if this many times the shortest time is reached."""
MAX_RANKS = 10_000
SMALL_RESULT_NBYTES = 1 << 30
RANKS_A_STRIPE = 24
"""Three stripes kept t_IO flat up to 72 cores in the study of 2017."""


@dataclass(frozen=True)
class _Setting:
    measurements: Measurements
    forecaster: Forecaster
    ranks: int
    passes: int


def recommend(
    measurements: Measurements,
    ranks: int,
    passes: int = 1,
    profile: Profile | None = None,
    calibrations: Sequence[Calibration] = (),
) -> Advice:
    """Decide which layout serves best.

    Parameters
    ----------
    measurements
        As `mdio.advisor.measure.measure` makes them.
    ranks
        How many processes will analyse at once.
    passes
        How often the trajectory will be analysed.
    profile
        The machine it will be done on; None = the one that was measured.
    calibrations
        Runs of this analysis on that machine.

    Raises
    ------
    PlanError
        Numbers below 1, calibrations that do not fit the measurements.
    """
    for name, value in (("ranks", ranks), ("passes", passes)):
        if value < 1:
            raise PlanError(f"{value} {name}: give 1 or more")
    forecaster = Forecaster(measurements, profile)
    if calibrations:
        forecaster = calibrated(forecaster, calibrations)
    setting = _Setting(measurements, forecaster, ranks, passes)
    usable = [trial for trial in measurements.trials if trial.problem is None and trial.runs]
    totals = {trial.name: forecaster.total(trial, ranks, passes) for trial in usable}
    source = next((trial for trial in usable if trial.name == "as-is"), None)
    if source is None:
        raise PlanError("the source as it is was not measured; measure again")
    fitting = [trial for trial in usable if trial.fits]
    chosen, alike = _choose(fitting, totals)
    rule = _papers(setting, chosen, totals)
    useful = _useful_ranks(setting, chosen)
    break_even, towards = _break_even(fitting, totals, chosen)
    recommended = _recommended(setting, chosen, totals[chosen.name], useful)
    return Advice(
        measurements=measurements,
        machine="local" if profile is None else forecaster.profile.name,  # type: ignore[union-attr]
        ranks=ranks,
        passes=passes,
        ratio=measurements.ratio_comp_io,
        bound=_bound(measurements.ratio_comp_io),
        recommended=recommended,
        options=tuple(
            _option(trial, totals.get(trial.name), trial is chosen) for trial in measurements.trials
        ),
        break_even_passes=break_even,
        break_even_layout=towards,
        rule=rule,
        commands=tuple(
            commands_for(
                measurements,
                chosen,
                recommended,
                is_local=profile is None,
                ranks=ranks,
                n_nodes=1 if profile is None else math.ceil(ranks / profile.cores_per_node),
            )
        ),
        reasons=tuple(_reasons(setting, chosen, totals, alike, useful)),
        curves={
            trial.name: tuple(forecaster.one_pass(trial, n) for n in _rank_counts(setting))
            for trial in usable
        },
    )


def _bound(ratio: float | None) -> str:
    if ratio is None or ratio >= COMPUTE_BOUND:
        return "compute"
    return "io" if ratio <= IO_BOUND else "balanced"


def _simplicity(trial: Trial) -> int:
    return SIMPLER.index(trial.name) if trial.name in SIMPLER else len(SIMPLER)


def _choose(trials: Sequence[Trial], totals: dict[str, Total]) -> tuple[Trial, list[str]]:
    """Return the best option, or the simplest of those that are as good; and all of those."""
    best = min(trials, key=lambda trial: totals[trial.name].total_s)
    least = totals[best.name]
    alike = []
    for trial in trials:
        total = totals[trial.name]
        noise = math.hypot(least.relative, total.relative) / 2
        margin = min(max(LEAST_NOISE, noise), MOST_NOISE)
        if total.total_s <= least.total_s * (1 + margin):
            alike.append(trial)
    chosen = min(alike, key=lambda trial: (_simplicity(trial), totals[trial.name].total_s))
    return chosen, [trial.name for trial in alike]


def _papers(setting: _Setting, chosen: Trial, totals: dict[str, Total]) -> Rule:
    """Return what the guidelines of Khoshlessan et al. say, and why ours may differ."""
    measurements = setting.measurements
    ratio = measurements.ratio_comp_io
    small = (
        measurements.question.result_nbytes_frame * measurements.source.n_frames
        <= SMALL_RESULT_NBYTES
    )
    gather = "one-sided" if small else "blocking"
    if ratio is None or ratio >= PAPERS_RATIO:
        layout, text = "as-is", f"t_comp/t_IO is {_text(ratio)}, 100 or more: just run"
    elif measurements.host.parallel_hdf5:
        layout = "h5md"
        text = f"t_comp/t_IO is {_text(ratio)}, below 100: parallel HDF5"
    else:
        layout = "segments"
        text = (
            f"t_comp/t_IO is {_text(ratio)}, below 100, and there is no parallel HDF5 here: "
            "as many segments as ranks"
        )
    if layout == chosen.layout:
        return Rule(layout, gather, text, True, "")
    theirs = totals.get(layout)
    if theirs is None:
        trial = measurements.trial(layout)
        problem = trial.problem if trial is not None else "it was not tried"
        return Rule(layout, gather, text, False, f"{layout} could not be measured: {problem}")
    ours = totals[chosen.name]
    times = f"{theirs.total_s:.3g} s with {layout}, {ours.total_s:.3g} s with {chosen.name}"
    why = f"the rule asks for the ratio only; with {setting.passes} pass(es) it is {times}"
    if chosen.name == "as-is":
        why += f", since converting takes {theirs.convert_s:.3g} s, which has to pay"
    elif chosen.groups:
        why += ", which reads a stored group of just the atoms that are analysed"
    return Rule(layout, gather, text, False, why)


def _text(ratio: float | None) -> str:
    return "beyond measure" if ratio is None else f"{ratio:.2g}"


def _rank_counts(setting: _Setting) -> list[int]:
    """Return for how many ranks curves are drawn."""
    profile = setting.forecaster.profile
    if profile is None:
        top = max(setting.measurements.host.cores, setting.ranks)
        return sorted({*_doubling(top), top, setting.ranks})
    top = min(MAX_RANKS, max(4 * setting.ranks, 4 * profile.cores_per_node))
    return sorted({*_doubling(top), top, setting.ranks, profile.cores_per_node})


def _doubling(top: int) -> list[int]:
    return [1 << power for power in range(top.bit_length())]


def _useful_ranks(setting: _Setting, chosen: Trial) -> int:
    """Return the ranks beyond which more do not help."""
    counts = [n for n in _rank_counts(setting) if n <= setting.measurements.source.n_frames]
    if setting.forecaster.profile is None:
        counts = [n for n in counts if n <= setting.measurements.host.cores]
    times = {n: setting.forecaster.one_pass(chosen, n).t_total_s for n in counts or [1]}
    least = min(times.values())
    return min(n for n, seconds in times.items() if seconds <= ENOUGH * least)


def _break_even(
    trials: Sequence[Trial], totals: dict[str, Total], chosen: Trial
) -> tuple[int | None, str | None]:
    """Return after how many passes converting pays: into what is advised, or into the next best."""
    stay = totals["as-is"].run.t_total_s
    found: list[tuple[int, str]] = []
    for trial in trials:
        if trial.name == "as-is" or chosen.name not in ("as-is", trial.name):
            continue
        saved = stay - totals[trial.name].run.t_total_s
        if saved > 0:
            passes = max(1, math.ceil(totals[trial.name].convert_s / saved))
            found.append((passes, trial.name))
    return min(found, default=(None, None))


def _recommended(setting: _Setting, chosen: Trial, total: Total, useful: int) -> Recommended:
    measurements = setting.measurements
    host, source = measurements.host, measurements.source
    ranks = min(setting.ranks, useful)
    count = None
    if host.target_file_system == "lustre" and chosen.layout not in ("as-is", "local-copy"):
        count = math.ceil(ranks / RANKS_A_STRIPE) if chosen.layout == "h5md" else 1
    run = next((run for run in chosen.runs if run.cache == "warm"), chosen.runs[0])
    uneven = max(run.t_io_frame_s.relative, run.t_comp_frame_s.relative) > 0.25
    long = total.run.t_io_s + total.run.t_comp_s > 10.0
    return Recommended(
        name=chosen.name,
        layout=chosen.layout,
        chunk_frames=chosen.chunk_frames,
        groups=dict(chosen.groups),
        precision=chosen.precision,
        segments=segments_for(source.n_frames, 12 * source.n_atoms, setting.ranks)
        if chosen.layout == "segments"
        else None,
        stripe={"nbytes": chosen.stripe_nbytes, "count": count},
        ranks=ranks,
        useful_ranks=useful,
        blocks_per_worker=4 if uneven and long and ranks > 1 else 1,
        gather=total.run.gather,
    )


def _option(trial: Trial, total: Total | None, is_chosen: bool) -> Option:
    problem = trial.problem
    if problem is None and not trial.fits:
        problem = f"{trial.nbytes:,.0f} bytes do not fit into the target folder"
    return Option(trial.name, trial.layout, trial.nbytes, total, is_chosen, problem)


def _reasons(
    setting: _Setting,
    chosen: Trial,
    totals: dict[str, Total],
    alike: Sequence[str],
    useful: int,
) -> list[str]:
    found = []
    measurements = setting.measurements
    if len(alike) > 1:
        others = ", ".join(name for name in alike if name != chosen.name)
        least = min(alike, key=lambda name: totals[name].total_s)
        taken = "either will do" if least == chosen.name else "the simpler one is taken"
        found.append(f"{chosen.name} and {others} lie within the noise: {taken}")
    if useful < setting.ranks:
        fewer = setting.forecaster.one_pass(chosen, useful).t_total_s
        asked = totals[chosen.name].run.t_total_s
        found.append(
            f"more than {useful} rank(s) do not help: one pass takes {fewer:.3g} s with {useful}, "
            f"{asked:.3g} s with {setting.ranks}"
        )
    if setting.forecaster.profile is None and setting.ranks > measurements.host.cores:
        found.append(
            f"{setting.ranks} ranks on this machine's {measurements.host.cores} core(s) take "
            "turns; name the cluster with --machine to have it modelled"
        )
    if measurements.host.cold_problem:
        found.append(
            f"nothing was measured from disk ({measurements.host.cold_problem}); "
            "reads are taken to come from memory"
        )
    if measurements.ratio_comp_io is not None and measurements.ratio_comp_io >= PAPERS_RATIO:
        found.append("computing takes a hundred times as long as reading: no layout can help")
    found += [
        f"{trial.name}: {trial.problem}"
        for trial in measurements.trials
        if trial.problem is not None
    ]
    total = totals[chosen.name]
    if total.relative > 0.3:
        found.append(
            f"measurements vary much here ({100 * total.relative:.0f}%): repeat them in quiet"
        )
    return [*found, *measurements.notes]
