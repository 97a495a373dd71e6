"""What reading and writing on slow, shared storage has to reach, each beside its limit.

`study.py --must` runs it: cold caches, medians of some repeats, 4 servers of 200 Mbit/s.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cephfs import CephFS
from machines import Cluster
from runs import Record, Row, measure

ALL_ATOMS = ("--select", "all", "--executor", "mpi")
N_SHARDS = 1000
OPEN_S = 0.3


@dataclass
class Must:
    """One row of the table."""

    what: str
    layout: str
    """As `study.LAYOUTS` names it."""
    ranks: int
    wanted: str
    of: Callable[[Row], float]
    """What is compared with `limit`."""
    limit: float
    at_least: bool = True
    form: str = "{:.2f} s"
    words: tuple[str, ...] = ("analyze", "rmsd", "{path}", "-s", "{top}", *ALL_ATOMS)
    stripes: str = "all"
    before: Callable[[Cluster, Path], None] = field(default=lambda *_: None)

    def holds(self, rows: list[Row]) -> bool:
        """Return whether the median is as it should be."""
        found = statistics.median(map(self.of, rows))
        return found >= self.limit if self.at_least else found <= self.limit


def _share(layout: str, ranks: int, limit: float) -> Must:
    what = f"{layout}, all atoms"
    return Must(what, layout, ranks, f"{limit:.0%} of the wires", lambda r: r.share, limit, True,
                "{:.0%}")  # fmt: skip


def _seconds(row: Row) -> float:
    return row.seconds


def _without_index(cluster: Cluster, path: Path) -> None:
    index = path.with_name(f".{path.name}.mdio-index")
    cluster.nodes[0].run("rm", "-f", str(index))


def _without_output(cluster: Cluster, _: Path) -> None:
    cluster.nodes[0].run("sh", "-c", f"rm -rf {cluster.mount}/fine/must.*")


MUST = [
    *(_share(layout, 1, 0.8) for layout in ("xtc", "zarr", "zarr raw", "h5md")),
    *(
        _share(layout, ranks, 0.9)
        for ranks in (4, 8)
        for layout in ("xtc", "zarr", "zarr raw", "h5md")
    ),
    Must("XTC without index", "xtc", 8, "4.5 s", _seconds, 4.5, False, before=_without_index),
    Must("a default conversion", "zarr", 4, "2.9 s", _seconds, 2.9, False),
    Must(
        "convert to one h5md file", "xtc", 4, "85 MB/s", lambda r: r.written_nbytes_per_s / 1e6,
        85, True, "{:.0f} MB/s", before=_without_output,
        words=("convert", "{path}", "{out}/must.h5md", "--mpi"),
    ),
    Must(
        f"open {N_SHARDS:,} shards", "shards", 8, f"{OPEN_S} s",
        lambda r: float(r.said["t_open_max_s"]), OPEN_S, False,
        words=("analyze", "rmsd", "{path}", "-s", "{top}", "--stop", "8", *ALL_ATOMS),
    ),
]  # fmt: skip


def run_must(
    cluster: Cluster, paths: dict[tuple[str, str], Path], top: Path, record: Record, repeats: int
) -> str:
    """Measure every row and return them as a table in Markdown.

    Parameters
    ----------
    paths
        Where each layout lies, by its name and that of its stripes.
    top
        The topology.
    """
    # New files cannot be placed; in many small objects they lie on all servers evenly.
    out = CephFS(cluster).make_folder("fine", "fine")
    found: dict[int, list[Row]] = {}
    for _ in range(repeats):  # in turn: what else the machine does changes with time
        for number, must in enumerate(MUST):
            path = paths[must.layout, must.stripes]
            must.before(cluster, path)
            names = {"path": path, "top": top, "out": out}
            words = [word.format(**names) for word in must.words]
            row = measure(cluster, must.what, must.stripes, must.ranks, words)
            record.note(row)
            found.setdefault(number, []).append(row)
    return table(found)


def table(found: dict[int, list[Row]]) -> str:
    """Return medians (and the range) beside what is wanted."""
    lines = [
        "| what | ranks | must | median (least to most) | s | wires, s | moved, MB | CPU | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for number, rows in found.items():
        must = MUST[number]
        values = sorted(map(must.of, rows))
        shown = [must.form.format(value) for value in (values[0], values[-1])]
        median = must.form.format(statistics.median(values))
        nbytes = statistics.median(max(row.sent_nbytes, row.received_nbytes) for row in rows)
        lines.append(
            f"| {must.what} | {must.ranks} | {must.wanted} | {median} ({' to '.join(shown)}) "
            f"| {statistics.median(row.seconds for row in rows):.2f} "
            f"| {statistics.median(row.wires_s for row in rows):.2f} | {nbytes / 1e6:.0f} "
            f"| {statistics.median(row.cpu_share for row in rows):.0%} "
            f"| {'reached' if must.holds(rows) else 'missed'} |"
        )
    return "\n".join(lines)
