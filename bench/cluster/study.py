"""Layouts, ranks and stripes on the miniature cluster, each beside what its wires allow.

    sudo make cluster                                    # all of it: about an hour and a half
    python bench/cluster/study.py --must                 # what has to be reached: 12 minutes
    python bench/cluster/study.py --quick                # some minutes
    python bench/cluster/study.py --layouts xtc,zarr --ranks 1,4 --stripes all --repeats 3

Every row is one command of mdio on the nodes, with caches emptied before (cold) or filled by the
run before (warm). `wires` is the least time in which the servers' cables could carry the bytes that
the busiest of them sent or got, `share` is that divided by the time taken.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from cephfs import CephFS
from cluster import FOLDER
from machines import Cluster, ClusterError
from must import ALL_ATOMS, MUST, N_SHARDS, run_must
from pictures import draw
from runs import MDIO, ROOT, Record, measure

WORK = FOLDER.with_name("mdio-cluster-data")
N_TILES = 250
SHARD_FRAMES = 4
EVEN_NBYTES = 1 << 20

LAYOUTS = {
    "xtc": ("adk.xtc", None),
    "segments": ("adk.segments", ["split", "{source}", "{out}", "-n", "16"]),
    "zarr": ("adk.zarr", ["convert", "{source}", "{out}"]),
    "zarr raw": ("raw.zarr", ["convert", "{source}", "{out}", "--precision", "none"]),
    "h5md": ("adk.h5md", ["convert", "{source}", "{out}"]),
    "dcd": ("adk.dcd", ["convert", "{source}", "{out}"]),
    "h5md C-alpha": (
        "calpha.h5md",
        ["convert", "{source}", "{out}", "-s", "{top}", "--select", "name CA"],
    ),
}
NOT_STUDIED = "h5md C-alpha"
"""The papers' HDF5 file, for `papers.py`."""
WRITES = {
    "split": ["split", "{shared}/adk.xtc", "{out}.segments", "-n", "16", "--mpi"],
    "to zarr": ["convert", "{shared}/adk.xtc", "{out}.zarr", "--mpi"],
    "to zarr raw": ["convert", "{shared}/adk.xtc", "{out}.zarr", "--precision", "none", "--mpi"],
    "to h5md": ["convert", "{shared}/adk.xtc", "{out}.h5md", "--mpi"],
}


def many_shards(source: Path, target: Path) -> None:
    """Make a Zarr tree of many small shards, as a trajectory a hundred times as long would have."""
    import mdio
    from mdio.layouts import plan

    plan.MIN_PIECE_NBYTES = plan.MAX_PIECE_NBYTES = 1
    n_frames = N_SHARDS * SHARD_FRAMES
    mdio.convert(
        source,
        target,
        stop=n_frames,
        storage=mdio.Storage(chunk_frames=SHARD_FRAMES),
        precision="none",
    )


def chosen_there(cluster: Cluster, source: Path, out: Path) -> str:
    """Return how a conversion that writes to the cluster encodes an XTC's integers by default."""
    words = ["convert", str(source), str(out), "--dry-run", "--json"]
    plan = json.loads(cluster.nodes[0].run(str(MDIO), *words))
    return plan["plan"]["compression"] or "bitpack"


def prepare(
    cluster: Cluster, wanted: list[tuple[str, str]], n_tiles: int
) -> tuple[dict[tuple[str, str], Path], Path]:
    """Make layouts on this machine and copy them to the cluster.

    Parameters
    ----------
    wanted
        Layouts and stripes.

    Returns
    -------
    paths
        Where each is.
    top
        The topology.
    """
    sys.path.insert(0, str(ROOT / "bench"))
    import adk

    file_system = CephFS(cluster)
    source = adk.tiled(WORK, n_tiles)
    subprocess.run([str(MDIO), "info", str(source)], check=True, capture_output=True)  # its index
    paths = {}
    for layout, stripes in wanted:
        folder = file_system.make_folder(stripes.replace(" ", "-"), stripes)
        name, words = LAYOUTS.get(layout, ("shards.zarr", ["many"]))
        made = source if words is None else WORK / f"{n_tiles}-{name}"
        if not made.exists():
            assert words is not None
            if words == ["many"]:
                many_shards(source, made)
            else:
                filled = [w.format(source=source, out=made, top=adk.topology()) for w in words]
                if layout == "zarr":  # made here, as it would be there
                    filled += ["--compression", chosen_there(cluster, source, folder / name)]
                subprocess.run([str(MDIO), *filled, "--quiet"], check=True)
        copy_in(cluster, file_system, made, folder / name, even=stripes == "all")
        paths[layout, stripes] = folder / name
    place = cluster.mount / "adk.psf"
    cluster.nodes[0].run("cp", str(adk.topology()), str(place))
    return paths, place


def copy_in(
    cluster: Cluster, file_system: CephFS, source: Path, target: Path, *, even: bool
) -> None:
    """Copy a file or a folder to the cluster; large files evenly over the servers, if wanted."""
    node = cluster.nodes[0]
    node.run("rm", "-rf", str(target))
    files = [source]
    if source.is_dir():
        folders = [folder for folder in source.rglob("*") if folder.is_dir()]
        node.run("mkdir", "-p", *(str(target / one.relative_to(source)) for one in folders))
        files = [file for file in source.rglob("*") if file.is_file()]
    large = [file for file in files if file.stat().st_size >= EVEN_NBYTES]
    if even and large:
        file_system.place_files([target / file.relative_to(source) for file in large])
    if source.is_dir():  # into the files that are there
        node.run("cp", "-r", f"{source}/.", str(target))
        return
    node.run("sh", "-c", f"cat '{source}' > '{target}'")
    index = source.with_name(f".{source.name}.mdio-index")
    if index.exists():  # it is checked against size and time of the file
        node.run("touch", "-r", str(source), str(target))
        node.run("cp", "-p", str(index), str(target.with_name(f".{target.name}.mdio-index")))


def run_study(
    cluster: Cluster, args: argparse.Namespace, split: dict[str, list[str]], record: Record
) -> str:
    """Measure layouts, stripes and ranks, and return a table."""
    wanted = [(layout, stripes) for stripes in split["stripes"] for layout in split["layouts"]]
    paths, top = prepare(cluster, wanted, args.tiles)
    for stripes in split["stripes"]:
        for layout in split["layouts"]:
            path = str(paths[layout, stripes])
            words = ["analyze", "rmsd", path, "-s", str(top), *ALL_ATOMS]
            for n_ranks in map(int, split["ranks"]):
                for _ in range(args.repeats):
                    record.note(measure(cluster, layout, stripes, n_ranks, words))
                record.note(measure(cluster, layout, stripes, n_ranks, words, warm=True))
        for name in split["writes"] if "xtc" in split["layouts"] else []:
            folder = cluster.mount / stripes.replace(" ", "-")
            out = folder / "written"
            words = [w.format(shared=folder, out=out) for w in WRITES[name]]
            for n_ranks in (1, 4):
                for _ in range(args.repeats):
                    record.note(measure(cluster, name, stripes, n_ranks, words))
                    cluster.nodes[0].run("sh", "-c", f"rm -rf {out}*")
    return record.table()


def main() -> int:
    """Run the study that the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--layouts", default=",".join(n for n in LAYOUTS if n != NOT_STUDIED))
    parser.add_argument("--ranks", default="1,2,4,8,16")
    parser.add_argument("--stripes", default="one,default,all")
    parser.add_argument("--writes", default=",".join(WRITES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiles", type=int, default=N_TILES, help="of 98 frames each")
    parser.add_argument("--must", action="store_true", help="only what has to be reached")
    parser.add_argument("--quick", action="store_true", help="one repeat of a few cases")
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "bench-output" / "cluster.jsonl")
    args = parser.parse_args()
    if args.quick:
        args.layouts, args.ranks, args.stripes, args.repeats = "xtc,zarr", "1,4", "all", 1
    split = {
        name: [w for w in getattr(args, name).split(",") if w]
        for name in ("layouts", "ranks", "stripes", "writes")
    }
    cluster = Cluster.load(FOLDER)
    record = Record(args.out)
    if args.must:
        wanted = list(dict.fromkeys((must.layout, must.stripes) for must in MUST))
        paths, top = prepare(cluster, wanted, args.tiles)
        table = run_must(cluster, paths, top, record, args.repeats)
    else:
        table = run_study(cluster, args, split, record)
    args.out.with_suffix(".md").write_text(table + "\n")
    print(table)
    for path in draw(record.rows, args.out.parent):
        print(path)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as error:
        print(f"study: {error}", file=sys.stderr)
        sys.exit(1)
