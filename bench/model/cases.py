"""Cases that hold part of the measured rows out of the fit, and the errors on what was held out.

No fit of the first three kinds has seen the rows it is tested on. Not blind are the form of the
model, the widths of its priors and the orders of magnitude in the profile ``generic``: they were
chosen by people who had Comet's rows before them. The made-up machine is Comet with other speeds:
it tests that times and nodes scale as they should, and no more than that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from mdio.advisor.fit import Residual, TimingRow, fit_profile, residuals
from mdio.advisor.profile import ACCESS_MODELS, Profile, load_profile

Rows = Sequence[TimingRow]


@dataclass(frozen=True)
class Case:
    """A profile that was fitted to some rows, and the rows to test it on."""

    name: str
    profile: Profile
    held_out: Rows


def from_nothing(rows: Rows, name: str = "comet", source: str = "") -> Profile:
    """Fit from orders of magnitude alone, as the shipped profile is."""
    return fit_profile(
        rows, name=name, source=source, base=load_profile("generic"), wide_priors=True
    )


def by_pair(found: Sequence[Residual]) -> dict[tuple[str, str], list[Residual]]:
    """Return the residuals of more than one rank, by layout and gather."""
    pairs: dict[tuple[str, str], list[Residual]] = defaultdict(list)
    for item in found:
        if item.row.n_ranks > 1:
            pairs[item.row.pair].append(item)
    return pairs


def halves(rows: Rows, odd: int) -> tuple[Rows, Rows]:
    """Return one rank and every second number of ranks of each series, and the others."""
    taken, counts = [], defaultdict(int)
    for row in sorted(rows, key=lambda row: row.n_ranks):
        series = (row.pair, row.workload_x)
        if row.n_ranks == 1 or counts[series] % 2 == odd:
            taken.append(row)
        counts[series] += row.n_ranks > 1
    return taken, [row for row in rows if row not in taken]


def alike(rows: Rows) -> Rows:
    """Return a made-up machine: 20 cores, compute x 0.8, all the rest x 1.6, same shapes."""
    out = []
    for row in rows:
        n_ranks = max(1, round(row.n_ranks * 20 / 24))
        share = row.n_ranks / n_ranks
        rest = row.t_total_max_s - row.t_comp_mean_s
        out.append(
            replace(
                row,
                machine="",
                n_ranks=n_ranks,
                t_comp_mean_s=0.8 * share * row.t_comp_mean_s,
                t_io_mean_s=1.6 * share * row.t_io_mean_s,
                t_total_max_s=share * (0.8 * row.t_comp_mean_s + 1.6 * rest),
                t_open_mean_s=None,
                t_comm_mean_s=None,
                t_comm_max_s=None,
            )
        )
    return out


def few(rows: Rows, layout: str, ranks: Sequence[int]) -> Rows:
    """Return a layout's plain rows at these numbers of ranks, and one rank of the shared file."""
    return [
        row
        for row in rows
        if row.workload_x == 1
        and (
            (row.n_ranks == 1 and row.layout in ("xtc-shared", layout))
            or (row.layout == layout and row.n_ranks in ranks)
        )
    ]


def cases(rows: Rows) -> Iterator[Case]:
    """Yield all cases."""
    for odd in (0, 1):
        taken, left = halves(rows, odd)
        yield Case(f"half of the rank counts ({'ab'[odd]})", from_nothing(taken), left)
    for layout in ACCESS_MODELS:
        other = [row for row in rows if row.layout != layout or row.n_ranks == 1]
        left = [row for row in rows if row not in other]
        yield Case(f"without {layout}", from_nothing(other), left)
    for layout in ACCESS_MODELS:
        # What a new machine gets: the others' layouts were seen elsewhere, one was measured here.
        for unseen in (name for name in ACCESS_MODELS if name != layout):
            known = from_nothing([row for row in rows if row.layout != unseen or row.n_ranks == 1])
            taken = few(rows, layout, (24, 72))
            profile = fit_profile(taken, name="new", source="", base=known)
            left = [row for row in rows if row.layout == unseen and row.n_ranks > 1]
            yield Case(f"1, 24, 72 ranks of {layout}, never {unseen}", profile, left)
    for layout in ACCESS_MODELS:
        taken = few(rows, layout, (24, 72))
        profile = fit_profile(taken, name="new", source="", base=load_profile("generic"))
        left = [row for row in rows if row not in taken]
        yield Case(f"1, 24, 72 ranks of {layout}, orders of magnitude", profile, left)
    new = alike(rows)
    one = [row for row in new if row.n_ranks == 1 and row.workload_x == 1]
    yield Case(
        "made-up machine, 1 rank", fit_profile(one, name="new", source="", cores_per_node=20), new
    )
    for layout in ACCESS_MODELS:
        taken = few(new, layout, (20, 60))
        profile = fit_profile(taken, name="new", source="", cores_per_node=20)
        yield Case(
            f"made-up machine, 1, 20, 60 of {layout}", profile, [r for r in new if r not in taken]
        )


def errors(case: Case) -> dict[str, tuple[float, float, float, int]]:
    """Return median and largest |relative error|, share inside the band, rows, by pair."""
    out = {}
    for (layout, gather), found in by_pair(residuals(case.profile, case.held_out)).items():
        sizes = [abs(item.relative) for item in found]
        inside = sum(item.low_s <= item.row.t_total_max_s <= item.high_s for item in found)
        out[f"{layout}/{gather}"] = (median(sizes), max(sizes), inside / len(found), len(found))
    return out


def order(found: Sequence[Residual]) -> tuple[int, list[tuple[Residual, Residual]]]:
    """Return how many pairs of layouts differ by more than their spread, and those put wrong."""
    groups: dict[tuple[str, float, int], list[Residual]] = defaultdict(list)
    for item in found:
        if item.row.n_ranks > 1:
            groups[item.row.gather, item.row.workload_x, item.row.n_ranks].append(item)
    count, wrong = 0, []
    for members in groups.values():
        for number, one in enumerate(members):
            for two in members[number + 1 :]:
                difference = one.row.t_total_max_s - two.row.t_total_max_s
                spread = max(one.row.t_total_std_s or 0.0, two.row.t_total_std_s or 0.0)
                if abs(difference) > spread:
                    count += 1
                    if difference * (one.t_total_s - two.t_total_s) <= 0:
                        wrong.append((one, two))
    return count, wrong
