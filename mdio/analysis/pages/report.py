"""``mdio analyze --report``: one page on where the time of an analysis went."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np

from mdio.analysis.pages import page, pictures
from mdio.analysis.results import AnalysisResult, check_output
from mdio.analysis.timings import record
from mdio.core.words import duration, human_nbytes, plural

COLUMNS = {
    "opening": "t_opening_trajectory_s",
    "reading (t_IO)": "t_IO_s",
    "computing (t_comp)": "t_comp_s",
    "leaving the loop": "t_end_loop_s",
    "loop over frames": "t_all_frame_s",
    "blocks, with opening": "t_block_s",
    "communication (t_comm)": "t_comm_s",
    "of which waiting": "t_wait_s",
    "other, within blocks": "t_overhead1_s",
    "other, between blocks": "t_overhead2_s",
    "total (t_N)": "t_N_s",
}
"""Times of a rank, as the papers define them (`mdio.analysis.timings`)."""
MOST_BARS_ALONE = 3
"""Ranks whose communication the bars show well enough, without a picture of its spread."""
SPENT = {
    "opening files": "t_opening_trajectory_s",
    "reading": "t_IO_s",
    "computing": "t_comp_s",
    "communicating": "t_comm_s",
}
CAUSES = {
    "open": "opening the trajectory",
    "io": "reading",
    "compute": "computing",
    "communication": "communication",
    "overhead": "other things",
}


def check_report(path: str | PathLike[str]) -> None:
    """Find out before the work whether a report can be made.

    Raises MissingExtraError: there is no matplotlib. PlanError: its name is not that of an HTML
    file. OutputError: the file cannot be written.
    """
    pictures.need_matplotlib("--report")
    check_output(path, (".html", ".htm"))


def save_report(result: AnalysisResult, path: str | PathLike[str], title: str) -> None:
    """Write the report of an analysis as one HTML file that needs nothing else.

    Raises MissingExtraError, PlanError, OutputError: as `check_report`.
    """
    check_report(path)
    times = record(result)
    parts = [_summary(times), _stragglers(times), _ranks(times), _blocks(times)]
    if result.per_frame and result.n_frames:
        name = result.labels[0] if len(result.labels) else "values"
        drawn = pictures.series(result.time, result.values, times["timings"], name)
        parts.insert(1, page.section("Result", page.picture(drawn)))
    page.save_page(path, answer(times, title), parts)


def answer(times: dict[str, Any], what: str) -> str:
    """Return what the page says, in one sentence."""
    spent = {name: sum(rank[key] for rank in times["ranks"]) for name, key in SPENT.items()}
    in_all = sum(rank["t_N_s"] for rank in times["ranks"])
    spent["on other things"] = in_all - sum(spent.values())
    most = max(spent, key=lambda name: spent[name])
    share = spent[most] / max(in_all, 1e-12)
    return (
        f"{what}: {plural(times['n_frames'], 'frame')} in {duration(times['seconds'])}, "
        f"{share:.0%} of the time of {plural(len(times['ranks']), 'worker')} {most}"
    )


def _summary(times: dict[str, Any]) -> str:
    executor = times["executor"] + (f", gather {times['gather']}" if times["gather"] else "")
    rows = [
        ("workers", f"{times['workers']:,} ({executor})"),
        ("blocks", times["blocks"]),
        ("total time", duration(times["seconds"])),
        ("slowest worker", duration(times["t_total_s"])),
        ("before that: topology, selection, reference", duration(times["prepare_s"])),
        ("t_comp / t_IO", times["ratio_comp_io"]),
        ("t_comp / t_comm", times["ratio_comp_comm"]),
        ("decoded", human_nbytes(times["nbytes_read"])),
    ]
    return page.section("Summary", page.table(("", ""), rows))


def _stragglers(times: dict[str, Any]) -> str:
    found = times["stragglers"]
    if not found:
        return page.section(
            "Stragglers", page.paragraph("No worker took much longer than the median worker.")
        )
    rows = [
        (
            one["worker"],
            duration(one["t_own_s"]),
            one["times_median"],
            duration(one["beyond_median_s"]),
            f"{CAUSES[one['cause']]} ({duration(one['cause_beyond_s'])})"
            + (f"; longest read: {one['slowest_file']}" if one["slowest_file"] else ""),
        )
        for one in found
    ]
    heads = ("worker", "own time", "x median", "longer by", "mostly by")
    return page.section("Stragglers", page.table(heads, rows))


def _ranks(times: dict[str, Any]) -> str:
    ranks = times["ranks"]
    who = "rank" if ranks[0]["rank"] is not None else "worker"
    spread = []
    for name, key in COLUMNS.items():
        of_ranks = sorted(rank[key] for rank in ranks)
        middle = float(np.median(of_ranks))
        spread.append((name, *map(duration, (of_ranks[0], middle, of_ranks[-1], sum(of_ranks)))))
    each = [
        (
            pictures.label_of(rank, number),
            rank["worker"],
            rank["n_blocks"],
            rank["n_frames"],
            *(duration(rank[key]) for key in COLUMNS.values()),
        )
        for number, rank in enumerate(ranks)
    ]
    return page.section(
        f"Time of each {who}",
        page.picture(pictures.components(ranks, f"What each {who} spent its time on")),
        page.picture(pictures.communication(ranks)) if len(ranks) > MOST_BARS_ALONE else "",
        page.table((f"over {plural(len(ranks), who)}", "min", "median", "max", "sum"), spread),
        page.details(f"All {who}s", page.table((who, "name", "blocks", "frames", *COLUMNS), each)),
    )


def _blocks(times: dict[str, Any]) -> str:
    parts = [page.picture(pictures.stream(times))]
    if "tasks_per_worker" in times:
        rows = sorted(times["tasks_per_worker"].items())
        parts.append(page.table(("dask worker", "blocks"), rows))
    return page.section("Blocks", *parts)
