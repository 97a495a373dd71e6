"""``mdio analyze --report``: a self-contained HTML page on where the time of an analysis went."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from os import PathLike
from typing import Any

import numpy as np

from mdio.analysis.plots import (
    COLOURS,
    MAX_ROWS,
    bars,
    draw,
    figure,
    figure_svg,
    name_rows,
    t_comm_distributions,
    time_axis,
)
from mdio.analysis.results import PLOT_SUFFIXES, AnalysisResult, check_output, with_field_columns
from mdio.core.errors import MissingExtraError
from mdio.core.files.publish import publish
from mdio.core.pages import details, page, paragraph, picture, section, table
from mdio.core.timing import timing_record
from mdio.core.words import duration, human_nbytes, plural


def check_plot(path: str | PathLike[str]) -> None:
    """Check before the work whether a picture can be written."""
    need_matplotlib("a plot")
    check_output(path, PLOT_SUFFIXES)


def save_plot(result: AnalysisResult, path: str | PathLike[str], title: str) -> None:
    """Write a picture of a result; it appears when it is complete."""
    target = check_output(path, PLOT_SUFFIXES)
    with figure(3.2) as (fig, axes), publish(target, force=True) as temporary:
        draw(with_field_columns(result), axes)
        axes.set_title(title)
        fig.savefig(temporary, format=target.suffix[1:].lower(), dpi=200)


def save_page(path: str | PathLike[str], title: str, sections: Sequence[str]) -> None:
    """Write a page; it appears when it is complete."""
    with publish(check_output(path), force=True) as temporary:  # file names may not be valid UTF-8
        temporary.write_text(page(title, sections), encoding="utf-8", errors="backslashreplace")


PARTS = {  # key in the timings of a rank ("": computed), and colour
    "open": ("t_opening_trajectory_s", "#CC79A7"),
    "I/O": ("t_IO_s", "#0072B2"),
    "compute": ("t_comp_s", "#E69F00"),
    "other": ("", "#56B4E9"),
    "communication": ("", "#009E73"),
    "waiting": ("t_wait_s", "#DDDDDD"),
}
BLOCK_COLOURS = COLOURS[1:]
DARK = ("#0072B2", "#009E73", "#D55E00")
MAX_POINTS = 4000
"""Most frames of a result that a page shows."""
MAX_VALUES = 400_000
"""Most values of a result that a page shows: with more columns, fewer frames."""
MAX_VECTOR_POINTS = 20_000
"""With more points, lines of a result are a picture: as paths, each point takes 20 bytes."""


def need_matplotlib(user: str) -> None:
    """Raise MissingExtraError if there is no matplotlib, which `user` needs."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError(
            f'{user} needs matplotlib, which is not installed; pip install "mdio-layouts[report]"'
        )


def _parts(rank: dict[str, Any]) -> dict[str, float]:
    """Return the parts of a rank's time, by name, in seconds."""
    wait_s = rank.get("t_wait_s", 0.0)
    overhead = rank["t_overhead1_s"] + rank["t_overhead2_s"] + rank["t_end_loop_s"]
    extra_shares = {"other": overhead, "communication": rank["t_comm_s"] - wait_s}
    return {
        name: max(0.0, extra_shares[name] if name in extra_shares else rank.get(key, 0.0))
        for name, (key, _) in PARTS.items()
    }


def rank_label(rank: dict[str, Any], number: int) -> str:
    """Return the name of a worker in pictures: its rank, else its number."""
    return f"rank {rank['rank']}" if rank["rank"] is not None else f"worker {number}"


def components(ranks: Sequence[dict[str, Any]], title: str = "Time of each rank") -> str:
    """Draw stacked bars of the parts of each rank's time."""
    names = [rank_label(rank, number) for number, rank in enumerate(ranks)]
    parts_of_ranks = [_parts(rank) for rank in ranks]
    colours = {name: colour for name, (_, colour) in PARTS.items()}
    parts = {name: ([parts[name] for parts in parts_of_ranks], colours[name]) for name in colours}
    return bars(names, parts, title)


def communication(ranks: Sequence[dict[str, Any]]) -> str:
    """Draw every rank's t_comm, and name the rank with the longest."""
    values = [rank["t_comm_s"] for rank in ranks]
    slowest = int(np.argmax(values))
    noun = "ranks" if ranks[0]["rank"] is not None else "workers"
    name = f"most: {rank_label(ranks[slowest], slowest)}"
    return t_comm_distributions({name: values}, f"Distribution of t_comm over {noun}")


def stream(record: dict[str, Any]) -> str:
    """Draw the blocks over time: one row per worker, one bar per block."""
    tasks = record.get("tasks") or [
        {
            "block": timing["block"],
            "worker": timing["worker"],
            "start_unix_s": timing["began_unix_s"],
            "stop_unix_s": timing["began_unix_s"] + timing["t_block_s"],
        }
        for timing in record["timings"]
    ]
    keys = []  # rank, worker, thread
    for task in tasks:
        match = re.match(r"rank (\d+) ", task["worker"])
        keys.append((int(match[1]) if match else -1, task["worker"], task.get("thread", 0)))
    row_keys = list(dict.fromkeys(sorted(keys)))
    first_start = min(task["start_unix_s"] for task in tasks)
    duration_s = max(task["stop_unix_s"] for task in tasks) - first_start
    title = "Blocks over time"
    height = 1.2 + 0.26 * min(len(row_keys), MAX_ROWS)
    with figure(height) as (fig, axes):
        for task, key in zip(tasks, keys, strict=True):
            start = task["start_unix_s"] - first_start
            width = task["stop_unix_s"] - task["start_unix_s"]
            preparation_s = task.get("transfer_s", 0.0) + task.get("deserialize_s", 0.0)
            row = row_keys.index(key)
            axes.barh(row, preparation_s, 0.8, left=start - preparation_s, color="#DDDDDD")
            colour = BLOCK_COLOURS[task["block"] % len(BLOCK_COLOURS)]
            axes.barh(row, width, 0.8, left=start, color=colour, edgecolor="white", linewidth=0.5)
            if width > 0.06 * duration_s:
                axes.text(
                    start + width / 2,
                    row,
                    str(task["block"]),
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if colour in DARK else "black",
                )
        names = [
            f"rank {rank}" if rank >= 0 else f"worker {number}"
            for number, (rank, *_) in enumerate(row_keys)
        ]
        name_rows(axes, names)
        axes.set(title=title)
        time_axis(axes.xaxis, "time since the first block began (the numbers are blocks)")
        return figure_svg(fig, title)


def result_picture(result: AnalysisResult) -> str:
    """Draw a result as `AnalysisResult.plot` does, of many frames evenly spread ones."""
    max_frames = min(MAX_POINTS, max(2, MAX_VALUES * len(result.values) // result.values.size))
    part = slice(None, None, max(1, -(-len(result.frame) // max_frames)))
    names = ("frame", "time", "values", "label")
    arrays = {name: getattr(result, name) for name in names}
    arrays = {name: array[part] for name, array in arrays.items() if array is not None}
    with figure(3.2) as (fig, axes):
        draw(replace(result, **arrays), axes)
        if sum(len(line.get_xdata()) for line in axes.lines) > MAX_VECTOR_POINTS:
            axes.set_rasterization_zorder(0)  # one picture of all; `set_rasterized`: one of each
            for line in axes.lines:
                line.set_zorder(-1)
        return figure_svg(fig, f"{axes.get_ylabel() or 'values'} over {axes.get_xlabel()}")


COLUMNS = {
    "opening": "t_opening_trajectory_s",
    "reading (t_IO)": "t_IO_s",
    "computing (t_comp)": "t_comp_s",
    "end of the loop": "t_end_loop_s",
    "loop over frames": "t_all_frame_s",
    "blocks, with opening": "t_block_s",
    "communication (t_comm)": "t_comm_s",
    "of which waiting": "t_wait_s",
    "other, within blocks": "t_overhead1_s",
    "other, between blocks": "t_overhead2_s",
    "total (t_N)": "t_N_s",
}
"""Times of a rank, as defined in `mdio.core.timing`."""
MAX_BARS_ALONE = 3
"""With more ranks, the spread of their communication gets its own picture."""
TIME_PARTS = {
    "opening files": "t_opening_trajectory_s",
    "reading": "t_IO_s",
    "computing": "t_comp_s",
    "communicating": "t_comm_s",
}
CAUSE_TEXTS = {
    "open": "opening the trajectory",
    "io": "reading",
    "compute": "computing",
    "communication": "communication",
    "overhead": "other things",
}


def check_report(path: str | PathLike[str]) -> None:
    """Check before the work whether a report can be made."""
    need_matplotlib("--report")
    check_output(path, (".html", ".htm"))


def save_report(result: AnalysisResult, path: str | PathLike[str], title: str) -> None:
    """Write the report of an analysis as one HTML file that needs nothing else."""
    times = timing_record(result)
    parts = [_summary(times), _stragglers(times), _ranks(times), _blocks(times)]
    result = with_field_columns(result)
    if result.per_frame and result.values.size and result.values.dtype.kind in "biuf":
        parts.insert(1, section("Result", picture(result_picture(result))))
    if result.notes:
        parts.insert(1, section("Notes", *map(paragraph, result.notes)))
    save_page(path, summary_sentence(times, title), parts)


def summary_sentence(times: dict[str, Any], title: str) -> str:
    """Return a summary in one sentence, the title of the page."""
    seconds = {name: sum(rank[key] for rank in times["ranks"]) for name, key in TIME_PARTS.items()}
    total_s = sum(rank["t_N_s"] for rank in times["ranks"])
    seconds["on other things"] = total_s - sum(seconds.values())
    largest = max(seconds, key=lambda name: seconds[name])
    share = seconds[largest] / max(total_s, 1e-12)
    return (
        f"{title}: {plural(times['n_frames'], 'frame')} in {duration(times['seconds'])}, "
        f"{share:.0%} of the time of {plural(len(times['ranks']), 'worker')} {largest}"
    )


def _summary(times: dict[str, Any]) -> str:
    executor = times["executor"] + (f", gather {times['gather']}" if times["gather"] else "")
    rows = [
        ("workers", f"{times['workers']:,} ({executor})"),
        ("blocks", times["blocks"]),
        ("total time", duration(times["seconds"])),
        ("slowest worker", duration(times["t_total_s"])),
        ("setup: topology, selection, reference", duration(times["prepare_s"])),
        ("t_comp / t_IO", times["ratio_comp_io"]),
        ("t_comp / t_comm", times["ratio_comp_comm"]),
        ("decoded", human_nbytes(times["nbytes_read"])),
    ]
    return section("Summary", table(("", ""), rows))


def _stragglers(times: dict[str, Any]) -> str:
    if not times["stragglers"]:
        return section(
            "Stragglers", paragraph("No worker took much longer than the median worker.")
        )
    rows = [
        (
            worker["worker"],
            duration(worker["t_own_s"]),
            worker["times_median"],
            duration(worker["beyond_median_s"]),
            f"{CAUSE_TEXTS[worker['cause']]} ({duration(worker['cause_beyond_s'])})"
            + (f"; longest read: {worker['slowest_file']}" if worker["slowest_file"] else ""),
        )
        for worker in times["stragglers"]
    ]
    headings = ("worker", "own time", "x median", "longer by", "mostly by")
    return section("Stragglers", table(headings, rows))


def _ranks(times: dict[str, Any]) -> str:
    ranks = times["ranks"]
    noun = "rank" if ranks[0]["rank"] is not None else "worker"
    spread = []
    for name, key in COLUMNS.items():
        sorted_s = sorted(rank[key] for rank in ranks)
        median = float(np.median(sorted_s))
        spread.append((name, *map(duration, (sorted_s[0], median, sorted_s[-1], sum(sorted_s)))))
    rank_rows = [
        (
            rank_label(rank, number),
            rank["worker"],
            rank["n_blocks"],
            rank["n_frames"],
            *(duration(rank[key]) for key in COLUMNS.values()),
        )
        for number, rank in enumerate(ranks)
    ]
    return section(
        f"Time of each {noun}",
        picture(components(ranks, f"What each {noun} spent its time on")),
        picture(communication(ranks)) if len(ranks) > MAX_BARS_ALONE else "",
        table((f"over {plural(len(ranks), noun)}", "min", "median", "max", "sum"), spread),
        details(f"All {noun}s", table((noun, "name", "blocks", "frames", *COLUMNS), rank_rows)),
    )


def _blocks(times: dict[str, Any]) -> str:
    parts = [picture(stream(times))]
    if "tasks_per_worker" in times:
        rows = sorted(times["tasks_per_worker"].items())
        parts.append(table(("dask worker", "blocks"), rows))
    return section("Blocks", *parts)
