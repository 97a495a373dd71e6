"""From a table of measured timings to a machine profile: least squares with priors.

A few rows cannot determine all of the model. Each parameter therefore has a prior: its value on a
machine that was measured well. The fit minimises, over the logarithms of the parameters,

    sum_rows rho(ln(predicted/measured)/s_row) + sum_parameters (ln(value/prior)/width)^2

(maximum a posteriori with lognormal priors; rho, the soft L1 of scipy.optimize.least_squares,
bounds the influence of outliers; s_row is the relative error of a row). Widths are how much
machines differ in a parameter. Parameters of a kind share a factor, so that rows of one layout also
determine parameters of the others.

Measured directly, without a fit: one rank's times, the cores of a node, rates reached.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
from numpy.typing import NDArray

from mdio.advisor.closed_form import MAX_RANKS, Prediction, predict, reference_workload
from mdio.advisor.profile import (
    ACCESS_MODELS,
    GATHERS,
    LAYOUT_GATHER_PAIRS,
    MODELLED_GATHERS,
    MODELLED_LAYOUTS,
    Gather,
    Noise,
    Profile,
    Task,
    io_family,
    load_profile,
)
from mdio.core.errors import SourceError
from mdio.core.words import list_text

MAX_SECONDS = 1e9
MAX_COUNT = 10**18
"""Most frames, or bytes."""
MAX_PARTS_PER_TOTAL = 1.5
"""Largest sum of the mean parts of a row, divided by its total; larger ones are sums over ranks,
not means, or in another unit."""
OPTIONAL_SECONDS = ("t_open_mean_s", "t_comm_mean_s", "t_comm_max_s", "t_total_std_s")
REQUIRED_SECONDS = ("t_total_max_s", "t_comp_mean_s", "t_io_mean_s")
TABLE_GATHERS = {**MODELLED_GATHERS, "none": "gather"}
"""Modelled gathers by their names in tables; ``none``: workers without MPI send their rows to one
process, which takes them one after another."""
REQUIRED = ("layout", "gather", "workload_x", "n_ranks", *REQUIRED_SECONDS)


@dataclass(frozen=True)
class TimingRow:
    """One measured run, or the mean of its repeats; seconds."""

    layout: str
    gather: str
    workload_x: float
    """How often each frame is computed: the workload factor X of `Task`."""
    n_ranks: int
    t_total_max_s: float
    """The slowest rank."""
    t_comp_mean_s: float
    t_io_mean_s: float
    t_open_mean_s: float | None = None
    t_comm_mean_s: float | None = None
    t_comm_max_s: float | None = None
    t_total_std_s: float | None = None
    """Standard deviation of `t_total_max_s` over repeats."""
    machine: str = ""
    executor: str = ""
    cores: int | None = None
    """Cores of a node, where the table has them."""
    n_frames: int | None = None
    nbytes: int | None = None
    """Bytes that all ranks read together."""
    name: str = ""
    """Name of the layout in the table."""

    @property
    def pair(self) -> tuple[str, str]:
        """Layout and gather."""
        return self.layout, self.gather


def read_timings(path: str | Path) -> list[TimingRow]:
    """Read timings from a CSV file with the columns of `TimingRow`; others are ignored.

    ``machine``, ``executor`` and the columns that may be None may be left out or empty. Without
    ``n_frames`` and ``nbytes``, those of the task of the prior are taken for those measured.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    except UnicodeDecodeError:
        raise SourceError(f"{path}: this is not a text file; expected CSV") from None
    except csv.Error as error:
        raise SourceError(f"{path}: this is not CSV ({error})") from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from None
    header = lines[0][1] if lines else []
    if not header:
        raise SourceError(f"{path}: the file is empty; expected a header {','.join(REQUIRED)}")
    if missing := [name for name in REQUIRED if name not in header]:
        raise SourceError(
            f"{path}: line 1: column {', '.join(missing)} missing; expected {','.join(REQUIRED)}"
        )
    if duplicates := {name for name in header if name and header.count(name) > 1}:
        raise SourceError(f"{path}: line 1: column {', '.join(sorted(duplicates))} occurs twice")
    rows: list[TimingRow] = []
    lines_by_key: dict[tuple[object, ...], int] = {}
    for number, cells in lines[1:]:
        if not any(cells):
            continue
        location = f"{path}: line {number}"
        if len(cells) != len(header):
            raise SourceError(f"{location}: {len(cells)} columns, expected {len(header)}")
        row = _parse_row(dict(zip(header, cells, strict=True)), location)
        key = (row.name, row.gather, row.executor, row.workload_x, row.n_ranks)
        if earlier_line := lines_by_key.get(key):
            raise SourceError(
                f"{location}: column n_ranks: {row.layout}, {row.gather}, workload "
                f"{row.workload_x:g} at {row.n_ranks} ranks is in line {earlier_line} already; "
                "give the mean of repeats"
            )
        for name in ("machine", "cores", "n_frames"):
            first_value, value = getattr((rows or [row])[0], name), getattr(row, name)
            if value != first_value:
                raise SourceError(
                    f"{location}: column {name}: {value!r} after {first_value!r}; fit one machine "
                    "at a time, and runs of the same frames"
                )
        lines_by_key[key] = number
        rows.append(row)
    if not rows:
        raise SourceError(f"{path}: no row after the header; expected at least one measured run")
    return rows


def rows_of_executor(
    rows: Sequence[TimingRow], path: str | Path, executor: str | None
) -> tuple[list[TimingRow], list[str]]:
    """Return the rows of one executor, and notes on the choice and on layouts that share a model.

    `executor`: its name; None = the only one, or mpi if there are several. `path`: of the table,
    for messages.
    """
    names = sorted({row.executor for row in rows})
    names_text = list_text([name or "none" for name in names])
    name = executor or (names[0] if len(names) == 1 else "mpi")
    if name not in names and executor is None:
        raise SourceError(
            f"{path}: rows of the executors {names_text}; give one of them (--executor)"
        )
    if name not in names:
        raise SourceError(f"{path}: no row of the executor {name}, but of {names_text}")
    note = (
        f"fitted to the rows of mpi, one of the executors {names_text}; --executor selects another"
    )
    notes = [note] if executor is None and len(names) > 1 else []
    rows = [row for row in rows if row.executor == name]
    for layout in ACCESS_MODELS:
        table_names = sorted({row.name for row in rows if row.layout == layout})
        if len(table_names) > 1:
            notes.append(
                f"{list_text(table_names)} are one layout of the model, {layout}: the fit lies "
                "between their times; give each a table of its own where they differ"
            )
    return rows, notes


def _parse_row(cells: dict[str, str], location: str) -> TimingRow:
    # Tables of `mdio bench scaling` have mdio's own names of layouts and gathers.
    cells["name"] = cells["layout"]
    cells["layout"] = MODELLED_LAYOUTS.get(cells["layout"], cells["layout"])
    cells["gather"] = TABLE_GATHERS.get(cells["gather"], cells["gather"])
    for name, names in (("layout", ACCESS_MODELS), ("gather", GATHERS)):
        if cells[name] not in names:
            raise SourceError(
                f"{location}: column {name}: {cells[name]!r}, expected one of {', '.join(names)}"
            )
    numbers: dict[str, float] = {}
    optional = [name for name in OPTIONAL_SECONDS if cells.get(name)]
    counts = ["n_ranks", *(name for name in ("cores", "n_frames", "nbytes") if cells.get(name))]
    for name in ("workload_x", *counts, *REQUIRED_SECONDS, *optional):
        try:
            value = float(cells[name])
        except ValueError:
            value = math.nan
        is_valid, expected = 0 <= value <= MAX_SECONDS, f"a number from 0 to {MAX_SECONDS:.0e}"
        if name in counts:
            largest = MAX_RANKS if name in ("n_ranks", "cores") else MAX_COUNT
            is_valid = value.is_integer() and 1 <= value <= largest
            expected = f"a whole number from 1 to {largest:,}"
        if not is_valid:
            raise SourceError(f"{location}: column {name}: {cells[name]!r}, expected {expected}")
        if value == 0 and name not in optional:
            raise SourceError(f"{location}: column {name}: 0, expected a number above 0")
        numbers[name] = value
    parts_s, total_s = numbers["t_comp_mean_s"] + numbers["t_io_mean_s"], numbers["t_total_max_s"]
    if parts_s > MAX_PARTS_PER_TOTAL * total_s:
        raise SourceError(
            f"{location}: columns t_comp_mean_s and t_io_mean_s are {parts_s:g} together, "
            f"t_total_max_s is {total_s:g}; expected means over ranks, not sums, and seconds"
        )
    numbers |= {name: int(numbers[name]) for name in counts}
    columns = ("layout", "gather", "machine", "executor", "name")
    texts = {name: cells.get(name, "") for name in columns}
    return TimingRow(**texts, **numbers)  # type: ignore[arg-type]


def single_rank_task(rows: Sequence[TimingRow], base: Profile) -> Task:
    """Return one rank's times from the rows of fewest ranks, and `base` for missing ones.

    Without rows of one rank, N times the mean of N ranks is used. Times that no row has are scaled
    from `base`, by the ratio of the others.
    """
    task = base.task
    io_s = _mean_by_family(
        rows, lambda row: row.t_io_mean_s * row.n_ranks / _read_slowdown(row, base)
    )
    open_s = _mean_by_family(
        (row for row in rows if row.t_open_mean_s and row.layout != "segments-chainreader"),
        lambda row: row.t_open_mean_s or 0.0,
    )
    single_rank_rows = [row for row in rows if row.n_ranks == 1]
    rest_s = {
        family: max(
            0.0,
            median(
                _unaccounted_s(row) for row in single_rank_rows if io_family(row.layout) == family
            ),
        )
        for family in {io_family(row.layout) for row in single_rank_rows}
    }
    t_open_s = _fill_missing(open_s, task.t_open_s)
    for family in rest_s.keys() - open_s.keys():
        # Opening was not timed on its own: it is a part of the rest.
        t_open_s[family] = min(t_open_s[family], rest_s[family])
        rest_s[family] -= t_open_s[family]
    fixed, repeat = _fit_compute(rows, task.t_comp_fixed_s / task.t_comp_repeat_s)
    n_frames = rows[0].n_frames or task.n_frames
    nbytes = _mean_by_family((row for row in rows if row.nbytes), lambda row: row.nbytes or 0.0)
    share = n_frames / task.n_frames
    return replace(
        task,
        n_frames=n_frames,
        nbytes=_fill_missing(nbytes, {name: share * n for name, n in task.nbytes.items()}),
        t_io_s=_fill_missing(io_s, task.t_io_s),
        t_open_s=t_open_s,
        t_rest_s={name: rest_s.get(name, 0.0) for name in task.t_rest_s},
        t_comp_fixed_s=fixed,
        t_comp_repeat_s=repeat,
    )


def _unaccounted_s(row: TimingRow) -> float:
    parts = (row.t_comp_mean_s, row.t_io_mean_s, row.t_open_mean_s, row.t_comm_mean_s)
    return row.t_total_max_s - sum(part or 0.0 for part in parts)


def _read_slowdown(row: TimingRow, base: Profile) -> float:
    if row.n_ranks == 1:
        return 1.0
    return base.storage.read_factor[row.layout] * base.slowdown(row.n_ranks)


def _rows_of_fewest_ranks(rows: Iterable[TimingRow]) -> list[TimingRow]:
    rows = list(rows)
    min_ranks = min(row.n_ranks for row in rows)
    return [row for row in rows if row.n_ranks == min_ranks]


def _mean_by_family(
    rows: Iterable[TimingRow], value: Callable[[TimingRow], float]
) -> dict[str, float]:
    families: dict[str, list[TimingRow]] = {}
    for row in rows:
        families.setdefault(io_family(row.layout), []).append(row)
    return {
        name: geometric_mean(
            {row.pair: value(row) for row in _rows_of_fewest_ranks(family_rows)}.values()
        )
        for name, family_rows in families.items()
    }


def _fill_missing(measured: Mapping[str, float], base: Mapping[str, float]) -> dict[str, float]:
    """Return times of all families: those that were not measured are scaled from `base`."""
    ratios = [seconds / base[name] for name, seconds in measured.items() if seconds and base[name]]
    scale = geometric_mean(ratios) if ratios else 1.0
    return {name: measured.get(name, base[name] * scale) for name in base}


def _fit_compute(rows: Sequence[TimingRow], ratio: float) -> tuple[float, float]:
    """Return the fixed seconds of computing and those of each repeat, by relative least squares.

    `ratio`: fixed seconds to those of a repeat, used if the rows have a single workload.
    """
    rows_by_workload: dict[float, list[TimingRow]] = {}
    for row in rows:
        rows_by_workload.setdefault(row.workload_x, []).append(row)
    seconds = {
        x: geometric_mean(row.t_comp_mean_s * row.n_ranks for row in _rows_of_fewest_ranks(x_rows))
        for x, x_rows in rows_by_workload.items()
    }
    if len(seconds) > 1:
        # minimise sum((fixed + repeat x)/y - 1)^2
        terms = np.array([(1 / y, x / y) for x, y in seconds.items()])
        scales = np.linalg.norm(terms, axis=0)
        scaled, _, rank, _ = np.linalg.lstsq(terms / scales, np.ones(len(terms)), rcond=1e-6)
        fixed, repeat = (scaled / scales).tolist()
        if rank == 2 and fixed >= 0 and repeat > 0:
            return fixed, repeat
    repeat = geometric_mean(y / (ratio + x) for x, y in seconds.items())
    return ratio * repeat, repeat


def highest_rates(rows: Sequence[TimingRow], task: Task) -> tuple[float, float]:
    """Return the highest bytes/s in these rows: of all ranks together, and of one shared file."""
    rates = [(row.layout, task.nbytes[io_family(row.layout)] / row.t_io_mean_s) for row in rows]
    shared = [rate for layout, rate in rates if layout in ("xtc-shared", "hdf5")]
    best = max((rate for _, rate in rates), default=0.0)
    return (best, max(shared, default=0.0)) if math.isfinite(best) else (0.0, 0.0)


ROW_ERROR = 0.07
"""Relative error of a row besides the scatter of its repeats, to which it is added (as squares)."""

MIN_SLOWDOWN = 0.03
"""Least slow-down of a full node that is assumed of a new machine."""

MAX_RANK_NOISE = 1.0
"""Largest noise between ranks of a run, as a share of their mean; more makes a row an outlier."""

COMPUTE_ERROR, READ_ERROR, OPEN_ERROR = 0.2, 0.15, 0.4
"""Relative errors of the mean parts of a row, which matter less than its total."""

SHRINK = 0.5
"""How far the prior of the noise of each layout and gather is moved to the mean of the gather: the
share of their difference that may be peculiar to the known machine (half, as only one is known)."""


PRIOR_ROWS = 8
"""Rows that the scatter of the prior counts for, when it is averaged with that of the fit."""


@dataclass(frozen=True)
class Residual:
    """A measured row, and what the model predicts for its total."""

    row: TimingRow
    t_total_s: float
    low_s: float
    high_s: float

    @property
    def relative(self) -> float:
        """Predicted/measured - 1."""
        return self.t_total_s / self.row.t_total_max_s - 1

    @property
    def is_outside(self) -> bool:
        """Whether the measured total is beyond the predicted range."""
        return not self.low_s <= self.row.t_total_max_s <= self.high_s


LOCKS = ("lock_s", "lock_gather_s", "client_lock_s")
"""Seconds of `StorageModel` that locks cost."""
PRIOR_WIDTHS: Mapping[str, float] = {
    "node_slowdown": 1.0,
    "compute noise": 0.5,
    # On Comet, noise differs more among layouts and gathers (0.03 to 0.38) than among machines.
    "io noise": 0.35,
    **{f"io noise {layout}/{gather}": 0.7 for layout, gather in LAYOUT_GATHER_PAIRS},
    "locks": 0.4,
    "lock_s": 0.45,
    "lock_gather_s": 0.45,
    "client_lock_s": 0.7,
    "open_file_s": 0.4,
    "metadata": 0.5,
    **{f"read {layout}": 0.15 for layout in ACCESS_MODELS if layout != "xtc-shared"},
    "storage limit": 0.7,
    "file limit": 0.7,
    **{f"gather {name}": 0.5 for name in GATHERS},
}
"""Widths of the priors of the fitted factors, by the values of a profile that they multiply."""


def _scale_profile(base: Profile, logs: NDArray[np.float64]) -> Profile:
    """Return `base` with its parameters times factors, given as logs by `PRIOR_WIDTHS`."""
    factor = dict(zip(PRIOR_WIDTHS, np.exp(logs).tolist(), strict=True))
    storage, noise = base.storage, base.noise
    return replace(
        base,
        node_slowdown=base.node_slowdown * factor["node_slowdown"],
        storage=replace(
            storage,
            **{n: getattr(storage, n) * factor["locks"] * factor[n] for n in LOCKS},
            open_file_s=storage.open_file_s * factor["open_file_s"],
            metadata_ops_per_s=storage.metadata_ops_per_s / factor["metadata"],
            read_factor={
                layout: value * factor.get(f"read {layout}", 1.0)
                for layout, value in storage.read_factor.items()
            },
            aggregate_bytes_per_s=storage.aggregate_bytes_per_s * factor["storage limit"],
            stripe_bytes_per_s=storage.stripe_bytes_per_s * factor["file limit"],
        ),
        noise=replace(
            noise,
            compute=min(noise.compute * factor["compute noise"], MAX_RANK_NOISE),
            io={
                layout: {
                    gather: min(
                        value * factor["io noise"] * factor[f"io noise {layout}/{gather}"],
                        MAX_RANK_NOISE,
                    )
                    for gather, value in table.items()
                }
                for layout, table in noise.io.items()
            },
        ),
        gather={
            gather_name: Gather(
                cost.base_s * factor[f"gather {gather_name}"],
                cost.per_rank_s * factor[f"gather {gather_name}"],
            )
            for gather_name, cost in base.gather.items()
        },
    )


def fit_profile(
    rows: Sequence[TimingRow],
    *,
    name: str,
    source: str,
    cores_per_node: int | None = None,
    base: Profile | None = None,
    wide_priors: bool = False,
) -> Profile:
    """Return the profile of the machine that these rows were measured on.

    `rows`: measured runs of one machine; a row of one rank is enough. `cores_per_node`: of that
    machine; None: as in the rows, or else in `base`. `base`: values of the priors; by default the
    profile ``comet``. `wide_priors`: use wide priors, for a `base` without measurements.
    """
    prior_profile = base or load_profile("comet")
    start = _starting_profile(
        rows, prior_profile, cores_per_node, name, source, prior_is_measured=not wide_priors
    )
    widths = (2.0 if wide_priors else 1.0) * np.array(list(PRIOR_WIDTHS.values()))
    from scipy.optimize import least_squares

    def weighted_errors(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        errors = _errors(_scale_profile(start, logs), rows)
        # Their squares are the soft L1 loss, 2 (sqrt(1 + e^2) - 1).
        robust = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        return np.concatenate([robust, logs / widths])

    no_change = np.zeros(len(widths))
    solution = least_squares(weighted_errors, no_change, bounds=(-6.0, 6.0), max_nfev=100)
    fitted = _scale_profile(start, solution.x)
    return _with_scatter(fitted, rows, None if wide_priors else prior_profile.noise)


def _starting_profile(
    rows: Sequence[TimingRow],
    prior_profile: Profile,
    cores_per_node: int | None,
    name: str,
    source: str,
    *,
    prior_is_measured: bool,
) -> Profile:
    """Return the start of the fit: the prior machine with this one's single-rank times."""
    cores = cores_per_node or rows[0].cores or prior_profile.cores_per_node
    task, prior_task = single_rank_task(rows, prior_profile), prior_profile.task
    share = task.n_frames / prior_task.n_frames
    slowdown = task.t_io_s["xtc"] / prior_task.t_io_s["xtc"] / share  # of a frame
    byte_slowdown = slowdown * share * prior_task.nbytes["xtc"] / task.nbytes["xtc"]
    total_rate, file_rate = highest_rates(rows, task)
    rate = max(task.nbytes[family] / seconds for family, seconds in task.t_io_s.items())
    storage = replace(
        prior_profile.storage,
        **{name: getattr(prior_profile.storage, name) * slowdown for name in LOCKS},
        # Opens are assumed to be slower by the square root of the slow-down of reads.
        open_file_s=prior_profile.storage.open_file_s * math.sqrt(slowdown),
        aggregate_bytes_per_s=max(
            2 * total_rate, prior_profile.storage.aggregate_bytes_per_s / byte_slowdown
        ),
        stripe_bytes_per_s=max(
            2 * file_rate / prior_profile.storage.stripe_count,
            prior_profile.storage.stripe_bytes_per_s / byte_slowdown,
        ),
        # A link is assumed to carry the reads of all its cores, each as fast as if it were alone.
        node_bytes_per_s=max(2 * cores * rate, prior_profile.storage.node_bytes_per_s),
    )
    return replace(
        prior_profile,
        name=name,
        source=source,
        cores_per_node=cores,
        node_slowdown=max(prior_profile.node_slowdown, MIN_SLOWDOWN if prior_is_measured else 0.0),
        task=task,
        storage=storage,
        gather={
            gather_name: replace(cost, base_s=cost.base_s * share)
            for gather_name, cost in prior_profile.gather.items()
        },
        noise=_shrink_to_means(prior_profile.noise) if prior_is_measured else prior_profile.noise,
        measured=dict(Counter("/".join(row.pair) for row in rows if row.n_ranks > 1)),
    )


def _shrink_to_means(noise: Noise) -> Noise:
    """Return the noise of layouts shrunk to their mean for each gather."""
    means = {g: geometric_mean(noise.io[layout][g] for layout in ACCESS_MODELS) for g in GATHERS}
    io = {
        layout: {
            gather: value ** (1 - SHRINK) * means[gather] ** SHRINK
            for gather, value in table.items()
        }
        for layout, table in noise.io.items()
    }
    return replace(noise, io=io)


def _errors(profile: Profile, rows: Sequence[TimingRow]) -> NDArray[np.float64]:
    """Return the errors of a trial profile, in units of their standard deviations."""
    errors: list[float] = []

    def add(predicted: float, measured: float, scatter: float) -> None:
        error = math.log(predicted) - math.log(measured)
        errors.append(error / math.hypot(scatter, repeat_error))

    for row in rows:
        predicted = _predict_row(profile, row)
        repeat_error = min((row.t_total_std_s or 0.0) / row.t_total_max_s, 1.0)
        add(predicted.t_total_s, row.t_total_max_s, ROW_ERROR)
        if row.n_ranks == 1:
            continue
        add(predicted.t_comp_s, row.t_comp_mean_s, COMPUTE_ERROR)
        if row.layout != "xtc-shared":
            add(predicted.t_io_s, row.t_io_mean_s, READ_ERROR)
        if row.layout == "segments-chainreader" and row.t_open_mean_s:
            # Files are closed, too, which takes as long (t_end_loop, which the table lacks).
            add(predicted.t_open_s, 2 * row.t_open_mean_s, OPEN_ERROR)
    return np.array(errors)


def residuals(profile: Profile, rows: Sequence[TimingRow]) -> list[Residual]:
    """Return each row with the total that the model predicts."""
    predictions = [(row, _predict_row(profile, row)) for row in rows]
    return [
        Residual(row, prediction.t_total_s, prediction.low_s, prediction.high_s)
        for row, prediction in predictions
    ]


def _predict_row(profile: Profile, row: TimingRow) -> Prediction:
    workload = reference_workload(profile, row.layout, row.workload_x)
    return predict(profile, row.layout, row.gather, row.n_ranks, workload)


def _with_scatter(
    profile: Profile, rows: Sequence[TimingRow], prior_noise: Noise | None
) -> Profile:
    """Return the profile with the scatter of its fit, averaged with that of the prior."""
    errors = [
        abs(math.log1p(item.relative)) for item in residuals(profile, rows) if item.row.n_ranks > 1
    ]
    scatter = 1.4826 * median(errors) if errors else 0.0
    if prior_noise is None:
        return replace(profile, noise=replace(profile.noise, fit=max(scatter, 0.03)))
    n_total = PRIOR_ROWS + len(errors)
    pooled = math.sqrt((PRIOR_ROWS * prior_noise.carry**2 + len(errors) * scatter**2) / n_total)
    return replace(profile, noise=replace(profile.noise, fit=max(pooled, prior_noise.fit)))
