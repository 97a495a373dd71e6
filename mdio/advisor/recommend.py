"""From measurements to advice. Pure: numbers in, a `Decision` out; no disk, no clock.

A cache on each node (``mdio analyze --cache``) is assessed with nodes missing, too. A pass whose
frames lie on the nodes takes T. With a fraction delta of the nodes missing, their share is read
from the storage: T (1 + delta B / b) at most, where B is the bandwidth of all local disks together
and b that of the storage (Tu et al. 2010).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mdio.advisor.forecast import CACHES, Calibration, Forecast, Forecaster, Total, calibrate
from mdio.advisor.measurements import SCHEMA, Measurements, Trial, segments_for
from mdio.advisor.profile import Profile
from mdio.core.errors import PlanError
from mdio.core.words import duration, plural
from mdio.layouts.registry import layout_class
from mdio.layouts.striping.file_systems import lies_on_its_stripes

MISSING = (0.1, 0.25, 0.5)


@dataclass(frozen=True, slots=True)
class NodeCache:
    """A cache on each node beside reading the source from shared storage."""

    local_nbytes_per_s: float
    """B: bandwidth of the disk of one node."""
    storage_nbytes_per_s: float
    """b: bandwidth of the storage for all nodes together."""
    nodes: int
    pays_from_pass: int | None
    """Number of passes from which on the cache saves time; None if it never does."""
    source_pass_s: float
    first_pass_s: float
    """A pass that reads from the source and fills the cache."""
    cached_pass_s: float
    """T: a pass that reads from the cache alone."""
    missing_pass_s: dict[str, float]
    """T (1 + delta B / b), a pass with a fraction of the nodes missing, by delta."""

    def __str__(self) -> str:
        rates = (
            f"a node's disk gives {self.local_nbytes_per_s / 1e6:,.0f} MB/s, the storage "
            f"{self.storage_nbytes_per_s / 1e6:,.0f} MB/s to all"
        )
        if self.pays_from_pass is None:
            return f"a cache on {plural(self.nodes, 'node')} (--cache) does not pay: {rates}"
        missing = ", ".join(
            f"{seconds:.3g} s with {100 * float(share):.0f}%"
            for share, seconds in self.missing_pass_s.items()
        )
        return (
            f"a cache on {plural(self.nodes, 'node')} (--cache) pays from pass "
            f"{self.pays_from_pass} on: {rates}; a pass takes {self.source_pass_s:.3g} s from the "
            f"source, {self.first_pass_s:.3g} s while it is kept, {self.cached_pass_s:.3g} s when "
            f"it is, and with nodes missing at most {missing}"
        )


def node_cache(forecaster: Forecaster, total: Total, ranks: int) -> NodeCache | None:
    """Compare a cache with reading the source as it is; None if local disks were not measured.

    `total`: forecast for the source as it is. `ranks`: number of ranks of the analysis.
    """
    measurements, profile = forecaster.measurements, forecaster.profile
    disk, storage, nodes = (measurements.local, forecaster.storage_nbytes_per_s, forecaster.nodes)
    if profile is not None:
        storage = profile.storage.aggregate_bytes_per_s
        nodes = math.ceil(ranks / profile.cores_per_node)
    trial = measurements.trial("as-is")
    if disk is None or storage is None or trial is None:
        return None
    nbytes, source_s = measurements.source.nbytes, total.run.t_total_s
    cached_io_s = nbytes / (nodes * disk.read_nbytes_per_s)
    saved_s = 0.0
    if forecaster.cache_state(trial) == "cold" or profile is not None:
        saved_s = min(max(0.0, nbytes / storage - cached_io_s), max(0.0, source_s - cached_io_s))
    filling_s = nbytes / (nodes * disk.write_nbytes_per_s)
    cached_s = source_s - saved_s
    ratio = nodes * disk.read_nbytes_per_s / storage
    return NodeCache(
        disk.read_nbytes_per_s,
        storage,
        nodes,
        1 + math.ceil(filling_s / saved_s) if saved_s > 0 else None,
        source_s,
        source_s + filling_s,
        cached_s,
        {f"{share:g}": cached_s * (1 + share * ratio) for share in MISSING},
    )


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A recommended layout and how to read it."""

    name: str
    """Name of the option."""
    layout: str
    """``as-is`` = read the source as it is, with mdio's own reader."""
    chunk_frames: int | None
    groups: dict[str, str]
    """Stored groups of atoms, as selections."""
    precision: float | str | None
    segments: int | None
    """Number of segments, if the layout is segments."""
    stripe: dict[str, int | None]
    """``nbytes`` and ``count``; no count where the file system has no stripes."""
    ranks: int
    """The requested number, or fewer if more do not help."""
    useful_ranks: int
    """Number beyond which more ranks do not help."""
    blocks_per_worker: int
    gather: str


@dataclass(frozen=True, slots=True)
class Rule:
    """The guidelines of Khoshlessan et al. for this analysis."""

    layout: str
    gather: str
    text: str
    agrees: bool
    why_not: str
    """Reason why the advice differs, if it does."""


@dataclass(frozen=True, slots=True)
class Option:
    """One candidate and its forecast."""

    name: str
    layout: str
    nbytes: float
    total: Total | None
    is_chosen: bool
    problem: str | None

    def to_json(self) -> dict[str, Any]:
        """Return plain values; times are None where there are none."""
        total = self.total
        seconds = ("total_s", "low_s", "high_s", "convert_s")
        total_s, low_s, high_s, convert_s = (getattr(total, name, None) for name in seconds)
        return {
            "name": self.name,
            "layout": self.layout,
            "nbytes": self.nbytes,
            "predicted_total_s": total_s,
            "low_s": low_s,
            "high_s": high_s,
            "convert_s": convert_s,
            "pass": None if total is None else asdict(total.run),
            "problem": self.problem,
        }


@dataclass(frozen=True)
class Decision:
    """A recommendation, and everything that it is based on."""

    measurements: Measurements
    machine: str
    ranks: int
    """Ranks of all passes: the requested number, or fewer if more do not help."""
    ranks_asked: int
    passes: int
    ratio: float | None
    """t_comp/t_IO of one worker on the source as it is; None where reading took no time."""
    bound: str
    """``io``, ``compute`` or ``balanced``."""
    recommended: Recommendation
    options: tuple[Option, ...]
    break_even_passes: int | None
    """Passes after which converting pays; None if it never does."""
    break_even_layout: str | None
    """Layout to convert to for that."""
    rule: Rule
    commands: tuple[str, ...]
    reasons: tuple[str, ...]
    curves: Mapping[str, tuple[Forecast, ...]]
    """Forecasts of one pass with other numbers of ranks, by option."""
    node_cache: NodeCache | None = None
    """Effect of a cache on each node, if local disks were measured."""

    def to_json(self) -> dict[str, Any]:
        """Return the output of ``mdio advise --json``."""
        names = ("ratio", "bound", "machine", "ranks", "ranks_asked", "passes")
        return {
            **{name: getattr(self, name) for name in names},
            "recommended": asdict(self.recommended),
            "candidates": [option.to_json() for option in self.options],
            "break_even_passes": self.break_even_passes,
            "break_even_layout": self.break_even_layout,
            "papers_rule": asdict(self.rule),
            "commands": list(self.commands),
            "reasons": list(self.reasons),
            "node_cache": None if self.node_cache is None else asdict(self.node_cache),
            "curves": {
                name: [
                    {
                        "ranks": p.n_ranks,
                        "total_s": p.t_total_s,
                        "low_s": p.low_s,
                        "high_s": p.high_s,
                    }
                    for p in points
                ]
                for name, points in self.curves.items()
            },
            "measurements": {"schema": SCHEMA, **asdict(self.measurements)},
        }


IO_BOUND, COMPUTE_BOUND = 1.0, 10.0
"""Limits of t_comp/t_IO: up to 1, reading takes most of the time; from 10 on, no layout can save a
tenth."""

LEAST_NOISE, MOST_NOISE = 0.02, 0.05
"""Options whose totals differ by less than the first share are as good; by more than the second,
never, however noisy their measurements are."""

UNWRITTEN = ("as-is", "local-copy")
SIMPLER = (*UNWRITTEN, "segments")
"""Preference among options that are as good: the first of these, which keep the source's bytes, or
else the fastest."""

ENOUGH = 1.05
"""More ranks do not help once the time is within this factor of the shortest."""
MAX_RANKS = 10_000
RANKS_A_STRIPE = 24
"""Three stripes kept t_IO flat up to 72 cores in the study of 2017."""


def recommend(
    measurements: Measurements,
    ranks: int,
    passes: int = 1,
    profile: Profile | None = None,
    calibrations: Sequence[Calibration] = (),
    *,
    cache: str = "auto",
    nodes: int = 1,
) -> Decision:
    """Decide which layout serves best.

    `measurements`: from `mdio.advisor.measure`. `ranks`: number of processes of the analysis.
    `passes`: number of analyses of the trajectory. `profile`: machine of the analysis; None: the
    one that was measured. `calibrations`: runs of this analysis on that machine. `cache`: passes
    read from storage (``cold``), from memory (``warm``), or from memory if it is large enough
    (``auto``). `nodes`: machines like the one that was measured, over which ranks are spread.
    Raises PlanError: numbers below 1, calibrations that do not fit the measurements.
    """
    for name, value in (("ranks", ranks), ("passes", passes), ("nodes", nodes)):
        if value < 1:
            raise PlanError(f"{value} {name}: give 1 or more")
    if cache not in CACHES:
        raise PlanError(f"passes are {cache!r}; they may be {', '.join(CACHES)}")
    forecaster = Forecaster(measurements, profile, cache=cache, nodes=nodes)
    if calibrations:
        forecaster = calibrate(forecaster, calibrations)
    requested = Setting(measurements, forecaster, ranks, passes)
    measured = [trial for trial in measurements.trials if trial.problem is None and trial.runs]
    source = next((trial for trial in measured if trial.name == "as-is"), None)
    if source is None:
        raise PlanError("the source as it is was not measured; measure again")
    fitting = [trial for trial in measured if trial.fits]
    totals = {trial.name: forecaster.total(trial, ranks, passes) for trial in measured}
    useful_ranks = _useful_ranks(requested, _choose(fitting, totals)[0])
    setting = replace(requested, ranks=min(ranks, useful_ranks))  # as advised, for all passes
    totals = {
        trial.name: forecaster.total(trial, setting.ranks, passes, ranks) for trial in measured
    }
    chosen, equivalent = _choose(fitting, totals)
    break_even, break_even_layout = _break_even(fitting, totals, chosen)
    recommended = _recommended(setting, chosen, totals[chosen.name], useful_ranks)
    cache_effect = node_cache(forecaster, totals["as-is"], setting.ranks)
    ratio = math.inf if measurements.ratio_comp_io is None else measurements.ratio_comp_io
    bound = "compute" if ratio >= COMPUTE_BOUND else "io" if ratio <= IO_BOUND else "balanced"
    sentences = reasons(requested, chosen, totals, equivalent, useful_ranks)
    return Decision(
        measurements=measurements,
        machine="local" if profile is None else forecaster.profile.name,  # type: ignore[union-attr]
        ranks=setting.ranks,
        ranks_asked=ranks,
        passes=passes,
        ratio=measurements.ratio_comp_io,
        bound=bound,
        recommended=recommended,
        options=tuple(
            _option(trial, totals.get(trial.name), trial is chosen) for trial in measurements.trials
        ),
        break_even_passes=break_even,
        break_even_layout=break_even_layout,
        rule=papers_rule(setting, chosen, totals),
        commands=tuple(
            commands_for(
                measurements,
                chosen,
                recommended,
                is_local=profile is None and nodes == 1,
                ranks=ranks,
                n_nodes=nodes if profile is None else math.ceil(ranks / profile.cores_per_node),
            )
        ),
        reasons=tuple(sentences if cache_effect is None else [*sentences, str(cache_effect)]),
        node_cache=cache_effect,
        curves={
            trial.name: tuple(forecaster.one_pass(trial, n) for n in _rank_counts(requested))
            for trial in measured
        },
    )


def _choose(trials: Sequence[Trial], totals: dict[str, Total]) -> tuple[Trial, list[str]]:
    """Return the simplest of the best options, and the names of all that are as good."""
    best = min(trials, key=lambda trial: totals[trial.name].total_s)
    least = totals[best.name]
    equivalent = []
    for trial in trials:
        total = totals[trial.name]
        noise = math.hypot(least.relative, total.relative) / 2
        margin = min(max(LEAST_NOISE, noise), MOST_NOISE)
        if total.total_s <= least.total_s * (1 + margin):
            equivalent.append(trial)
    preference = {name: place for place, name in enumerate(SIMPLER)}
    chosen = min(
        equivalent,
        key=lambda trial: (preference.get(trial.name, len(preference)), totals[trial.name].total_s),
    )
    return chosen, [trial.name for trial in equivalent]


def _rank_counts(setting: Setting) -> list[int]:
    """Return the numbers of ranks of curves."""
    counts, profile = {setting.ranks}, setting.forecaster.profile
    if profile is None:
        largest = max(_cores(setting), setting.ranks)
    else:
        largest = min(MAX_RANKS, max(4 * setting.ranks, 4 * profile.cores_per_node))
        counts.add(profile.cores_per_node)
    return sorted({*counts, *(1 << power for power in range(largest.bit_length())), largest})


def _cores(setting: Setting) -> int:
    """Return the cores of all machines like the one that was measured."""
    return setting.forecaster.nodes * setting.measurements.host.cores


def _useful_ranks(setting: Setting, chosen: Trial) -> int:
    """Return the ranks beyond which more do not help."""
    counts = [n for n in _rank_counts(setting) if n <= setting.measurements.source.n_frames]
    if setting.forecaster.profile is None:
        counts = [n for n in counts if n <= _cores(setting)]
    times = {n: setting.forecaster.one_pass(chosen, n).t_total_s for n in counts or [1]}
    least = min(times.values())
    return min(n for n, seconds in times.items() if seconds <= ENOUGH * least)


def _break_even(
    trials: Sequence[Trial], totals: dict[str, Total], chosen: Trial
) -> tuple[int | None, str | None]:
    """Return the passes after which converting pays, and the layout to convert to."""
    source_s = totals["as-is"].run.t_total_s
    candidates: list[tuple[int, str]] = []
    for trial in trials:
        if trial.name == "as-is" or chosen.name not in ("as-is", trial.name):
            continue
        saved = source_s - totals[trial.name].run.t_total_s
        if saved > 0:
            passes = max(1, math.ceil(totals[trial.name].convert_s / saved))
            candidates.append((passes, trial.name))
    return min(candidates, default=(None, None))


def _recommended(
    setting: Setting, chosen: Trial, total: Total, useful_ranks: int
) -> Recommendation:
    measurements = setting.measurements
    host, source = measurements.host, measurements.source
    ranks = setting.ranks
    count = None
    if lies_on_its_stripes(host.target_file_system) and chosen.layout not in UNWRITTEN:
        is_folder = layout_class(chosen.layout).facts.is_folder
        count = 1 if is_folder else math.ceil(ranks / RANKS_A_STRIPE)
    n_segments = None
    if chosen.layout not in UNWRITTEN and layout_class(chosen.layout).facts.in_segments:
        n_segments = segments_for(source.n_frames, 12 * source.n_atoms, setting.ranks)
    run = next((run for run in chosen.runs if run.cache == "warm"), chosen.runs[0])
    is_uneven = max(run.t_io_frame_s.relative, run.t_comp_frame_s.relative) > 0.25
    is_long = total.run.t_io_s + total.run.t_comp_s > 10.0
    return Recommendation(
        name=chosen.name,
        layout=chosen.layout,
        chunk_frames=chosen.chunk_frames,
        groups=dict(chosen.groups),
        precision=chosen.precision,
        segments=n_segments,
        stripe={"nbytes": chosen.stripe_nbytes, "count": count},
        ranks=ranks,
        useful_ranks=useful_ranks,
        blocks_per_worker=4 if is_uneven and is_long and ranks > 1 else 1,
        gather=total.run.gather,
    )


def _option(trial: Trial, total: Total | None, is_chosen: bool) -> Option:
    problem = trial.problem
    if problem is None and not trial.fits:
        problem = f"{trial.nbytes:,.0f} bytes do not fit into the target folder"
    return Option(trial.name, trial.layout, trial.nbytes, total, is_chosen, problem)


PAPERS_RATIO = 100.0
"""From this t_comp/t_IO on, Khoshlessan et al. call an analysis compute-bound."""
SMALL_RESULT_NBYTES = 1 << 30


@dataclass(frozen=True)
class Setting:
    """The inputs of a decision."""

    measurements: Measurements
    forecaster: Forecaster
    ranks: int
    passes: int


def papers_rule(setting: Setting, chosen: Trial, totals: dict[str, Total]) -> Rule:
    """Return the guidelines of Khoshlessan et al., and the reason if the advice differs."""
    measurements = setting.measurements
    ratio = measurements.ratio_comp_io
    small = (
        measurements.question.result_nbytes_frame * measurements.source.n_frames
        <= SMALL_RESULT_NBYTES
    )
    gather = "one-sided" if small else "blocking"
    if ratio is None or ratio >= PAPERS_RATIO:
        layout, text = (
            "as-is",
            f"t_comp/t_IO is {_ratio_text(ratio)}, 100 or more: no need to convert",
        )
    elif measurements.host.parallel_hdf5:
        layout = "h5md"
        text = f"t_comp/t_IO is {_ratio_text(ratio)}, below 100: parallel HDF5"
    else:
        layout = "segments"
        text = (
            f"t_comp/t_IO is {_ratio_text(ratio)}, below 100, and there is no parallel HDF5 here: "
            "one segment per rank"
        )
    if layout == chosen.layout:
        return Rule(layout, gather, text, True, "")
    tried = [trial for trial in measurements.trials if trial.layout == layout]
    measured = [totals[trial.name] for trial in tried if trial.name in totals]
    best = min(measured, key=lambda total: total.total_s, default=None)
    if best is None:
        problem = next((trial.problem for trial in tried if trial.problem), "it was not tried")
        return Rule(layout, gather, text, False, f"{layout} could not be measured: {problem}")
    advised = totals[chosen.name]
    times = (
        f"{duration(best.total_s)} with {layout}, {duration(advised.total_s)} with {chosen.name}"
    )
    passes = plural(setting.passes, "pass")
    why = f"the rule looks at the ratio alone; the time for {passes} is {times}"
    if chosen.name == "as-is":
        why += f", because converting costs {duration(best.convert_s)}"
    elif chosen.groups:
        why += ", which reads a stored group of just the analysed atoms"
    return Rule(layout, gather, text, False, why)


def _ratio_text(ratio: float | None) -> str:
    return "beyond measure" if ratio is None else f"{ratio:.2g}"


def reasons(
    setting: Setting,
    chosen: Trial,
    totals: dict[str, Total],
    equivalent: Sequence[str],
    useful_ranks: int,
) -> list[str]:
    """Return remarks on this advice, as sentences."""
    sentences = []
    measurements = setting.measurements
    if len(equivalent) > 1:
        names = ", ".join(name for name in equivalent if name != chosen.name)
        least = min(equivalent, key=lambda name: totals[name].total_s)
        choice = "either will do" if least == chosen.name else "the simpler one is recommended"
        sentences.append(f"{chosen.name} and {names} differ by less than the noise: {choice}")
    if useful_ranks < setting.ranks:
        useful_s = totals[chosen.name].run.t_total_s
        requested_s = setting.forecaster.one_pass(chosen, setting.ranks).t_total_s
        sentences.append(
            f"more ranks than {useful_ranks} do not help: one pass takes {duration(useful_s)} with "
            f"{useful_ranks}, {duration(requested_s)} with {setting.ranks}"
        )
    forecaster = setting.forecaster
    cores = forecaster.nodes * measurements.host.cores
    if forecaster.profile is None and setting.ranks > cores:
        owner = "this machine's" if forecaster.nodes == 1 else f"{forecaster.nodes} nodes'"
        sentences.append(
            f"{setting.ranks} ranks take turns on {owner} {plural(cores, 'core')}; use --nodes N "
            "if there are more nodes, or --machine to forecast for a cluster"
        )
    cold = forecaster.profile is None and forecaster.cache_state(chosen) == "cold"
    if cold and forecaster.storage_nbytes_per_s is not None:
        rate = forecaster.storage_nbytes_per_s / 1e6
        sentences.append(
            f"passes are assumed to read from storage, which gave {rate:,.0f} MB/s to all readers "
            "together (--warm: from memory)"
        )
    if measurements.host.cold_problem:
        sentences.append(
            f"nothing was measured from disk ({measurements.host.cold_problem}); "
            "reads are assumed to come from memory"
        )
    if measurements.ratio_comp_io is not None and measurements.ratio_comp_io >= PAPERS_RATIO:
        sentences.append(
            "computing takes at least 100 times as long as reading: no layout can help"
        )
    sentences += [
        f"{trial.name}: {trial.problem}"
        for trial in measurements.trials
        if trial.problem is not None
    ]
    total, source_total = totals[chosen.name], totals["as-is"]
    if chosen.name != "as-is" and total.high_s > source_total.low_s and "as-is" not in equivalent:
        sentences.append(
            f"what repeats allow for {chosen.name} and for the source as it is overlaps: "
            f"{duration(total.low_s)} to {duration(total.high_s)}, "
            f"{duration(source_total.low_s)} to {duration(source_total.high_s)}; "
            "measured again, it may be the source"
        )
    if total.relative > 0.3:
        sentences.append(
            f"measurements vary a lot ({100 * total.relative:.0f}%): repeat them on a quiet machine"
        )
    return [*sentences, *measurements.notes]


def commands_for(
    measurements: Measurements,
    chosen: Trial,
    recommended: Recommendation,
    *,
    is_local: bool,
    ranks: int,
    n_nodes: int = 1,
) -> list[str]:
    """Return the conversion or the copies, where there are any, and the analysis."""
    sources = list(measurements.source.paths)
    commands = []
    if chosen.layout == "local-copy":
        folder = Path(measurements.question.local_folder or "/tmp")
        words = ["cp", *sources, str(folder)]
        if n_nodes > 1:
            words = ["mpiexec", "-n", str(n_nodes), "-ppn", "1", *words]
        commands.append(shlex.join(words))
        sources = [str(folder / Path(path).name) for path in sources]
    elif chosen.layout != "as-is":
        stem = Path(sources[0]).name.split(".")[0] or "trajectory"
        out = str(Path(measurements.question.target) / f"{stem}.{chosen.layout}")
        paths = [*sources, out]
        commands.append(_convert(measurements, chosen, recommended, paths, is_local, ranks))
        sources = [out]
    top = None if _keeps_topology(chosen) else measurements.question.top
    commands.append(_analyze(measurements, recommended, sources, is_local, top))
    return commands


def _keeps_topology(chosen: Trial) -> bool:
    """Return whether an output holds the topology that it was given."""
    return chosen.layout not in UNWRITTEN and layout_class(chosen.layout).facts.keeps_topology


def _convert(
    measurements: Measurements,
    chosen: Trial,
    recommended: Recommendation,
    paths: list[str],
    is_local: bool,
    ranks: int,
) -> str:
    """Return the command for a conversion; `paths`: the sources, and the output."""
    words = ["mdio", "convert", *paths]
    top = measurements.question.top
    if top is not None and (chosen.groups or _keeps_topology(chosen)):
        words += ["-s", top]
    for option, value in chosen.convert_options.items():
        words += [option, value]
    if recommended.segments is not None:
        words += ["--segments", str(recommended.segments)]
    if recommended.stripe["count"] is not None:
        words += ["--stripe-count", str(recommended.stripe["count"])]
    if is_local:
        words += ["-w", str(min(ranks, measurements.host.cores))]
    else:
        words = ["mpiexec", "-n", str(ranks), *words, "--mpi"]
    return shlex.join(words)


def _analyze(
    measurements: Measurements,
    recommended: Recommendation,
    sources: list[str],
    is_local: bool,
    top: str | None,
) -> str:
    question = measurements.question
    words = ["mdio", "analyze", question.analysis, *sources]
    if top is not None:
        words += ["-s", top]
    if question.select is not None:
        words += ["--select", question.select]
    for option, value in question.options.items():
        words += [option, value]
    if recommended.blocks_per_worker > 1:
        words += ["--blocks-per-worker", str(recommended.blocks_per_worker)]
    if not is_local:
        words += ["--executor", "mpi", "--gather", recommended.gather]
        words = ["mpiexec", "-n", str(recommended.ranks), *words]
    elif recommended.ranks > 1:
        words += ["-w", str(recommended.ranks)]
    return shlex.join([*words, "-o", "result.npz"]).replace("'$TMPDIR/", '"$TMPDIR"/\'')
