"""Tables in Markdown, and a picture of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]
OURS = "#c0392b"
THEIRS = "#7f8c8d"


def table(title: str, system: str, records: list[Record]) -> str:
    """Return one table; the ratios are to the first case that was measured."""
    measured = [record for record in records if "seconds" in record]
    lines = [f"\n### {title} ({system})\n"]
    if not measured:
        return "\n".join([*lines, "nothing was measured"])
    base = measured[0]
    lines += [
        f"| | us/frame | min to max | user CPU | beside {base['case']} | user CPU |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for record in records:
        if "seconds" not in record:
            lines.append(f"| {record['case']} | not measured: {record['reason']} | | | | |")
            continue
        us = [1e6 * seconds / record["n_frames"] for seconds in record["seconds"]]
        ratio = statistics.median(
            a / b for a, b in zip(record["seconds"], base["seconds"], strict=False)
        )
        note = "" if record.get("cold") is not False else " (the page cache was not emptied)"
        lines.append(
            f"| {record['case']}{note} | {statistics.median(us):,.1f} "
            f"| {min(us):,.1f} to {max(us):,.1f} | {user_us(record):,.1f} | {ratio:.2f}x "
            f"| {user_us(record) / user_us(base):.2f}x |"
        )
    return "\n".join(lines)


def user_us(record: Record) -> float:
    """Return the least user CPU time of a frame, in microseconds."""
    # At least the system's own grain, so that ratios stay numbers.
    return 1e6 * max(min(record["user_seconds"]), 1e-4) / float(record["n_frames"])


def size_table(system: str, records: list[Record]) -> str:
    """Return the table of sizes."""
    lines = [
        f"\n### Size ({system})\n",
        "| | bytes/atom/frame | beside XTC |",
        "| --- | ---: | ---: |",
    ]
    for record in records:
        if "nbytes" not in record:
            lines.append(f"| {record['case']} | not measured: {record['reason']} | |")
            continue
        per = record["nbytes"] / record["n_frames"] / record["n_atoms"]
        lines.append(f"| {record['case']} | {per:.2f} | {record['nbytes'] / record['xtc']:.2f}x |")
    return "\n".join(lines)


def verdict_table(verdicts: list[Record]) -> str:
    """Return the table of targets."""
    lines = [
        "\n### Targets\n",
        "| row | system | peer | must | reached | user CPU | |",
        "| --- | --- | --- | ---: | ---: | ---: | --- |",
    ]
    for one in verdicts:
        sign = ">=" if one["at_least"] else "<="
        found = f"{one['ratio']:.2f}x" if "ratio" in one else ""
        user = f"{one['user_ratio']:.2f}x" if one.get("user_ratio") else ""
        lines.append(
            f"| {one['case']} | {one['system']} | {one['peer']} | {sign} {one['wanted']:g}x "
            f"| {found} | {user} | {one['verdict']} |"
        )
    return "\n".join(lines)


def groups(records: list[Record]) -> Iterator[tuple[str, str, list[Record]]]:
    """Yield the records of each table and system."""
    names = list(dict.fromkeys((r["table"], r["system"]) for r in records if "seconds" in r))
    for name, system in names:
        chosen = [r for r in records if (r["table"], r["system"]) == (name, system)]
        yield name, system, [r for r in chosen if "seconds" in r]


def draw(records: list[Record], path: Path) -> None:
    """Draw the medians of every table as bars (log scale), ours in red."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    panels = list(groups(records))
    if not panels:
        return
    n_columns = 2
    heights = [0.8 + 0.24 * len(chosen) for _, _, chosen in panels]
    rows = [heights[i : i + n_columns] for i in range(0, len(heights), n_columns)]
    figure, axes = plt.subplots(
        len(rows),
        n_columns,
        figsize=(14, sum(map(max, rows)) + 0.4 * len(rows)),
        gridspec_kw={"height_ratios": [max(row) for row in rows]},
        squeeze=False,
        layout="constrained",
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (name, system, chosen) in zip(axes.flat, panels, strict=False):
        chosen = sorted(chosen, key=lambda r: statistics.median(r["seconds"]))
        us = [[1e6 * s / r["n_frames"] for s in r["seconds"]] for r in chosen]
        middle = [statistics.median(u) for u in us]
        axis.barh(
            [r["case"] for r in chosen],
            middle,
            color=[OURS if r["case"].startswith("mdio") else THEIRS for r in chosen],
            xerr=[
                [m - min(u) for m, u in zip(middle, us, strict=True)],
                [max(u) - m for m, u in zip(middle, us, strict=True)],
            ],
            ecolor="#2c3e50",
        )
        axis.set_xscale("log")
        axis.set_xlim(left=10 ** math.floor(math.log10(min(middle))))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
        axis.invert_yaxis()
        axis.set_title(f"{name}: {system}", fontsize=10, loc="left")
        axis.tick_params(labelsize=8)
        axis.set_xlabel("us/frame", fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        for y, m in enumerate(middle):
            axis.annotate(
                f" {m:,.1f}", (max(us[y]), y), va="center", fontsize=7, annotation_clip=False
            )
    figure.savefig(path, dpi=110)
    plt.close(figure)
