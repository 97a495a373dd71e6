"""What ranks bring to conversions, on this machine: one command for the project's questions.

Run it in the environment with MPI, on a quiet machine:
``.venv-mpi/bin/python bench/mpi_scaling.py SRC.xtc --folder DIR``. Times are the least of the
repeats, since other work only ever adds to them; the load average is printed beside them.
"""

import argparse
import os
from pathlib import Path

from mdio.benches.layouts import Case, measure
from mdio.benches.records import append_jsonl, make_folder

PLAIN = ("h5md", "zarr", "segments:dcd")
RANKS = (1, 2, 4)


def wanted():
    found = [Case(layout, "workers", 1) for layout in PLAIN]
    found += [Case(layout, "mpi", n) for layout in (*PLAIN, "split") for n in RANKS]
    found += [Case("h5md", way, n) for way in ("mpio", "collective") for n in RANKS]
    for layout, way in (("h5md", "collective"), ("h5md", "mpi"), ("zarr", "mpi")):
        found += [Case(layout, way, n, compression="gzip:1") for n in RANKS]
    return found


def report(records):
    least = {}
    for record in records:
        key = record["case"], record["n_workers"]
        least[key] = min(least.get(key, float("inf")), record["write_s"])
    print(f"{'written as':28}" + "".join(f"{n} rank(s)".rjust(12) for n in RANKS))
    for name in dict.fromkeys(case for case, _ in least):
        times = (least.get((name, n)) for n in RANKS)
        print(f"{name:28}" + "".join("".rjust(12) if t is None else f"{t:10.3f} s" for t in times))
    for layout in PLAIN:
        one, two, four = (least[f"{layout} (mpi)", n] for n in RANKS)
        alone = least[f"{layout} (workers)", 1]
        print(f"{layout}: two ranks {one / two:.2f} times as fast as one, ", end="")
        print(f"four {two / four:.2f} times as fast as two, ", end="")
        print(f"one rank takes {one / alone:.2f} of the time without MPI")
    for n in RANKS:
        ratio = least["h5md gzip:1 (collective)", n] / least["zarr gzip:1 (mpi)", n]
        print(f"gzip, {n} rank(s): collective HDF5 takes {ratio:.2f} of the time of Zarr shards")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", metavar="SRC")
    parser.add_argument("--folder", default="bench-output/mpi", help="where outputs are written")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mpiexec", help="launcher of MPI programs, with options")
    args = parser.parse_args()
    folder = make_folder(Path(args.folder))
    print(f"{len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[0]:.1f}")
    records = []
    for record in measure(
        args.source, folder, wanted(), repeats=args.repeats, read=False, mpiexec=args.mpiexec
    ):
        records.append({**record, "load": os.getloadavg()[0]})
        append_jsonl(folder / "mpi_scaling.jsonl", [records[-1]])
    report(records)
    print(f"load average at the end {os.getloadavg()[0]:.1f}; {folder}/mpi_scaling.jsonl")


if __name__ == "__main__":
    main()
