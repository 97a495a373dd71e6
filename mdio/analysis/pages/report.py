"""``mdio analyze --report``: one page on where the time of an analysis went."""

from __future__ import annotations

from os import PathLike
from typing import Any

from mdio.analysis.pages import page, pictures
from mdio.analysis.results import AnalysisResult, check_output
from mdio.analysis.timings import record

__all__ = ["check_report", "save_report"]

COLUMNS = {
    "blocks": "n_blocks",
    "frames": "n_frames",
    "MB read": "nbytes_read",
    "t_opening": "t_opening_trajectory_s",
    "t_IO": "t_IO_s",
    "t_comp": "t_comp_s",
    "t_end_loop": "t_end_loop_s",
    "t_all_frame": "t_all_frame_s",
    "t_block": "t_block_s",
    "t_comm": "t_comm_s",
    "waiting": "t_wait_s",
    "overhead1": "t_overhead1_s",
    "overhead2": "t_overhead2_s",
    "t_N": "t_N_s",
    "comp/IO": "ratio_comp_io",
    "comp/comm": "ratio_comp_comm",
}
CAUSES = {
    "open": "opening the trajectory",
    "io": "reading",
    "compute": "computing",
    "communication": "communication",
    "overhead": "overheads",
}


def check_report(path: str | PathLike[str]) -> None:
    """Find out before the work whether a report can be made.

    Raises
    ------
    MissingExtraError
        There is no matplotlib.
    PlanError
        Its name is not that of an HTML file.
    OutputError
        The file cannot be written.
    """
    pictures.need_matplotlib("--report")
    check_output(path, (".html", ".htm"))


def save_report(result: AnalysisResult, path: str | PathLike[str], title: str) -> None:
    """Write the report of an analysis as one HTML file that needs nothing else.

    Raises
    ------
    MissingExtraError, PlanError, OutputError
        As `check_report`.
    """
    check_report(path)
    times = record(result)
    parts = [_summary(times), _stragglers(times), _ranks(times), _blocks(times)]
    if result.per_frame and result.n_frames:
        name = result.labels[0] if len(result.labels) else "values"
        drawn = pictures.series(result.time, result.values, times["timings"], name)
        parts.insert(1, page.section("Result", page.picture(drawn)))
    page.save_page(path, title, parts)


def _summary(times: dict[str, Any]) -> str:
    executor = times["executor"] + (f", gather {times['gather']}" if times["gather"] else "")
    rows = [
        ("frames", times["n_frames"]),
        ("executor", executor),
        ("workers", times["workers"]),
        ("blocks", times["blocks"]),
        ("seconds from opening to the result", times["seconds"]),
        ("of the slowest worker: t_total, s", times["t_total_s"]),
        ("topology, selection, reference, s", times["prepare_s"]),
        ("t_comp / t_IO", times["ratio_comp_io"]),
        ("t_comp / t_comm", times["ratio_comp_comm"]),
        ("decoded MB read", times["nbytes_read"] / 1e6),
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
            one["t_own_s"],
            one["beyond_median_s"],
            one["times_median"],
            CAUSES[one["cause"]],
            one["cause_beyond_s"],
        )
        for one in found
    ]
    heads = ("worker", "own time, s", "beyond median, s", "x median", "mostly by", "of it, s")
    return page.section("Stragglers", page.table(heads, rows))


def _ranks(times: dict[str, Any]) -> str:
    ranks = times["ranks"]
    rows = []
    for number, rank in enumerate(ranks):
        values = [rank[key] for key in COLUMNS.values()]
        values[2] = rank["nbytes_read"] / 1e6
        rows.append((pictures.label_of(rank, number), *values))
    who = "rank" if ranks[0]["rank"] is not None else "worker"
    names = "; ".join(
        f"{pictures.label_of(rank, number)} is {rank['worker']}"
        for number, rank in enumerate(ranks)
        if rank["rank"] is None
    )
    return page.section(
        f"Time of each {who}",
        page.picture(pictures.components(ranks, f"What each {who} spent its time on")),
        page.picture(pictures.communication(ranks)),
        page.table((f"{who} (seconds)", *COLUMNS), rows),
        page.paragraph(names) if names else "",
    )


def _blocks(times: dict[str, Any]) -> str:
    parts = [page.picture(pictures.stream(times))]
    if "tasks_per_worker" in times:
        rows = sorted(times["tasks_per_worker"].items())
        parts.append(page.table(("dask worker", "blocks"), rows))
    return page.section("Blocks", *parts)
