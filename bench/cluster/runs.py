"""One run of mdio on the cluster: how long it took, and what went over the servers' cables."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cluster import cold, mpi_environment, on_ranks
from machines import Cluster, ClusterError

ROOT = Path(__file__).resolve().parents[2]
MDIO = ROOT / ".venv-mpi" / "bin" / "mdio"
LIMIT_S = 240.0
GRACE_S = 3.0
"""MPICH 4.0 hangs now and then when MPI ends, after the results are out."""
USABLE = 0.955
"""Of a cable's bits: the rest are headers of Ethernet, IP and TCP."""


@dataclass
class Row:
    """One run."""

    what: str
    stripes: str
    ranks: int
    cache: str
    seconds: float
    """Of mdio's own work: opening, topology, reading, computing, gathering; or converting."""
    wires_s: float
    """How long the busiest server's cable was needed at least."""
    sent_nbytes: int
    received_nbytes: int
    """By all servers together."""
    cpu_share: float
    """Of all cores, also by other programs."""
    said: dict[str, Any]
    """The numbers that mdio gave."""

    @property
    def share(self) -> float:
        """Of the time, in which the busiest cable was needed."""
        return self.wires_s / self.seconds

    @property
    def written_nbytes_per_s(self) -> float:
        """Bytes/s of the output, of a conversion."""
        return float(self.said.get("nbytes_out", 0)) / self.seconds


def busy_s() -> tuple[float, float]:
    """Return busy and all CPU time of the machine since it booted, in ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def seconds_for(cluster: Cluster, nbytes: int) -> float:
    """Return how long a server's cable takes for so many bytes."""
    digits = cluster.rate.rstrip("bitkmg")
    scale = {"k": 1e3, "m": 1e6, "g": 1e9}[cluster.rate[len(digits)]]
    return nbytes / (float(digits) * scale / 8 * USABLE)


def run(
    cluster: Cluster, n_ranks: int, words: Sequence[str], program: Sequence[str] = (str(MDIO),)
) -> dict[str, Any]:
    """Run mdio, or another program, on ranks and return what it says; raises ClusterError."""
    process = subprocess.Popen(
        on_ranks(cluster, n_ranks, [*program, *words, "--json"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=mpi_environment(),
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    timer = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    text, ended = "", False
    try:
        for line in process.stdout:  # all of the results are one line
            text += line
            ended = line.rstrip().endswith("}")
            if ended:
                break
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    finally:
        timer.cancel()
    if not ended:
        said = f"{process.stderr.read()[-600:]}{text[-300:]}"
        raise ClusterError(f"{' '.join((*program, *words))} on {n_ranks} ranks: {said}")
    found: dict[str, Any] = json.loads(text[text.index("{") :])
    return found


def measure(
    cluster: Cluster,
    what: str,
    stripes: str,
    n_ranks: int,
    words: Sequence[str],
    *,
    warm: bool = False,
) -> Row:
    """Run one case once, and say what went over the wires."""
    if not warm:
        cold(cluster)
    sent = [server.sent() for server in cluster.servers]
    busy = busy_s()
    said = run(cluster, n_ranks, words)
    busy = tuple(after - before for after, before in zip(busy_s(), busy, strict=True))
    moved = [
        (out - before_out, came - before_in)
        for (before_out, before_in), (out, came) in zip(
            sent, [server.sent() for server in cluster.servers], strict=True
        )
    ]
    return Row(
        what,
        stripes,
        n_ranks,
        "warm" if warm else "cold",
        float(said["seconds"]) + float(said.get("prepare_s", 0.0)),
        seconds_for(cluster, max(max(out, came) for out, came in moved)),
        sum(out for out, _ in moved),
        sum(came for _, came in moved),
        busy[0] / max(busy[1], 1),
        {k: v for k, v in said.items() if isinstance(v, int | float)},
    )


class Record:
    """Rows as they come: kept, written as lines of JSON, and shown."""

    def __init__(self, path: Path) -> None:
        self.rows: list[Row] = []
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def note(self, row: Row) -> None:
        """Take one row."""
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        print(
            f"{row.what:14} {row.stripes:8} {row.ranks:2} ranks {row.cache}: {row.seconds:6.2f} s, "
            f"wires {row.wires_s:6.2f} s ({row.share:.0%}), CPU {row.cpu_share:.0%}",
            flush=True,
        )

    def table(self) -> str:
        """Return the medians as a table in Markdown."""
        lines = [
            "| what | stripes | ranks | cache | s | wires, s | share | moved, MB | CPU |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for same in grouped(self.rows):
            seconds = statistics.median(row.seconds for row in same)
            wires_s = statistics.median(row.wires_s for row in same)
            nbytes = statistics.median(max(row.sent_nbytes, row.received_nbytes) for row in same)
            cpu = statistics.median(row.cpu_share for row in same)
            one = same[0]
            lines.append(
                f"| {one.what} | {one.stripes} | {one.ranks} | {one.cache} | {seconds:.2f} "
                f"| {wires_s:.2f} | {wires_s / seconds:.0%} | {nbytes / 1e6:.0f} | {cpu:.0%} |"
            )
        return "\n".join(lines)


def grouped(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the repeats of each case together, in the order of the first."""
    cases: dict[tuple[str, str, int, str], list[Row]] = {}
    for row in rows:
        cases.setdefault((row.what, row.stripes, row.ranks, row.cache), []).append(row)
    return list(cases.values())
