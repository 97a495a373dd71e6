"""What measured rows say without a fit: one rank's times, the cores of a node, rates reached."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean, median

from mdio.advisor.model.access_model import io_family
from mdio.advisor.model.profile import Profile, Task
from mdio.advisor.model.timings import TimingRow

KNOWN_CORES: Mapping[str, int] = {"comet": 24, "supermic": 20, "bridges": 28, "stampede": 16}
"""Cores of a node of the machines of the published studies, by name."""

USUAL_CORES = (16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 68, 72, 96, 128, 192)


def guess_cores(rows: Sequence[TimingRow], otherwise: int) -> int:
    """Return the cores of a node: by the machine's name, or else guessed from the numbers of ranks.

    Ranks usually fill whole nodes: the usual number that divides most of the rank counts is taken,
    the larger of several. It is `otherwise` if none divides half of them, or if `otherwise` divides
    nearly as many.
    """
    name = rows[0].machine.lower()
    for known, cores in KNOWN_CORES.items():
        if known in name:
            return cores
    counts = {row.n_ranks for row in rows if row.n_ranks >= 16}
    if not counts:
        return otherwise

    divided = {cores: sum(n % cores == 0 for n in counts) for cores in (*USUAL_CORES, otherwise)}
    best = max(USUAL_CORES, key=lambda cores: (divided[cores], cores))
    if 2 * divided[best] < len(counts) or 4 * divided[otherwise] >= 3 * divided[best]:
        return otherwise
    return best


def measured_task(rows: Sequence[TimingRow], base: Profile) -> Task:
    """Return one rank's times from the rows of fewest ranks; what no row tells, as in `base`.

    Rows of N ranks stand for one rank by N times their mean where no row of one rank is there. What
    is not there at all keeps its ratio to what is, as in `base`.
    """
    task = base.task
    io = _by_family(rows, lambda row: row.t_io_mean_s * row.n_ranks / _read_factor(row, base))
    opens = _by_family(
        (row for row in rows if row.t_open_mean_s and row.layout != "segments-chainreader"),
        lambda row: row.t_open_mean_s or 0.0,
    )
    alone = [row for row in rows if row.n_ranks == 1]
    rest = {
        family: max(0.0, median(_rest(row) for row in alone if io_family(row.layout) == family))
        for family in {io_family(row.layout) for row in alone}
    }
    t_open_s = _completed(opens, task.t_open_s)
    for family in rest.keys() - opens.keys():
        # Opening was not timed: it is in the rest, and cannot have taken longer.
        t_open_s[family] = min(t_open_s[family], rest[family])
        rest[family] -= t_open_s[family]
    fixed, repeat = _compute(rows, task.t_comp_fixed_s / task.t_comp_repeat_s)
    return replace(
        task,
        t_io_s=_completed(io, task.t_io_s),
        t_open_s=t_open_s,
        t_rest_s={name: rest.get(name, 0.0) for name in task.t_rest_s},
        t_comp_fixed_s=fixed,
        t_comp_repeat_s=repeat,
    )


def _rest(row: TimingRow) -> float:
    """Return the seconds of a row that its parts do not tell."""
    parts = (row.t_comp_mean_s, row.t_io_mean_s, row.t_open_mean_s, row.t_comm_mean_s)
    return row.t_total_max_s - sum(part or 0.0 for part in parts)


def _read_factor(row: TimingRow, base: Profile) -> float:
    if row.n_ranks == 1:
        return 1.0
    cores = base.cores_per_node
    full = (min(row.n_ranks, cores) - 1) / (cores - 1) if cores > 1 else 1.0
    return base.storage.read_factor[row.layout] * (1 + base.node_slowdown * full)


def _fewest(rows: Iterable[TimingRow]) -> list[TimingRow]:
    rows = list(rows)
    least = min(row.n_ranks for row in rows)
    return [row for row in rows if row.n_ranks == least]


def _by_family(rows: Iterable[TimingRow], value: Callable[[TimingRow], float]) -> dict[str, float]:
    families: dict[str, list[TimingRow]] = {}
    for row in rows:
        families.setdefault(io_family(row.layout), []).append(row)
    return {
        name: geometric_mean({row.pair: value(row) for row in _fewest(members)}.values())
        for name, members in families.items()
    }


def _completed(found: Mapping[str, float], known: Mapping[str, float]) -> dict[str, float]:
    """Fill in families that were not measured by their ratio to those that were, in `known`."""
    if not found:
        return dict(known)
    scale = geometric_mean(found[name] / known[name] for name in found)
    return {name: found.get(name, known[name] * scale) for name in known}


def _compute(rows: Sequence[TimingRow], ratio: float) -> tuple[float, float]:
    """Return the fixed and the repeated seconds of compute, by relative least squares.

    One workload alone cannot tell the two apart: they then keep their `ratio`, fixed to repeated.
    """
    by_x: dict[float, list[TimingRow]] = {}
    for row in rows:
        by_x.setdefault(row.workload_x, []).append(row)
    seconds = {
        x: geometric_mean(row.t_comp_mean_s * row.n_ranks for row in _fewest(members))
        for x, members in by_x.items()
    }
    if len(seconds) > 1:
        # minimise sum((fixed + repeat x)/y - 1)^2
        a = sum(1 / y**2 for y in seconds.values())
        b = sum(x / y**2 for x, y in seconds.items())
        c = sum((x / y) ** 2 for x, y in seconds.items())
        d = sum(1 / y for y in seconds.values())
        e = sum(x / y for x, y in seconds.items())
        determinant = a * c - b * b
        if determinant > 1e-12 * a * c:
            fixed, repeat = (d * c - b * e) / determinant, (a * e - b * d) / determinant
            if fixed >= 0 and repeat > 0:
                return fixed, repeat
    repeat = geometric_mean(y / (ratio + x) for x, y in seconds.items())
    return ratio * repeat, repeat


def rates_reached(rows: Sequence[TimingRow], task: Task) -> tuple[float, float]:
    """Return the largest mean bytes/s that all ranks and that a shared file gave in these rows."""
    best, shared = 0.0, 0.0
    for row in rows:
        rate = task.nbytes[io_family(row.layout)] / row.t_io_mean_s
        best = max(best, rate)
        if row.layout in ("xtc-shared", "hdf5"):
            shared = max(shared, rate)
    if not math.isfinite(best):
        return 0.0, 0.0
    return best, shared
