"""From measurements to advice. Pure: numbers in, a `Decision` out; no disk, no clock.

A cache on each node (``mdio analyze --cache``) is also assessed with nodes missing. A pass that
reads all frames from the caches takes T. With a fraction delta of the nodes missing, their share is
read from the storage: T (1 + delta B / b) at most, where B is the bandwidth of all local disks
together and b that of the storage (Tu et al. 2010).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mdio.advisor.forecast import Calibration, Forecast, Forecaster, Total, calibrate
from mdio.advisor.measurements import SCHEMA, Measurements, Trial, segments_for
from mdio.advisor.profile import Profile
from mdio.core.errors import PlanError
from mdio.core.words import duration, human_nbytes, plural
from mdio.layouts.registry import layout_class
from mdio.layouts.striping.file_systems import has_server_per_stripe

MISSING_SHARES = (0.1, 0.25, 0.5)
"""Missing fractions of the nodes for which a pass that reads from caches is forecast."""


@dataclass(frozen=True, slots=True)
class NodeCache:
    """A cache on each node, compared with reading the source from shared storage."""

    local_nbytes_per_s: float
    """B: bandwidth of the disk of one node."""
    storage_nbytes_per_s: float
    """b: bandwidth of the storage for all nodes together."""
    nodes: int
    pays_from_pass: int | None
    """Number of the pass from which on the cache saves time; None if it never does."""
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
            f"source, {self.first_pass_s:.3g} s while it fills the cache, "
            f"{self.cached_pass_s:.3g} s from the cache, and with nodes missing at most {missing}"
        )


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A recommended layout and how to read it."""

    name: str
    layout: str
    """``as-is`` = read the source as it is, with mdio's own reader."""
    chunk_frames: int | None
    groups: dict[str, str]
    """Stored groups of atoms, as selections."""
    precision: float | str | None
    segments: int | None
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
        times = dict.fromkeys(("total_s", "low_s", "high_s", "convert_s", "run"))
        times |= {} if self.total is None else asdict(self.total)
        json_values = {
            name: getattr(self, name) for name in ("name", "layout", "nbytes", "problem")
        }
        new_names = {"total_s": "predicted_total_s", "run": "pass"}
        return json_values | {new_names.get(name, name): value for name, value in times.items()}


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
    """t_comp/t_IO of one worker on the source as it is; None if reading took no time."""
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
                    {key: getattr(p, field) for key, field in CURVE_FIELDS.items()} for p in points
                ]
                for name, points in self.curves.items()
            },
            "measurements": {"schema": SCHEMA, **asdict(self.measurements)},
        }


CURVE_FIELDS = {"ranks": "n_ranks", "total_s": "t_total_s", "low_s": "low_s", "high_s": "high_s"}
"""Fields of `Forecast` that a point of a curve has in `Decision.to_json`, by key."""
IO_BOUND, COMPUTE_BOUND = 1.0, 10.0
"""Limits of t_comp/t_IO: up to 1, reading takes most of the time; from 10 on, no layout can save a
tenth."""

MIN_NOISE, MAX_NOISE = 0.02, 0.05
"""Options whose totals differ by less than the first share are equally good; those that differ by
more than the second are not, however noisy their measurements are."""

NOT_CONVERTED = ("as-is", "local-copy")
SIMPLE_OPTIONS = (*NOT_CONVERTED, "segments")
"""Preference among equally good options: the first of these, which keep the source's bytes, or
else the fastest."""

USEFUL_FACTOR = 1.05
"""More ranks do not help once the time is within this factor of the shortest."""
MAX_RANKS = 10_000
RANKS_PER_STRIPE = 24
"""Three stripes kept t_IO flat up to 72 cores in the study of 2017."""
PAPERS_RATIO = 100.0
"""From this t_comp/t_IO on, Khoshlessan et al. call an analysis compute-bound."""
SMALL_RESULT_NBYTES = 1 << 30


def recommend(
    measurements: Measurements,
    ranks: int,
    passes: int = 1,
    profile: Profile | None = None,
    calibrations: Sequence[Calibration] = (),
    *,
    cache: str = "auto",
    nodes: int = 1,
    under_mpi: bool = False,
) -> Decision:
    """Decide which layout serves best; arguments are as for `mdio.advise`.

    `profile`: machine of the analysis; None: the one that was measured. `nodes`: machines like the
    one that was measured. `under_mpi`: whether commands are for ranks on one machine, too.
    """
    forecaster = Forecaster(measurements, profile, cache=cache, nodes=nodes)
    if calibrations:
        forecaster = calibrate(forecaster, calibrations)
    requested = Comparison(forecaster, passes, ranks, ranks, under_mpi)
    if "as-is" not in requested.totals:
        raise PlanError("the source as it is was not measured; measure again")
    useful_ranks = requested.useful_ranks()
    comparison = replace(requested, ranks=min(ranks, useful_ranks))  # as advised, for all passes
    ratio = math.inf if measurements.ratio_comp_io is None else measurements.ratio_comp_io
    recommended, node_cache = comparison.recommendation(useful_ranks), comparison.node_cache()
    break_even, break_even_layout = comparison.break_even()
    return Decision(
        measurements=measurements,
        machine="local" if profile is None else profile.name,
        ranks=comparison.ranks,
        ranks_asked=ranks,
        passes=passes,
        ratio=measurements.ratio_comp_io,
        bound="compute" if ratio >= COMPUTE_BOUND else "io" if ratio <= IO_BOUND else "balanced",
        recommended=recommended,
        options=tuple(map(comparison.option, measurements.trials)),
        break_even_passes=break_even,
        break_even_layout=break_even_layout,
        rule=comparison.papers_rule(),
        commands=tuple(comparison.commands(recommended)),
        reasons=(*comparison.reasons(useful_ranks), *([str(node_cache)] if node_cache else [])),
        node_cache=node_cache,
        curves={
            trial.name: tuple(forecaster.one_pass(trial, n) for n in requested.rank_counts())
            for trial in comparison.trials
        },
    )


@dataclass(frozen=True)
class Comparison:
    """The options, forecast for a number of ranks, and the best of them."""

    forecaster: Forecaster
    passes: int
    ranks_asked: int
    """The requested number, on which the trajectory is converted."""
    ranks: int
    """Ranks of the analysis."""
    under_mpi: bool = False

    @property
    def measurements(self) -> Measurements:
        """The input of the forecasts."""
        return self.forecaster.measurements

    @cached_property
    def trials(self) -> list[Trial]:
        """The options that were measured."""
        return [trial for trial in self.measurements.trials if trial.problem is None and trial.runs]

    @cached_property
    def totals(self) -> dict[str, Total]:
        """Forecasts of all passes, by option."""
        args = self.ranks, self.passes, self.ranks_asked
        return {trial.name: self.forecaster.total(trial, *args) for trial in self.trials}

    @cached_property
    def equally_good(self) -> list[Trial]:
        """The fastest option, and those that are as good within the noise."""
        fitting_trials = [trial for trial in self.trials if trial.fits]
        totals = (self.totals[trial.name] for trial in fitting_trials)
        shortest = min(totals, key=lambda total: total.total_s)

        def is_as_good(total: Total) -> bool:
            noise = math.hypot(shortest.relative, total.relative) / 2
            return total.total_s <= shortest.total_s * (1 + min(max(MIN_NOISE, noise), MAX_NOISE))

        return [trial for trial in fitting_trials if is_as_good(self.totals[trial.name])]

    @cached_property
    def best(self) -> Trial:
        """The simplest option of `equally_good`."""
        order = {name: position for position, name in enumerate(SIMPLE_OPTIONS)}
        return min(
            self.equally_good,
            key=lambda trial: (order.get(trial.name, len(order)), self.totals[trial.name].total_s),
        )

    @property
    def _cores(self) -> int:
        """Cores of all machines like the one that was measured."""
        return self.forecaster.nodes * self.measurements.host.cores

    def _n_nodes(self, ranks: int) -> int:
        profile = self.forecaster.profile
        if profile is None:
            return self.forecaster.nodes
        return math.ceil(ranks / profile.cores_per_node)

    def rank_counts(self) -> list[int]:
        """Return the numbers of ranks of curves."""
        counts, profile = {self.ranks}, self.forecaster.profile
        if profile is None:
            largest = max(self._cores, self.ranks)
        else:
            largest = min(MAX_RANKS, max(4 * self.ranks, 4 * profile.cores_per_node))
            counts.add(profile.cores_per_node)
        return sorted({*counts, *(1 << power for power in range(largest.bit_length())), largest})

    def useful_ranks(self) -> int:
        """Return the number of ranks beyond which more do not help."""
        max_ranks = self.measurements.source.n_frames
        if self.forecaster.profile is None:
            max_ranks = min(max_ranks, self._cores)
        counts = [n for n in self.rank_counts() if n <= max_ranks] or [1]
        times = {n: self.forecaster.one_pass(self.best, n).t_total_s for n in counts}
        shortest_s = min(times.values())
        return min(n for n, seconds in times.items() if seconds <= USEFUL_FACTOR * shortest_s)

    def option(self, trial: Trial) -> Option:
        """Return an option and its forecast."""
        problem, total = trial.problem, self.totals.get(trial.name)
        if problem is None and not trial.fits:
            folder_kind = "local" if trial.layout == "local-copy" else "target"
            problem = f"{human_nbytes(trial.nbytes)} do not fit into the {folder_kind} folder"
        is_chosen = trial is self.best
        return Option(trial.name, trial.layout, trial.nbytes, total, is_chosen, problem)

    def break_even(self) -> tuple[int | None, str | None]:
        """Return the number of passes after which converting pays, and the layout for that."""
        source_s = self.totals["as-is"].run.t_total_s
        break_evens: list[tuple[int, str]] = []
        for trial in self.trials:
            total = self.totals[trial.name]
            saved_s = source_s - total.run.t_total_s
            if trial.fits and self.best.name in ("as-is", trial.name) and saved_s > 0:
                break_evens.append((max(1, math.ceil(total.convert_s / saved_s)), trial.name))
        return min(break_evens, default=(None, None))

    def node_cache(self) -> NodeCache | None:
        """Compare a cache with reading the source as it is; None if disks were not measured."""
        disk, profile = self.measurements.local, self.forecaster.profile
        storage, nodes = self.forecaster.storage_nbytes_per_s, self._n_nodes(self.ranks)
        if profile is not None:
            storage = profile.storage.aggregate_bytes_per_s
        if disk is None or storage is None:
            return None
        source_s = self.totals["as-is"].run.t_total_s
        nbytes, trial = self.measurements.source.nbytes, self.measurements.trial("as-is")
        cached_io_s = nbytes / (nodes * disk.read_nbytes_per_s)
        saved_s = 0.0
        if profile is not None or (trial and self.forecaster.cache_state(trial) == "cold"):
            saved_s = max(0.0, min(nbytes / storage, source_s) - cached_io_s)
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
            {f"{share:g}": cached_s * (1 + share * ratio) for share in MISSING_SHARES},
        )

    def recommendation(self, useful_ranks: int) -> Recommendation:
        """Return the best option and how to read it."""
        host, source, trial = self.measurements.host, self.measurements.source, self.best
        count = n_segments = None
        if trial.layout not in NOT_CONVERTED:
            facts = layout_class(trial.layout).facts
            if has_server_per_stripe(host.target_file_system):
                count = 1 if facts.is_folder else math.ceil(self.ranks / RANKS_PER_STRIPE)
            if facts.can_choose_n_files:
                n_segments = segments_for(source.n_frames, 12 * source.n_atoms, self.ranks)
        run = next((run for run in trial.runs if run.cache == "warm"), trial.runs[0])
        one_pass = self.totals[trial.name].run
        is_uneven = max(run.t_io_frame_s.relative, run.t_comp_frame_s.relative) > 0.25
        is_long = one_pass.t_io_s + one_pass.t_comp_s > 10.0
        return Recommendation(
            name=trial.name,
            layout=trial.layout,
            chunk_frames=trial.chunk_frames,
            groups=dict(trial.groups),
            precision=trial.precision,
            segments=n_segments,
            stripe={"nbytes": trial.stripe_nbytes, "count": count},
            ranks=self.ranks,
            useful_ranks=useful_ranks,
            blocks_per_worker=4 if is_uneven and is_long and self.ranks > 1 else 1,
            gather=one_pass.gather,
        )

    def papers_rule(self) -> Rule:
        """Return the guidelines of Khoshlessan et al., and the reason if the advice differs."""
        measurements, recommended_trial = self.measurements, self.best
        result_nbytes = measurements.question.result_nbytes_frame * measurements.source.n_frames
        gather = "one-sided" if result_nbytes <= SMALL_RESULT_NBYTES else "blocking"
        ratio = measurements.ratio_comp_io
        text = f"t_comp/t_IO is {'too large to measure' if ratio is None else f'{ratio:.2g}'}, "
        if ratio is None or ratio >= PAPERS_RATIO:
            layout, text = "as-is", f"{text}100 or more: no need to convert"
        elif measurements.host.parallel_hdf5:
            layout, text = "h5md", f"{text}below 100: parallel HDF5"
        else:
            layout = "segments"
            text += "below 100, and there is no parallel HDF5 here: one segment per rank"
        if layout == recommended_trial.layout:
            return Rule(layout, gather, text, True, "")
        trials = [trial for trial in measurements.trials if trial.layout == layout]
        measured = [trial.name for trial in trials if trial.name in self.totals]
        if not measured:
            problem = next((trial.problem for trial in trials if trial.problem), None)
            reason = f"could not be measured: {problem}" if problem else "was not tried"
            return Rule(layout, gather, text, False, f"{layout} {reason}")
        name = min(measured, key=lambda option: self.totals[option].total_s)
        rule_total, total = self.totals[name], self.totals[recommended_trial.name]
        reason = (
            f"the rule looks at the ratio alone; the time for {plural(self.passes, 'pass')} is "
            f"{duration(rule_total.total_s)} with {name}, {duration(total.total_s)} with "
            f"{recommended_trial.name}"
        )
        rule_pass_s, pass_s = rule_total.run.t_total_s, total.run.t_total_s
        if recommended_trial.name == "as-is" and rule_pass_s > pass_s:
            passes_text = f"{duration(rule_pass_s)} instead of {duration(pass_s)}"
            reason += f", because one pass takes {passes_text}"
        elif recommended_trial.name == "as-is" and rule_pass_s < pass_s:
            reason += f", because converting costs {duration(rule_total.convert_s)}"
        elif recommended_trial.groups:
            reason += ", which reads a stored group of just the analysed atoms"
        return Rule(layout, gather, text, False, reason)

    def reasons(self, useful_ranks: int) -> Iterator[str]:
        """Yield notes on this advice, as sentences."""
        measurements, forecaster, recommended_trial = self.measurements, self.forecaster, self.best
        total, source_total = self.totals[recommended_trial.name], self.totals["as-is"]
        equally_good, host = [trial.name for trial in self.equally_good], measurements.host
        if len(equally_good) > 1:
            names = ", ".join(name for name in equally_good if name != recommended_trial.name)
            fastest = min(equally_good, key=lambda name: self.totals[name].total_s)
            verdict = (
                "either will do"
                if fastest == recommended_trial.name
                else "the simpler one is recommended"
            )
            yield f"{recommended_trial.name} and {names} differ by less than the noise: {verdict}"
        if useful_ranks < self.ranks_asked:
            asked_s = forecaster.one_pass(recommended_trial, self.ranks_asked).t_total_s
            yield (
                f"more ranks than {useful_ranks} do not help: one pass takes "
                f"{duration(total.run.t_total_s)} with {useful_ranks}, {duration(asked_s)} with "
                f"{self.ranks_asked}"
            )
        if forecaster.profile is None and self.ranks_asked > self._cores:
            machine_text = (
                "this machine's" if forecaster.nodes == 1 else f"{forecaster.nodes} nodes'"
            )
            yield (
                f"{self.ranks_asked} ranks take turns on {machine_text} "
                f"{plural(self._cores, 'core')}; use --nodes N if there are more nodes, or "
                "--machine to forecast for a cluster"
            )
        is_cold = forecaster.profile is None and forecaster.cache_state(recommended_trial) == "cold"
        if is_cold and forecaster.storage_nbytes_per_s is not None:
            yield (
                "passes are assumed to read from storage, which gave "
                f"{forecaster.storage_nbytes_per_s / 1e6:,.0f} MB/s to all readers together "
                "(--warm: from memory)"
            )
        if host.cold_problem:
            yield (
                f"nothing was measured from disk ({host.cold_problem}); "
                "reads are assumed to come from memory"
            )
        if measurements.ratio_comp_io is not None and measurements.ratio_comp_io >= PAPERS_RATIO:
            yield "computing takes at least 100 times as long as reading: no layout can help"
        for option in map(self.option, measurements.trials):
            if option.problem is not None:
                yield f"{option.name}: {option.problem}"
        if "as-is" not in equally_good and total.high_s > source_total.low_s:
            yield (
                f"the ranges of {recommended_trial.name} and of the source as it is overlap: "
                f"{duration(total.low_s)} to {duration(total.high_s)}, "
                f"{duration(source_total.low_s)} to {duration(source_total.high_s)}; "
                "another measurement may recommend the source"
            )
        if total.relative > 0.3:
            yield (
                f"measurements vary a lot ({100 * total.relative:.0f}%): repeat them on a quiet "
                "machine"
            )
        yield from measurements.notes

    def commands(self, recommended: Recommendation) -> list[str]:
        """Return the commands that convert or copy, if any, and the one that analyses."""
        question, trial = self.measurements.question, self.best
        sources, top = list(self.measurements.source.paths), question.top
        is_one_machine = self.forecaster.profile is None and self.forecaster.nodes == 1
        is_local = is_one_machine and not self.under_mpi
        commands = []
        analysis_options = dict(question.options)
        if trial.layout == "local-copy":
            folder = Path(question.local_folder or "/tmp")
            n_nodes = self._n_nodes(self.ranks_asked)
            nodes = ["mpiexec", "-n", str(n_nodes), "-ppn", "1"] if n_nodes > 1 else []
            commands.append([*nodes, "cp", *sources, str(folder)])
            sources = [str(folder / Path(path).name) for path in sources]
        elif trial.layout != "as-is":
            stem = Path(sources[0]).name.split(".")[0] or "trajectory"
            out = str(Path(question.target) / f"{stem}.{trial.layout}")
            if Path(out) in map(Path, sources):
                out = str(Path(question.target) / f"{stem}-2.{trial.layout}")
            keeps_topology = layout_class(trial.layout).facts.keeps_topology
            options: dict[str, Any] = {"-s": top if trial.groups or keeps_topology else None}
            options |= trial.convert_options
            options |= {"--overlap": analysis_options.pop("--overlap", None)}
            options |= {"--segments": recommended.segments}
            options |= {"--stripe-count": recommended.stripe["count"]}
            if is_local:
                options["-w"] = min(self.ranks_asked, self.measurements.host.cores)
            words = ["mdio", "convert", *sources, out, *_option_words(options)]
            ranks = [] if is_local else ["mpiexec", "-n", str(self.ranks_asked)]
            commands.append([*ranks, *words, *([] if is_local else ["--mpi"])])
            sources, top = [out], None if keeps_topology else top
        options = {"-s": top, "--select": question.select, **analysis_options}
        if recommended.blocks_per_worker > 1:
            options["--blocks-per-worker"] = recommended.blocks_per_worker
        if is_local:
            options |= {"-w": recommended.ranks if recommended.ranks > 1 else None}
        else:
            options |= {"--mpi": "", "--gather": recommended.gather}
        ranks = [] if is_local else ["mpiexec", "-n", str(recommended.ranks)]
        words = ["mdio", "analyze", question.analysis, *sources, *_option_words(options)]
        commands.append([*ranks, *words, "-o", "result.npz"])
        *conversions, last = map(shlex.join, commands)
        return [*conversions, last.replace("'$TMPDIR/", '"$TMPDIR"/\'')]


def _option_words(options: Mapping[str, Any]) -> list[str]:
    """Return options as words of a command, without those that are None."""
    words = []
    for name, value in options.items():
        if not name.startswith("-"):
            words += ["--set", f"{name}={value}"]
        elif value is not None:
            words += [name, str(value)] if value != "" else [name]
    return words
