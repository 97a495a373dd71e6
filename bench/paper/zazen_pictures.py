"""The pictures of `zazen.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Row = dict[str, Any]


def draw(rows: list[Row], path: Path, n_nodes: int) -> None:
    """Draw the paper's figures."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(13, 7.5), layout="constrained")
    (by_nodes, by_units, by_size), (writing, off, last) = axes
    last.axis("off")
    one = [row for row in rows if row["what"] == "one rank"]
    most = max(row["units"] for row in one)
    points = [(row["nodes"], row["seconds"]) for row in one if row["units"] == most]
    by_nodes.plot(*zip(*sorted(points), strict=True), "o-", label="one rank of so many")
    for row in rows:
        if row["what"] == "real ranks":
            by_nodes.plot(row["nodes"], row["seconds"], "s", label=f"4 ranks, {row['units']:.0e}")
    by_nodes.set(xscale="log", xlabel="nodes", ylabel="s", title=f"assigning {most:.0e} units")
    by_nodes.set_ylim(0)
    by_nodes.legend()
    points = [(row["units"], row["seconds"]) for row in one if row["nodes"] == 100]
    by_units.loglog(*zip(*sorted(points), strict=True), "o-")
    by_units.set(xlabel="units", ylabel="s", title="assigning on 100 nodes, one rank")
    read = [row for row in rows if row["what"] == "read"]
    for size in sorted({row["unit_nbytes"] for row in read}):
        line = [row for row in read if row["unit_nbytes"] == size]
        label = f"units of {size >> 20} MiB"
        by_size.plot(
            [r["processes"] for r in line], [r["rate"] / 1e6 for r in line], "o-", label=label
        )
    line = [row for row in read if row["unit_nbytes"] == read[0]["unit_nbytes"]]
    rates = [row["file_rate"] / 1e6 for row in line]
    by_size.plot(
        [row["processes"] for row in line], rates, "k--", label="the file itself, no cache"
    )
    by_size.set(xlabel="processes a node", ylabel="MB/s", title="reading from the node's disk")
    by_size.set_ylim(0)
    by_size.legend()
    busy = [row for row in rows if row["what"] == "while writing"]
    names = [f"{row['unit_nbytes'] >> 20} MiB" for row in busy]
    writing.bar(names, [100 * row["share"] for row in busy])
    writing.set(
        xlabel="unit", ylabel="% of the rate without", title="reading while 50 MB/s are written"
    )
    line = [row for row in rows if row["what"] == "off"]
    shares = [100 * row["share"] for row in line]
    off.plot(shares, [row["law_s"] for row in line], "k--", label="T (1 + δ B/b)")
    off.plot(shares, [row["seconds"] for row in line], "o-", label="measured")
    off.set(xlabel="% of nodes switched off", ylabel="s", title=f"{n_nodes} throttled nodes")
    off.set_ylim(0)
    off.legend()
    figure.savefig(path, dpi=110)
