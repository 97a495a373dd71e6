"""Layouts, ranks and stripes on the miniature cluster, each beside what its wires allow.

    sudo make cluster                                    # all of it: about an hour
    python bench/cluster/study.py --quick                # some minutes
    python bench/cluster/study.py --layouts xtc,zarr --ranks 1,4 --stripes all --repeats 3

Every row is one command of mdio on the nodes, with caches emptied before (cold) or filled by the
run before (warm). `wires` is the least time in which the servers' cables could carry the bytes that
the busiest of them sent, `share` is that divided by the time taken.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from cephfs import STRIPES, CephFS
from cluster import FOLDER, cold, mpi_environment, on_ranks
from machines import Cluster, ClusterError

ROOT = Path(__file__).resolve().parents[2]
MDIO = ROOT / ".venv-mpi" / "bin" / "mdio"
WORK = FOLDER.with_name("mdio-cluster-data")
N_TILES = 250
ALL_ATOMS = ("--select", "all", "--executor", "mpi")
LIMIT_S = 180.0
GRACE_S = 3.0
"""MPICH 4.0 hangs now and then when MPI ends, after the results are out."""
USABLE = 0.955
"""Of a cable's bits: the rest are headers of Ethernet, IP and TCP."""

LAYOUTS = {
    "xtc": ("adk.xtc", None),
    "segments": ("adk.segments", ["split", "{source}", "{out}", "-n", "16"]),
    "zarr": ("adk.zarr", ["convert", "{source}", "{out}"]),
    "zarr raw": ("raw.zarr", ["convert", "{source}", "{out}", "--precision", "none"]),
    "h5md": ("adk.h5md", ["convert", "{source}", "{out}"]),
    "dcd": ("adk.dcd", ["convert", "{source}", "{out}"]),
}
WRITES = {
    "split": ["split", "{shared}/adk.xtc", "{out}.segments", "-n", "16", "--mpi"],
    "to zarr": ["convert", "{shared}/adk.xtc", "{out}.zarr", "--mpi"],
    "to zarr raw": ["convert", "{shared}/adk.xtc", "{out}.zarr", "--precision", "none", "--mpi"],
    "to h5md": ["convert", "{shared}/adk.xtc", "{out}.h5md", "--mpi"],
}


@dataclass
class Row:
    """One run."""

    what: str
    stripes: str
    ranks: int
    cache: str
    seconds: float
    wires_s: float
    sent_nbytes: int
    received_nbytes: int
    cpu_share: float
    said: dict[str, float]


def busy_s() -> tuple[float, float]:
    """Return busy and all CPU seconds of the machine since it booted."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def seconds_for(cluster: Cluster, nbytes: int) -> float:
    """Return how long a server's cable takes for so many bytes."""
    digits = cluster.rate.rstrip("bitkmg")
    scale = {"k": 1e3, "m": 1e6, "g": 1e9}[cluster.rate[len(digits)]]
    return nbytes / (float(digits) * scale / 8 * USABLE)


def run(cluster: Cluster, n_ranks: int, words: list[str]) -> tuple[float, dict[str, float]]:
    """Run mdio on ranks; return its wall time until the results are out, and what it says."""
    begun = time.monotonic()
    process = subprocess.Popen(
        on_ranks(cluster, n_ranks, [str(MDIO), *words, "--json"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=mpi_environment(),
        start_new_session=True,
    )
    assert process.stdout is not None
    timer = subprocess.Popen(["sh", "-c", f"sleep {LIMIT_S}; kill -KILL -{process.pid}"])
    text, wall_s = "", 0.0
    try:
        for line in process.stdout:  # all of the results are one line
            text += line
            if line.rstrip().endswith("}"):
                wall_s = time.monotonic() - begun
                break
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    finally:
        timer.kill()
        timer.wait()
    if not wall_s:
        errors = process.stderr.read() if process.stderr else ""
        raise ClusterError(
            f"mdio {' '.join(words)} on {n_ranks} ranks: {errors[-600:]}{text[-300:]}"
        )
    return wall_s, json.loads(text[text.index("{") :])


def measure(
    cluster: Cluster, what: str, stripes: str, n_ranks: int, words: list[str], *, warm: bool = False
) -> Row:
    """Run one case once, and say what went over the wires."""
    if not warm:
        cold(cluster)
    sent = [server.sent() for server in cluster.servers]
    busy = busy_s()
    _, said = run(cluster, n_ranks, words)
    share = [after - before for after, before in zip(busy_s(), busy, strict=True)]
    moved = [
        (out - before_out, came - before_in)
        for (before_out, before_in), (out, came) in zip(
            sent, [server.sent() for server in cluster.servers], strict=True
        )
    ]
    busiest = max(max(out, came) for out, came in moved)
    numbers = {k: v for k, v in said.items() if isinstance(v, int | float)}
    return Row(
        what,
        stripes,
        n_ranks,
        "warm" if warm else "cold",
        float(said["seconds"]) + float(said.get("prepare_s", 0.0)),
        seconds_for(cluster, busiest),
        sum(out for out, _ in moved),
        sum(came for _, came in moved),
        share[0] / max(share[1], 1),
        numbers,
    )


def prepare(cluster: Cluster, layouts: list[str], stripes: list[str], n_tiles: int) -> Path:
    """Make the layouts on this machine and copy them to the cluster; return the topology."""
    sys.path.insert(0, str(ROOT / "bench"))
    import adk

    file_system = CephFS(cluster)
    source = adk.tiled(WORK, n_tiles)
    for kind in stripes:
        folder = file_system.make_folder(kind.replace(" ", "-"), kind)
        for layout in layouts:
            name, words = LAYOUTS[layout]
            made = source if words is None else WORK / f"{n_tiles}-{name}"
            if not made.exists():
                assert words is not None
                filled = [word.format(source=source, out=made) for word in words]
                subprocess.run([str(MDIO), *filled, "--quiet"], check=True)
            copy_in(cluster, file_system, made, folder / name, even=kind == "all")
    place = cluster.mount / "adk.psf"
    cluster.nodes[0].run("cp", str(adk.topology()), str(place))
    return place


def copy_in(
    cluster: Cluster, file_system: CephFS, source: Path, target: Path, *, even: bool
) -> None:
    """Copy a file or a folder to the cluster; a single file evenly over the servers."""
    node = cluster.nodes[0]
    node.run("rm", "-rf", str(target))
    if source.is_dir():
        node.run("cp", "-r", str(source), str(target))
        return
    if even:
        file_system.place_file(target)
    node.run("sh", "-c", f"cat '{source}' > '{target}'")
    index = source.with_name(f".{source.name}.mdio-index")
    if index.exists():  # it is checked against size and time of the file
        node.run("touch", "-r", str(source), str(target))
        node.run("cp", "-p", str(index), str(target.with_name(f".{target.name}.mdio-index")))


def report(rows: list[Row]) -> str:
    """Return the medians as a table in Markdown."""
    lines = [
        "| what | stripes | ranks | cache | s | wires, s | share | sent, MB | CPU |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    keys = list(dict.fromkeys((row.what, row.stripes, row.ranks, row.cache) for row in rows))
    for key in keys:
        same = [r for r in rows if (r.what, r.stripes, r.ranks, r.cache) == key]
        seconds = statistics.median(row.seconds for row in same)
        wires_s = statistics.median(row.wires_s for row in same)
        nbytes = statistics.median(max(row.sent_nbytes, row.received_nbytes) for row in same)
        cpu = statistics.median(row.cpu_share for row in same)
        lines.append(
            f"| {key[0]} | {key[1]} | {key[2]} | {key[3]} | {seconds:.2f} | {wires_s:.2f} "
            f"| {wires_s / seconds:.0%} | {nbytes / 1e6:.0f} | {cpu:.0%} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Run the study that the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--ranks", default="1,2,4,8,16")
    parser.add_argument("--stripes", default=",".join(STRIPES))
    parser.add_argument("--writes", default=",".join(WRITES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiles", type=int, default=N_TILES, help="of 98 frames each")
    parser.add_argument("--quick", action="store_true", help="one repeat of a few cases")
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "bench-output" / "cluster.jsonl")
    args = parser.parse_args()
    if args.quick:
        args.layouts, args.ranks, args.stripes, args.repeats = "xtc,zarr", "1,4", "all", 1
    split = {
        name: [w for w in getattr(args, name).split(",") if w]
        for name in ("layouts", "ranks", "stripes", "writes")
    }
    rows: list[Row] = []
    args.out.parent.mkdir(parents=True, exist_ok=True)
    cluster = Cluster.load(FOLDER)
    top = prepare(cluster, split["layouts"], split["stripes"], args.tiles)

    def note(row: Row) -> None:
        rows.append(row)
        with args.out.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        print(
            f"{row.what:12} {row.stripes:8} {row.ranks:2} ranks {row.cache}: {row.seconds:6.2f} s, "
            f"wires {row.wires_s:6.2f} s, CPU {row.cpu_share:.0%}",
            flush=True,
        )

    for stripes in split["stripes"]:
        folder = cluster.mount / stripes
        for layout in split["layouts"]:
            path = str(folder / LAYOUTS[layout][0])
            words = ["analyze", "rmsd", path, "-s", str(top), *ALL_ATOMS]
            for n_ranks in map(int, split["ranks"]):
                for _ in range(args.repeats):
                    note(measure(cluster, layout, stripes, n_ranks, words))
                note(measure(cluster, layout, stripes, n_ranks, words, warm=True))
        for name in split["writes"] if (folder / "adk.xtc") and "xtc" in split["layouts"] else []:
            for n_ranks in (1, 4):
                out = folder / "written"
                words = [w.format(shared=folder, out=out) for w in WRITES[name]]
                for _ in range(args.repeats):
                    note(measure(cluster, name, stripes, n_ranks, words))
                    cluster.nodes[0].run("sh", "-c", f"rm -rf {out}*")
    table = report(rows)
    args.out.with_suffix(".md").write_text(table + "\n")
    print(table)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as error:
        print(f"study: {error}", file=sys.stderr)
        sys.exit(1)
    finally:
        shutil.rmtree(WORK / "tmp", ignore_errors=True)
