"""Why the advice is what it is, and what the published guidelines would have one do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mdio.advisor.decide.decision import Rule
from mdio.advisor.decide.forecast import Forecaster, Total
from mdio.advisor.measure.measurements import Measurements, Trial
from mdio.core.words import duration, plural

PAPERS_RATIO = 100.0
"""From this t_comp/t_IO on, Khoshlessan et al. call an analysis compute-bound."""
SMALL_RESULT_NBYTES = 1 << 30


@dataclass(frozen=True)
class Setting:
    """What is decided upon."""

    measurements: Measurements
    forecaster: Forecaster
    ranks: int
    passes: int


def papers_rule(setting: Setting, chosen: Trial, totals: dict[str, Total]) -> Rule:
    """Return what the guidelines of Khoshlessan et al. say, and why ours may differ."""
    measurements = setting.measurements
    ratio = measurements.ratio_comp_io
    small = (
        measurements.question.result_nbytes_frame * measurements.source.n_frames
        <= SMALL_RESULT_NBYTES
    )
    gather = "one-sided" if small else "blocking"
    if ratio is None or ratio >= PAPERS_RATIO:
        layout, text = "as-is", f"t_comp/t_IO is {_text(ratio)}, 100 or more: no need to convert"
    elif measurements.host.parallel_hdf5:
        layout = "h5md"
        text = f"t_comp/t_IO is {_text(ratio)}, below 100: parallel HDF5"
    else:
        layout = "segments"
        text = (
            f"t_comp/t_IO is {_text(ratio)}, below 100, and there is no parallel HDF5 here: "
            "one segment per rank"
        )
    if layout == chosen.layout:
        return Rule(layout, gather, text, True, "")
    tried = [trial for trial in measurements.trials if trial.layout == layout]
    measured = [totals[trial.name] for trial in tried if trial.name in totals]
    theirs = min(measured, key=lambda total: total.total_s, default=None)
    if theirs is None:
        problem = next((trial.problem for trial in tried if trial.problem), "it was not tried")
        return Rule(layout, gather, text, False, f"{layout} could not be measured: {problem}")
    ours = totals[chosen.name]
    times = f"{duration(theirs.total_s)} with {layout}, {duration(ours.total_s)} with {chosen.name}"
    passes = plural(setting.passes, "pass")
    why = f"the rule looks at the ratio alone; the time for {passes} is {times}"
    if chosen.name == "as-is":
        why += f", as converting takes {duration(theirs.convert_s)}, which has to pay"
    elif chosen.groups:
        why += ", which reads a stored group of just the analysed atoms"
    return Rule(layout, gather, text, False, why)


def _text(ratio: float | None) -> str:
    return "beyond measure" if ratio is None else f"{ratio:.2g}"


def reasons(
    setting: Setting, chosen: Trial, totals: dict[str, Total], alike: Sequence[str], useful: int
) -> list[str]:
    """Return what should be known of this advice, as sentences."""
    found = []
    measurements = setting.measurements
    if len(alike) > 1:
        others = ", ".join(name for name in alike if name != chosen.name)
        least = min(alike, key=lambda name: totals[name].total_s)
        taken = "either will do" if least == chosen.name else "the simpler one is recommended"
        found.append(f"{chosen.name} and {others} differ by less than the noise: {taken}")
    if useful < setting.ranks:
        fewer = totals[chosen.name].run.t_total_s
        asked = setting.forecaster.one_pass(chosen, setting.ranks).t_total_s
        found.append(
            f"more ranks than {useful} do not help: one pass takes {duration(fewer)} with "
            f"{useful}, {duration(asked)} with {setting.ranks}"
        )
    forecaster = setting.forecaster
    cores = forecaster.nodes * measurements.host.cores
    if forecaster.profile is None and setting.ranks > cores:
        where = "this machine's" if forecaster.nodes == 1 else f"{forecaster.nodes} nodes'"
        found.append(
            f"{setting.ranks} ranks take turns on {where} {plural(cores, 'core')}; use --nodes N "
            "if there are more nodes, or --machine to forecast for a cluster"
        )
    cold = forecaster.profile is None and forecaster.cache_of(chosen) == "cold"
    if cold and forecaster.storage_nbytes_per_s is not None:
        rate = forecaster.storage_nbytes_per_s / 1e6
        found.append(
            f"passes are assumed to read from storage, which gave {rate:,.0f} MB/s to all readers "
            "together (--warm: from memory)"
        )
    if measurements.host.cold_problem:
        found.append(
            f"nothing was measured from disk ({measurements.host.cold_problem}); "
            "reads are assumed to come from memory"
        )
    if measurements.ratio_comp_io is not None and measurements.ratio_comp_io >= PAPERS_RATIO:
        found.append("computing takes at least 100 times as long as reading: no layout can help")
    found += [
        f"{trial.name}: {trial.problem}"
        for trial in measurements.trials
        if trial.problem is not None
    ]
    total = totals[chosen.name]
    if total.relative > 0.3:
        found.append(
            f"measurements vary a lot ({100 * total.relative:.0f}%): repeat them on a quiet machine"
        )
    return [*found, *measurements.notes]
